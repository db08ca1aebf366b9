"""Send the spans of exchanges to a collector, as OTLP/HTTP in JSON.

The OpenTelemetry SDK times spans while they happen. These have happened already, on other hosts, so
only its wire format is of use, and the JSON form of that needs no library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.client import HTTPException
from itertools import islice
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from ..control import __version__
from ..control.errors import Invalid, Unavailable
from ..control.inquiry.spans import Span

_PATH = "/v1/traces"
_SPANS_MAX = 500  # in one request
_ANSWER_S_MAX = 10.0
_ANSWER_BYTES_MAX = 1 << 20
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_INTERNAL, _ERROR = 1, 2  # the kind of a span, and the code of its status


def send(endpoint: str, spans: Iterable[Span]) -> int:
    """Send spans to the collector at an endpoint such as `http://localhost:4318`, and return their
    number. Requests carry the headers that the variable OTEL_EXPORTER_OTLP_HEADERS names.

    Raises:
        Invalid: the endpoint is no URL, a header cannot be sent, or the collector refuses the
            spans.
        Unavailable: there is no answer.
    """
    url, headers = _url(endpoint), {"Content-Type": "application/json", **_headers()}
    remaining, sent = iter(spans), 0
    while part := list(islice(remaining, _SPANS_MAX)):
        request = Request(url, json.dumps(export_request(part)).encode(), headers)
        try:
            with urlopen(request, timeout=_ANSWER_S_MAX) as answer:
                if refused := _refused(answer.read(_ANSWER_BYTES_MAX)):
                    raise Invalid(f"the collector at {url} refuses {refused}")
                sent += len(part)
        except HTTPError as exc:
            answer = f"the collector at {url} answers {exc.code} {exc.reason}"
            raise (Unavailable if exc.code >= 500 else Invalid)(answer) from exc
        except (OSError, HTTPException) as exc:
            raise Unavailable(f"the collector at {url} does not answer: {exc}") from exc
        except ValueError:  # its text may quote a header, which may be a secret
            raise Invalid(f"{url} or a header of {_HEADERS} has an odd character") from None
    return sent


def _refused(answer: bytes) -> str:
    """Return the words of a collector that has answered with success and refused some spans."""
    try:
        partial = json.loads(answer)["partialSuccess"]
        rejected = int(partial["rejectedSpans"])
    except (ValueError, LookupError, TypeError):
        return ""
    return f"{rejected} spans, {partial.get('errorMessage')}" if rejected else ""


def _url(endpoint: str) -> str:
    with suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.netloc:
            return endpoint if parts.path.endswith(_PATH) else endpoint.rstrip("/") + _PATH
    raise Invalid(f"{endpoint!r} is no URL of a collector, such as http://localhost:4318")


def _headers() -> Mapping[str, str]:
    pairs = (pair.partition("=") for pair in os.environ.get(_HEADERS, "").split(",") if pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def export_request(spans: Iterable[Span]) -> Mapping[str, Any]:
    """Return an OTLP request to store spans."""
    service = {"service.name": "headgate", "service.version": __version__}
    scope = {"scope": {"name": "headgate"}, "spans": list(map(_span, spans))}
    return {
        "resourceSpans": [{"resource": {"attributes": _attributes(service)}, "scopeSpans": [scope]}]
    }


def _span(span: Span) -> Mapping[str, Any]:
    status = {"code": _ERROR, "message": span.error} if span.error else {}
    return {
        "traceId": span.trace,
        "spanId": span.id,
        "parentSpanId": span.parent,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanos(span.start_ms),
        "endTimeUnixNano": _nanos(span.end_ms),
        "attributes": _attributes(span.attributes),
        "events": [{"timeUnixNano": _nanos(at_ms), "name": name} for at_ms, name in span.marks],
        "status": status,
    }


def _nanos(at_ms: int) -> str:
    return str(at_ms * 1_000_000)


def _attributes(values: Mapping[str, str | int]) -> list[Mapping[str, Any]]:
    """Return attributes in the form of OTLP, where numbers of 64 bits are text."""
    return [
        {
            "key": name,
            "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
        }
        for name, value in values.items()
    ]

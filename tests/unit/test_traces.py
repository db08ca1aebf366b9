"""Exchanges as traces: their spans, and a collector that gets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headgate.control.errors import Invalid, Unavailable
from headgate.control.events import codec
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Consumable,
    Consumed,
    Deleted,
    Event,
    Lost,
    Produced,
    Recorded,
)
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.inquiry.spans import Span, spans
from headgate.infra import traces
from headgate.infra.cli import log_commands
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, PARTITIONS, RESULT, KeptLog, exchange, ran
from ..doubles.scripted_jobs import ScriptedJob, TimedLog

RESULT_OF_TWO = ResultId("r")
LATE = AttemptId(PartitionId(RESULT, 0), 1, 9)


def records(log: KeptLog) -> list[Recorded]:
    return log.follow(JOB).poll(500, 0)


def of_name(made: list[Span], name: str) -> list[Span]:
    return [span for span in made if span.name == name]


def state(log: KeptLog, *facts: Any) -> None:
    for number, fact in enumerate(facts):
        log.append(Event(f"more-{number}", JOB, "", 0, "t", None, fact))


def test_an_exchange_is_one_trace(log: KeptLog, objects: Objects) -> None:
    """The spans of an exchange stand one in another, with the id that its records carry."""
    exchange(log, objects, close=False)
    state(log, Consumed(RESULT, 0, 4, 1, 300, 1_000, 5), AttemptStarted(LATE, "host-9"))
    state(log, AttemptFailed(LATE, "out of memory"))
    exchange(log, objects, close=True)
    (made,) = spans(records(log))
    by_id = {span.id: span for span in made}
    assert len(by_id) == len(made)
    first = next(r.event for r in records(log) if codec.trace_id(r.event) == made[0].trace)
    assert {made[0].trace} == {span.trace for span in made}
    assert "ResultRegistered" == first.kind
    (whole,) = [span for span in made if not span.parent]
    assert f"exchange {RESULT} repartition" == whole.name
    for span in made:
        outside = by_id.get(span.parent, whole)
        assert outside.start_ms <= span.start_ms <= span.end_ms <= whole.end_ms
    tasks = [span for span in made if span.name.startswith("task ")]
    decisions = of_name(made, "decide")
    (stage,) = of_name(made, "map stage")
    parents = [span.parent for span in tasks]
    assert PARTITIONS == parents.count(stage.id) == len(tasks) - parents.count(whole.id)
    assert {span.id for span in tasks} >= {span.parent for span in decisions}
    assert PARTITIONS <= len(decisions) < len(tasks)
    assert ["out of memory"] == [span.error for span in made if span.error]
    (read,) = of_name(made, "read")
    assert (300, 5) == (read.attributes["headgate.rows"], read.attributes["headgate.gets"])
    assert ["read 0..3: 300 rows"] == [name for _, name in read.marks]
    assert 1 == len(of_name(made, "delete"))


def test_a_lost_partition_is_made_again(log: KeptLog, objects: Objects) -> None:
    """An order to make partitions again is a span up to their being whole, and the tasks of the
    repair are not part of the map stage."""
    exchange(log, objects, close=False)
    bodies = [recorded.event.body for recorded in records(log)]
    first, *_ = [body.attempt for body in bodies if isinstance(body, Consumable)]
    state(log, Lost(first, "object", "404 twice"))
    exchange(log, objects, close=False)
    (made,) = spans(records(log))
    (again,) = of_name(made, "made again")
    assert 1 == again.attributes["headgate.partitions"]
    assert again.parent == made[0].id


def test_what_has_not_ended_is_shown(log: KeptLog, objects: Objects) -> None:
    """The exchanges that go on come last, and a log without the registration has no trace."""
    exchange(log, objects, close=False)
    (made,) = spans(records(log))
    assert not of_name(made, "delete") + of_name(made, "read")
    exchange(log, objects, close=True)
    left = iter([*records(log), *records(log)[:2]])
    assert of_name(next(spans(left)), "delete")
    assert len(list(left)) >= 2
    later = [r for r in records(log) if r.event.kind != "ResultRegistered"]
    assert [] == list(spans(later))


def test_an_exchange_ends_when_all_of_its_objects_are_gone(timed: TimedLog) -> None:
    """The deletion of a wide result takes several events, and an attempt that was superseded may be
    deleted after the release. A result that has no objects ends with its release."""
    job = ScriptedJob(timed, "j")
    for name, parts in (("r", [0, 1]), ("empty", [])):
        job.register(name, 2, 1, "x")
        job.write_all(name, parts)
        job.release(name)
    stated = [it.event.body for it in timed.follow(job.job).poll(500, 0)]
    (first, second) = [body.attempt for body in stated if isinstance(body, Produced)]
    made = spans(iter(timed.follow(job.job).poll(500, 0)))
    assert "exchange empty x" == next(made)[0].name
    job.state(Deleted(RESULT_OF_TWO, (first,), 1))
    job.state(Deleted(RESULT_OF_TWO, (second,), 1), after_ms=7_000)
    _, whole = spans(timed.follow(job.job).poll(500, 0))
    (delete,) = of_name(whole, "delete")
    assert job.now_ms == delete.end_ms == whole[0].end_ms


@contextmanager
def collector(
    status: int = 200, says: bytes = b""
) -> Iterator[tuple[str, list[tuple[str, Any, Mapping[str, str]]]]]:
    """Run a collector on this machine, and keep what it gets: path, body and headers."""
    requests: list[tuple[str, Any, Mapping[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, body, dict(self.headers)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(says)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_a_collector_gets_the_spans(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headgate traces --to` sends what `--json` prints, with the headers of the environment."""
    exchange(log, objects, close=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, tenant=c")
    with collector() as (endpoint, requests):
        code, lines, _ = ran("traces", "--job", JOB, "--to", endpoint, "--json")
    ((path, body, headers),) = requests
    (resource,) = body["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    printed = list(map(json.loads, lines))
    assert (0, "/v1/traces") == (code, path)
    assert ("a b", "c") == (headers["Api-Key"], headers["Tenant"])
    assert [span["id"] for span in printed] == [span["spanId"] for span in scope["spans"]]
    for span, stored in zip(printed, scope["spans"], strict=True):
        assert str(span["start_ms"] * 1_000_000) == stored["startTimeUnixNano"]
        assert span["parent"] == stored["parentSpanId"]
    text = ran("traces", "--job", JOB)[1]
    assert len(text) == len(printed)
    assert f"exchange {RESULT}" in text[0]


def test_the_indexes_of_segments_are_left_out(
    log: KeptLog, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange is kept in memory until it ends, without the indexes of its segments."""
    exchange(log, objects, close=True)
    kept = list[Recorded]()

    def watched(records: Iterable[Recorded]) -> Iterator[list[Span]]:
        kept.extend(records)
        return spans(kept)

    monkeypatch.setattr(log_commands, "spans", watched)
    assert 0 == ran("traces", "--job", JOB)[0]
    produced = [it.event.body for it in kept if isinstance(it.event.body, Produced)]
    assert PARTITIONS == len(produced)
    assert {b""} == {segment.index for body in produced for segment in body.segments}


@pytest.mark.parametrize(("status", "error"), [(400, Invalid), (401, Invalid), (503, Unavailable)])
def test_a_collector_that_refuses(status: int, error: type[Exception]) -> None:
    span = Span("0" * 32, "0" * 16, "", "exchange", 1, 2, {})
    with collector(status) as (endpoint, _), pytest.raises(error, match=f"answers {status}"):
        traces.send(endpoint, [span])


@pytest.mark.slow
def test_a_collector_that_takes_a_part() -> None:
    """Spans that a collector drops are an error, though it answers with success. An answer that
    says nothing of that, or is no JSON, is one of success."""
    span = Span("0" * 32, "0" * 16, "", "exchange", 1, 2, {})
    says = b'{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}'
    with collector(says=says) as (endpoint, _), pytest.raises(Invalid, match="1 spans, too old"):
        traces.send(endpoint, [span])
    warning = b'{"partialSuccess": {"rejectedSpans": "0", "errorMessage": "slow down"}}'
    for says in (warning, b'{"partialSuccess": {}}', b"{}", b"[1]", b"\xff", b""):
        with collector(says=says) as (endpoint, _):
            assert 1 == traces.send(endpoint, [span])


def test_a_collector_that_is_not_there() -> None:
    span = Span("0" * 32, "0" * 16, "", "exchange", 1, 2, {})
    with pytest.raises(Invalid, match="no URL of a collector"):
        traces.send("localhost:4318", [span])
    with pytest.raises(Invalid, match="no URL of a collector"):
        traces.send("http://[::1", [span])
    with pytest.raises(Unavailable, match="does not answer"):
        traces.send("http://127.0.0.1:9", [span])


@pytest.mark.parametrize("headers", ["key=secret%0a", "=secret", "key=secret%ff"])
def test_a_header_that_cannot_be_sent(headers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that HTTP cannot carry is an error of one line, which does not repeat its value."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    span = Span("0" * 32, "0" * 16, "", "exchange", 1, 2, {})
    with collector() as (endpoint, _), pytest.raises(Invalid, match="OTLP_HEADERS") as error:
        traces.send(endpoint, [span])
    assert "secret" not in str(error.value)


def test_many_spans_go_in_several_requests() -> None:
    span = Span("0" * 32, "0" * 16, "", "exchange", 1, 2, {"n": 1}, "why")
    with collector() as (endpoint, requests):
        assert 1_201 == traces.send(f"{endpoint}/v1/traces", [span] * 1_201)
    sizes = [len(body["resourceSpans"][0]["scopeSpans"][0]["spans"]) for _, body, _ in requests]
    assert [500, 500, 201] == sizes
    assert {"/v1/traces"} == {path for path, _, _ in requests}

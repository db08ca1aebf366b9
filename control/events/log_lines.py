"""A line in this process's own log for each event of the jobs that it follows or decides for.

The logger is `headgate.events`. Events of importance are INFO: those of drivers, of whole results,
and of losses, failures and repairs. All others are DEBUG. The names in an event are fields of the
log record, too.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from ..ids import is_name
from . import types as ev
from .traits import Importance, attempt_of, result_of, traits_of

_LOG = logging.getLogger("headgate.events")
_PARTITIONS_SHOWN = 10


def write_line(recorded: ev.Recorded) -> None:
    importance = traits_of(recorded.event.body).importance
    level = logging.DEBUG if importance is Importance.PART else logging.INFO
    if _LOG.isEnabledFor(level):
        fields = _fields(recorded)
        given = ((name, value) for name, value in fields.items() if value is not None)
        _LOG.log(level, " ".join(f"{name}={value}" for name, value in given), extra=fields)


def _fields(recorded: ev.Recorded) -> dict[str, Any]:
    """Return all fields; those that the event does not have are None."""
    event = recorded.event
    body = event.body
    attempt = attempt_of(body)
    partition: object = None if attempt is None else attempt.partition.index
    if isinstance(body, ev.Reproduce):
        partition = ",".join(map(str, body.partitions[:_PARTITIONS_SHOWN]))
    reason = getattr(body, "evidence", None) or getattr(body, "reason", None)
    return {
        "event": event.kind,
        "job": event.job,
        "result": _word(result_of(body)),
        "partition": partition,
        "attempt": None if attempt is None else f"{attempt.epoch}-{attempt.task}",
        "host": _word(getattr(body, "host", None)),
        "reason": None if reason is None else json.dumps(reason),
        "offset": recorded.offset,
        "by": json.dumps(event.by),
    }


def _word(text: str | None) -> str | None:
    """Return a name as it is, and any other text quoted: anybody can write it into the log."""
    return text if text is None or is_name(text) else json.dumps(text)

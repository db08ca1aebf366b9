"""Each exchange as a trace: the spans of its map stage, its tasks, its decisions and its readers.

Pure: from the records of a job, in their order. Times are those of the log, so that the clocks of
hosts do not matter. Ids follow from the names of job, result and attempt: two readers of the same
records make the same spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from ..events import types as ev
from ..events.codec import trace_id
from ..events.traits import attempt_of, result_of
from ..ids import AttemptId, ResultId, exchange_name

_MARKS_MAX = 128  # by the OpenTelemetry specification, readers may drop more
_Value = str | int


@dataclass(frozen=True, slots=True)
class Span:
    """One part of an exchange, with its begin and end in milliseconds since 1970."""

    trace: str
    """The id of the exchange: 32 hex digits, which the headers of its records have too."""
    id: str
    parent: str
    """The id of the span that contains this one; empty for the exchange."""
    name: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, _Value]
    error: str = ""
    """The reason for which it failed; empty if it did not."""
    marks: tuple[tuple[int, str], ...] = ()
    """The moments inside that have no length, each with its time."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The records of one result, from its registration on."""

    registered: ev.ResultRegistered
    records: list[ev.Recorded]
    gone: set[AttemptId]
    """The attempts whose objects are deleted."""

    @property
    def has_ended(self) -> bool:
        """Return True if the result is released, and all objects that this ordered to go are."""
        orders = [it.event.body for it in self.records if isinstance(it.event.body, ev.Released)]
        return bool(orders) and all(self.gone.issuperset(order.attempts) for order in orders)

    @property
    def trace(self) -> str:
        return trace_id(self.records[0].event)

    def spans(self) -> Iterator[Span]:
        first, last, it = self.records[0], self.records[-1], self.registered
        attributes: dict[str, _Value] = {
            "headgate.job": first.event.job,
            "headgate.result": it.result,
            "headgate.partitions": it.partitions,
            "headgate.subpartitions": it.subpartitions,
        }
        name = f"exchange {exchange_name(it.result, it.label)}"
        exchange = self._span("", "", name, first, last, attributes)
        whole = next((it for it in self.records if _is(it, ev.ResultComplete)), None)
        yield exchange
        stage = self._span("stage", exchange.id, "map stage", first, whole or self._last_attempt())
        yield stage
        yield from self._tasks(exchange.id, stage.id, whole)
        if whole is not None:
            yield from self._reads(exchange.id, whole)
        yield from self._orders(exchange.id)
        yield from self._deletion(exchange.id)

    def _span(
        self,
        key: str,
        parent: str,
        name: str,
        start: ev.Recorded,
        end: ev.Recorded,
        attributes: Mapping[str, _Value] | None = None,
        error: str = "",
        marks: tuple[tuple[int, str], ...] = (),
    ) -> Span:
        digest = blake2b(f"{self.trace}/{key}".encode(), digest_size=8).hexdigest()
        begin_ms = _time(start)
        ends = begin_ms, max(begin_ms, _time(end))
        return Span(self.trace, digest, parent, name, *ends, attributes or {}, error, marks)

    def _last_attempt(self) -> ev.Recorded:
        ends = (it for it in reversed(self.records) if attempt_of(it.event.body) is not None)
        return next(ends, self.records[-1])

    def _tasks(self, exchange: str, stage: str, whole: ev.Recorded | None) -> Iterator[Span]:
        """Yield a span for each attempt, and inside it one for the decision on what it produced.
        A task of a repair is not part of the map stage."""
        of_attempt: dict[AttemptId, list[ev.Recorded]] = {}
        for recorded in self.records:
            if (attempt := attempt_of(recorded.event.body)) is not None:
                of_attempt.setdefault(attempt, []).append(recorded)
        for attempt, own in of_attempt.items():
            end = next((it for it in own if _is(it, ev.Produced, ev.AttemptFailed)), own[-1])
            attributes: dict[str, _Value] = {"headgate.attempt": str(attempt)}
            is_first = whole is None or own[0].offset < whole.offset
            error, parent = "", stage if is_first else exchange
            for body in (it.event.body for it in own):
                if isinstance(body, ev.AttemptStarted):
                    attributes["host.name"] = body.host
                elif isinstance(body, ev.Produced):
                    written = {"rows": body.rows, "bytes": body.size_bytes}
                    attributes |= {f"headgate.{name}": number for name, number in written.items()}
                elif isinstance(body, ev.AttemptFailed):
                    error = body.reason
            key, name = f"task/{attempt}", f"task {attempt.partition.index}"
            task = self._span(key, parent, name, own[0], end, attributes, error)
            yield task
            judged = next((it for it in own if _is(it, ev.Consumable, ev.Superseded)), None)
            if judged is not None and _is(end, ev.Produced):
                why = getattr(judged.event.body, "reason", "")
                outcome = {"headgate.decision": judged.event.kind} | (
                    {"reason": why} if why else {}
                )
                yield self._span(f"decide/{attempt}", task.id, "decide", end, judged, outcome)

    def _reads(self, exchange: str, whole: ev.Recorded) -> Iterator[Span]:
        """Yield one span for all readers. The log knows when a reader has ended, not its begin."""
        reads = [(it, it.event.body) for it in self.records]
        ended = [(it, body) for it, body in reads if isinstance(body, ev.Consumed)]
        if not ended:
            return
        attributes = {
            "headgate.readers": len(ended),
            "headgate.rows": sum(body.rows for _, body in ended),
            "headgate.bytes": sum(body.read_bytes for _, body in ended),
            "headgate.gets": sum(body.requests for _, body in ended),
        }
        marks = tuple(
            (_time(it), f"read {body.first}..{body.first + body.count - 1}: {body.rows} rows")
            for it, body in ended[:_MARKS_MAX]
        )
        yield self._span("read", exchange, "read", whole, ended[-1][0], attributes, marks=marks)

    def _orders(self, exchange: str) -> Iterator[Span]:
        """Yield a span for each order to make partitions again, up to their being whole."""
        for at, recorded in enumerate(self.records):
            body = recorded.event.body
            if isinstance(body, ev.Reproduce):
                later = self.records[at:]
                end = next((it for it in later if _is(it, ev.ResultComplete)), later[-1])
                again: dict[str, _Value] = {
                    "headgate.partitions": len(body.partitions),
                    "reason": body.reason,
                }
                key = f"again/{recorded.offset}"
                yield self._span(key, exchange, "made again", recorded, end, again)

    def _deletion(self, exchange: str) -> Iterator[Span]:
        ordered = next((it for it in self.records if _is(it, ev.Released)), None)
        if ordered is not None:
            reason = {"reason": str(getattr(ordered.event.body, "reason", ""))}
            yield self._span("delete", exchange, "delete", ordered, self.records[-1], reason)


def spans(records: Iterable[ev.Recorded]) -> Iterator[list[Span]]:
    """Yield the spans of each exchange that is in the records of one job: those that have ended,
    when their objects are gone, and then the others. An exchange whose registration the log no
    longer has is left out."""
    exchanges: dict[ResultId, _Exchange] = {}
    for recorded in records:
        body, result = recorded.event.body, result_of(recorded.event.body)
        if isinstance(body, ev.ResultRegistered):
            exchanges.setdefault(body.result, _Exchange(body, [], set()))
        if result is None or result not in exchanges:
            continue
        exchange = exchanges[result]
        exchange.records.append(recorded)
        if isinstance(body, ev.Deleted):
            exchange.gone.update(body.attempts)
        if isinstance(body, ev.Released | ev.Deleted) and exchange.has_ended:
            yield list(exchanges.pop(result).spans())
    for exchange in exchanges.values():
        yield list(exchange.spans())


def _is(recorded: ev.Recorded, *kinds: type[ev.Body]) -> bool:
    return isinstance(recorded.event.body, kinds)


def _time(recorded: ev.Recorded) -> int:
    return recorded.at_ms or recorded.event.time_ms

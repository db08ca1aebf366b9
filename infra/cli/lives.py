"""The lives of partitions as a table: when each was written, could be read, and was deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ...control.events import types as ev
from ...control.events.traits import attempt_of
from ...control.ids import AttemptId, PartitionId, ResultId
from .views import table

_LIVES_SHOWN = 12
_BAR_CELLS = 18
_STEPS = ("AttemptStarted", "Consumable", "Released", "Deleted")
Times: TypeAlias = Mapping[tuple[str, AttemptId | ResultId | None], int]
_PHASES = (" ", "░", "█", "▒", " ")


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one partition, as far as the log tells."""

    partition: PartitionId
    attempt: AttemptId | None
    """The winner, or else the attempt that was started last."""
    produced: ev.Produced | None
    """The event with which `attempt` announced its output."""
    times: Mapping[str, int]
    """The time of the first event of each kind, in milliseconds."""

    def phase(self, at_ms: float) -> int:
        """Return how many steps of its life the partition had taken."""
        return sum(step in self.times and self.times[step] <= at_ms for step in _STEPS)


@dataclass(frozen=True, slots=True)
class ResultLives:
    registered: ev.ResultRegistered
    partitions: tuple[Life, ...]
    consumed: int
    """The number of subpartitions that were read."""


def lives(records: Sequence[ev.Recorded]) -> tuple[ResultLives, ...]:
    """Return the life of every partition that a job registered."""
    bodies = [recorded.event.body for recorded in records]
    times = event_times(records)
    produced = {body.attempt: body for body in bodies if isinstance(body, ev.Produced)}
    started = {b.attempt.partition: b.attempt for b in bodies if isinstance(b, ev.AttemptStarted)}
    won = {b.attempt.partition: b.attempt for b in bodies if isinstance(b, ev.Consumable)}
    shown = started | won
    read: defaultdict[ResultId, set[int]] = defaultdict(set)
    for body in bodies:
        if isinstance(body, ev.Consumed):
            read[body.result].update(range(body.first, body.first + body.count))

    def life(partition: PartitionId) -> Life:
        attempt = shown.get(partition)
        subjects: tuple[AttemptId | ResultId | None, ...] = (attempt, partition.result)
        kinds = (*_STEPS, "Produced")
        own_times = {k: times[k, s] for k in kinds for s in subjects if (k, s) in times}
        return Life(partition, attempt, produced.get(attempt) if attempt else None, own_times)

    def result(registered: ev.ResultRegistered) -> ResultLives:
        name = registered.result
        partitions = (PartitionId(name, index) for index in range(registered.partitions))
        return ResultLives(registered, tuple(map(life, partitions)), len(read[name]))

    registered = {body.result: body for body in bodies if isinstance(body, ev.ResultRegistered)}
    return tuple(map(result, registered.values()))


def event_times(records: Iterable[ev.Recorded]) -> Times:
    """Return the time of the first event of each kind about an attempt, or a result's release."""
    times: dict[tuple[str, AttemptId | ResultId | None], int] = {}
    for event in (recorded.event for recorded in records):
        subjects: Iterable[AttemptId | ResultId]
        match event.body:
            case ev.Deleted() | ev.TrackingStopped():
                subjects = event.body.attempts
            case ev.Released():
                subjects = (event.body.result,)
            case _:
                attempt = attempt_of(event.body)
                subjects = () if attempt is None else (attempt,)
        for subject in subjects:
            times.setdefault((event.kind, subject), event.time_ms)
    return times


def timeline(records: Sequence[ev.Recorded], shown: int = _LIVES_SHOWN) -> Table:
    """Return a row for each partition, up to `shown` per result; seconds from the first event."""
    times = [r.event.time_ms for r in records] or [0]
    first, last = min(times), max(times)
    numbers = ("rows", "bytes", "produced", "consumable", "consumed", "released", "deleted")
    rows = table(("partition", "attempt"), numbers, "")
    rows.add_column("life", no_wrap=True, min_width=_BAR_CELLS)
    began = min((r.event.time_ms for r in records if r.event.kind == _STEPS[0]), default=first)
    for result in lives(records):
        for life in result.partitions[:shown]:
            attempt = f"{life.attempt.epoch}-{life.attempt.task}" if life.attempt else "-"
            cells = _cells([life], result, first, "-")
            rows.add_row(str(life.partition), attempt, *cells, _bar(life, began, last))
        rest = result.partitions[shown:]
        if rest:
            cells = _cells(rest, result, first)
            rows.add_row(f"and {len(rest)}", "", *cells, style="dim")
        rows.add_section()
    return rows


def _cells(lives: Sequence[Life], result: ResultLives, first: int, none: str = "") -> list[str]:
    """Sum up partitions: their rows, their bytes, and the latest times. Show `none` for what they
    lack; without it, zeros, and how many partitions have come so far."""
    produced = [life.produced for life in lives if life.produced is not None]
    rows, size_bytes = sum(it.rows for it in produced), sum(it.size_bytes for it in produced)
    cells = [none, none] if none and not produced else [f"{rows:,}", decimal(size_bytes)]
    for kind in ("Produced", "Consumable", "Released", "Deleted"):
        if kind == "Released":
            cells.append(f"{result.consumed} of {result.registered.subpartitions}")
        times = [life.times[kind] for life in lives if kind in life.times]
        if len(times) == len(lives):
            cells.append(f"{(max(times) - first) / 1000:.3f}")
        else:
            cells.append(none or f"{len(times)} of {len(lives)}")
    return cells


def _bar(life: Life, first: int, last: int) -> Text:
    step = max(1, last - first) / _BAR_CELLS
    edges = [life.phase(first + cell * step) for cell in range(_BAR_CELLS + 1)]
    # The start of a life is shown, however short it is.
    cells = (begin or min(end, 1) for begin, end in pairwise(edges))
    return Text("".join(_PHASES[cell] for cell in cells), "green")


def legend() -> Text:
    """Explain the columns and the bars of a timeline."""
    marks = "life: ░ being written  █ consumable  ▒ released, not yet deleted"
    return Text(f"seconds since the job began; {marks}", "dim")

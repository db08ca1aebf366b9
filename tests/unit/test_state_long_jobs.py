"""A job of very many exchanges: its state stays small, and its sums stay right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headgate.control.events import traits
from headgate.control.events.types import (
    AttemptStarted,
    Consumed,
    Decision,
    Deleted,
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    Released,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
    Superseded,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model import apply
from headgate.control.model.decide import step
from headgate.control.model.replay import Snapshot
from headgate.control.model.state import JobState
from headgate.control.snapshots import records as snapshots
from headgate.control.snapshots.records import Standing

from ..doubles.jobs import audited, state_facts
from ..doubles.storages import stored

pytestmark = pytest.mark.usefixtures("no_thread_stays")

JOB = JobId("long")
REMEMBERED = apply._GONE_MAX


def exchange(number: int) -> Iterator[Fact]:
    """Yield all facts of one exchange, up to its release."""
    name = ResultId(f"1-{number:04d}")
    yield ResultRegistered(name, 2, 4, '{"fields": []}' * 20, "repartition")
    yield PartitionRegistered(name, 0, 2)
    for index in range(2):
        yield Produced(attempt(number, index), (SegmentSummary(0, 100, 10, 1, b"index"),))
    yield Consumed(name, 0, 4, 1, 20, 200, 4)
    yield ReleaseRequested(name, "asked for")


def attempt(number: int, index: int, task: int = 1) -> AttemptId:
    return AttemptId(PartitionId(ResultId(f"1-{number:04d}"), index), 1, task)


def said(state: JobState, fact: Fact) -> tuple[JobState, tuple[Decision, ...]]:
    """Return the state after a fact and after the deletions that follow from it, and the
    decisions."""
    state, decisions = step(state, fact)
    for decision in decisions:
        if isinstance(decision, Released):
            gone = Deleted(decision.result, decision.attempts, len(decision.attempts))
            state, _ = step(state, gone)
    return state, decisions


def run(exchanges: int, start: int = 0, state: JobState | None = None) -> JobState:
    state = state or step(JobState(JOB), JobRegistered("per-job", "0", "tests"))[0]
    for number in range(start, start + exchanges):
        for fact in exchange(number):
            state, _ = said(state, fact)
    return state


def test_old_results_are_a_sum() -> None:
    """A job keeps its last results one by one, and older results only as sums."""
    state = run(REMEMBERED + 700)
    assert REMEMBERED == len(state.results) == len(state.gone)
    assert (700, 1_400) == (state.forgotten.results, state.forgotten.deleted)
    assert 700 * 20 == state.forgotten.written.rows == state.forgotten.reads.rows
    (newest,) = {r.totals.written for r in state.results.values()}
    assert (2, 20, 200) == (newest.partitions, newest.rows, newest.stored_bytes)
    (reads,) = {r.totals.reads for r in state.results.values()}
    assert (4, 4) == (reads.requests, reads.subpartitions)


def test_what_stands_in_the_log_stays_small() -> None:
    """A snapshot does not grow with the number of exchanges, and can be read back."""
    sizes = []
    for exchanges in (REMEMBERED, 2 * REMEMBERED):
        state = run(exchanges)
        records, _ = snapshots.write(Snapshot(state, (), 9, 1), Standing())
        stored = {record.key: record.body for record in records if record.body is not None}
        assert state == snapshots.read(JOB, stored)[0].state
        sizes.append(sum(map(len, stored.values())))
    assert sizes[1] < 1.05 * sizes[0] < 4_200 * REMEMBERED


def test_no_sum_is_too_large_for_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of written, read and deleted data stop at the largest number of 64 bits, which a
    snapshot can hold, also when forgotten results are added up."""
    monkeypatch.setattr(apply, "_GONE_MAX", 1)
    most, times = traits.COUNT_MAX, 200
    assert most * times >= 2**63
    state = step(JobState(JOB), JobRegistered("per-job", "0", "tests"))[0]
    for number in range(3):
        opening, accepted, produced = list(exchange(number))[:3]
        assert isinstance(produced, Produced)
        segments = tuple(SegmentSummary(n, most, most, 1, b"") for n in range(times))
        read = [Consumed(produced.attempt.partition.result, 0, 4, 1, most, most, most)] * times
        late = [replace(produced, attempt=attempt(number, 0, task)) for task in range(2, times)]
        facts = [opening, accepted, replace(produced, segments=segments), *late, *read]
        for fact in facts:
            state = step(state, fact)[0]
        for loser in late:
            state = step(state, Deleted(loser.attempt.partition.result, (loser.attempt,), most))[0]
        state = said(state, list(exchange(number))[-1])[0]
    snapshot = Snapshot(state, (), 9, 1)
    records, _ = snapshots.write(snapshot, Standing())
    kept = {record.key: record.body for record in records if record.body is not None}
    assert snapshot == snapshots.read(JOB, kept)[0]
    largest = 2**63 - 1
    sums = state.forgotten
    assert (largest, largest) == (sums.written.rows, sums.written.stored_bytes)
    assert (largest, largest, largest) == (sums.reads.rows, sums.reads.requests, sums.deleted)


def test_who_comes_late_writes_nothing_that_stays() -> None:
    """A late attempt at a deleted result is superseded, and its objects are deleted before the
    result is forgotten."""
    state = run(3)
    late = attempt(0, 0, 7)
    for fact in (AttemptStarted(late, "host"), Produced(late, ())):
        state, decisions = step(state, fact)
        assert (Superseded(late, "the result is released"),) == decisions or not decisions
        assert (late,) == state.results[late.partition.result].doomed
    state = run(REMEMBERED + 5, 3, state)
    assert (late,) == state.results[late.partition.result].doomed
    state, _ = step(state, Deleted(late.partition.result, (late,), 1))
    assert late.partition.result == state.gone[-1]
    state = run(REMEMBERED, 2 * REMEMBERED, state)
    assert late.partition.result not in state.results
    assert (REMEMBERED + 8) * 2 + 1 == state.forgotten.deleted


def test_an_epoch_goes_on_with_what_is_forgotten() -> None:
    """The next driver of the job has the same sums and the same deleted results."""
    state = run(REMEMBERED + 10)
    later, _ = step(state, JobRegistered("per-job", "0", "tests"))
    assert (2, state.gone, state.forgotten) == (later.epoch, later.gone, later.forgotten)


@pytest.mark.parametrize("released", [True, False])
def test_what_is_promoted_or_unused_is_not_forgotten(released: bool) -> None:
    """A result is not forgotten before it is released and its objects are deleted."""
    state = step(JobState(JOB), JobRegistered("per-job", "0", "tests"))[0]
    for fact in list(exchange(0))[: None if released else -1]:
        state, _ = step(state, fact)  # without the deletion of its objects
    state = run(REMEMBERED + 10, 1, state)
    result = state.results[ResultId("1-0000")]
    assert 2 == len(result.production.attempts)
    assert released is (result.fate.released is not None)


def test_a_long_job_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job can be closed when it has more results than it remembers, even results without
    objects."""
    monkeypatch.setattr(apply, "_GONE_MAX", 5)
    log = MemoryEventLog()
    driver = stored(log, 12)
    for number in range(8):
        state_facts(log, ResultRegistered(ResultId(f"bare{number}"), 1, 1, "", ""))
    driver.unregister_job()
    state = audited(log).state
    assert (5, 15) == (len(state.gone), state.forgotten.results)


def test_a_late_reader_is_not_counted_twice() -> None:
    """A reader that ends after the release adds its rows, and no subpartition that was already
    counted."""
    state = run(1)
    late = Consumed(ResultId("1-0000"), 0, 4, 9, 20, 200, 4)
    reads = step(state, late)[0].results[ResultId("1-0000")].totals.reads
    assert (40, 4) == (reads.rows, reads.subpartitions)

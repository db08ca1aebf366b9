"""A snapshot that is too large for one transaction is written in several, and used only when it is
whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import MasterSettings, ShuffleDescriptor
from headgate.control.errors import Invalid
from headgate.control.events.types import (
    Consumed,
    Fact,
    JobUnregistered,
    PartitionRegistered,
    Produced,
    PromoteRequested,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog
from headgate.control.memory.partitions import MemoryTransactions
from headgate.control.model.replay import Snapshot
from headgate.control.snapshots import records
from headgate.control.snapshots.resume import read_snapshots

from ..doubles.group_snapshots import LIFE as GROUP_LIFE
from ..doubles.group_snapshots import OFTEN as GROUP_OFTEN
from ..doubles.group_snapshots import live as live_in_group
from ..doubles.group_snapshots import state_of
from ..doubles.groups import JOBS, OPENING, joined
from ..doubles.groups import Storage as GroupStorage
from ..doubles.groups import audited as audited_in_group
from ..doubles.groups import drive as drive_group
from ..doubles.groups import state_facts as state_facts_of
from ..doubles.jobs import (
    JOB,
    REGISTERED,
    RESULT,
    SETTINGS,
    Job,
    OrderedStorage,
    audited,
    produced,
    state_facts,
)
from ..doubles.snapshots import HOURLY, LIFE, OFTEN, last_state, opened, position
from ..doubles.steps import StoppedClock, drive

pytestmark = pytest.mark.usefixtures("no_thread_stays")

STEP_BYTES = 9_000  # two results of these tests
SLOW_BYTES = 2 << 20  # what a slow broker takes within the time of a transaction
OTHERS = tuple(ResultId(f"r{number}") for number in range(2, 8))


def life(result: ResultId, task: int) -> tuple[Fact, ...]:
    """Return the facts of a result with one partition."""
    segment = SegmentSummary(0, 9, 1, 0, bytes(100))
    return (
        ResultRegistered(result, 1, 1, "", ""),
        PartitionRegistered(result, 0, 1),
        Produced(AttemptId(PartitionId(result, 0), 1, task), (segment,)),
    )


WIDE = (*LIFE, *(fact for number, name in enumerate(OTHERS) for fact in life(name, 100 + number)))
LATE = (
    Consumed(OTHERS[0], 0, 1, 1, 1, 1, 1),
    ReleaseRequested(OTHERS[1], "asked"),
    Consumed(OTHERS[2], 0, 1, 1, 1, 1, 1),
    Consumed(OTHERS[5], 0, 1, 1, 1, 1, 1),
)

ALL_CHANGE = tuple(Consumed(name, 0, 1, number, 1, 1, 1) for number, name in enumerate(OTHERS))


def in_steps(settings: MasterSettings) -> MasterSettings:
    return replace(settings, snapshot_step_bytes=STEP_BYTES)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the bytes of state records that each transaction writes."""
    commit, sizes = MemoryTransactions._commit, list[int]()

    def counted(self: MemoryTransactions) -> None:
        if kept := [record for record in self._kept if record.body is not None]:
            sizes.append(sum(len(record.body or b"") for record in kept))
        commit(self)

    monkeypatch.setattr(MemoryTransactions, "_commit", counted)
    return sizes


def lived(log: MemoryEventLog, facts: Sequence[Fact], settings: MasterSettings) -> int:
    """Run a master while the facts are published, and return its number of steps."""
    with closing(opened(log, settings)) as steps:
        state_facts(log, *facts, by=f"life {position(log)}")
        return sum(len(drive(steps, log, OrderedStorage(log))) for _ in range(3))


def test_a_large_snapshot_is_written_in_steps(sizes: list[int]) -> None:
    """No transaction carries much more than its limit; a master that starts at the snapshot has the
    state of one that reads everything."""
    log = MemoryEventLog(1)
    lived(log, WIDE, in_steps(HOURLY))
    lived(log, LATE, in_steps(OFTEN))
    assert max(sizes) < 3 * STEP_BYTES < sum(sizes) / 2
    whole = audited(log).state
    log.expire(JOB, position(log))
    with closing(opened(log)) as steps:
        assert whole == last_state(drive(steps, log, OrderedStorage(log)))


def test_a_slow_broker_takes_each_step_of_a_large_snapshot(sizes: list[int]) -> None:
    """With the limits that masters have, no transaction carries more than a slow broker takes
    before it ends the transaction."""
    log, index = MemoryEventLog(1), bytes(400 << 10)
    wide = [
        Produced(AttemptId(PartitionId(RESULT, at), 1, at), (SegmentSummary(0, 9, 1, 0, index),))
        for at in range(8)
    ]
    opening = (ResultRegistered(RESULT, 8, 1, "", ""), PartitionRegistered(RESULT, 0, 8))
    lived(log, (REGISTERED, *opening, *wide), MasterSettings())
    lived(log, (), MasterSettings())
    assert sum(sizes) > 8 * len(index)
    assert max(sizes) < SLOW_BYTES


def test_a_slow_broker_takes_the_snapshots_of_many_jobs(sizes: list[int]) -> None:
    """Nor does a transaction with the snapshots of many jobs carry more."""
    clock, log = StoppedClock(), MemoryEventLog(1)
    me, schema = MasterIdentity("one", "master", clock, ""), "s" * (9 << 10)
    with closing(GroupSteps(log, me, MasterSettings())) as steps:
        for job in [JobId(f"job-{number}") for number in range(300)]:
            registered = ResultRegistered(RESULT, 2, 3, schema, "")
            state_facts_of(log, job, OPENING[0], registered)
        drive_group(log, GroupStorage(), steps)
        sizes.clear()
        clock.at_ms += MasterSettings().snapshot_ms
        steps.look()
        drive_group(log, GroupStorage(), steps)
    assert sum(sizes) > 300 * len(schema)
    assert max(sizes) < SLOW_BYTES


@pytest.mark.parametrize("committed", range(5))
def test_a_half_written_snapshot_is_not_taken_for_whole(
    committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master dies before any of the steps of its snapshots. The next one starts at a whole
    snapshot although the log has forgotten the events before it, and its own snapshot leaves no
    record that does not count."""
    log = MemoryEventLog(1)
    lived(log, WIDE, in_steps(HOURLY))
    lived(log, (), in_steps(HOURLY))
    log.expire(JOB, position(log))
    commit, left = MemoryTransactions._commit, [committed]

    def until(self: MemoryTransactions) -> None:
        if self._kept:
            left[0] -= 1
            if left[0] < 0:
                raise InterruptedError("injected")
        commit(self)

    monkeypatch.setattr(MemoryTransactions, "_commit", until)
    with suppress(InterruptedError):
        lived(log, ALL_CHANGE, in_steps(OFTEN))
    assert (left[0] < 0) == (committed < 4)
    monkeypatch.undo()
    log.expire(JOB, position(log))
    with closing(opened(log, in_steps(OFTEN))) as steps:
        for _ in range(4):
            state = last_state(drive(steps, log, OrderedStorage(log)))
    assert all(1 == result.totals.reads.requests for result in state.results.values())
    snapshot, there = read_state(log)
    assert snapshot.state == state
    assert there == len(state.results) + 1


def read_state(log: MemoryEventLog) -> tuple[Snapshot, int]:
    """Return the job's snapshot, and the number of its records."""
    stored = log.read_state(JOB, Deadline.after(1.0))
    return records.read(JOB, stored)[0], len(stored)


def test_what_was_promoted_stays_however_large_the_rest_is() -> None:
    """A job of which much is known ends after it has promoted a result, and the log forgets all of
    its events. The next driver gets the next epoch and keeps the promoted result when it closes."""
    log, clock = MemoryEventLog(1), StoppedClock()
    with closing(opened(log, in_steps(HOURLY), clock)) as steps:
        state_facts(log, *WIDE, PromoteRequested(RESULT, 0), JobUnregistered("closed"))
        for _ in range(3):
            outcome = drive(steps, log, OrderedStorage(log))[-1]
    assert outcome.may_part
    log.expire(JOB, len(log.partitions[0].entries))
    storage = OrderedStorage(log)
    with closing(opened(log, in_steps(HOURLY), clock)) as steps:
        state_facts(log, REGISTERED, JobUnregistered("closed again", 2), by="next")
        state = last_state(drive(steps, log, storage))
    assert 2 == state.epoch
    assert state.results[RESULT].kept
    assert set() == storage.deleted


def test_events_after_the_beginning_of_a_snapshot_are_not_lost() -> None:
    """A snapshot that takes several steps does not have the events that came meanwhile: a master
    may stop only when the next snapshot has them."""
    log = MemoryEventLog(1)
    lived(log, WIDE, in_steps(HOURLY))
    with closing(opened(log, in_steps(OFTEN))) as steps:
        state_facts(log, *LATE[:3], by="late")
        outcomes = [steps.step(0.0) for _ in range(4)]
        state_facts(log, JobUnregistered("closed"), by="later")
        while not (outcomes[-1].state and outcomes[-1].state.closed and outcomes[-1].may_part):
            outcomes += drive(steps, log, OrderedStorage(log))
            assert len(outcomes) < 200
    expected = last_state(outcomes)
    log.expire(JOB, len(log.partitions[0].entries))
    with closing(opened(log)) as steps:
        assert expected == last_state(drive(steps, log, OrderedStorage(log)))


def test_a_driver_that_attaches_writes_nothing_large_again(sizes: list[int]) -> None:
    """A new driver's first snapshot has the records of results that have changed, not those of all
    results of the job."""
    log = MemoryEventLog(1)
    lived(log, WIDE, HOURLY)
    sizes.clear()
    lived(log, (), HOURLY)
    first = sum(sizes)
    sizes.clear()
    lived(log, (REGISTERED,), HOURLY)
    assert 0 < sum(sizes) < first / 2


def test_a_result_that_could_not_be_kept_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may not outlive its job if later drivers could not read what is known of it and of
    others like it; the error says the sizes."""
    log, job = MemoryEventLog(1), Job()
    me = DriverIdentity("driver", "0", "memory://here/")
    with closing(DriverMaster(log, OrderedStorage(log), SETTINGS, me)) as master:
        master.register_job(job)
        for number, name in enumerate(OTHERS[:2]):
            state_facts(log, *life(name, number), by=f"task {number}")
            master.await_complete(descriptor(name))
        bytes_each = records.size_bytes(master.state().results[OTHERS[0]])
        monkeypatch.setattr(records, "KEPT_BYTES_MAX", 2 * bytes_each - 1)
        master.promote_partitions(descriptor(OTHERS[0]), 0)
        limit = f"{2 * bytes_each} bytes about 2 such results"
        with pytest.raises(Invalid, match=limit):
            master.promote_partitions(descriptor(OTHERS[1]), 0)
        with pytest.raises(Invalid, match=limit):
            master.stop_tracking_partitions(descriptor(OTHERS[1]), "handed over")
        assert not master.state().results[OTHERS[1]].kept
        master.promote_partitions(descriptor(OTHERS[0]), SYSTEM_CLOCK.now_ms() + 60_000)


@pytest.mark.parametrize("expires_ms", [-1, 86_400_000])
def test_a_result_is_not_promoted_until_a_time_that_is_past(expires_ms: int) -> None:
    """A length where a time should be would delete the result at once: it is refused, and the
    result stays as it was."""
    log, job = MemoryEventLog(1), Job()
    me = DriverIdentity("driver", "0", "memory://here/")
    with closing(DriverMaster(log, OrderedStorage(log), SETTINGS, me)) as master:
        master.register_job(job)
        state_facts(log, *life(OTHERS[0], 1), by="task")
        master.await_complete(descriptor(OTHERS[0]))
        with pytest.raises(Invalid, match="Name a time, not a length"):
            master.promote_partitions(descriptor(OTHERS[0]), expires_ms)
        assert not master.state().results[OTHERS[0]].kept


def descriptor(result: ResultId) -> ShuffleDescriptor:
    return ShuffleDescriptor(JOB, result, 1, 1, 1)


@pytest.mark.parametrize("nth", range(12))
def test_a_large_snapshot_beside_small_ones_loses_no_facts(nth: int) -> None:
    """Two jobs of a session write snapshots, one of them in several steps, and their master goes
    away after any of its turns. The next master reads everything that no snapshot has."""
    log, settings = MemoryEventLog(1), replace(GROUP_OFTEN, snapshot_step_bytes=STEP_BYTES)
    large, small = JOBS[:2]
    for job in (large, small):
        state_facts_of(log, job, *OPENING, by="early")
    with closing(joined(log, settings=settings)) as steps:
        drive_group(log, GroupStorage(), steps)
        for number, fact in enumerate(WIDE[len(LIFE) :]):
            state_facts_of(log, large, fact, by=f"large {number}")
            drive_group(log, GroupStorage(), steps, steps=2)
        state_facts_of(log, large, *LATE, by="late")
        for number, fact in enumerate(GROUP_LIFE[len(OPENING) :]):
            state_facts_of(log, small, fact, by=f"small {number}")
        drive_group(log, GroupStorage(), steps, steps=nth)
    for job in (large, small):
        expected = audited_in_group(log, job).state if nth > 10 else None
        assert expected in (None, state_of(log, job))
    live_in_group(log, (produced(0, 8),), large, small, settings=settings, by="next")
    for job in (large, small):
        assert audited_in_group(log, job).state == state_of(log, job)
    assert {large, small} == read_snapshots(log, None, Deadline.after(1.0)).keys()

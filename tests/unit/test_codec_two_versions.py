"""An older version stops at what a newer one has written, whatever its role: it decides nothing and
deletes nothing. Jobs beside it go on."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Invalid
from headgate.control.events import codec
from headgate.control.events.types import (
    Consumed,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    Newer,
    PromoteRequested,
    ReleaseRequested,
)
from headgate.control.inquiry.audit import audit, fold, refused
from headgate.control.inquiry.job_view import JobView
from headgate.control.inquiry.neglected import Neglected, follow_jobs, neglected
from headgate.control.inquiry.reading import known, states
from headgate.control.log import EventLog
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Replay
from headgate.control.snapshots.resume import begin, follow_all, forget, read_snapshots
from headgate.infra.sweep import sweep
from headgate.storage.format.manifest import build
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.upkeep.fsck_repair import sound_jobs

from ..doubles.damaged import sound, with_segments
from ..doubles.events import BODIES, event
from ..doubles.group_snapshots import LIFE as GROUP_LIFE
from ..doubles.group_snapshots import OFTEN as GROUP_OFTEN
from ..doubles.group_snapshots import live as live_in_group
from ..doubles.group_snapshots import state_of
from ..doubles.groups import JOBS, OPENING, joined
from ..doubles.groups import Storage as GroupStorage
from ..doubles.groups import audited as audited_in_group
from ..doubles.groups import drive as drive_group
from ..doubles.groups import events as events_of
from ..doubles.groups import state_facts as state_facts_of
from ..doubles.jobs import (
    JOB,
    REGISTERED,
    RESULT,
    SETTINGS,
    Job,
    OrderedStorage,
    attempt,
    events,
    looping,
    produced,
    state_facts,
)
from ..doubles.next_version import VERSION, next_version
from ..doubles.segments import LAYOUT
from ..doubles.snapshots import HOURLY, LIFE, OFTEN, last_state, live, opened, standing
from ..doubles.steps import StoppedClock, drive

pytestmark = pytest.mark.usefixtures("no_thread_stays")

NEWER = "was written by a newer Headgate"
LEASED = JobRegistered("per-job", "0", "tests", "", 1_000)


def soon() -> Deadline:
    return Deadline.after(1.0)


def with_newer_event(log: EventLog) -> None:
    """Let a job live, then let the next version's driver state one more fact."""
    live(log, (LEASED, *LIFE[1:]), 100)
    with next_version():
        state_facts(log, Consumed(RESULT, 0, 1, 9, 1, 1, 1), by="next")


def with_newer_snapshot(log: MemoryEventLog) -> None:
    """Let a job live under the next version, whose events the log has forgotten."""
    with next_version():
        live(log, (LEASED, *LIFE[1:], PromoteRequested(RESULT, 0)), 100)
    log.expire(JOB, len(log.partitions[0].entries))


BOTH = pytest.mark.parametrize("newer", [with_newer_event, with_newer_snapshot])


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_an_event_of_the_next_version_is_known_as_such(body: object) -> None:
    """Whatever its kind, an event of the next version is told from garbage, and its job is known.
    The next version reads the events of this one."""
    original = event(body)  # type: ignore[arg-type]
    with next_version():
        record = codec.encode(original)
        assert original == codec.decode(record, original.job)
    seen = codec.decode(record, original.job)
    assert (original.job, Newer(VERSION)) == (seen.job, seen.body)
    ours = codec.encode(original)
    with next_version():
        assert original == codec.decode(ours)


@BOTH
def test_a_driver_stops(newer: object) -> None:
    """A driver does not register, whoever has written what is newer, and changes nothing."""
    log = MemoryEventLog(1)
    newer(log)  # type: ignore[operator]
    before, stood, storage = len(log.partitions[0].entries), standing(log), OrderedStorage(log)
    me = DriverIdentity("driver", "0", "memory://here/")
    with (
        closing(DriverMaster(log, storage, SETTINGS, me)) as master,
        pytest.raises(Invalid) as info,
    ):
        master.register_job(Job())
    assert NEWER in str(info.value)
    assert (before, stood, set()) == (
        len(log.partitions[0].entries),
        standing(log),
        storage.deleted,
    )


def test_a_newer_driver_is_not_fenced_by_an_older_one() -> None:
    """The decisions of a job stay with the newer driver that has them when an older one begins."""
    log = MemoryEventLog(1)
    with next_version():
        steps = opened(log, HOURLY)
        state_facts(log, *LIFE)
        drive(steps, log, OrderedStorage(log))
    with pytest.raises(Invalid, match=NEWER):
        begin(log, JOB, soon())
    with closing(steps), next_version():
        state_facts(log, ReleaseRequested(RESULT, "asked"), by="driver")
        assert (
            "asked"
            == last_state(drive(steps, log, OrderedStorage(log))).results[RESULT].fate.released
        )


def test_nobody_is_fenced_behind_an_older_snapshot() -> None:
    """Nor does an older driver take the decisions away where the newer one has written events, and
    no snapshot yet."""
    log = MemoryEventLog(1)
    live(log, LIFE, 100)
    with next_version():
        steps = opened(log, HOURLY)
        state_facts(log, Consumed(RESULT, 0, 1, 9, 1, 1, 1), by="next")
    me = DriverIdentity("driver", "0", "memory://here/")
    with (
        closing(DriverMaster(log, OrderedStorage(log), SETTINGS, me)) as master,
        pytest.raises(Invalid, match=NEWER),
    ):
        master.register_job(Job())
    with closing(steps), next_version():
        result = last_state(drive(steps, log, OrderedStorage(log))).results[RESULT]
        assert 2 == result.totals.reads.rows


@pytest.mark.parametrize("asks", [JobUnregistered("closed", 1), ReleaseRequested(RESULT, "asked")])
def test_a_driver_that_has_begun_stops_at_a_newer_event(asks: object) -> None:
    """A driver that closes, or releases a result, after a newer driver has said something gets the
    error. Nothing is deleted."""
    log = MemoryEventLog(1)
    storage, job = OrderedStorage(log), Job()
    with looping(log, storage, job=job) as loop:
        for fact in LIFE:
            loop.ask(fact).result(3.0)
        deleted = set(storage.deleted)
        with next_version():  # the loop's thread must not read in that version
            read = Announcer(JOB, "next").fact(Consumed(RESULT, 0, 1, 9, 1, 1, 1))
            record = codec.encode(read)
        log.put_record(JOB, JOB, record)
        with pytest.raises(Invalid, match=NEWER):
            loop.ask(asks).result(3.0)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=NEWER):
            loop.ask(asks)  # type: ignore[arg-type]
    assert [NEWER in str(error) for error in job.errors] == [True]
    assert storage.deleted <= deleted | {attempt(0, 2), attempt(1, 7), attempt(1, 4)}


@BOTH
def test_a_sweep_leaves_the_job_alone(newer: object) -> None:
    """A sweep does not take a job for neglected that a newer version has had, and cannot be made to
    sweep it."""
    log, storage = MemoryEventLog(1), OrderedStorage(MemoryEventLog())
    newer(log)  # type: ignore[operator]
    before, snapshots = len(log.partitions[0].entries), known(log, "")
    records = list(log.read_all(soon()))
    jobs = follow_jobs(records, snapshots)
    assert [] == list(neglected(jobs, {}, 2**46, lambda job: 0))
    assert jobs[JOB].broken or not records
    candidate = Neglected(Replay(JOB).state, "per-job", "", 1, 2**46, 0)
    with pytest.raises(Invalid, match=NEWER):
        sweep(log, storage, candidate, SETTINGS)
    if records:
        assert not forget(log, JOB, soon())
    else:
        with pytest.raises(Invalid, match=NEWER):
            forget(log, JOB, soon())
    assert (before, set()) == (len(log.partitions[0].entries), storage.deleted)


@BOTH
def test_fsck_judges_nothing_of_the_job(newer: object) -> None:
    """fsck stops at what is newer, and a repair takes only other jobs for sound."""
    log = MemoryEventLog(1)
    newer(log)  # type: ignore[operator]
    state_facts_of(log, JOBS[0], REGISTERED)
    snapshots, records = known(log, ""), list(log.read_all(soon()))
    assert {JOBS[0]} == sound_jobs(records, "", snapshots)
    with pytest.raises(Invalid, match=NEWER):
        states(log, "")
    with pytest.raises(Invalid, match=NEWER):
        fold(records, snapshots)
    reports = {report.job: report for report in audit(records, snapshots)}
    assert JOB not in reports or NEWER in reports[JOB].violation


def test_readers_and_followers_stop() -> None:
    """A reader's view of the job, and the list of facts from which nothing follows, stop there."""
    log = MemoryEventLog(1)
    with_newer_event(log)
    view = JobView(log, JOB)
    with pytest.raises(Invalid, match=NEWER):
        view.state(soon())
    view.close()
    assert [] == [it for it in refused(events(log), {}) if isinstance(it.event.body, Newer)]
    follower = follow_all(log, JOB, soon())
    assert 0 == follower.rejected


def test_what_the_next_version_has_promoted_is_there_when_it_comes_back() -> None:
    """After a rollback and the retention, an older driver changes nothing, and the newer one goes
    on with the next epoch and the promoted result."""
    log = MemoryEventLog(1)
    with_newer_snapshot(log)
    with pytest.raises(Invalid, match=NEWER):
        opened(log)
    assert {JOB} == read_snapshots(log, None, soon()).keys()
    with next_version(), closing(opened(log, OFTEN)) as steps:
        state_facts(log, REGISTERED, by="later")
        state = last_state(drive(steps, log, OrderedStorage(log)))
        assert 2 == state.epoch
        assert state.results[RESULT].kept


def test_a_group_gives_the_job_up_and_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    """A job of a newer driver, known before or not, is left alone by an older master, which decides
    for the job beside it. The newer master finds everything. The older one keeps no state of such a
    job, and holds the partition's position back for it only while the log has its events."""
    log, storage = MemoryEventLog(1), GroupStorage()
    began, new, beside = JOBS[:3]
    live_in_group(log, GROUP_LIFE, began, beside, by="early")
    with next_version():
        for job, facts in ((began, (produced(0, 8),)), (new, OPENING)):
            state_facts_of(log, job, *facts, by="next")
    decided = {job: len(events_of(log, job)) for job in (began, new)}
    with caplog.at_level(logging.ERROR), closing(joined(log, settings=GROUP_OFTEN)) as steps:
        for number in range(3):
            state_facts_of(log, beside, produced(0, 8 + number), by=f"late {number}")
            drive_group(log, storage, steps)
            with next_version():
                state_facts_of(log, new, produced(0, number), by=f"next {number}")
        partition, end = steps._held[0], len(log.partitions[0].entries)
        assert ({beside}, {began, new}) == (set(partition.jobs), set(partition.given_up))
        unsaved = min(partition.given_up[began].start, partition.given_up[new].start)
        assert unsaved == events_of(log, new)[0].offset or unsaved < partition.given_up[new].start
        assert unsaved == partition.needed(end, [beside])
        partition.oldest = max(left.stop for left in partition.given_up.values())
        assert partition.oldest < end == partition.needed(end, [beside])
    assert {began, new} == {
        job for job in (began, new, beside) for r in caplog.records if f"{job} " in r.getMessage()
    }
    assert 2 == len([r for r in caplog.records if NEWER in r.getMessage()])
    assert decided == {began: len(events_of(log, began)), new: len(events_of(log, new)) - 3}
    assert {beside} >= {job for job, _ in storage.deleted}
    assert audited_in_group(log, beside).state == state_of(log, beside)
    with next_version():
        live_in_group(log, GROUP_LIFE[-1:], began, new, beside, by="end")
        for job in (began, new, beside):
            assert audited_in_group(log, job).state == state_of(log, job)


@pytest.mark.parametrize("slots", [("one", "two"), ("one", "one")])
def test_a_partition_that_moves_to_an_older_master_is_not_decided_twice(
    slots: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A newer master has decided and kept snapshots. The older one that gets its partition leaves
    these jobs alone, although their drivers are older, and a newer master goes on."""
    log, storage = MemoryEventLog(1), GroupStorage()
    job, beside = JOBS[:2]
    state_facts_of(log, job, *OPENING, by="early")
    with next_version(), closing(joined(log, slots[0], settings=GROUP_OFTEN)) as steps:
        drive_group(log, storage, steps)
        assert 1 == steps.states[job].epoch
    with caplog.at_level(logging.ERROR), closing(joined(log, slots[1], 1, GROUP_OFTEN)) as steps:
        state_facts_of(log, job, *GROUP_LIFE[3:], by="late")
        state_facts_of(log, beside, *GROUP_LIFE, by="late")
        before = len(events_of(log, job))
        drive_group(log, storage, steps)
        assert 1 == steps.states[beside].epoch
    assert before == len(events_of(log, job))
    assert 1 == len([r for r in caplog.records if NEWER in r.getMessage()])
    assert {beside} >= {name for name, _ in storage.deleted}
    with next_version():
        live_in_group(log, (produced(0, 9),), job, beside, by="end")
        for name in (job, beside):
            assert audited_in_group(log, name).state == state_of(log, name)


def test_a_job_of_a_driver_stays_one_when_a_newer_driver_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session master that knows that a driver decides for a job does not take the job for one of
    its own when the log has only events of a newer version left: these would hold back all others
    for good."""
    clock = StoppedClock(10**12)
    log = MemoryEventLog(1, clock)
    with closing(GroupSteps(log, MasterIdentity("one", "master", clock, ""), GROUP_OFTEN)) as steps:
        state_facts_of(log, JOBS[0], JobRegistered("per-job", "0", "tests"), clock=clock)
        drive_group(log, GroupStorage(), steps)
        known_before = len(log.partitions[0].entries)
        for by in ("next", "later"):
            with next_version():
                state_facts_of(log, JOBS[0], produced(0, 1), by=by, clock=clock)
            drive_group(log, GroupStorage(), steps)
            log.expire(JOBS[0], known_before)
            clock.at_ms += 300_000
            steps.look()
        assert {JOBS[0]} == steps._held[0].ignored.keys()
        assert {} == steps.states
    assert NEWER not in caplog.text


def test_garbage_is_skipped_as_before() -> None:
    """Records that look like events of another schema, but do not say a newer version of Headgate,
    are skipped: also one that says this version under an unknown fingerprint."""
    log = MemoryEventLog(1)
    strange = b"\xc3\x01" + bytes(8)
    for tail in (b"", b"\x14headgate", b"\x14headgate.1", b"\x14headgate.x", b"\x12kafka.999"):
        log.put_record(JOB, JOB, strange + tail)
    log.put_record(JOB, "no job", strange + b"\x16headgate.99")
    log.put_record(JOB, None, strange + b"\x16headgate.99")
    state = live(log, LIFE, 100)
    with closing(opened(log)) as steps:
        assert state == last_state(drive(steps, log, OrderedStorage(log)))
    assert 7 == len(list(log.read_rejected(soon())))
    assert [JobAccepted(1)] == [
        it.event.body for it in events(log) if isinstance(it.event.body, JobAccepted)
    ]
    assert not any(isinstance(it.event.body, LeaseExpired) for it in events(log))


def test_a_reader_refuses_an_object_of_a_newer_format() -> None:
    """Such an object is neither damaged nor lost, so that nobody makes it again."""
    whole = sound("packed")
    newer = with_segments(whole.state, lambda summary: replace(summary, format=4))
    with pytest.raises(Invalid, match="0 was written by a newer Headgate, in format 4, and"):
        build(whole.descriptor, newer, LAYOUT, MemoryBlobStore(whole.objects))

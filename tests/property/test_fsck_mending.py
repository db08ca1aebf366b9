"""`fsck --repair` on any history and bucket deletes everything that must go, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.clock import Deadline
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Body,
    Event,
    Fact,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    Lost,
    PartitionRegistered,
    Produced,
    PromoteRequested,
    Recorded,
    ReleaseRequested,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.inquiry.audit import fold
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.replay import Snapshot
from headgate.control.model.state import JobState
from headgate.storage.format.layout import Layout
from headgate.storage.format.segment import checksum
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import PendingUpload
from headgate.storage.upkeep.fsck import Finding, Findings, Kind, Remedy, check
from headgate.storage.upkeep.fsck_repair import FsckRepair, Repaired, sound_jobs

JOB, NEIGHBOUR, UNKNOWN = JobId("j"), JobId("j2"), JobId("jj")
RESULTS = (ResultId("r1"), ResultId("r2"))
ROOT = "root"
LAYOUT = Layout(ROOT, JOB)
BODY = b"a whole segment"
ATTEMPTS = [
    AttemptId(PartitionId(result, 0), epoch, task)
    for result in RESULTS
    for epoch in (1, 2)
    for task in (1, 2)
]


class Bucket(MemoryBlobStore):
    """A bucket that also has unfinished uploads."""

    def __init__(self, objects: Objects, pending: set[PendingUpload]) -> None:
        super().__init__(objects)
        self.pending = pending

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return iter(sorted((u for u in self.pending if u.name.startswith(prefix)), key=str))

    def abort(self, upload: PendingUpload) -> None:
        self.pending.discard(upload)


def summary(number: int) -> SegmentSummary:
    return SegmentSummary(number, len(BODY), 1, checksum(BODY), b"")


ATTEMPT = st.sampled_from(ATTEMPTS)
RESULT = st.sampled_from(RESULTS)
FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(AttemptStarted, ATTEMPT, st.just("h")),
    st.builds(AttemptStarted, ATTEMPT, st.just("h")),
    st.builds(lambda a: Produced(a, (summary(0), summary(1)), 1), ATTEMPT),
    st.builds(lambda a: Produced(a, (summary(0), summary(1)), 1), ATTEMPT),
    st.builds(lambda a: SegmentProduced(a, summary(0)), ATTEMPT),
    st.builds(AttemptFailed, ATTEMPT, st.just("oom")),
    st.builds(ReleaseRequested, RESULT, st.just("asked")),
    st.builds(PromoteRequested, RESULT, st.just(0)),
    st.just(JobUnregistered("closed")),
    st.just(JobRegistered("per-job", "0", "tests")),
)
OPENING: tuple[Fact, ...] = (
    JobRegistered("per-job", "0", "tests"),
    ResultRegistered(RESULTS[0], 1, 4, "", ""),
    PartitionRegistered(RESULTS[0], 0, 1),
    ResultRegistered(RESULTS[1], 1, 4, "", "", pipelined=True),
    PartitionRegistered(RESULTS[1], 0, 1),
)
NAMES = [LAYOUT.segment(attempt, number) for attempt in ATTEMPTS for number in range(3)] + [
    LAYOUT.manifest(RESULTS[0], 1, 0),
    f"{LAYOUT.prefix}00/r9/0/1-1/0",
    f"{LAYOUT.prefix}notes",
]
FOREIGN = [
    Layout(ROOT, NEIGHBOUR).segment(ATTEMPTS[0], 0),
    Layout(ROOT, UNKNOWN).segment(ATTEMPTS[0], 0),
    Layout("", JOB).segment(ATTEMPTS[0], 0),
    f"{ROOT}/{JOB}",
    f"{ROOT}x/{JOB}/00/r1/0/1-1/0",
]


@dataclass
class World:
    """A job's history, its bucket, and the foreign objects in that bucket."""

    facts: tuple[Fact, ...]
    names: Collection[str] = ()
    uploads: Collection[str] = ()
    log: MemoryEventLog = field(default_factory=MemoryEventLog)

    def __post_init__(self) -> None:
        self.objects: Objects = {name: (BODY, "w") for name in (*self.names, *FOREIGN)}
        pending = {PendingUpload(name, "u") for name in (*self.uploads, *FOREIGN)}
        self.store = Bucket(self.objects, pending)
        for job, facts in ((JOB, (*OPENING, *self.facts)), (NEIGHBOUR, OPENING)):
            for at, fact in enumerate(facts):
                self.log.append(Event(f"{job}.{at}", job, "", at, "t", None, fact))

    def states(self) -> tuple[JobState, ...]:
        return fold(self.log.read_all(Deadline.after(5.0)))

    @property
    def state(self) -> JobState:
        return next(state for state in self.states() if state.job == JOB)

    def repair(self, job: JobId | None = JOB, sound: Collection[JobId] = (JOB,)) -> Repaired:
        findings = check(self.store, ROOT, self.states, job, True)
        return FsckRepair(self.store, ROOT, self.log, "fsck", 5.0).mend(findings, sound)

    def stated(self) -> list[Lost]:
        bodies = [recorded.event.body for recorded in self.log.read_all(Deadline.after(5.0))]
        return [body for body in bodies if isinstance(body, Lost)]


def may_be_written(state: JobState, name: str) -> bool:
    """Return True if a started attempt that has not ended may own the name; derived apart from the
    product."""
    return state.closed is None and any(
        name.startswith(LAYOUT.attempt(attempt)) and attempt.epoch == state.epoch
        for result in state.results.values()
        for attempt in result.production.running
    )


def is_over(state: JobState, name: str) -> bool:
    """Return True if the name belongs to a released result, or to a superseded or fenced
    attempt."""
    result = state.results.get(LAYOUT.result_of(name) or ResultId(""))
    if result is None:
        return False
    fenced = {
        a
        for a in result.production.attempts.keys() - set(result.production.winners.values())
        if a.epoch < state.epoch
    }
    ended = fenced | (result.production.superseded & result.production.attempts.keys())
    return result.fate.released is not None or any(
        name.startswith(LAYOUT.attempt(a)) for a in ended
    )


def is_needed(state: JobState, name: str) -> bool:
    return any(
        LAYOUT.segment(attempt, segment.number) == name
        for result in state.results.values()
        if result.fate.released is None
        for attempt in result.production.winners.values()
        for segment in getattr(result.production.attempts[attempt], "segments", ())
    )


WORLDS = st.builds(
    World,
    st.lists(FACTS, max_size=12).map(tuple),
    st.sets(st.sampled_from(NAMES), max_size=6).map(lambda missing: set(NAMES) - missing),
    st.just(NAMES),
)


@given(WORLDS, st.sampled_from([JOB, None]))
@settings(max_examples=100)
def test_a_repair_takes_what_is_to_go_and_nothing_else(world: World, job: JobId | None) -> None:
    """A repair keeps objects that are needed, that may still be written, or that belong to others.
    After the job's end nothing else is left."""
    state, before = world.state, set(world.objects)
    findings = check(world.store, ROOT, world.states, job).found
    assert {finding.name for finding in findings if finding.job == JOB}.isdisjoint(FOREIGN)
    pending = {upload.name for upload in world.store.pending}
    world.repair(job)
    gone = before - set(world.objects)
    aborted = pending - {upload.name for upload in world.store.pending}
    assert not any(is_needed(state, name) for name in gone)
    assert not any(may_be_written(state, name) for name in gone | aborted)
    assert (gone | aborted).isdisjoint(FOREIGN)
    assert all(name.startswith(LAYOUT.prefix) for name in gone | aborted)
    stay = {name for name in world.objects if name.startswith(LAYOUT.prefix)}
    if state.closed is not None:
        manifests = tuple(LAYOUT.manifests(name) for name, r in state.results.items() if r.kept)
        assert all(is_needed(state, name) or name.startswith(manifests) for name in stay)
    for name in world.objects.keys() & set(NAMES):
        assert not is_over(state, name) or may_be_written(state, name)
    for upload in world.store.pending:
        assert not is_over(state, upload.name) or may_be_written(state, upload.name)


@given(WORLDS)
def test_a_repair_ends(world: World) -> None:
    """The first repair reports all losses, the second deletes what those leave behind, and the
    third finds nothing to do."""
    world.repair()
    assert world.repair().lost == 0
    third = world.repair()
    assert (third.deleted, third.aborted, third.lost) == (0, 0, 0)


def test_an_upload_beside_its_object_is_found_once() -> None:
    """An unfinished upload is one finding, and does not make the object of the same name wrong."""
    world = World(WON, [FIRST, SECOND], [FIRST])
    findings = check(world.store, ROOT, world.states, JOB)
    assert [(finding.kind, finding.name) for finding in findings.found] == [(Kind.UPLOAD, FIRST)]
    assert [stat.name for stat in findings.live] == [FIRST, SECOND]


WON: tuple[Fact, ...] = (
    AttemptStarted(ATTEMPTS[0], "h"),
    Produced(ATTEMPTS[0], (summary(0), summary(1)), 1),
)
FIRST, SECOND = (LAYOUT.segment(ATTEMPTS[0], number) for number in range(2))


def test_what_is_missing_is_stated_with_its_evidence() -> None:
    """An attempt with missing objects is reported as lost once, with one of those objects, and is
    ordered again."""
    world = World(WON, [FIRST])
    assert world.repair() == Repaired(0, 0, 1, ())
    assert world.stated() == [Lost(ATTEMPTS[0], SECOND, "404, found by fsck")]
    assert set(world.state.results[RESULTS[0]].reproduction.reproducing) == {0}


@pytest.mark.parametrize(("body", "says"), [(BODY[:3], "3 bytes"), (BODY[::-1], "checksum")])
def test_what_is_mismatched_is_stated(body: bytes, says: str) -> None:
    """An object with another size, or with another checksum at two reads, is reported as lost."""
    world = World(WON, [FIRST])
    world.objects[SECOND] = (body, "w")
    assert world.repair().lost == 1
    assert says in world.stated()[0].evidence


def test_what_has_come_back_is_not_lost() -> None:
    """An object that is there at a second look is not reported as lost."""
    world = World(WON, [FIRST])
    findings = check(world.store, ROOT, world.states, JOB)
    world.objects[SECOND] = (BODY, "w")
    mended = FsckRepair(world.store, ROOT, world.log, "fsck", 5.0).mend(findings, [JOB])
    assert [finding.kind for finding in mended.left] == [Kind.MISSING]
    assert world.stated() == []


def test_an_empty_store_is_taken_for_another_one() -> None:
    """Nothing is reported when no object of a job is there: a wrong address must not lose a job."""
    world = World(WON)
    mended = world.repair()
    assert [finding.name for finding in mended.left] == [FIRST, SECOND]
    assert world.stated() == []


def test_a_name_outside_of_its_job_is_never_touched() -> None:
    """A repair touches only names below the job's prefix, whatever a finding says."""
    world = World(WON, [FIRST, SECOND])
    forged = [
        Finding(Kind.ORPHAN, name, 1, "", upload, Remedy.DELETE, JOB)
        for name in FOREIGN
        for upload in ("", "u")
    ]
    before = dict(world.objects), set(world.store.pending)
    mended = FsckRepair(world.store, ROOT, world.log, "fsck", 5.0).mend(
        Findings(tuple(forged)), [JOB]
    )
    assert mended == Repaired(0, 0, 0, tuple(forged))
    assert before == (world.objects, world.store.pending)


def test_a_name_that_no_store_of_ours_gives_is_left() -> None:
    """An object below the job's prefix whose name the door refuses stays, and stops no repair."""
    world, odd = World((*WON, JobUnregistered("closed")), NAMES), f"{LAYOUT.prefix}notes of may"
    world.objects[odd] = (BODY, "w")
    mended = world.repair()
    assert odd in [finding.name for finding in mended.left]
    assert odd in world.objects
    assert mended.deleted == len(NAMES)


def test_a_job_whose_log_is_not_sound_is_left_alone() -> None:
    """Nothing is deleted, aborted or reported for a job whose log is not sound."""
    world = World((*WON, ReleaseRequested(RESULTS[0], "asked")), NAMES, NAMES)
    before = dict(world.objects), set(world.store.pending)
    mended = world.repair(sound=[])
    assert (mended.deleted, mended.aborted, mended.lost) == (0, 0, 0)
    assert len(mended.left) > len(NAMES)
    assert before == (world.objects, world.store.pending)


def test_only_sound_jobs_of_this_store_are_vouched_for() -> None:
    """A job is sound if its log is whole, explains itself, and names no other store."""

    def recorded(job: str, *bodies: Body) -> list[Recorded]:
        events = [Event(f"{at}", JobId(job), "", 0, "t", None, b) for at, b in enumerate(bodies)]
        return [Recorded(at, event) for at, event in enumerate(events)]

    here, away = (
        JobRegistered("per-job", "0", "tests", store=name) for name in ("s3://a", "s3://b")
    )
    wrong = Event("0.0", JobId("wrong"), "0", 0, "t", 0, JobAccepted(7))
    records = [
        *recorded("silent", JobRegistered("per-job", "0", "tests")),
        *recorded("here", here),
        *recorded("moved", here, away),
        *recorded("headless", *OPENING[1:]),
        *recorded("wrong", here),
        Recorded(9, wrong),
    ]
    assert sound_jobs(records, "s3://a", {}) == {"silent", "here"}


def test_the_store_of_a_job_is_known_from_its_snapshot() -> None:
    """The store of a job is known from its snapshot when the log no longer shows the
    registration."""
    registered = {
        JobId(name): JobRegistered("per-job", "0", "t", store=store)
        for name, store in (("here", "s3://a"), ("away", "s3://b"))
    }
    snapshots = {
        job: Snapshot(JobState(job, epoch=1), (), 5, 0, body.mode, body)
        for job, body in registered.items()
    }
    records = [
        Recorded(9, Event("9", job, "", 0, "t", None, JobUnregistered(""))) for job in snapshots
    ]
    assert sound_jobs(records, "s3://a", snapshots) == {"here"}
    assert sound_jobs([], "s3://a", snapshots) == set()


def test_a_stream_of_a_running_attempt_is_no_finding() -> None:
    """Segments of a running pipelined winner are in flight, announced or not. A segment that it
    announced and that is gone is lost."""
    stream = ATTEMPTS[4]
    facts = (AttemptStarted(stream, "h"), SegmentProduced(stream, summary(0)))
    names = [LAYOUT.segment(stream, number) for number in range(2)]
    findings = check(World(facts, names).store, ROOT, World(facts, names).states, JOB)
    assert findings.clean
    assert names == [stat.name for stat in findings.in_flight]
    world = World((*WON, *facts), [FIRST, SECOND, names[1]])
    assert world.repair().lost == 1
    assert [(stream, names[0])] == [(lost.attempt, lost.object) for lost in world.stated()]

"""fsck reports each difference between log and bucket by its kind, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headgate.control.events.types import (
    AttemptStarted,
    Body,
    Consumable,
    Deleted,
    Event,
    Fact,
    JobAccepted,
    JobRegistered,
    JobUnregistered,
    PartitionRegistered,
    Produced,
    Recorded,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.inquiry.audit import audit, fold
from headgate.control.model.state import JobState
from headgate.storage.format import segment
from headgate.storage.format.layout import Layout
from headgate.storage.format.segment import checksum
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.port import BlobStat, PendingUpload
from headgate.storage.upkeep.fsck import Findings, Kind, Listing, check, compare

JOB, RESULT, ROOT = JobId("j"), ResultId("r"), "root"
LAYOUT = Layout(ROOT, JOB)
BODY = b"a whole segment"
WON, LATE, WRITING = (AttemptId(PartitionId(RESULT, i), 1, t) for i, t in ((0, 7), (0, 8), (1, 9)))


def produced(attempt: AttemptId, segments: int = 1) -> Produced:
    summaries = (SegmentSummary(n, len(BODY), 1, checksum(BODY), b"") for n in range(segments))
    return Produced(attempt, tuple(summaries))


REGISTERED: tuple[Fact, ...] = (
    JobRegistered("per-job", "0", "tests"),
    ResultRegistered(RESULT, 2, 4, "", "repartition"),
    PartitionRegistered(RESULT, 0, 2),
)
RUNNING = (*REGISTERED, AttemptStarted(WON, "h"), produced(WON), AttemptStarted(WRITING, "h"))


def records(bodies: Iterable[Body], job: JobId = JOB) -> list[Recorded]:
    return [Recorded(at, Event(str(at), job, "", at, "t", None, b)) for at, b in enumerate(bodies)]


def states(*facts: Fact) -> tuple[JobState, ...]:
    return fold(records(facts))


def listed(*names: str, size_bytes: int = len(BODY)) -> Listing:
    return Listing(tuple(BlobStat(name, size_bytes) for name in names))


def kinds(findings: Findings) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.name) for finding in findings.found]


def test_a_bucket_as_the_log_says_is_clean() -> None:
    """Objects of a winner are live and those of a running attempt are in flight; neither is a
    finding."""
    findings = compare(
        states(*RUNNING), listed(LAYOUT.segment(WON, 0), LAYOUT.segment(WRITING, 0)), ROOT
    )
    assert findings.clean
    assert [LAYOUT.segment(WON, 0)] == [stat.name for stat in findings.live]
    assert [LAYOUT.segment(WRITING, 0)] == [stat.name for stat in findings.in_flight]


def test_a_missing_object_is_found() -> None:
    """A consumable partition without its object is a finding."""
    findings = compare(states(*RUNNING), listed(), ROOT)
    assert [(Kind.MISSING, LAYOUT.segment(WON, 0))] == kinds(findings)


def test_a_released_result_misses_nothing() -> None:
    """A released result has no missing objects."""
    assert compare(states(*RUNNING, ReleaseRequested(RESULT, "t")), listed(), ROOT).clean


def test_another_size_is_found() -> None:
    """An object with another size than announced is a mismatch."""
    findings = compare(states(*RUNNING), listed(LAYOUT.segment(WON, 0), size_bytes=3), ROOT)
    assert [(Kind.MISMATCHED, LAYOUT.segment(WON, 0))] == kinds(findings)


def test_objects_that_nothing_explains_are_orphans() -> None:
    """Objects of an unknown job, of an unknown attempt, and of an extra segment are orphans."""
    strange = AttemptId(WON.partition, 1, 99)
    names = [
        Layout(ROOT, JobId("other")).segment(WON, 0),
        LAYOUT.segment(strange, 0),
        LAYOUT.segment(WON, 5),
    ]
    findings = compare(states(*RUNNING), listed(LAYOUT.segment(WON, 0), *names), ROOT)
    assert [(Kind.ORPHAN, name) for name in names] == kinds(findings)


def test_an_attempt_of_a_fenced_epoch_leaves_orphans() -> None:
    """Objects of an attempt of a fenced driver are orphans: nothing will announce them."""
    facts = (*RUNNING, JobRegistered("per-job", "0", "tests"))
    name = LAYOUT.segment(WRITING, 0)
    findings = compare(states(*facts), listed(LAYOUT.segment(WON, 0), name), ROOT)
    assert [(Kind.ORPHAN, name)] == kinds(findings)


def test_objects_that_were_ordered_to_go_are_leftovers() -> None:
    """Objects of a superseded attempt are leftovers, and so is everything of a released result,
    including its manifests."""
    late = (*RUNNING, produced(LATE))
    names = [LAYOUT.segment(WON, 0), LAYOUT.segment(LATE, 0)]
    assert [(Kind.LEFTOVER, names[1])] == kinds(compare(states(*late), listed(*names), ROOT))
    released = states(*late, ReleaseRequested(RESULT, "t"))
    everything = [*names, LAYOUT.manifest(RESULT, 1, 0)]
    assert [(Kind.LEFTOVER, name) for name in everything] == kinds(
        compare(released, listed(*everything), ROOT)
    )


def test_what_was_said_to_be_deleted_is_an_orphan_when_it_is_there() -> None:
    """An object that the log says is deleted is an orphan."""
    gone = (*RUNNING, ReleaseRequested(RESULT, "t"), Deleted(RESULT, (WON, WRITING), 1))
    name = LAYOUT.segment(WON, 0)
    assert [(Kind.ORPHAN, name)] == kinds(compare(states(*gone), listed(name), ROOT))


def test_unfinished_uploads_are_found_unless_their_attempt_runs() -> None:
    """An unfinished upload is a finding unless its attempt still runs: its parts cost money for
    ever."""
    uploads = [PendingUpload(LAYOUT.segment(attempt, 1), "u") for attempt in (WON, WRITING)]
    listing = Listing(listed(LAYOUT.segment(WON, 0)).objects, tuple(uploads))
    findings = compare(states(*RUNNING), listing, ROOT)
    assert [(Kind.UPLOAD, uploads[0].name)] == kinds(findings)


def test_only_whole_reading_finds_flipped_bytes() -> None:
    """A segment of the right size with other bytes is found only when its checksum is verified."""
    store = MemoryBlobStore()
    store.put(LAYOUT.segment(WON, 0), BODY[::-1], "w")
    now = states(*RUNNING)
    assert check(store, ROOT, lambda: now).clean
    findings = check(store, ROOT, lambda: now, whole=True)
    assert [(Kind.MISMATCHED, LAYOUT.segment(WON, 0))] == kinds(findings)
    assert findings.live == ()


@pytest.mark.parametrize("stored", [BODY, b"A" + BODY[1:], BODY[:-1] + b"T"])
def test_a_large_object_is_read_in_parts(stored: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object may have more bytes than fit into memory, or than come before a timeout."""
    monkeypatch.setattr(segment, "READ_BYTES", 4)
    store = MemoryBlobStore({LAYOUT.segment(WON, 0): (stored, "w")})
    now = states(*RUNNING)
    findings = check(store, ROOT, lambda: now, whole=True)
    assert findings.clean is (stored == BODY)
    assert (store.requests.gets, store.requests.bytes_read) == (4, len(BODY))


def test_a_job_that_goes_on_meanwhile_makes_no_finding() -> None:
    """A finding that holds in only one of the two readings of the log is not reported."""
    store = MemoryBlobStore()
    store.put(LAYOUT.segment(WON, 0), BODY, "w")
    store.put(LAYOUT.segment(WRITING, 0), BODY, "w")
    begun = (*REGISTERED, AttemptStarted(WON, "h"), produced(WON))
    readings = iter([states(*begun), states(*RUNNING)])
    assert check(store, ROOT, lambda: next(readings), JOB).clean
    readings = iter([states(*RUNNING), states(*RUNNING, ReleaseRequested(RESULT, "t"))])
    assert check(store, ROOT, lambda: next(readings), JOB).clean


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_announced_meanwhile_is_no_orphan(whole: bool) -> None:
    """A driver that attaches to a closed job while the bucket is listed loses nothing to a repair
    by the older reading of the log."""
    store = MemoryBlobStore()
    store.put(LAYOUT.segment(WON, 0), BODY, "w")
    closed = states(*REGISTERED, JobUnregistered("closed", 1))
    readings = iter([closed, states(*RUNNING)])
    findings = check(store, ROOT, lambda: next(readings), JOB, whole)
    assert findings.clean
    assert [stat.name for stat in findings.live] == [LAYOUT.segment(WON, 0)]


def test_audit_follows_each_job_to_its_first_violation() -> None:
    """A wrong decision of one job is reported at its offset, and does not affect another job."""
    wrong = records(REGISTERED)
    decided = Event("0.0", JOB, "0", 9, "t", 0, JobAccepted(4))
    good, other = JobId("good"), records(REGISTERED, JobId("good"))
    answer = Event("0.0", good, "0", 9, "t", 0, JobAccepted(1))
    audits = audit([*wrong, Recorded(9, decided), *other, Recorded(9, answer)])
    assert [(JOB, 9), (good, None)] == [(verdict.job, verdict.offset) for verdict in audits]
    assert "JobAccepted(epoch=4)" in audits[0].violation
    assert (
        audits[1].facts,
        audits[1].decisions,
        audits[1].due,
        audits[1].violation,
    ) == (3, 1, 1, "")


def test_a_log_without_its_head_is_not_judged() -> None:
    """The audit does not judge a log whose head is gone: its decisions can no longer be derived."""
    decided = Event("x", JOB, "", 9, "t", 3, Consumable(WON))
    (verdict,) = audit([*records(RUNNING)[3:], Recorded(9, decided)])
    assert (verdict.whole, verdict.violation) == (False, "")

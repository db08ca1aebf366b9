"""Comparison of the log with the bucket: the objects that should be stored, and those that are.

`compare` is pure. `check` reads the log before and after the listing and reports only the findings
that both readings agree on, so that a job at work makes no finding. It assumes that everything
under the root is Headgate's, and that the jobs of this log store their objects there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from ...control.errors import Lost
from ...control.events.types import SegmentSummary
from ...control.ids import AttemptId, JobId, ResultId
from ...control.model.state import JobState, ResultState, is_over
from ..format.layout import Layout
from ..format.segment import stored_checksum
from ..stores.port import BlobStat, BlobStore, PendingUpload
from ..stores.rooted import UnknownRoot


class Kind(Enum):
    MISSING = "missing"
    MISMATCHED = "mismatched"
    ORPHAN = "orphan"
    LEFTOVER = "leftover"
    UPLOAD = "unfinished upload"


class Remedy(Enum):
    """The repair of a finding. There is none if an attempt may still be writing the object, if the
    log does not say that the object is to go, or if the log does not know the job."""

    NONE = "left alone"
    DELETE = "to be deleted"
    REPORT = "to be reported as lost"


@dataclass(frozen=True, slots=True)
class Finding:
    """One object that is not as the log says."""

    kind: Kind
    name: str
    """The name of the object."""
    size_bytes: int
    says: str
    """The reason for the finding, in words."""
    upload: str = ""
    """The id of an unfinished upload; '' for an object."""
    remedy: Remedy = Remedy.NONE
    job: JobId | None = None
    """The job below whose prefix the object is; None if the log does not know the job."""
    attempt: AttemptId | None = None
    segment: SegmentSummary | None = None
    """The segment of `attempt` that the object should be."""

    @property
    def key(self) -> tuple[Kind, str, str]:
        """Return what another look at the same fault finds, too."""
        return self.kind, self.name, self.upload


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a bucket under one prefix."""

    objects: tuple[BlobStat, ...] = ()
    uploads: tuple[PendingUpload, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    found: tuple[Finding, ...] = ()
    live: tuple[BlobStat, ...] = ()
    """The objects that are as they should be."""
    in_flight: tuple[BlobStat, ...] = ()
    """The objects of attempts that still write."""

    @property
    def clean(self) -> bool:
        return not self.found

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.found if finding.kind is kind)


class _Fate(Enum):
    LIVE = "live"
    IN_FLIGHT = "in flight"
    DOOMED = "doomed"
    FENCED = "fenced"
    STRANGE = "strange"


@dataclass(frozen=True, slots=True)
class _Folder:
    """The place in the bucket of an attempt's objects, or of a result's manifests."""

    job: JobId
    fate: _Fate
    remedy: Remedy
    """The remedy for objects that should not be there."""
    attempt: AttemptId | None = None
    """None for manifests."""
    segments: Mapping[str, SegmentSummary] = field(default_factory=dict)
    """The announced segments, by the names of their objects."""


def compare(states: Iterable[JobState], listing: Listing, root: str) -> Findings:
    """Compare a listing with the folded states of all jobs whose objects it may have."""
    jobs = {Layout(root, state.job).prefix: state for state in states}
    folders = {name: folder for state in jobs.values() for name, folder in _folders(state, root)}

    def folder_of(name: str) -> _Folder | None:
        return folders.get(name[: name.rfind("/") + 1]) or _strange(name, jobs, root)

    fates = [
        (stat, _explain(stat, folder_of(stat.name)))
        for stat in listing.objects
        if not _is_marker(stat.name, jobs, root)
    ]
    uploads = [_upload(upload, folder_of(upload.name)) for upload in listing.uploads]
    wrong = [why for _, why in fates if isinstance(why, Finding)]
    return Findings(
        (*_missing(folders, listing), *wrong, *filter(None, uploads)),
        tuple(stat for stat, fate in fates if fate is _Fate.LIVE),
        tuple(stat for stat, fate in fates if fate is _Fate.IN_FLIGHT),
    )


def agreed(before: Findings, after: Findings) -> Findings:
    """Return the findings of `after` that `before` has, too, and those that only reading the bytes
    shows: objects that are live in both. `before` is by the log from before the bucket was
    listed."""
    earlier = {finding.key for finding in before.found}
    still = [finding for finding in after.found if finding.key in earlier]
    live = {stat.name for stat in before.live} & {stat.name for stat in after.live}
    still += [finding for finding in before.found if finding.name in live and not finding.upload]
    wrong = {finding.name for finding in still if not finding.upload}
    return replace(
        after, found=tuple(still), live=tuple(s for s in after.live if s.name not in wrong)
    )


def deep(states: Iterable[JobState], findings: Findings, root: str, store: BlobStore) -> Findings:
    """Read every live segment, and add a finding if its checksum is not the announced one."""
    places = (folder for state in states for _, folder in _folders(state, root))
    folders = {name: folder for folder in places for name in folder.segments}
    wrong = [_reread(stat, folders.get(stat.name), store) for stat in findings.live]
    return replace(findings, found=(*findings.found, *filter(None, wrong)))


def check(
    store: BlobStore,
    root: str,
    states: Callable[[], tuple[JobState, ...]],
    job: JobId | None = None,
    whole: bool = False,
) -> Findings:
    """Compare the objects of one job, or of all jobs, with the log, which `states` reads anew at
    each call. `whole` also reads every live segment and compares its checksum with the announced
    one.

    Raises:
        Unavailable, Throttled: the store cannot be read.
    """
    before = states()
    prefix = Layout(root, job).prefix if job else f"{root}/" if root else ""
    stats = list[BlobStat]()
    with suppress(UnknownRoot):  # nothing is stored yet, or all of it is missing
        stats += store.list(prefix)
    listing = Listing(tuple(stats), tuple(store.uploads(prefix)))
    first = compare(before, listing, root)
    if whole:
        first = deep(before, first, root, store)
    return agreed(first, compare(states(), listing, root))


def _folders(state: JobState, root: str) -> Iterator[tuple[str, _Folder]]:
    layout = Layout(root, state.job)
    for name, result in state.results.items():
        over = result.fate.released is not None
        remedy = Remedy.DELETE if over or state.closed is not None else Remedy.NONE
        fate = _Fate.DOOMED if over else _Fate.LIVE
        yield layout.manifests(name), _Folder(state.job, fate, remedy)
        doomed = frozenset(result.doomed)
        for attempt, produced in result.production.attempts.items():
            fate = _Fate.DOOMED if attempt in doomed else _fate(state, result, attempt)
            remedy = _remedy(state, result, attempt, fate)
            streamed = result.production.streams.get(attempt, ())
            segments = streamed if produced is None else produced.segments
            named = {layout.segment(attempt, segment.number): segment for segment in segments}
            yield layout.attempt(attempt), _Folder(state.job, fate, remedy, attempt, named)


def _fate(state: JobState, result: ResultState, attempt: AttemptId) -> _Fate:
    production = result.production
    is_winner = production.winners.get(attempt.partition.index) == attempt
    if is_winner and production.attempts[attempt]:
        return _Fate.LIVE
    current = attempt.epoch == state.epoch and state.closed is None
    return _Fate.IN_FLIGHT if current else _Fate.FENCED


def _remedy(state: JobState, result: ResultState, attempt: AttemptId, fate: _Fate) -> Remedy:
    """Return the remedy for an attempt's objects. An attempt that may still be writing is left to
    its master, which deletes the objects when the attempt has ended."""
    running = attempt in result.production.running and attempt.epoch == state.epoch
    over = state.closed is not None or fate is _Fate.FENCED
    doomed = fate is _Fate.DOOMED and not running
    return Remedy.DELETE if over or doomed else Remedy.NONE


def _job_of(name: str, jobs: Mapping[str, JobState], root: str) -> JobState | None:
    """Return the job below whose prefix an object is, None if it is unknown."""
    below = name.removeprefix(f"{root}/") if root else name
    state = jobs.get(name[: len(name) - len(below)] + below.partition("/")[0] + "/")
    ours = state is not None and name.startswith(Layout(root, state.job).prefix)
    return state if ours else None


def _is_marker(name: str, jobs: Mapping[str, JobState], root: str) -> bool:
    """Return True if an object is the marker of a driver whose job goes on or has results left, or
    of a later one."""
    state = _job_of(name, jobs, root)
    epoch = None if state is None else Layout(root, state.job).driver_of(name)
    if state is None or epoch is None:
        return False
    return not is_over(state) or epoch > state.epoch


def _strange(name: str, jobs: Mapping[str, JobState], root: str) -> _Folder | None:
    """Return the folder of an object that no attempt explains; None if its job is unknown, too."""
    if (state := _job_of(name, jobs, root)) is None:
        return None
    result = state.results.get(Layout(root, state.job).result_of(name) or ResultId(""))
    over = state.closed is not None or (result is not None and result.fate.released is not None)
    return _Folder(state.job, _Fate.STRANGE, Remedy.DELETE if over else Remedy.NONE)


def _explain(stat: BlobStat, folder: _Folder | None) -> Finding | _Fate:
    if folder is None:
        return _finding(Kind.ORPHAN, stat, "the log does not know its job")
    if folder.fate is _Fate.STRANGE:
        return _finding(Kind.ORPHAN, stat, "no attempt in the log explains it", folder)
    if folder.fate is _Fate.DOOMED:
        return _finding(Kind.LEFTOVER, stat, f"{_who(folder)} was ordered to be deleted", folder)
    if folder.fate is _Fate.FENCED:
        return _finding(Kind.ORPHAN, stat, f"{_who(folder)} belongs to a fenced epoch", folder)
    if folder.attempt is None:
        return folder.fate
    segment = folder.segments.get(stat.name)
    if segment is None and folder.fate is _Fate.LIVE:
        return _finding(Kind.ORPHAN, stat, f"{_who(folder)} announced no such segment", folder)
    if segment is not None and segment.size_bytes != stat.size_bytes:
        return _finding(
            Kind.MISMATCHED, stat, f"announced with {segment.size_bytes} bytes", folder, segment
        )
    return folder.fate


def _upload(upload: PendingUpload, folder: _Folder | None) -> Finding | None:
    """Return the finding for an unfinished upload; None if an attempt may still complete it. An
    attempt that has announced its last segment completes no upload."""
    if folder is not None and folder.fate is _Fate.IN_FLIGHT:
        return None
    says = f"nobody will complete upload {upload.upload_id}"
    finding = _finding(Kind.UPLOAD, BlobStat(upload.name, 0), says, folder)
    ended = folder is not None and folder.fate is _Fate.LIVE and folder.attempt is not None
    remedy = Remedy.DELETE if ended else finding.remedy
    return replace(finding, upload=upload.upload_id, remedy=remedy)


def _missing(folders: Mapping[str, _Folder], listing: Listing) -> Iterator[Finding]:
    there = {stat.name for stat in listing.objects}
    for folder in folders.values():
        if folder.fate in (_Fate.LIVE, _Fate.IN_FLIGHT):
            for name, segment in folder.segments.items():
                if name not in there:
                    stat = BlobStat(name, segment.size_bytes)
                    says = f"{_who(folder)} has announced it"
                    yield _finding(Kind.MISSING, stat, says, folder, segment)


def _reread(stat: BlobStat, folder: _Folder | None, store: BlobStore) -> Finding | None:
    if folder is None:
        return None
    segment = folder.segments[stat.name]
    try:
        actual = stored_checksum(store, stat.name, stat.size_bytes)
    except Lost:
        return _finding(Kind.MISSING, stat, "gone since it was listed", folder, segment)
    if actual == segment.checksum:
        return None
    says = f"checksum {actual:x}, announced with {segment.checksum:x}"
    return _finding(Kind.MISMATCHED, stat, says, folder, segment)


def _finding(
    kind: Kind,
    stat: BlobStat,
    says: str,
    folder: _Folder | None = None,
    segment: SegmentSummary | None = None,
) -> Finding:
    if folder is None:
        return Finding(kind, stat.name, stat.size_bytes, says)
    remedy = folder.remedy if segment is None else Remedy.REPORT
    return Finding(
        kind, stat.name, stat.size_bytes, says, "", remedy, folder.job, folder.attempt, segment
    )


def _who(folder: _Folder) -> str:
    return "the manifest" if folder.attempt is None else f"attempt {folder.attempt}"

"""Log against bucket: what the log says should be stored, held against what is there.

`compare` is pure. `check` reads the log before and after the listing and reports only what both
readings agree on, so that a job that works meanwhile makes no finding. Assumes that everything
under the root is Headgate's, and that the jobs of this log store there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ...control.errors import Lost
from ...control.events.types import SegmentSummary
from ...control.ids import AttemptId, JobId, ResultId
from ...control.model.state import JobState, ResultState
from ..format.layout import Layout
from ..format.segment import checksum
from ..stores.port import BlobStat, BlobStore, PendingUpload


class Kind(Enum):
    MISSING = "missing"
    MISMATCHED = "mismatched"
    ORPHAN = "orphan"
    LEFTOVER = "leftover"
    UPLOAD = "unfinished upload"


class Remedy(Enum):
    """What mends a finding. Nothing does where somebody may still be writing, where the log does
    not say that the object is to go, and where it does not know the job."""

    NONE = "left alone"
    DELETE = "to be deleted"
    STATE = "to be stated as lost"


@dataclass(frozen=True, slots=True)
class Finding:
    """One object that is not as the log says; `upload` is its id when it is only an upload. `job`
    is the job of the log that it is under, `segment` what an object of `attempt` should be."""

    kind: Kind
    name: str
    size_bytes: int
    says: str
    upload: str = ""
    remedy: Remedy = Remedy.NONE
    job: JobId | None = None
    attempt: AttemptId | None = None
    segment: SegmentSummary | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a bucket holds under one prefix."""

    objects: tuple[BlobStat, ...] = ()
    uploads: tuple[PendingUpload, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """`live` are objects as they should be, `in_flight` those of attempts that still write."""

    found: tuple[Finding, ...] = ()
    live: tuple[BlobStat, ...] = ()
    in_flight: tuple[BlobStat, ...] = ()

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
    """One attempt's place in the bucket, or a result's manifests (`attempt` None). `remedy` is for
    what should not be there."""

    job: JobId
    fate: _Fate
    remedy: Remedy
    attempt: AttemptId | None = None
    segments: Mapping[str, SegmentSummary] = field(default_factory=dict)


def compare(states: Iterable[JobState], listing: Listing, root: str) -> Findings:
    """Hold a listing against the folded states of all jobs whose objects it may hold."""
    jobs = {Layout(root, state.job).prefix: state for state in states}
    folders = {name: folder for state in jobs.values() for name, folder in _folders(state, root)}

    def folder_of(name: str) -> _Folder | None:
        return folders.get(name[: name.rfind("/") + 1]) or _strange(name, jobs, root)

    fates = [(stat, _explain(stat, folder_of(stat.name))) for stat in listing.objects]
    uploads = [_upload(upload, folder_of(upload.name)) for upload in listing.uploads]
    wrong = [why for _, why in fates if isinstance(why, Finding)]
    return Findings(
        (*_missing(folders, listing), *wrong, *filter(None, uploads)),
        tuple(stat for stat, fate in fates if fate is _Fate.LIVE),
        tuple(stat for stat, fate in fates if fate is _Fate.IN_FLIGHT),
    )


def agreed(before: Findings, after: Findings) -> Findings:
    """What holds against the log both as it was before the bucket was read and as it was after."""
    known = {(finding.kind, finding.name, finding.upload) for finding in before.found}
    still = [one for one in after.found if (one.kind, one.name, one.upload) in known]
    live = {stat.name for stat in after.live}
    read = [one for one in before.found if one.name in live and not one.upload]
    still += read  # seen only by reading the bytes
    wrong = {finding.name for finding in still if not finding.upload}
    return replace(
        after, found=tuple(still), live=tuple(s for s in after.live if s.name not in wrong)
    )


def deep(
    states: Iterable[JobState], found: Findings, root: str, get: Callable[[str], memoryview]
) -> Findings:
    """Read every live segment whole and add those whose checksum is not the announced one."""
    places = (folder for state in states for _, folder in _folders(state, root))
    folders = {name: folder for folder in places for name in folder.segments}
    wrong = [_reread(stat, folders.get(stat.name), get) for stat in found.live]
    return replace(found, found=(*found.found, *filter(None, wrong)))


def check(
    store: BlobStore,
    root: str,
    states: Callable[[], tuple[JobState, ...]],
    job: JobId | None = None,
    whole: bool = False,
) -> Findings:
    """Compare a store with the log, which `states` reads anew at each call; `whole` reads every
    live segment and holds its checksum against the announced one.

    Raises:
        Unavailable, Throttled: the store cannot be read.
    """
    before = states()
    listing = list_store(store, root, job)
    first = compare(before, listing, root)
    if whole:
        first = deep(before, first, root, store.get)
    return agreed(first, compare(states(), listing, root))


def list_store(store: BlobStore, root: str, job: JobId | None) -> Listing:
    """Everything of one job, or of all."""
    prefix = Layout(root, job).prefix if job else f"{root}/" if root else ""
    return Listing(tuple(store.list(prefix)), tuple(store.uploads(prefix)))


def _folders(state: JobState, root: str) -> Iterator[tuple[str, _Folder]]:
    layout = Layout(root, state.job)
    for name, result in state.results.items():
        over = result.released is not None
        remedy = Remedy.DELETE if over or state.closed is not None else Remedy.NONE
        fate = _Fate.DOOMED if over else _Fate.LIVE
        yield layout.manifests(name), _Folder(state.job, fate, remedy)
        doomed = frozenset(result.doomed)
        for attempt, produced in result.attempts.items():
            fate = _Fate.DOOMED if attempt in doomed else _fate(state, result, attempt)
            remedy = _remedy(state, result, attempt, fate)
            told = result.streams.get(attempt, ()) if produced is None else produced.segments
            named = {layout.segment(attempt, segment.number): segment for segment in told}
            yield layout.attempt(attempt), _Folder(state.job, fate, remedy, attempt, named)


def _fate(state: JobState, result: ResultState, attempt: AttemptId) -> _Fate:
    if result.winners.get(attempt.partition.index) == attempt and result.attempts[attempt]:
        return _Fate.LIVE
    current = attempt.epoch == state.epoch and state.closed is None
    return _Fate.IN_FLIGHT if current else _Fate.FENCED


def _remedy(state: JobState, result: ResultState, attempt: AttemptId, fate: _Fate) -> Remedy:
    """What an attempt may still be writing is its master's to delete, when it has ended."""
    running = attempt in result.running and attempt.epoch == state.epoch
    over = state.closed is not None or fate is _Fate.FENCED
    doomed = fate is _Fate.DOOMED and not running
    return Remedy.DELETE if over or doomed else Remedy.NONE


def _strange(name: str, jobs: Mapping[str, JobState], root: str) -> _Folder | None:
    """The place of what no attempt explains; None when the log does not know the job either."""
    below = name.removeprefix(f"{root}/") if root else name
    state = jobs.get(name[: len(name) - len(below)] + below.partition("/")[0] + "/")
    if state is None or not name.startswith(Layout(root, state.job).prefix):
        return None
    result = state.results.get(Layout(root, state.job).result_of(name) or ResultId(""))
    over = state.closed is not None or (result is not None and result.released is not None)
    return _Folder(state.job, _Fate.STRANGE, Remedy.DELETE if over else Remedy.NONE)


def _explain(stat: BlobStat, folder: _Folder | None) -> Finding | _Fate:
    if folder is None:
        return _finding(Kind.ORPHAN, stat, "the log does not know its job")
    if folder.fate is _Fate.STRANGE:
        return _finding(Kind.ORPHAN, stat, "no attempt in the log explains it", folder)
    if folder.fate is _Fate.DOOMED:
        return _finding(Kind.LEFTOVER, stat, f"{_who(folder)} was ordered to go", folder)
    if folder.fate is _Fate.FENCED:
        return _finding(Kind.ORPHAN, stat, f"{_who(folder)} is of a fenced epoch", folder)
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
    """Whoever has announced its last segment completes no upload either."""
    if folder is not None and folder.fate is _Fate.IN_FLIGHT:
        return None
    says = f"nobody will complete upload {upload.upload_id}"
    if folder is None:
        return Finding(Kind.UPLOAD, upload.name, 0, says, upload.upload_id)
    ended = folder.fate is _Fate.LIVE and folder.attempt is not None
    remedy = Remedy.DELETE if ended else folder.remedy
    return Finding(
        Kind.UPLOAD, upload.name, 0, says, upload.upload_id, remedy, folder.job, folder.attempt
    )


def _missing(folders: Mapping[str, _Folder], listing: Listing) -> Iterator[Finding]:
    there = {stat.name for stat in listing.objects}
    for folder in folders.values():
        if folder.fate in (_Fate.LIVE, _Fate.IN_FLIGHT):
            for name, segment in folder.segments.items():
                if name not in there:
                    stat = BlobStat(name, segment.size_bytes)
                    says = f"{_who(folder)} has announced it"
                    yield _finding(Kind.MISSING, stat, says, folder, segment)


def _reread(
    stat: BlobStat, folder: _Folder | None, get: Callable[[str], memoryview]
) -> Finding | None:
    if folder is None:
        return None
    segment = folder.segments[stat.name]
    try:
        found = checksum(get(stat.name))
    except Lost:
        return _finding(Kind.MISSING, stat, "gone since it was listed", folder, segment)
    if found == segment.checksum:
        return None
    says = f"checksum {found:x}, announced with {segment.checksum:x}"
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
    remedy = folder.remedy if segment is None else Remedy.STATE
    return Finding(
        kind, stat.name, stat.size_bytes, says, "", remedy, folder.job, folder.attempt, segment
    )


def _who(folder: _Folder) -> str:
    return "the manifest" if folder.attempt is None else f"attempt {folder.attempt}"

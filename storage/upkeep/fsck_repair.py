"""Mending what fsck found: deletes what the log orders to go, states what is lost.

Guarantees: only what is under the prefix of a job whose log is sound is touched; nothing that an
attempt may still be writing is deleted; `Lost` is stated only when the object was looked at once
more by its name, and never when nothing of its job is there: then the store is more likely another
job's. May be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ...control.clock import Deadline
from ...control.errors import Lost
from ...control.events.types import JobRegistered, Recorded
from ...control.events.types import Lost as LostFact
from ...control.ids import AttemptId, JobId
from ...control.inquiry.audit import Snapshots, audit
from ...control.log import EventLog
from ...control.master.announcer import Announcer
from ..format.layout import Layout
from ..format.segment import checksum
from ..stores.port import BlobStat, BlobStore, PendingUpload
from .fsck import Finding, Findings, Remedy


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many objects were deleted, uploads aborted, and attempts stated as lost; `left` are the
    findings that nothing was done about."""

    deleted: int
    aborted: int
    lost: int
    left: tuple[Finding, ...]


def sound_jobs(records: Iterable[Recorded], store: str, snapshots: Snapshots) -> set[JobId]:
    """The jobs whose logs are whole, or begin at a snapshot, and explain themselves, and that are
    not in another store. Nobody vouches for a job of which nothing was read."""
    known = ((job, one.registered) for job, one in snapshots.items())
    elsewhere = {job for job, body in known if body and body.store not in ("", store)}

    def watched() -> Iterator[Recorded]:
        for recorded in records:
            body = recorded.event.body
            if isinstance(body, JobRegistered) and body.store not in ("", store):
                elsewhere.add(recorded.event.job)
            yield recorded

    audits = audit(watched(), snapshots)
    return {one.job for one in audits if one.whole and not one.violation} - elsewhere


@dataclass(frozen=True, slots=True)
class FsckRepair:
    """`by` is a name that no other speaker has."""

    store: BlobStore
    root: str
    log: EventLog
    by: str
    wait_s: float

    def mend(self, found: Findings, sound: Collection[JobId]) -> Repaired:
        """Do what each finding's remedy says, for the jobs that `sound_jobs` vouches for.

        Raises:
            Unavailable, Throttled, OutcomeUnknown: the log or the store gave no answer.
        """
        mine = [one for one in found.found if one.job in sound and self._is_under_its_job(one)]
        gone = [one for one in mine if one.remedy is Remedy.DELETE]
        objects = [one.name for one in gone if not one.upload]
        uploads = [PendingUpload(one.name, one.upload) for one in gone if one.upload]
        self.store.delete(objects)
        for upload in uploads:
            self.store.abort(upload)
        here = {job for job in sound if self._has_any(job, found.live)}
        stated = self._state(one for one in mine if one.remedy is Remedy.STATE and one.job in here)
        done = {(one.kind, one.name, one.upload) for one in (*gone, *stated)}
        left = [one for one in found.found if (one.kind, one.name, one.upload) not in done]
        lost = len({one.attempt for one in stated})
        return Repaired(len(objects), len(uploads), lost, tuple(left))

    def _is_under_its_job(self, finding: Finding) -> bool:
        job = finding.job
        return job is not None and finding.name.startswith(Layout(self.root, job).prefix)

    def _has_any(self, job: JobId, live: Iterable[BlobStat]) -> bool:
        prefix = Layout(self.root, job).prefix
        return any(stat.name.startswith(prefix) for stat in live)

    def _state(self, findings: Iterable[Finding]) -> list[Finding]:
        """State each attempt once: all of its objects are made again together."""
        stated: list[Finding] = []
        authors: dict[JobId, Announcer] = {}
        said: set[tuple[JobId, AttemptId]] = set()
        for one in findings:
            evidence = self._evidence(one)
            if not evidence or one.job is None or one.attempt is None:
                continue
            stated.append(one)
            if (one.job, one.attempt) not in said:
                said.add((one.job, one.attempt))
                announcer = authors.setdefault(one.job, Announcer(one.job, self.by))
                fact = announcer.fact(LostFact(one.attempt, one.name, evidence))
                self.log.append(fact).offset(Deadline.after(self.wait_s))
        return stated

    def _evidence(self, finding: Finding) -> str:
        """What is wrong with the object itself; nothing when it is as announced after all."""
        announced = finding.segment
        assert announced is not None, "what can be lost was announced"
        size_bytes = self.store.size_bytes(finding.name)
        if size_bytes is None:
            return "404, found by fsck"
        if size_bytes != announced.size_bytes:
            return f"{size_bytes} bytes, announced with {announced.size_bytes}, found by fsck"
        try:
            found = checksum(self.store.get(finding.name))
        except Lost:
            return "404, found by fsck"
        if found == announced.checksum:
            return ""
        return f"checksum {found:x}, announced with {announced.checksum:x}, read twice by fsck"

"""Repair of what fsck found: deletes the objects that are to go, and reports the others as lost.

Guarantees: it touches only objects below the prefix of a job whose log is sound. It deletes nothing
that an attempt may still be writing. It publishes `Lost` only after another look at the object by
its name, and never if no object of the job is live: then the store is more likely another job's. A
repair may be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ...control.addresses import is_same_place
from ...control.clock import Deadline
from ...control.errors import Lost
from ...control.events.types import JobRegistered, Recorded
from ...control.events.types import Lost as LostFact
from ...control.ids import AttemptId, JobId
from ...control.inquiry.audit import Snapshots, audit
from ...control.log import EventLog
from ...control.master.announcer import Announcer
from ..format.layout import Layout
from ..format.segment import stored_checksum
from ..stores.port import BlobStore, PendingUpload, is_object_name
from .fsck import Finding, Findings, Remedy


@dataclass(frozen=True, slots=True)
class Repaired:
    deleted: int
    """Objects that were deleted."""
    aborted: int
    """Uploads that were aborted."""
    lost: int
    """Attempts that were reported as lost."""
    left: tuple[Finding, ...]
    """Findings that nothing was done about."""


def sound_jobs(records: Iterable[Recorded], store: str, snapshots: Snapshots) -> set[JobId]:
    """Return the jobs that are not in another store, and whose logs are sound: whole, or beginning
    at a snapshot, and without a violation. A job of which nothing was read is left out."""
    registered = ((job, snapshot.registered) for job, snapshot in snapshots.items())
    elsewhere = {job for job, body in registered if body and not is_same_place(body.store, store)}

    def watched() -> Iterator[Recorded]:
        for recorded in records:
            body = recorded.event.body
            if isinstance(body, JobRegistered) and not is_same_place(body.store, store):
                elsewhere.add(recorded.event.job)
            yield recorded

    audits = audit(watched(), snapshots)
    return {report.job for report in audits if report.whole and not report.violation} - elsewhere


@dataclass(frozen=True, slots=True)
class FsckRepair:
    store: BlobStore
    root: str
    log: EventLog
    by: str
    """The name in the events' envelope; no other process may have it."""
    wait_s: float

    def mend(self, findings: Findings, sound: Collection[JobId]) -> Repaired:
        """Apply the remedy of each finding, for the jobs in `sound`, which `sound_jobs` returned.

        Raises:
            Unavailable, Throttled, OutcomeUnknown: the log or the store gave no answer.
        """
        prefixes = {job: Layout(self.root, job).prefix for job in sound}
        mine = [
            finding
            for finding in findings.found
            if finding.job
            and finding.job in prefixes
            and finding.name.startswith(prefixes[finding.job])
        ]
        gone = [
            finding
            for finding in mine
            if finding.remedy is Remedy.DELETE and (finding.upload or is_object_name(finding.name))
        ]
        objects = [finding.name for finding in gone if not finding.upload]
        uploads = [
            PendingUpload(finding.name, finding.upload) for finding in gone if finding.upload
        ]
        self.store.delete(objects)
        for upload in uploads:
            self.store.abort(upload)
        live = [stat.name for stat in findings.live]
        missing = [finding for finding in mine if finding.remedy is Remedy.REPORT]
        here = {
            job
            for job in {finding.job for finding in missing}
            if job and any(name.startswith(prefixes[job]) for name in live)
        }
        reported = self._report(finding for finding in missing if finding.job in here)
        done = {finding.key for finding in (*gone, *reported)}
        left = [finding for finding in findings.found if finding.key not in done]
        lost = len({finding.attempt for finding in reported})
        return Repaired(len(objects), len(uploads), lost, tuple(left))

    def _report(self, findings: Iterable[Finding]) -> list[Finding]:
        """Report attempts as lost, and return their findings. Report an attempt once: all of its
        objects are made again together."""
        reported: list[Finding] = []
        announcers: dict[JobId, Announcer] = {}
        lost: set[tuple[JobId, AttemptId]] = set()
        for finding in findings:
            evidence = self._evidence(finding)
            if not evidence or finding.job is None or finding.attempt is None:
                continue
            reported.append(finding)
            if (finding.job, finding.attempt) not in lost:
                lost.add((finding.job, finding.attempt))
                announcer = announcers.setdefault(finding.job, Announcer(finding.job, self.by))
                fact = announcer.fact(LostFact(finding.attempt, finding.name, evidence))
                self.log.append(fact).offset(Deadline.after(self.wait_s))
        return reported

    def _evidence(self, finding: Finding) -> str:
        """Return the fault of the object, after another look at it; '' if it is as announced."""
        announced = finding.segment
        assert announced is not None, "what can be lost was announced"
        size_bytes = self.store.size_bytes(finding.name)
        if size_bytes is None:
            return "404, found by fsck"
        if size_bytes != announced.size_bytes:
            return f"{size_bytes} bytes, announced with {announced.size_bytes}, found by fsck"
        try:
            actual = stored_checksum(self.store, finding.name, size_bytes)
        except Lost:
            return "404, found by fsck"
        if actual == announced.checksum:
            return ""
        return f"checksum {actual:x}, announced with {announced.checksum:x}, read twice by fsck"

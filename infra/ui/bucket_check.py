"""Compare a job with the bucket for the live page, as `headgate fsck` does. Nothing is repaired.

Guarantees that the bucket is opened only while a comparison runs, that one runs at a time, and that
no viewer waits for longer than a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock, Thread

from ...control.addresses import is_same_place
from ...control.errors import Invalid, Unavailable
from ...control.ids import job_id
from ...control.inquiry.reading import states
from ...control.log import EventLog
from ...storage.stores.port import BlobStore
from ...storage.upkeep.fsck import Findings, check
from ..cli import views
from ..cli.fields import Fields
from ..spelling import spelled

ANSWER_S_MAX = 60.0


@dataclass
class BucketCheck:
    log: EventLog
    store: str
    """The URL of the store; empty if there is none to compare with."""
    open_bucket: Callable[[], tuple[BlobStore, str]]
    answer_s_max: float = ANSWER_S_MAX
    _running: Lock = field(default_factory=Lock)

    def page(self, job: str, place: str) -> Fields:
        """Return what `headgate fsck` prints for a job whose driver has registered `place` as its
        store; an empty text is any place.

        Raises:
            Invalid: there is no store, or the job has another one.
            Unavailable: log or store cannot be read, not in time, or for another viewer already.
        """
        if not self.store:
            raise Invalid(
                "this page has no store: start `headgate ui` with --store s3://bucket/root"
            )
        if not is_same_place(place, self.store):
            raise Invalid(f"the objects of job {job} are in {place}, this page has {self.store}")
        if not self._running.acquire(blocking=False):
            raise Unavailable("a comparison runs already: ask again when it has ended")
        answer: Future[Findings] = Future()
        Thread(target=self._run, args=(job, answer), name="headgate-ui-fsck", daemon=True).start()
        try:
            findings = answer.result(self.answer_s_max)
        except TimeoutError:
            raise Unavailable(
                f"the comparison takes longer than {self.answer_s_max:g} s; "
                f"`headgate fsck --job {job}` waits for its end"
            ) from None
        lines = [spelled(line.plain) for line in views.findings(findings)]
        return {"clean": findings.clean, "lines": lines}

    def _run(self, job: str, answer: Future[Findings]) -> None:
        try:
            findings = self._compare(job)
        except BaseException as exc:
            self._running.release()
            answer.set_exception(exc)
        else:
            self._running.release()
            answer.set_result(findings)

    def _compare(self, job: str) -> Findings:
        store, root = self.open_bucket()
        with closing(store):
            return check(store, root, lambda: states(self.log, job), job_id(job))

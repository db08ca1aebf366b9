"""Open and check the broker and the store of a session, and describe them for the workers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from ...control.addresses import urls_of
from ...control.clock import Deadline
from ...control.contract import SESSION
from ...control.errors import Conflict, Invalid
from ...control.ids import JobId
from ...control.kafka.log import KafkaEventLog
from ...control.model.state import JobState
from ...storage.format.layout import Layout
from ...storage.services import StorageFactory
from ...storage.stores.open_store import open_store
from ...storage.stores.port import BlobStore
from ...storage.stores.rooted import LISTED_MAX, Root, RootedStore
from ...storage.stores.spread import bucket_of
from .settings import PREFIX, Settings
from .tasks.exchange_tasks import WorkerSettings


class LocalServices(Protocol):
    """An embedded broker and store, each in a process of its own."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def endpoint(self) -> str: ...

    @property
    def bucket(self) -> str: ...

    def close(self) -> None: ...


class JobPage(Protocol):
    """The live page of the job, served by this process."""

    url: str

    def close(self) -> None: ...


_LOG = logging.getLogger("headgate")

StartLocal = Callable[[], LocalServices]
StartPage = Callable[[WorkerSettings, int], JobPage]


@dataclass(frozen=True, slots=True)
class JobServices:
    """The open log and store of a job."""

    log: KafkaEventLog
    store: BlobStore
    worker: WorkerSettings
    """Settings from which workers open the same log and store."""
    opened: ExitStack
    """Closes the store, the log and the embedded services."""

    def require_whole_log(self) -> None:
        """Check that the embedded broker still has the oldest event of the job. It drops the oldest
        events silently when its memory is full.

        Raises:
            Invalid: events were dropped, so no decision could be derived from the log.
        """
        if self.worker.kafka.embedded and self.log.oldest(self.worker.job) > 0:
            raise Invalid(
                "the embedded broker is full and has dropped the oldest events: attach again, or "
                f"set {PREFIX}broker and {PREFIX}store"
            )

    def marked(self, state: JobState) -> JobServices:
        """Mark the root as this driver's, and return services whose processes know it by the mark.

        Raises:
            Invalid: the job has stored results, and the root has no object of the job.
            Unavailable, Throttled, OutcomeUnknown: the store cannot be used.
        """
        worker, layout = self.worker, Layout(self.worker.root, self.worker.job)
        buckets = len(urls_of(worker.store))
        results = state.results.values()
        if any(each.production.winners and each.fate.released is None for each in results):
            self._require_objects(layout, buckets)
        markers = Root.marker_names(layout.markers(state.epoch), buckets)
        try:
            for marker in markers:
                self.store.put(marker, worker.key.encode(), "/".join(worker.key.split()[:2]))
        except Conflict as exc:
            raise Invalid(
                f"{worker.store} has objects of another job {worker.job}, which this log does not "
                f"know: give the job another name, or delete what is below {layout.prefix}"
            ) from exc
        root = Root(worker.store, layout.prefix, markers, worker.key)
        return replace(
            self, store=RootedStore(self.store, root), worker=replace(worker, markers=markers)
        )

    def _require_objects(self, layout: Layout, buckets: int) -> None:
        """Check that a root is the one with the job's stored results: it has objects of the job,
        and in every bucket if the drivers before have marked their buckets.

        Raises:
            Invalid: it is another one, or the objects are gone.
        """
        worker = self.worker
        names = [stat.name for stat in islice(self.store.list(layout.prefix), LISTED_MAX)]
        is_marked = any(layout.driver_of(name) is not None for name in names)
        here = {bucket_of(name, buckets) for name in names}
        if not here or (is_marked and len(here) < buckets):
            raise Invalid(
                f"job {worker.job} has stored results, and objects of it are not in "
                f"{worker.store}: mount that folder here, correct the endpoint, or, if they were "
                f"deleted, end the job before you attach: headgate end --job {worker.job}"
            )

    @property
    def factory(self) -> StorageFactory:
        """The factory of masters that share this log and this store."""
        root = self.worker.root
        return StorageFactory(
            lambda: self.log, lambda _: (self.store, root), self.worker.limits, self.worker.store
        )

    def show(self, start: StartPage, port: int) -> None:
        """Serve the job's page at a port. Without a page the job runs all the same."""
        try:
            page = start(self.worker, port)
        except Exception as exc:
            _LOG.warning("job %s has no live page: %s", self.worker.job, exc)
        else:
            self.opened.callback(page.close)
            print(f"headgate: job {self.worker.job} is shown at {page.url}", file=sys.stderr)

    def close(self) -> None:
        self.opened.close()


def open_services(settings: Settings, job: JobId, local: StartLocal, master: str) -> JobServices:
    """Open and check the broker and the store, within one deadline for both.

    Raises:
        Invalid: a setting, a credential or the bucket is wrong.
        Unavailable: the broker or the store cannot be reached.
    """
    with ExitStack() as opening:
        worker = _describe(settings, job, local, master, opening)
        deadline = Deadline.after(settings.attaching.attach_ms / 1000)
        log = KafkaEventLog(worker.kafka)
        opening.callback(log.close)
        log.prepare(deadline)
        store, root = open_store(worker.store, dict(worker.s3))
        opening.callback(store.close)
        store.check(deadline, root)
        identity = log.identity(deadline)
        known = Root(worker.store, f"{root}/" if root else "", log=lambda: identity)
        worker = replace(worker, root=root, key=Root.content_of(worker.key, identity))
        return JobServices(log, RootedStore(store, known), worker, opening.pop_all())


def _describe(
    settings: Settings, job: JobId, local: StartLocal, master: str, opening: ExitStack
) -> WorkerSettings:
    kafka, url, s3 = settings.kafka, settings.store, dict(settings.s3)
    if url.startswith("memory:"):
        raise Invalid(
            f"{PREFIX}store must be s3://bucket/root or file:///path: tasks cannot share {url}"
        )
    if not kafka.bootstrap and (not url or url.startswith("file:")):
        if not master.startswith("local") or master.startswith("local-cluster"):
            raise Invalid(
                f"the embedded stack serves one machine only, and this session runs on {master}: "
                f"set {PREFIX}broker and {PREFIX}store"
            )
        if settings.master.mode == SESSION:
            raise Invalid(
                f"the masters of a session need a broker: set {PREFIX}broker and {PREFIX}store"
            )
        _LOG.info("no broker is set: the embedded stack forgets everything when it is closed")
        services = local()
        opening.callback(services.close)
        kafka = replace(kafka, bootstrap=services.bootstrap, embedded=True)
        if not url:
            url = f"s3://{services.bucket}/{kafka.topic_prefix}"
            s3 |= {"endpoint": services.endpoint, "dummy_credentials": "true"}
    elif not kafka.bootstrap or not url:
        missing = "store" if kafka.bootstrap else "broker"
        raise Invalid(f"set {PREFIX}{missing} too, or neither for the embedded stack")
    key = f"{job} {os.urandom(4).hex()}"
    wait_s = settings.master.wait_ms / 1000
    return WorkerSettings(key, job, kafka, url, "", tuple(s3.items()), settings.limits, wait_s)

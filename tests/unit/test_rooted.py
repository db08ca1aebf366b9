"""Processes that do not reach the root of their driver: they write, delete and state nothing."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.spark.services import JobServices
from headgate.connectors.spark.tasks.exchange_tasks import WorkerSettings
from headgate.connectors.spark.tasks.worker import open_rooted
from headgate.control.errors import Invalid, Lost, Unavailable
from headgate.control.events.types import (
    Deleted,
    Fact,
    JobUnregistered,
    LeaseExpired,
    PromoteRequested,
    Tick,
)
from headgate.control.inquiry.audit import fold
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import JobState
from headgate.infra.target import Target
from headgate.storage.format.layout import Layout
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.open_store import open_store
from headgate.storage.stores.port import BlobStore, PendingUpload
from headgate.storage.stores.rooted import Root, RootedStore
from headgate.storage.upkeep.fsck import Kind, check
from headgate.storage.upkeep.object_deletion import ObjectDeleter
from headgate.testing.faulty_log import LogFault
from headgate.testing.faulty_store import FaultPlan, FaultyBlobStore, Operation, PlannedFault

from ..doubles.jobs import JOB, OPENING, REGISTERED, RESULT, attempt, events, produced, state_facts
from ..doubles.logs import FaultyLog

KAFKA: Any = None
LAYOUT = Layout("", JOB)
NAME = f"{LAYOUT.prefix}00/r/0/1-7/0"
ACTS: dict[str, Callable[[BlobStore], object]] = {
    "put": lambda store: store.put(NAME, b"x", "w"),
    "get": lambda store: store.get(NAME),
    "size": lambda store: store.size_bytes(NAME),
    "delete": lambda store: store.delete([NAME]),
}


def folders(tmp_path: Path, names: str = "a") -> str:
    for name in names:
        (tmp_path / name).mkdir()
    return ",".join((tmp_path / name).as_uri() for name in names)


def driver(
    address: str, epoch: int = 1, key: str = "job 1", state: JobState | None = None
) -> tuple[JobServices, WorkerSettings]:
    """Return the services of a driver and the settings of its workers, after attach."""
    store, root = open_store(address)
    worker = WorkerSettings(key, JOB, KAFKA, address, root, (), Limits(), 1.0)
    services = JobServices(KAFKA, store, worker, ExitStack())
    marked = services.marked(replace(state or JobState(JOB), epoch=epoch))
    return marked, marked.worker


def filled(tmp_path: Path) -> tuple[WorkerSettings, list[str]]:
    """Return a worker's settings with three folders, and the names of objects in all."""
    services, worker = driver(folders(tmp_path, "abc"))
    names = [f"{LAYOUT.prefix}00/r/{number}/1-7/0" for number in range(12)]
    for name in names:
        services.store.put(name, b"x", "w")
    return worker, names


def opened(worker: WorkerSettings) -> BlobStore:
    return open_rooted(worker)[0]


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("act", ACTS)
def test_a_worker_without_the_mount(tmp_path: Path, act: str, how: str) -> None:
    """A worker whose folder is not mounted makes no root, and says neither that an object is gone
    nor that one is stored or deleted. It names itself and the root, and goes on when the folder is
    there."""
    address = folders(tmp_path)
    services, worker = driver(address)
    services.store.put(NAME, b"x", "w")
    (tmp_path / "a").rename(tmp_path / "unmounted")
    if how == "empty":
        (tmp_path / "a").mkdir()
    store = opened(worker)
    with pytest.raises(Unavailable, match=f"{address}, as host {socket.gethostname()} sees it"):
        ACTS[act](store)
    assert [] == list(tmp_path.glob("a/*"))
    assert (how == "empty") == (tmp_path / "a").exists()
    shutil.rmtree(tmp_path / "a", ignore_errors=True)
    (tmp_path / "unmounted").rename(tmp_path / "a")
    ACTS[act](store)


@pytest.mark.parametrize("act", ACTS)
def test_a_folder_that_is_unmounted_while_a_worker_uses_it(tmp_path: Path, act: str) -> None:
    _, worker = driver(folders(tmp_path))
    store = opened(worker)
    store.put(NAME, b"x", "w")
    (tmp_path / "a").rename(tmp_path / "unmounted")
    (tmp_path / "a").mkdir()
    with pytest.raises(Unavailable):
        ACTS[act](store)


@pytest.mark.parametrize("act", ["delete", "get", "size"])
def test_a_master_without_the_mount(tmp_path: Path, act: str) -> None:
    """A process that works for many drivers deletes nothing in a root without any object."""
    services, _ = driver(folders(tmp_path))
    services.store.put(NAME, b"x", "w")
    here = Target("", services.worker.store, "").open_bucket()[0]
    elsewhere = Target("", (tmp_path / "b").as_uri(), "").open_bucket()[0]
    with pytest.raises(Invalid, match=f"has no object below {JOB}/: mount the same folder"):
        ACTS[act](elsewhere)
    assert not (tmp_path / "b").exists()
    ACTS[act](here)


@pytest.mark.parametrize("act", ["delete", "get", "size"])
def test_a_master_in_a_root_without_the_job(tmp_path: Path, act: str) -> None:
    """Other jobs in a root do not prove that it is the job's. An object that somebody puts there by
    hand does."""
    driver(folders(tmp_path))
    Path(tmp_path / "a" / JOB).rename(tmp_path / "a" / "another")
    store = Target("", (tmp_path / "a").as_uri(), "").open_bucket()[0]
    by_hand = f"{JOB}/_driver/0-0"
    with pytest.raises(Invalid, match=f"put an empty object at {by_hand}"):
        ACTS[act](store)
    store.put(by_hand, b"", "w")
    if act == "get":
        with pytest.raises(Lost):
            store.get(NAME)
    else:
        ACTS[act](store)


def test_a_bucket_that_was_seen_may_become_empty(tmp_path: Path) -> None:
    """The objects of the only job are deleted, and then its sweep finds none."""
    store = Target("", f"memory://{tmp_path.name}", "").open_bucket()[0]
    with pytest.raises(Invalid, match="no object below"):
        store.delete([])
    store.put(NAME, b"x", "w")
    store.delete([NAME])
    store.delete([])


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_the_last_job_of_a_root_without_markers(tmp_path: Path, kind: str) -> None:
    """The sweep of such a job deletes all that proves the root. It succeeds, and the next one says
    what an operator may put there by hand."""
    address = folders(tmp_path) if kind == "file" else f"memory://{tmp_path.name}"
    inner, _ = open_store(address)
    inner.put(NAME, b"x", "w")
    closed = replace(JobState(JOB, 1), closed="closed")
    store, root = Target("", address, "").open_bucket()
    assert 1 == ObjectDeleter(store, root).sweep(closed)
    store, root = Target("", address, "").open_bucket()
    with pytest.raises(Invalid, match="put an empty object at _root/0") as refused:
        ObjectDeleter(store, root).sweep(closed)
    inner.put(str(refused.value).rpartition(" ")[2], b"", "w")
    assert 0 == ObjectDeleter(store, root).sweep(closed)


@pytest.mark.parametrize("content", [b"", b"by hand\n", b"put there by hand", b"\xff\xfe"])
def test_a_marker_that_no_driver_has_written(content: bytes) -> None:
    """An empty object stands for a marker. Any other content is another driver's, or a clear
    error."""
    inner = MemoryBlobStore()
    inner.put(f"{LAYOUT.markers(0)}0", content, "w")
    store = RootedStore(inner, Root("s3://b/r", "", log=lambda: "ours"))
    if content == b"put there by hand":
        with pytest.raises(Invalid, match="marker of another driver"):
            store.delete([NAME])
    else:
        store.delete([NAME])


def test_an_attempt_that_comes_after_the_sweep(tmp_path: Path) -> None:
    """Nothing of a job is left after its sweep. An attempt that comes later is deleted all the
    same, whether it has stored an object or not."""
    driver(folders(tmp_path))
    (tmp_path / "a" / JOB).rename(tmp_path / "a" / "another")
    gone = Deleted(RESULT, (attempt(0, 1),), 1)
    life = (*OPENING, produced(0, 1), JobUnregistered("closed", 1), gone, produced(0, 2))
    (state,) = states(*life)
    result = state.results[RESULT]
    assert [attempt(0, 2)] == list(result.doomed)
    store, root = Target("", (tmp_path / "a").as_uri(), "").open_bucket()
    assert 0 == ObjectDeleter(store, root).delete(JOB, result, [attempt(0, 2)])
    store.put(LAYOUT.segment(attempt(0, 2), 0), b"late", "w")
    assert 1 == ObjectDeleter(store, root).delete(JOB, result, [attempt(0, 2)])


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_master_at_the_store_of_another_log(tmp_path: Path, kind: str) -> None:
    """Another deployment may have a job of the same name, with objects of the same names: nothing
    of it is deleted, aborted, or said to be gone."""
    ours, theirs = MemoryEventLog(identity="ours"), MemoryEventLog(identity="theirs")
    address = folders(tmp_path) if kind == "file" else f"memory://{tmp_path.name}"
    services, _ = driver(address, key=Root.content_of("job 1", "theirs"))
    services.store.put(NAME, b"x", "w")
    store, root = Target("", address, "").open_bucket(ours)
    with pytest.raises(Invalid, match="has the marker of another driver"):
        store.delete([NAME])
    with pytest.raises(Invalid, match="has the marker of another driver"):
        store.size_bytes(f"{NAME}1")
    with pytest.raises(Invalid, match="has the marker of another driver"):
        ObjectDeleter(store, root).sweep(replace(JobState(JOB, 9), closed="closed"))
    with pytest.raises(Invalid, match="has the marker of another driver"):
        store.abort(PendingUpload(NAME, "1"))
    assert 2 == len(list(store.list("")))
    theirs_too, root = Target("", address, "").open_bucket(theirs)
    assert 2 == ObjectDeleter(theirs_too, root).sweep(replace(JobState(JOB, 9), closed="closed"))


def test_a_master_asks_its_log_who_it_is_when_it_needs_it(tmp_path: Path) -> None:
    """A master opens its store while its log does not answer, or is not there yet, and goes on
    after the log was made anew."""
    first, second = MemoryEventLog(identity="first"), MemoryEventLog(identity="second")
    log = FaultyLog(first, LogFault("identity", 1, Unavailable("no broker")))
    address = folders(tmp_path)
    driver(address, key=Root.content_of("job 1", "first"))
    store, _ = Target("", address, "").open_bucket(log)
    with pytest.raises(Unavailable, match="no broker"):
        store.delete([NAME])
    store.delete([NAME])
    log.inner = second
    with pytest.raises(Invalid, match="has the marker of another driver"):
        store.delete([NAME])
    shutil.rmtree(tmp_path / "a" / JOB)
    driver(address, key=Root.content_of("job 1", "second"))
    store.delete([NAME])


def test_markers_go_last() -> None:
    """A sweep that fails half way has left what proves the root to the next one."""
    inner, layout = MemoryBlobStore(), Layout("", JOB)
    for name in (f"{layout.markers(1)}0", f"{layout.prefix}00/r/0/1-7/0"):
        inner.put(name, b"key", "w")
    plan = FaultPlan((PlannedFault(Operation.DELETE, 2, error=Invalid("403")),))
    with pytest.raises(Invalid):
        ObjectDeleter(FaultyBlobStore(inner, plan), "").sweep(JobState(JOB, 1, closed="closed"))
    assert [f"{layout.markers(1)}0"] == [stat.name for stat in inner.list("")]


def test_markers_stay_with_what_outlives_its_job() -> None:
    """A result that was promoted can be deleted later, by whoever sees the job's marker."""
    store = MemoryBlobStore()
    marker = f"{Layout('root', JOB).markers(1)}0"
    store.put(marker, b"key", "w")
    life = (*OPENING, produced(0, 1), produced(1, 2), PromoteRequested(RESULT, 1))
    (kept,) = states(*life, JobUnregistered("closed"))
    assert 0 == ObjectDeleter(store, "root").sweep(kept)
    marked = [finding for finding in check(store, "root", lambda: (kept,)).found]
    assert marker not in [finding.name for finding in marked]
    gone = Deleted(RESULT, (attempt(0, 1), attempt(1, 2)), 2)
    (over,) = states(*life, JobUnregistered("closed"), Tick(2), gone)
    assert 1 == ObjectDeleter(store, "root").sweep(over)


@pytest.mark.parametrize("missing", "abc")
def test_one_of_several_folders_is_missing(tmp_path: Path, missing: str) -> None:
    """Each folder has a marker of its own: what is in the others is read and written."""
    worker, names = filled(tmp_path)
    shutil.rmtree(tmp_path / missing)
    store, states = opened(worker), set[str]()
    for name in names:
        try:
            store.get(name)
        except Unavailable:
            states.add("unavailable")
        else:
            states.add("read")
    assert {"unavailable", "read"} == states


def test_another_driver_has_marked_the_root(tmp_path: Path) -> None:
    """An endpoint may be another store with the same bucket, root and job."""
    _, here = driver(folders(tmp_path), key="job 1")
    _, there = driver(folders(tmp_path, "b"), key="job 2")
    store = opened(replace(here, store=there.store))
    for act in ("put", "get", "size", "delete"):
        with pytest.raises(Invalid, match="has the marker of another driver"):
            ACTS[act](store)


def test_an_object_that_is_gone_is_lost(tmp_path: Path) -> None:
    """In the right root an object is lost, in a bucket also when the marker is, too."""
    _, worker = driver(folders(tmp_path))
    with pytest.raises(Lost):
        opened(worker).get(NAME)
    assert opened(worker).size_bytes(NAME) is None
    bucket = f"memory://{tmp_path.name}"
    services, worker = driver(bucket)
    services.store.put(f"{NAME}1", b"x", "w")
    services.store.delete(worker.markers)
    with pytest.raises(Lost):
        opened(worker).get(NAME)
    services.store.delete([f"{NAME}1"])
    with pytest.raises(Unavailable):
        opened(worker).get(NAME)


def test_a_process_asks_once() -> None:
    """A process sends one more request to each bucket that it writes to, none to read objects, and
    three for an object that is gone."""
    inner = MemoryBlobStore()
    (marker,) = Root.marker_names(LAYOUT.markers(1), 1)
    inner.put(marker, b"key", "w")
    store = RootedStore(inner, Root("s3://b/r", LAYOUT.prefix, (marker,), "key"))
    before = store.requests
    for number in range(3):
        store.put(f"{NAME}{number}", b"x", "w")
    store.delete([f"{NAME}0"])
    assert (3, 1, 0, 0) == counts(store, before)
    before = store.requests
    store.get(f"{NAME}1")
    assert store.size_bytes(f"{NAME}1") == 1
    assert (0, 1, 1, 0) == counts(store, before)
    before = store.requests
    with pytest.raises(Lost):
        store.get(NAME)
    assert (0, 4, 0, 0) == counts(store, before)


class UploadsOnly(MemoryBlobStore):
    def __init__(self) -> None:
        super().__init__()
        self.put("another/_driver/1-0", b"key", "w")
        self.aborted: list[str] = []

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return iter([PendingUpload(NAME, "1")] if NAME.startswith(prefix) else [])

    def abort(self, upload: PendingUpload) -> None:
        self.aborted.append(upload.name)


def states(*facts: Fact) -> tuple[JobState, ...]:
    log = MemoryEventLog()
    state_facts(log, *facts)
    return fold(events(log))


def counts(store: BlobStore, before: Any) -> tuple[int, int, int, int]:
    sent = store.requests - before
    return sent.puts, sent.gets, sent.heads, sent.lists


def test_a_driver_that_comes_back_without_the_mount(tmp_path: Path) -> None:
    """A driver that takes over a job with stored results marks no second root. It may when the job
    was ended before, because its objects were deleted by hand, or by a rule of the bucket."""
    (state,) = states(*OPENING, produced(0, 1))
    address = (tmp_path / "b").as_uri()
    with pytest.raises(Invalid, match=f"headgate end --job {JOB}"):
        driver(address, state=state)
    assert not (tmp_path / "b").exists()
    (ended,) = states(*OPENING, produced(0, 1), LeaseExpired("ended"))
    driver(address, state=ended)
    assert (tmp_path / "b").exists()


def test_a_driver_that_comes_back_without_one_of_several_mounts(tmp_path: Path) -> None:
    (state,) = states(*OPENING, produced(0, 1))
    address = folders(tmp_path, "abc")
    driver(address)
    driver(address, epoch=2, state=state)
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(Invalid, match="objects of it are not in"):
        driver(address, epoch=3, state=state)


def test_a_root_with_another_logs_job(tmp_path: Path) -> None:
    """A log that begins anew counts its epochs anew, beside what a former log's jobs have left."""
    driver(folders(tmp_path))
    with pytest.raises(Invalid, match=f"delete what is below {LAYOUT.prefix}"):
        driver((tmp_path / "a").as_uri(), key="job 2")


def test_a_master_finds_nothing_without_the_mount(tmp_path: Path) -> None:
    """A listing of a folder that is not mounted is empty: it does not say that all is deleted."""
    driver(folders(tmp_path))
    (goes_on,) = states(REGISTERED)
    closed = replace(goes_on, closed="closed")
    elsewhere, root = Target("", (tmp_path / "b").as_uri(), "").open_bucket()
    with pytest.raises(Invalid):
        ObjectDeleter(elsewhere, root).sweep(closed)
    here, root = Target("", (tmp_path / "a").as_uri(), "").open_bucket()
    assert 1 == ObjectDeleter(here, root).sweep(closed)


@pytest.mark.parametrize("missing", "abc")
def test_a_master_without_one_of_several_mounts(tmp_path: Path, missing: str) -> None:
    worker, names = filled(tmp_path)
    (tmp_path / missing).rename(tmp_path / "unmounted")
    store, _ = Target("", worker.store, "").open_bucket()
    with pytest.raises(Invalid):
        store.delete(names)
    (tmp_path / "unmounted").rename(tmp_path / missing)
    store.delete(names)


@pytest.mark.parametrize("missing", "abc")
def test_a_sweep_without_one_of_several_mounts(tmp_path: Path, missing: str) -> None:
    """A listing leaves out a folder that is not mounted: the other markers show that it is away."""
    worker, names = filled(tmp_path)
    (tmp_path / missing).rename(tmp_path / "unmounted")
    (tmp_path / missing).mkdir()
    store, root = Target("", worker.store, "").open_bucket()
    closed = replace(JobState(JOB, 1), closed="lease")
    with pytest.raises(Invalid, match="has no object below"):
        ObjectDeleter(store, root).sweep(closed)
    (tmp_path / missing).rmdir()
    (tmp_path / "unmounted").rename(tmp_path / missing)
    assert len(names) + 3 == ObjectDeleter(store, root).sweep(closed)


def test_an_unfinished_upload_is_all_that_a_job_has_left() -> None:
    """An upload of a job is of its root as an object is: it can be aborted."""
    inner = UploadsOnly()
    ObjectDeleter(RootedStore(inner, Root("s3://b/r", "")), "").sweep(
        replace(JobState(JOB, 1), closed="closed")
    )
    assert [NAME] == inner.aborted


def test_markers_are_no_orphans_and_go_with_the_job() -> None:
    """fsck and sweeps know markers: that of a job that goes on stays, those of its drivers go with
    the job, and that of a later driver stays."""
    store, layout = MemoryBlobStore(), Layout("root", JOB)
    names = [f"{layout.markers(epoch)}0" for epoch in (1, 2)]
    for name in names:
        store.put(name, b"key", "w")
    (goes_on,) = states(REGISTERED)
    assert check(store, "root", lambda: (goes_on,)).clean
    closed = replace(goes_on, closed="closed")
    findings = check(store, "root", lambda: (closed,))
    assert [(Kind.ORPHAN, names[0])] == [(each.kind, each.name) for each in findings.found]
    assert 1 == ObjectDeleter(store, "root").sweep(closed)
    assert names[1:] == [stat.name for stat in store.list("")]

"""The comparison with the bucket that a viewer of the live page asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.infra.ui.bucket_check import BucketCheck
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStore

from ..doubles.commands import JOB, WAIT_S, KeptLog, exchange, ran
from ..doubles.viewers import Viewer

STORE = "s3://b/r"


class Bucket:
    """Counts how often it was opened; the test may hold whoever opens it."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.opened = 0
        self.may_open = Event()
        self.may_open.set()

    def open(self) -> tuple[BlobStore, str]:
        self.opened += 1
        assert self.may_open.wait(WAIT_S)
        return MemoryBlobStore(self.objects), "root"


@pytest.fixture
def bucket(objects: Objects) -> Bucket:
    return Bucket(objects)


@pytest.fixture
def kept(log: KeptLog, bucket: Bucket) -> Iterator[Viewer]:
    """Return a viewer of the log and the bucket that commands read, too."""
    exchange(log, bucket.objects, close=False, place=STORE)
    viewer = Viewer(log)
    viewer.server.bucket = BucketCheck(log, STORE, bucket.open)
    yield viewer
    viewer.close()


def refusal(viewer: Viewer, status: int) -> str:
    with viewer.ask(f"/api/fsck?job={JOB}") as answer:
        assert status == answer.status
        return str(json.loads(answer.read())["error"])


def test_a_comparison_has_the_lines_of_the_command(kept: Viewer, bucket: Bucket) -> None:
    """A viewer gets what `headgate fsck` prints, for a bucket that is as the log says, and for one
    that is not."""
    clean = kept.value(f"/api/fsck?job={JOB}")
    assert {"clean": True, "lines": ran("fsck", "--job", JOB)[1]} == clean
    before = dict(bucket.objects)
    del bucket.objects[next(iter(bucket.objects))]
    bucket.objects[f"root/{JOB}/odd\u202ename"] = (b"orphan", "w")
    page = kept.value(f"/api/fsck?job={JOB}")
    assert {"clean": False, "lines": ran("fsck", "--job", JOB)[1]} == page
    assert ["missing", "orphan"] == [line.split()[0] for line in page["lines"][:2]]
    assert 1 == len(before.keys() - bucket.objects.keys())


def test_the_bucket_is_opened_on_demand(kept: Viewer, bucket: Bucket) -> None:
    """No page opens the bucket, except for a comparison, and none that another page asks for, also
    if the browser does not say so."""
    for page in ("jobs", "job", "masters", "exchange", "partition", "audit"):
        kept.value(f"/api/{page}?job={JOB}&result=r1&partition=0")
    for site in ("cross-site", "same-site"):
        headers = {"Sec-Fetch-Site": site}
        with kept.ask(f"/api/fsck?job={JOB}", **headers) as answer:
            assert 403 == answer.status
    path = f"/api/fsck?job={JOB}"
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{kept.server.url}{path[1:]}")
    assert 0 == bucket.opened
    with kept.ask(path, **{"Sec-Fetch-Site": "same-origin"}) as answer:
        assert 200 == answer.status
    assert 1 == bucket.opened


def test_a_page_without_the_store_of_a_job_says_so(
    log: KeptLog, kept: Viewer, bucket: Bucket
) -> None:
    """A page that was started without a store says how to start it with one, and a page of another
    store finds nothing missing there."""
    for store, says in (("", "--store s3://"), ("s3://other/r", f"of job {JOB} are in {STORE}")):
        kept.server.bucket = BucketCheck(log, store, bucket.open)
        assert says in refusal(kept, 404)
    assert 0 == bucket.opened


def test_comparisons_take_turns_and_have_a_limit(
    log: KeptLog, kept: Viewer, bucket: Bucket
) -> None:
    """A second comparison is refused while one runs, and nobody waits longer than the limit."""
    bucket.may_open.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kept.value, f"/api/fsck?job={JOB}")
        deadline = Deadline.after(WAIT_S)
        while not bucket.opened and not deadline.passed:
            SYSTEM_CLOCK.sleep_s(0.01)
        assert "runs already" in refusal(kept, 503)
        bucket.may_open.set()
        assert first.result(WAIT_S)["clean"]
    bucket.may_open.clear()
    kept.server.bucket = BucketCheck(log, STORE, bucket.open, answer_s_max=0.05)
    assert f"longer than 0.05 s; `headgate fsck --job {JOB}`" in refusal(kept, 503)
    assert "runs already" in refusal(kept, 503)
    bucket.may_open.set()
    kept.server.bucket.answer_s_max = WAIT_S
    while "runs already" in kept.value(f"/api/fsck?job={JOB}").get("error", ""):
        SYSTEM_CLOCK.sleep_s(0.01)
    assert kept.value(f"/api/fsck?job={JOB}")["clean"]

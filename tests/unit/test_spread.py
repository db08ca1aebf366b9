"""Stores that are spread over several buckets: their addresses, and jobs that keep to one."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from pathlib import Path

import pytest

from headgate.control.addresses import is_same_place, urls_of
from headgate.control.clock import Deadline
from headgate.control.errors import Closed, Invalid, Unavailable
from headgate.storage.stores.costs import kind_of
from headgate.storage.stores.files import FileBlobStore
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.open_store import open_store
from headgate.storage.stores.port import BlobStore, PendingUpload
from headgate.storage.stores.s3 import store as s3_store
from headgate.storage.stores.spread import SpreadBlobStore

from ..doubles.jobs import Job
from ..doubles.stacks import Stack, produce, register, stack

__all__ = ["stack"]
NAMES = [f"root/job/{shard:02x}/r/{shard}/1-2/0" for shard in range(64)]
numbers = count()


def spread(*buckets: Objects) -> SpreadBlobStore:
    return SpreadBlobStore([MemoryBlobStore(bucket) for bucket in buckets])


def test_an_object_is_where_its_name_says_for_ever() -> None:
    """A later version of the code looks for an object in the same bucket."""
    three: list[Objects] = [{}, {}, {}]
    store = spread(*three)
    for name in NAMES[:12]:
        store.put(name, b"x", "w")
    places = [[name in bucket for bucket in three].index(True) for name in NAMES[:12]]
    assert [2, 2, 2, 2, 1, 2, 2, 1, 1, 1, 1, 2] == places


def test_every_bucket_gets_its_share() -> None:
    buckets: list[Objects] = [{}, {}, {}, {}]
    store = spread(*buckets)
    for name in NAMES * 4:
        store.put(f"{name}/{next(numbers)}", b"x", "w")
    assert all(40 < len(bucket) < 90 for bucket in buckets)
    assert 256 == store.requests.puts
    listed = [stat.name for stat in store.list("root/")]
    assert sorted(listed) == listed
    store.delete(listed)
    assert [{}, {}, {}, {}] == buckets


def test_uploads_of_every_bucket_are_listed_and_aborted(tmp_path: Path) -> None:
    """An upload is aborted in the bucket that has it."""
    store = SpreadBlobStore([FileBlobStore(tmp_path / at) for at in "ab"])
    for name in NAMES:
        store.put(name, b"x", "w")
    for bucket in "ab":
        for link in list((tmp_path / bucket).rglob("0")):
            if link.is_symlink():
                link.unlink()
    uploads = list(store.uploads("root/"))
    assert sorted(NAMES) == sorted(upload.name for upload in uploads)
    for upload in uploads:
        store.abort(upload)
        store.abort(PendingUpload(upload.name, "none"))
    assert [] == list(store.uploads(""))


def test_every_bucket_is_checked_and_closed() -> None:
    """A bucket that cannot be reached fails the check; all are closed, whatever one raises."""

    class Away(MemoryBlobStore):
        def check(self, deadline: Deadline, prefix: str = "") -> None:
            raise Unavailable("away")

        def close(self) -> None:
            raise Unavailable("away")

    for at in range(2):
        here = MemoryBlobStore()
        stores: list[BlobStore] = [here]
        stores.insert(at, Away())
        store = SpreadBlobStore(stores)
        with pytest.raises(Unavailable):
            store.check(Deadline.after(1.0))
        with pytest.raises(Unavailable):
            store.close()
        with pytest.raises(Closed):
            here.get("a")


@pytest.mark.parametrize("failing", range(3))
def test_a_bucket_that_fails_keeps_no_other_from_deleting(failing: int) -> None:
    """A delete that fails in one bucket has deleted what is in all others."""

    class Denied(MemoryBlobStore):
        def delete(self, names: Collection[str]) -> None:
            raise Invalid("403")

    buckets: list[Objects] = [{}, {}, {}]
    stores: list[BlobStore] = [MemoryBlobStore(bucket) for bucket in buckets]
    stores[failing] = Denied(buckets[failing])
    store = SpreadBlobStore(stores)
    for name in NAMES:
        store.put(name, b"x", "w")
    with pytest.raises(Invalid):
        store.delete(NAMES)
    assert [failing] == [at for at, bucket in enumerate(buckets) if bucket]


def test_an_address_has_urls() -> None:
    """Only a comma before another URL separates: a folder's name may have commas."""
    assert ("s3://a/p", "s3://b/p") == urls_of("s3://a/p, s3://b/p")
    assert ("file:///a,b", "file:///c") == urls_of("file:///a,b,file:///c")
    assert ("",) == urls_of("")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("s3://a/p,s3://b/p", "s3://a/p/ , s3://b/p", True),
        ("s3://a/p,s3://b/p", "s3://b/p,s3://a/p", False),
        ("s3://a/p,s3://b/p", "s3://a/p", False),
        ("s3://a/p", "", True),
        ("", "s3://a/p,s3://b/p", True),
    ],
)
def test_addresses_of_one_place(first: str, second: str, same: bool) -> None:
    assert same == is_same_place(first, second)


def test_several_urls_are_one_store(tmp_path: Path) -> None:
    """The objects of a store with several URLs are in all of its folders."""
    address = ",".join((tmp_path / at).as_uri() for at in "abc")
    store, root = open_store(address)
    for name in NAMES:
        store.put(name, b"x", "w")
    found_in = [len(list(FileBlobStore(tmp_path / at).list(""))) for at in "abc"]
    assert (64, "") == (sum(found_in), root)
    assert all(found_in)
    again, _ = open_store(address)
    assert sorted(NAMES) == [stat.name for stat in again.list("")]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://a/p,s3://b/q", "several roots, p, q"),
        ("s3://a/p,s3://a/p/", "twice"),
        ("s3://a/p,file:///a", "one kind"),
        ("s3://a/p,s3://b/p?x", "has a '[?]'"),
        ("s3://me:hunter2@a/p,s3://b/q", "password"),
    ],
)
def test_urls_that_do_not_fit_together(
    address: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that cannot be used is `Invalid`, and the stores that were opened are closed."""
    opened: list[MemoryBlobStore] = []

    def opens(settings: object) -> MemoryBlobStore:
        opened.append(MemoryBlobStore())
        return opened[-1]

    monkeypatch.setattr(s3_store, "S3BlobStore", opens)
    with pytest.raises(Invalid, match=says) as caught:
        open_store(address, {"endpoint": "http://x"} if "file" not in address else {})
    assert "hunter2" not in str(caught.value)
    for store in opened:
        with pytest.raises(Closed):
            store.get("a")


def test_the_kind_of_several_buckets_is_the_dearest() -> None:
    express, standard = "s3://a--usw2-az1--x-s3/p", "s3://b/p"
    assert "s3-express" == kind_of(f"{express},{express}2--x-s3", {})
    assert "s3-standard" == kind_of(f"{express},{standard}", {})
    assert "own" == kind_of(f"{express},{standard}", {"endpoint": "http://x"})


def test_a_driver_with_other_buckets_is_refused(stack: Stack) -> None:
    """A job with objects keeps to its buckets and their order. A driver that would look for them
    elsewhere is told so, and the next one with the right buckets has everything."""
    here, turned = "memory://a,memory://b", "memory://b,memory://a"
    with stack.master(address=here) as master, stack.environment() as environment:
        master.register_job(Job())
        descriptor = register(master)
        produce(stack, environment, descriptor, 0)
    for address in (turned, "memory://a", f"{here},memory://c"):
        with (
            stack.master(address=address) as other,
            pytest.raises(Invalid, match=f"has objects in {here}, .* store is {address}: "),
        ):
            other.register_job(Job())
    with stack.master(address="memory://a/ , memory://b") as heir:
        heir.register_job(Job())
        heir.unregister_job()
    with stack.master(address=turned) as anew:
        anew.register_job(Job())

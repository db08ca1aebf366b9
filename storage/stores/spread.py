"""A store that is spread over several stores, so that each gets a share of the requests.

A hash of its name, which never changes, says in which store an object is. So the stores, their
order and their number must stay the same for as long as there are objects.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain

import xxhash

from ...control.clock import Deadline
from .port import BlobStat, BlobStore, ByteRange, Bytes, PendingUpload
from .request_meter import RequestCounts


class SpreadBlobStore:
    def __init__(self, stores: Sequence[BlobStore]) -> None:
        self._stores = tuple(stores)

    @property
    def requests(self) -> RequestCounts:
        return sum((store.requests for store in self._stores), RequestCounts())

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        for store in self._stores:
            store.check(deadline, prefix)

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        self._of(name).put(name, body, write_id)

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        return self._of(name).get(name, span)

    def size_bytes(self, name: str) -> int | None:
        return self._of(name).size_bytes(name)

    def delete(self, names: Collection[str]) -> None:
        with ExitStack() as deleting:  # every bucket gets its turn, whatever another one raises
            for store in self._stores:
                its = [name for name in names if self._of(name) is store]
                deleting.callback(store.delete, its)

    def list(self, prefix: str) -> Iterator[BlobStat]:
        listings = [store.list(prefix) for store in self._stores]
        return heapq.merge(*listings, key=lambda stat: stat.name)

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return chain.from_iterable(store.uploads(prefix) for store in self._stores)

    def abort(self, upload: PendingUpload) -> None:
        self._of(upload.name).abort(upload)

    def close(self) -> None:
        with ExitStack() as closing:
            for store in self._stores:
                closing.callback(store.close)

    def _of(self, name: str) -> BlobStore:
        """Return the store that has the object of a name."""
        return self._stores[bucket_of(name, len(self._stores))]


def bucket_of(name: str, buckets: int) -> int:
    """Return the number of the bucket that has the object of a name, of so many."""
    return xxhash.xxh3_64_intdigest(name.encode()) % buckets

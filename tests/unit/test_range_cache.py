"""The range cache is bounded in memory, costs the garbage collector nothing, and can be closed at
any time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread
from typing import ParamSpec, TypeVar

import pytest

from headgate.control.errors import Closed, Unavailable
from headgate.storage.reading.range_cache import RangeCache
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.storage.stores.port import ByteRange

P = ParamSpec("P")
T = TypeVar("T")

NAME, SPAN = "object", ByteRange(3, 4)


class Store(MemoryBlobStore):
    """A store that counts requests, waits until it may answer, and fails if it is to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.fails = False
        self.may_answer = Event()
        self.may_answer.set()

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        assert span is not None
        assert self.may_answer.wait(5.0)
        self.asked += 1
        if self.fails:
            raise Unavailable("not now")
        return memoryview(bytes([span.start % 256]) * span.length)


class ClosingFetchers(ThreadPoolExecutor):
    """An executor that takes its last request only when a close has begun to cancel the others."""

    def __init__(self, requests: int) -> None:
        super().__init__(1)
        self.left = requests
        self.is_asked_last, self.is_cancelling = Event(), Event()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.left -= 1
        if self.left == 0:
            self.is_asked_last.set()
            assert self.is_cancelling.wait(5.0)
        asked = super().submit(fn, *args, **kwargs)
        asked.add_done_callback(lambda _: self.is_cancelling.set())
        return asked


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def fetchers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_readers_share_a_request(store: Store, fetchers: ThreadPoolExecutor) -> None:
    """A range is asked for once, by who comes while it is under way and by who comes later."""
    cache = RangeCache(store, 1 << 20, fetchers)
    store.may_answer.clear()
    asked = [cache.fetch(NAME, SPAN) for _ in range(2)]
    store.may_answer.set()
    bodies = [bytes(answer.result(5.0)) for answer in (*asked, cache.fetch(NAME, SPAN))]
    assert [b"\3\3\3\3"] * 3 == bodies
    assert 1 == store.asked == cache.take_requests()


def test_a_range_that_failed_is_asked_for_again(store: Store, fetchers: ThreadPoolExecutor) -> None:
    cache = RangeCache(store, 1 << 20, fetchers)
    store.fails = True
    with pytest.raises(Unavailable):
        cache.fetch(NAME, SPAN).result(5.0)
    store.fails = False
    assert b"\3\3\3\3" == bytes(cache.fetch(NAME, SPAN).result(5.0))
    assert 2 == store.asked


@pytest.mark.parametrize("length", [0, 10, 60_000, 100_000, 3_000_000])
def test_what_is_held_is_bounded(store: Store, fetchers: ThreadPoolExecutor, length: int) -> None:
    """The budget counts what a range takes besides its bytes; what is dropped is asked for anew."""
    cache = RangeCache(store, 1 << 20, fetchers)
    for at in range(3_000):
        cache.fetch(NAME, ByteRange(at, length)).result(5.0)
    capacity = max(1, (1 << 20) // (length + 512))
    cache.fetch(NAME, ByteRange(3_000 - capacity, length)).result(5.0)
    assert 3_000 == store.asked
    cache.fetch(NAME, ByteRange(3_000 - capacity - 1, length)).result(5.0)
    assert 3_001 == store.asked


def test_the_garbage_collector_visits_no_small_range(
    store: Store, fetchers: ThreadPoolExecutor
) -> None:
    """Spark's worker collects garbage after each task: thousands of ranges must not cost time."""
    cache = RangeCache(store, 64 << 20, fetchers)
    gc.collect()
    before = len(gc.get_objects())
    for at in range(1_000):
        cache.fetch(NAME, ByteRange(at, 100)).result(5.0)
    gc.collect()
    assert 100 > len(gc.get_objects()) - before
    assert 1_000 == store.asked
    cache.fetch(NAME, ByteRange(0, 100)).result(5.0)
    assert 1_000 == store.asked


def test_a_close_and_a_fetch_do_not_wait_for_each_other(store: Store) -> None:
    """A close cancels requests under the executor's lock while a fetch that holds the cache's lock
    sends one: both end. A closed cache gives nothing out."""
    fetchers = ClosingFetchers(4)
    cache = RangeCache(store, 1 << 20, fetchers)
    store.may_answer.clear()
    for at in range(3):
        cache.fetch(NAME, ByteRange(at, 4))

    def fetch() -> None:
        with suppress(Closed):
            cache.fetch(NAME, SPAN)

    threads = [Thread(target=act, daemon=True) for act in (fetch, cache.close)]
    threads[0].start()
    assert fetchers.is_asked_last.wait(5.0)
    threads[1].start()
    for thread in threads:
        thread.join(2.0)
    store.may_answer.set()
    assert [False, False] == [thread.is_alive() for thread in threads]
    with pytest.raises(Closed):
        cache.fetch(NAME, SPAN)
    fetchers.shutdown()

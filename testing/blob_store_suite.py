"""The contract of every object store, as tests.

A subclass gives the fixture `make`, a function that opens a bucket, the same one at each call. The
end of a test proves that its objects can be listed and deleted, and that no upload is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from ..control.clock import Deadline
from ..control.errors import Closed, Conflict, Corrupt, HeadgateError, Invalid, Lost
from ..storage.stores.port import BlobStat, BlobStore, ByteRange
from ..storage.stores.request_meter import RequestCounts

BIG_BYTES = 11 * (1 << 20) + 7  # above the multipart threshold, and not a whole number of parts
RACERS = 8
LIMIT_S = 60.0


def swept(store: BlobStore) -> None:
    """Delete all objects, and assert that nothing is left."""
    store.delete([stat.name for stat in store.list("")])
    assert list(store.list("")) == []
    assert list(store.uploads("")) == []


def together(count: int, act: Callable[[int], None]) -> list[HeadgateError | None]:
    """Run `act` in `count` threads that start together; return each thread's error, or None."""
    barrier = threading.Barrier(count)

    def run(number: int) -> HeadgateError | None:
        barrier.wait(LIMIT_S)
        try:
            act(number)
        except HeadgateError as error:
            return error
        return None

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


class BlobStoreSuite:
    LISTED = 1_050
    """The objects of one listing: more than a page of S3."""

    @pytest.fixture
    def make(self) -> Callable[[], BlobStore]:
        raise NotImplementedError

    @pytest.fixture
    def store(self, make: Callable[[], BlobStore]) -> Iterator[BlobStore]:
        store = make()
        yield store
        swept(store)
        store.close()

    def test_get_returns_what_put_stored(self, store: BlobStore) -> None:
        """An object comes back byte for byte, even an empty one."""
        body = bytes(range(256)) * 40
        store.put("job/0a/r/1/1-2/0", body, "w")
        store.put("job/empty", b"", "w")
        assert body == store.get("job/0a/r/1/1-2/0")
        assert bytes(store.get("job/empty")) == b""

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
    def test_put_takes_any_buffer(
        self, store: BlobStore, kind: Callable[[bytes], bytes | bytearray]
    ) -> None:
        """Any kind of buffer is stored, including Arrow's signed bytes."""
        store.put("a", memoryview(kind(b"abcdef"))[1:5], "w")
        assert bytes(store.get("a")) == b"bcde"

    def test_an_object_does_not_follow_its_buffer(self, store: BlobStore) -> None:
        """A buffer may be reused once put has returned."""
        body = bytearray(b"before")
        store.put("a", body, "w")
        body[:] = b"after!"
        assert bytes(store.get("a")) == b"before"

    @pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 10), (3, 4), (9, 1), (4, 0)])
    def test_a_range_is_exact(self, store: BlobStore, start: int, length: int) -> None:
        """A range gives exactly its bytes, also at the borders of the object."""
        store.put("a", b"0123456789", "w")
        expected = b"0123456789"[start : start + length]
        assert expected == store.get("a", ByteRange(start, length))

    @pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (50, 5)])
    def test_a_range_past_the_end_is_corrupt(
        self, store: BlobStore, start: int, length: int
    ) -> None:
        """A range past the end is `Corrupt`; the error names object, range, and both lengths."""
        store.put("a", b"0123456789", "w")
        left = max(0, 10 - start)
        with pytest.raises(Corrupt) as caught:
            store.get("a", ByteRange(start, length))
        for part in ("object a", f"{start}..{start + length}", f"expected {length}", str(left)):
            assert part in str(caught.value)

    def test_a_missing_object_is_lost(self, store: BlobStore) -> None:
        """Reading a missing object, whole or by range, raises `Lost`."""
        for span in (None, ByteRange(0, 4)):
            with pytest.raises(Lost, match="no/such"):
                store.get("no/such", span)

    def test_size_is_known_or_none(self, store: BlobStore) -> None:
        """`size_bytes` gives the size of an object, and None for a missing one."""
        store.put("a", b"12345", "w")
        assert store.size_bytes("a") == 5
        assert None is store.size_bytes("b")

    def test_the_same_write_may_be_repeated(self, store: BlobStore) -> None:
        """A put with the same write id and size succeeds again, as after a lost answer."""
        store.put("a", b"12345", "result/0/1-7/0")
        store.put("a", b"12345", "result/0/1-7/0")
        assert bytes(store.get("a")) == b"12345"

    @pytest.mark.parametrize(("body", "write_id"), [(b"67890", "other"), (b"123456", "mine")])
    def test_another_write_conflicts(self, store: BlobStore, body: bytes, write_id: str) -> None:
        """Another write id, or another size under the same write id, is a `Conflict` and replaces
        nothing."""
        store.put("a", b"12345", "mine")
        with pytest.raises(Conflict):
            store.put("a", body, write_id)
        assert bytes(store.get("a")) == b"12345"

    def test_one_of_racing_writers_wins(self, store: BlobStore) -> None:
        """Exactly one of eight writers of the same name succeeds, and its bytes stay."""
        ends = together(RACERS, lambda n: store.put("race", bytes([n]) * 5_000, f"w{n}"))
        winners = [number for number, end in enumerate(ends) if end is None]
        assert len(winners) == 1
        assert [Conflict] * (RACERS - 1) == [type(end) for end in ends if end is not None]
        assert bytes(winners) * 5_000 == store.get("race")

    def test_racing_repetitions_all_succeed(self, store: BlobStore) -> None:
        """Eight writers of the same write all succeed."""
        ends = together(RACERS, lambda n: store.put("race", b"same", "w"))
        assert ends == [None] * RACERS

    def test_threads_do_not_mix_objects(self, store: BlobStore) -> None:
        """Concurrent puts and reads each see their own bytes."""

        def act(number: int) -> None:
            body = bytes([number]) * (1_000 + number)
            store.put(f"many/{number}/x", body, "w")
            for _ in range(5):
                assert body == store.get(f"many/{number}/x")

        assert together(RACERS, act) == [None] * RACERS

    def test_delete_is_idempotent(self, store: BlobStore) -> None:
        """Deleting existing and missing objects twice leaves other objects alone."""
        for name in ("d/1", "d/2", "e"):
            store.put(name, b"x", "w")
        for _ in range(2):
            store.delete(["d/1", "d/2", "d/3"])
        store.delete([])
        assert [BlobStat("e", 1)] == list(store.list(""))

    def test_a_deleted_name_can_be_written_again(self, store: BlobStore) -> None:
        """A deleted name is free for another write."""
        store.put("a/b", b"1", "w1")
        store.delete(["a/b"])
        store.put("a/b", b"22", "w2")
        assert bytes(store.get("a/b")) == b"22"

    def test_list_gives_every_name_of_a_prefix_in_order(self, store: BlobStore) -> None:
        """A prefix with more names than a page is listed completely, sorted, and without
        neighbours."""
        names = [f"l/{number:04}/x" for number in range(self.LISTED)]
        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(lambda name: store.put(name, b"x", "w"), reversed(names)))
        store.put("k", b"x", "w")
        store.put("lm", b"x", "w")
        assert names == [stat.name for stat in store.list("l/")]
        assert names[10:20] == [stat.name for stat in store.list("l/001")]
        assert [stat.name for stat in store.list("lm")] == ["lm"]
        assert list(store.list("l/zz/")) == []

    def test_names_sort_as_bytes(self, store: BlobStore) -> None:
        """Names are sorted by their bytes, the separator included, as in S3."""
        names = sorted(["p/a", "p/a-b", "p/a.b/c", "p/a0", "p/A", "p/b/c", "p/b=1/d", "p/b_"])
        names.remove("p/a")
        for name in names:
            store.put(name, b"x", "w")
        assert names == [stat.name for stat in store.list("p")]

    def test_a_big_body_makes_the_round_trip(self, store: BlobStore) -> None:
        """A body above the multipart threshold is stored whole, and can be repeated and read by
        range."""
        body = bytes(range(251)) * (BIG_BYTES // 251 + 1)
        big = memoryview(body)[:BIG_BYTES]
        store.put("big", big, "w")
        store.put("big", big, "w")
        assert big == store.get("big")
        assert big[-9:] == store.get("big", ByteRange(BIG_BYTES - 9, 9))

    def test_a_big_conflict_leaves_no_upload(self, store: BlobStore) -> None:
        """A large put that loses leaves the winner's bytes and no unfinished upload."""
        store.put("big", b"small", "first")
        with pytest.raises(Conflict):
            store.put("big", bytes(BIG_BYTES), "second")
        assert list(store.uploads("")) == []
        assert bytes(store.get("big")) == b"small"

    @pytest.mark.parametrize(
        "name", ["", "/a", "a/", "a//b", "../a", "a/./b", ".data/x", "a b", "ü", "a%2F", "x" * 1025]
    )
    def test_names_outside_the_common_set_are_refused(self, store: BlobStore, name: str) -> None:
        """A name that some store could not hold is `Invalid` in every store."""
        for act in (
            lambda: store.put(name, b"x", "w"),
            lambda: store.get(name),
            lambda: store.delete([name]),
        ):
            with pytest.raises(Invalid, match="object name"):
                act()

    @pytest.mark.parametrize("write_id", ["", "two\nlines", "w" * 181, "ü"])
    def test_write_ids_that_cannot_travel_are_refused(
        self, store: BlobStore, write_id: str
    ) -> None:
        """A write id that does not fit a header is `Invalid`."""
        with pytest.raises(Invalid, match="write id"):
            store.put("a", b"x", write_id)

    def test_requests_are_counted(self, store: BlobStore) -> None:
        """The meter counts each request and each byte, and a HEAD only after a put that found its
        name taken."""
        before = store.requests
        store.put("c", b"12345", "w")
        store.put("c", b"12345", "w")
        store.get("c", ByteRange(1, 3))
        expected = RequestCounts(puts=2, gets=1, heads=1, bytes_written=10, bytes_read=3)
        assert expected == store.requests - before

    def test_check_accepts_a_usable_store(self, store: BlobStore) -> None:
        """The check of a working store raises nothing and leaves nothing."""
        store.check(Deadline.after(LIMIT_S))
        assert list(store.list("")) == []

    def test_another_store_object_sees_the_same(
        self, store: BlobStore, make: Callable[[], BlobStore]
    ) -> None:
        """Objects and their write ids outlive the store object that wrote them."""
        store.put("a", b"12345", "w/1")
        other = make()
        assert bytes(other.get("a")) == b"12345"
        other.put("a", b"12345", "w/1")
        with pytest.raises(Conflict):
            other.put("a", b"12345", "w/2")
        other.close()

    def test_a_closed_store_says_so(self, make: Callable[[], BlobStore]) -> None:
        """Every use after close raises `Closed`."""
        store = make()
        store.close()
        store.close()
        for act in (
            lambda: store.put("a", b"x", "w"),
            lambda: store.get("a"),
            lambda: list(store.list("")),
            lambda: store.delete(["a"]),
        ):
            with pytest.raises(Closed):
                act()

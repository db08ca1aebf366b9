"""Damaged, missing and foreign bytes give an error that says where, never wrong or fewer rows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.errors import Conflict, Corrupt, HeadgateError, Lost
from headgate.control.events.types import Produced, SegmentSummary
from headgate.control.ids import AttemptId, PartitionId
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import ResultState
from headgate.storage.contract import InputGateDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format import segment
from headgate.storage.format.manifest import Manifest, Source
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStore
from headgate.testing.faulty_store import (
    Effect,
    FaultPlan,
    FaultyBlobStore,
    Operation,
    PlannedFault,
)

from ..doubles.damaged import (
    KINDS,
    LIMITS,
    SCHEMA,
    SUBPARTITIONS,
    Sound,
    part,
    sound,
    without_indexes,
)
from ..doubles.segments import (
    JOB,
    LAYOUT,
    RESULT,
    Part,
    Written,
    attempt_of,
    exchange,
    packed_from,
    produce,
)

pytestmark = pytest.mark.usefixtures("no_thread_stays")

JOINED = Limits(segment_bytes=600, join_bytes=1 << 20)


@contextmanager
def opened(
    whole: Sound, store: BlobStore, state: ResultState | None = None, limits: Limits = LIMITS
) -> Iterator[Written]:
    """Open the result for readers, over another bucket or another state."""
    environment = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", limits)
    try:
        yield Written(SCHEMA, whole.descriptor, state or whole.state, {}, store, environment)
    finally:
        environment.close()


def read_all(
    whole: Sound, objects: Objects, manifest: Manifest | None = None, limits: Limits = LIMITS
) -> dict[int, HeadgateError]:
    """Read every subpartition, and return the errors; assert that each other one has its rows. A
    task that combines reads no wrong rows either, a driver all or none."""
    errors: dict[int, HeadgateError] = {}
    with opened(whole, MemoryBlobStore(objects), limits=limits) as written:
        for at in range(SUBPARTITIONS):
            try:
                assert whole.rows[at] == written.read(at, 1, manifest or whole.manifest)
            except (Corrupt, Lost) as exc:
                errors[at] = exc
            with suppress(type(errors[at])) if at in errors else nullcontext():
                stretches = written.read_stretches(at, 1, manifest or whole.manifest)
                assert whole.rows[at] == stretches
        with pytest.raises(HeadgateError) if errors else nullcontext():
            assert whole.rows == written.read_at_once(manifest or whole.manifest)
    return errors


@pytest.mark.parametrize("effect", [Effect.TRUNCATE, Effect.FAIL])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_footer_is_read_once_more(effect: Effect, nth: int) -> None:
    """A footer that was damaged on its way, or seemed to be gone, is read again; the error of the
    second read is raised."""
    whole = sound("none")
    source = whole.manifest.sources[0]
    size_bytes = len(whole.objects[source.name][0])

    def fetch(*faulty: int) -> segment.SegmentIndex:
        faults = [PlannedFault(Operation.GET, n, effect, Lost("gone")) for n in faulty]
        store = FaultyBlobStore(MemoryBlobStore(whole.objects), FaultPlan(tuple(faults)))
        return segment.fetch_index(store, source.name, size_bytes, source.attempt, SUBPARTITIONS)

    assert fetch().entries() == fetch(nth).entries()
    with pytest.raises((Corrupt, Lost)):
        fetch(*range(1, 5))


def test_an_index_takes_one_request() -> None:
    """Nothing else of a footer is read: that of a wide schema may be long."""
    schema = pa.schema([(f"a column with a long name {at}", pa.int64()) for at in range(300)])
    rows = pa.record_batch([pa.array([1, 2])] * 300, schema=schema)
    with exchange(schema, [Part(rows, np.array([0, 1]), ())], 2, "none", LIMITS) as written:
        (name,) = written.objects
        (summary,) = written.state.produced(0).segments
        index = segment.fetch_index(written.store, name, summary.size_bytes, attempt_of(0), 2)
        assert index.packed() == summary.index
        requests = written.store.requests
        assert (requests.gets, requests.bytes_read < 100) == (1, True)


@pytest.mark.parametrize("other", [attempt_of(1), replace(attempt_of(0), task=7)])
def test_an_index_of_another_attempt_is_corrupt(other: AttemptId) -> None:
    whole = sound("none")
    source = whole.manifest.sources[0]
    body = whole.objects[source.name][0]
    store = MemoryBlobStore({source.name: (body, "w")})
    with pytest.raises(Corrupt, match="is not a segment of attempt"):
        segment.fetch_index(store, source.name, len(body), other, SUBPARTITIONS)


def test_the_indexes_in_the_log_are_bounded() -> None:
    """However wide a result is, the indexes in its events have at most 100 MB."""
    assert segment.inline_bytes(0) == 128 << 10
    assert segment.inline_bytes(199) > 2_000 * 20
    assert sum(map(segment.inline_bytes, range(10_000))) < 100_000_000


def test_a_hot_subpartition_is_not_read_from_two_attempts() -> None:
    """Objects of one map task that do not fit the limit together are left to one gate. If a later
    one is damaged, no other gate reads the subpartition: rows of it were handed out."""
    limits = replace(LIMITS, fetch_bytes=1)
    whole = sound("none")
    first, *_, last = (
        source for source in whole.manifest.sources if source.attempt == attempt_of(0)
    )
    assert first.name != last.name
    at = int(np.flatnonzero(first.sizes * last.sizes)[0])
    body = bytearray(whole.objects[last.name][0])
    body[last.range_of(at, 1).start] ^= 1
    with opened(whole, MemoryBlobStore(whole.damaged(last.name, bytes(body))), limits=limits) as it:
        deployment = InputGateDeployment(whole.manifest, SCHEMA, at, 1, 7)
        reader = it.environment.create_stretch_reader([deployment])
        with pytest.raises(Corrupt, match="read twice"):
            list(itertools.chain.from_iterable(reader.groups(1)))


@pytest.mark.parametrize("objects", [1, 2])
def test_wrong_bytes_of_a_stretch_are_not_kept(objects: int) -> None:
    """Bytes that were damaged on their way, and again when they were requested once more, are not
    what the gate reads that reads a stretch instead."""
    whole = sound("none")
    sources = whole.manifest.sources[:objects]
    at = int(np.flatnonzero(np.prod([source.sizes for source in sources], axis=0))[0])
    fits = max(int(source.sizes[at]) for source in sources)
    manifest = replace(whole.manifest, sources=sources)
    for fetch_bytes in (1, fits, 1 << 20):
        faults = tuple(PlannedFault(Operation.GET, nth, Effect.FLIP) for nth in (1,))
        store = FaultyBlobStore(MemoryBlobStore(whole.objects), FaultPlan(faults))
        with opened(whole, store, limits=replace(LIMITS, fetch_bytes=fetch_bytes)) as it:
            rows = it.read_stretches(at, 1, manifest)
            assert rows.num_rows == sum(source.rows[at] for source in sources)


def names_range(error: HeadgateError, name: str, hit: range) -> bool:
    """Return True if the error names the object and a range that overlaps `hit`; assert that it is
    `Corrupt`."""
    match = re.search(rf"{re.escape(name)}\D+(\d+)(?:-|\.\.)(\d+)", str(error))
    assert isinstance(error, Corrupt), error
    assert match, error
    return int(match[1]) < hit.stop and hit.start <= int(match[2])


NAMES = st.integers(0, 1 << 10)
PLACES = st.floats(0, 1, exclude_max=True)
MASKS = st.integers(1, 255)
CODEC = st.sampled_from(KINDS)
BOTH_LIMITS = st.sampled_from([LIMITS, JOINED])


@given(CODEC, NAMES, PLACES, MASKS, BOTH_LIMITS)
def test_a_flipped_byte_is_found_by_whoever_reads_it(
    codec: str, which: int, place: float, mask: int, limits: Limits
) -> None:
    """A flipped byte in a slice is `Corrupt` for the slice's reader, with object and range in the
    error; other readers are not affected."""
    whole = sound(codec)
    name = whole.names[which % len(whole.names)]
    body = bytearray(whole.objects[name][0])
    at = int(place * len(body))
    body[at] ^= mask
    errors = read_all(whole, whole.damaged(name, bytes(body)), limits=limits)
    assert whole.touched(name, range(at, at + 1)) == errors.keys()
    assert all(names_range(error, name, range(at, at + 1)) for error in errors.values())


@given(CODEC, NAMES, PLACES, BOTH_LIMITS)
def test_a_truncated_object_is_found(codec: str, which: int, place: float, limits: Limits) -> None:
    """Every read of missing bytes is `Corrupt`, and names the object and the range. No reader gets
    fewer rows."""
    whole = sound(codec)
    name = whole.names[which % len(whole.names)]
    body = whole.objects[name][0]
    at = int(place * len(body))
    errors = read_all(whole, whole.damaged(name, body[:at]), limits=limits)
    assert whole.touched(name, range(at, len(body))) <= errors.keys()
    assert all(names_range(error, name, range(at, len(body))) for error in errors.values())


@pytest.mark.slow
@pytest.mark.parametrize("codec", KINDS)
def test_a_missing_object_is_lost(codec: str) -> None:
    """Readers of a missing object get `Lost`, which names object and partition; other readers are
    not affected."""
    whole = sound(codec)
    for source in whole.manifest.sources:
        objects = {name: body for name, body in whole.objects.items() if name != source.name}
        errors = read_all(whole, objects)
        assert set(np.flatnonzero(source.rows)) == errors.keys()
        for error in errors.values():
            assert isinstance(error, Lost)
            assert source.name in str(error)
            assert f"partition {source.attempt.partition} " in str(error)


@given(CODEC, NAMES, NAMES, BOTH_LIMITS)
def test_swapped_objects_are_found(codec: str, left: int, right: int, limits: Limits) -> None:
    """Two objects with swapped names are `Corrupt` for every reader of either."""
    whole = sound(codec)
    names = whole.names
    first, second = names[left % len(names)], names[right % len(names)]
    objects = dict(whole.objects)
    objects[first], objects[second] = objects[second], objects[first]
    errors = read_all(whole, objects, limits=limits)
    everywhere = range(1 << 30)
    hit = whole.touched(first, everywhere) | whole.touched(second, everywhere)
    assert (hit if first != second else set()) == errors.keys()
    for error in errors.values():
        assert names_range(error, first if first in str(error) else second, everywhere)


def foreign(codec: str, salt: int, task: int, partition: int = 0) -> Objects:
    """Return the objects that another attempt at a partition writes, under its own names."""
    objects: Objects = {}
    environment = ObjectStoreEnvironment(
        JOB, MemoryEventLog(), MemoryBlobStore(objects), "root", LIMITS
    )
    attempt = AttemptId(PartitionId(RESULT, partition), 1, task)
    with packed_from(0 if codec == "packed" else 1_000):
        stored_as = "lz4" if codec == "packed" else codec
        produce(environment, attempt, SUBPARTITIONS, SCHEMA, part(partition, salt), stored_as)
    environment.close()
    return objects


@pytest.mark.parametrize("codec", KINDS)
def test_the_object_of_another_attempt_is_found(codec: str) -> None:
    """Other rows under an attempt's name are `Corrupt`, and the error names the object."""
    whole = sound(codec)
    others = foreign(codec, 1000, 999)
    for name, other in zip(whole.names, sorted(others), strict=False):
        errors = read_all(whole, whole.damaged(name, others[other][0]))
        assert whole.touched(name, range(1 << 30)) == errors.keys()
        assert all(names_range(error, name, range(1 << 30)) for error in errors.values())


@pytest.mark.parametrize("codec", KINDS)
def test_a_footer_of_another_attempt_is_refused(codec: str) -> None:
    """An index is taken only from an object of the attempt that announced it, even if the rows are
    equal."""
    whole = sound(codec)
    state = without_indexes(whole.state)
    mine = sorted(name for name in whole.names if f"/{RESULT}/0/" in name)
    others = foreign(codec, 0, 999)
    assert len(mine) == len(others)
    for name, other in zip(mine, sorted(others), strict=True):
        store = MemoryBlobStore(whole.damaged(name, others[other][0]))
        with opened(whole, store, state) as written, pytest.raises(Corrupt, match=name):
            written.manifest()


def check_footer(whole: Sound, name: str, body: bytes) -> None:
    """Assert that a damaged object gives the right index, or an error that names the object."""
    store = MemoryBlobStore(whole.damaged(name, body))
    error = ""
    with opened(whole, store, without_indexes(whole.state)) as written:
        try:
            manifest = written.manifest()
        except Corrupt as exc:
            error = str(exc)
    if error:
        assert name in error
        return
    for sound_source, source in zip(whole.manifest.sources, manifest.sources, strict=True):
        assert same(sound_source, source)


def same(left: Source, right: Source) -> bool:
    arrays = ("starts", "rows", "sizes", "checksums")
    return left.name == right.name and all(
        np.array_equal(getattr(left, key), getattr(right, key)) for key in arrays
    )


@pytest.mark.slow
def test_a_flip_anywhere_in_a_footer_is_harmless_or_found() -> None:
    """A flipped bit anywhere behind the last batch leaves the index right, or makes it
    `Corrupt`."""
    whole = sound("none")
    name = whole.names[0]
    body = whole.objects[name][0]
    (source,) = [s for s in whole.manifest.sources if s.name == name]
    for at in range(source.range_of(0, SUBPARTITIONS).end, len(body)):
        flipped = bytearray(body)
        flipped[at] ^= 1 << (at % 8)
        check_footer(whole, name, bytes(flipped))


@given(CODEC, NAMES, st.binary(min_size=1, max_size=40), PLACES)
def test_any_bytes_in_a_footer_are_harmless_or_found(
    codec: str, which: int, other: bytes, place: float
) -> None:
    """Any bytes over a part of an object, or in place of it, leave the index right or make it
    `Corrupt`."""
    whole = sound(codec)
    name = whole.names[which % len(whole.names)]
    body = whole.objects[name][0]
    at = int(place * len(body))
    check_footer(whole, name, (body[:at] + other + body[at + len(other) :])[: len(body)])
    check_footer(whole, name, body[:at])
    check_footer(whole, name, other)


@given(st.data())
def test_a_damaged_index_of_an_event_is_harmless_or_found(data: st.DataObject) -> None:
    """An event's index with a changed byte, or cut short, is right or `Corrupt`."""
    whole = sound("lz4")
    produced = whole.state.produced(0)
    packed = bytearray(produced.segments[0].index)
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(MASKS)
    for index in (bytes(packed), bytes(packed[:at]) or b"\0"):
        try:
            decoded = segment.SegmentIndex.unpacked(index, SUBPARTITIONS)
        except Corrupt:
            continue
        assert np.array_equal(whole.manifest.sources[0].checksums, decoded.checksums)
        assert np.array_equal(whole.manifest.sources[0].rows, decoded.rows)
        assert np.array_equal(whole.manifest.sources[0].starts, decoded.starts)


Change = Callable[[tuple[SegmentSummary, ...]], tuple[SegmentSummary, ...]]

WRONG_INDEXES: dict[str, Change] = {
    "of the next segment": lambda s: (replace(s[0], index=s[1].index), *s[1:]),
    "rows that do not add up": lambda s: (replace(s[0], rows=s[0].rows + 1), *s[1:]),
    "in another order": lambda s: (
        replace(s[0], index=s[1].index, rows=s[1].rows),
        replace(s[1], index=s[0].index, rows=s[0].rows),
        *s[2:],
    ),
}


@pytest.mark.parametrize("wrong", WRONG_INDEXES)
def test_a_wrong_index_is_found(wrong: str) -> None:
    """An index of another segment is `Corrupt`, for the driver or for every reader."""
    whole = sound("zstd")
    produced = whole.state.produced(0)
    changed = Produced(produced.attempt, WRONG_INDEXES[wrong](produced.segments))
    production = whole.state.production
    attempts = production.attempts.having(produced.attempt, changed)
    state = replace(whole.state, production=replace(production, attempts=attempts))
    name = LAYOUT.segment(produced.attempt, 0)
    with opened(whole, MemoryBlobStore(dict(whole.objects)), state) as written:
        for at in range(SUBPARTITIONS - 1):
            with pytest.raises(Corrupt, match=name):
                written.read(at, 1)


def with_another(
    name: str, at: int, more: int, which: int
) -> tuple[Source, dict[int, HeadgateError]]:
    """Change one of a source's numbers, and return the source and what its readers say."""
    whole = sound("none")
    sources = list(whole.manifest.sources)
    chosen = which % len(sources)
    numbers = getattr(sources[chosen], name).copy()
    numbers[at] += more
    changed = {name: numbers}
    sources[chosen] = replace(sources[chosen], **changed)
    given = replace(whole.manifest, sources=tuple(sources))
    return sources[chosen], read_all(whole, whole.objects, given)


@pytest.mark.slow
@given(st.integers(0, SUBPARTITIONS - 2), st.sampled_from([-1, 1, 1000]), NAMES)
def test_another_count_of_rows_is_found(at: int, more: int, which: int) -> None:
    """Sound bytes with another number of rows than announced are `Corrupt`."""
    source, errors = with_another("rows", at, more, which)
    assert ({at} if source.sizes[at] else set()) == errors.keys()
    assert all(names_range(error, source.name, range(1 << 30)) for error in errors.values())


@given(st.integers(0, SUBPARTITIONS - 2), st.sampled_from([-8, 8, 1]), NAMES)
def test_a_shifted_window_is_found(at: int, shift: int, which: int) -> None:
    """A slice that starts elsewhere than announced is `Corrupt`."""
    source, errors = with_another("starts", at, shift, which)
    assert ({at} if source.sizes[at] else set()) == errors.keys()


def test_rows_without_bytes_are_found() -> None:
    """A subpartition with rows but without bytes is an error, and not read as an empty one."""
    whole = sound("lz4")
    first, *others = whole.manifest.sources
    at = int(np.flatnonzero(first.rows)[0])
    sizes = first.sizes.copy()
    sizes[at] = 0
    wrong = replace(whole.manifest, sources=(replace(first, sizes=sizes), *others))
    errors = read_all(whole, whole.objects, wrong)
    stated = sum(int(source.rows[at]) for source in wrong.sources)
    says = f"{stated - int(first.rows[at])} rows were read, {stated} were announced"
    assert says in str(errors[at])


def test_another_schema_is_found() -> None:
    """Sound bytes that are read with another schema are `Corrupt`, and the error names object and
    range."""
    whole = sound("none")
    with opened(whole, MemoryBlobStore(dict(whole.objects))) as written:
        wider = replace(written, schema=SCHEMA.append(pa.field("more", pa.int64())))
        with pytest.raises(Corrupt) as caught:
            wider.read(0, 1, whole.manifest)
    assert names_range(caught.value, whole.manifest.sources[0].name, range(1 << 30))


@pytest.mark.parametrize("effect", [Effect.FLIP, Effect.TRUNCATE])
@pytest.mark.parametrize("limits", [LIMITS, JOINED])
@pytest.mark.parametrize("nth", range(1, 7))
def test_one_bad_answer_does_not_stay(effect: Effect, limits: Limits, nth: int) -> None:
    """An answer that was flipped or cut short on its way is read again: every reader gets every
    row, and nothing is reported as lost."""
    whole = sound("lz4")
    plan = FaultPlan((PlannedFault(Operation.GET, nth, effect),))
    store = FaultyBlobStore(MemoryBlobStore(dict(whole.objects)), plan)
    with opened(whole, store, limits=limits) as written:
        for _ in range(2):
            for at in range(SUBPARTITIONS):
                assert whole.rows[at] == written.read(at, 1, whole.manifest)
    assert store.calls(Operation.GET) >= nth


def test_a_missing_footer_is_lost() -> None:
    """An index that must be fetched from a missing object is `Lost`, and the error names the
    object."""
    whole = sound("none")
    name = whole.names[0]
    objects = {other: body for other, body in whole.objects.items() if other != name}
    with (
        opened(whole, MemoryBlobStore(objects), without_indexes(whole.state)) as written,
        pytest.raises(Lost, match=name),
    ):
        written.manifest()


def test_a_name_is_never_written_twice() -> None:
    """A second attempt under the same id is a `Conflict`, and the first attempt's rows stay."""
    objects: Objects = {}
    environment = ObjectStoreEnvironment(
        JOB, MemoryEventLog(), MemoryBlobStore(objects), "root", LIMITS
    )
    attempt = AttemptId(PartitionId(RESULT, 0), 1, 5)
    produce(environment, attempt, SUBPARTITIONS, SCHEMA, part(0), "none")
    before = dict(objects)
    with pytest.raises(Conflict):
        produce(environment, attempt, SUBPARTITIONS, SCHEMA, part(0, 1_000_000), "none")
    assert before == objects
    environment.close()

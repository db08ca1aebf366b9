"""A gate gives back what a writer was given: every row once, in order, bit by bit."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headgate.connectors.spark.exchanges.combining import exchange_size
from headgate.connectors.spark.tasks.combine_task import share, share_reader
from headgate.connectors.spark.tasks.exchange_tasks import Part as WorkerPart
from headgate.control.errors import Invalid
from headgate.control.events.types import SegmentSummary
from headgate.control.ids import AttemptId, PartitionId
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.format import segment
from headgate.storage.format.batches import BATCH_BYTES
from headgate.storage.format.segment import SegmentIndex
from headgate.storage.limits import Limits
from headgate.storage.reading.ways import DIRECT, Readers, Way, predict
from headgate.storage.stores.costs import COSTS

from ..doubles.segments import (
    CODECS,
    LAYOUT,
    RESULT,
    SCHEMAS,
    Part,
    Written,
    attempt_of,
    exchange,
    packed_from,
    parts,
    plain_schema,
    reinterpret,
    tabled,
)

# Values are drawn in plain types, where floats, times and decimals are their bits, and then
# reinterpreted. So every bit pattern is drawn, and values are compared bit by bit.


LIMITS = st.builds(
    Limits,
    segment_bytes=st.sampled_from([1, 300, 5_000, 1 << 26]),
    fetch_bytes=st.sampled_from([1, 2_000, 1 << 20]),
    fetch_parallel=st.integers(1, 4),
    join_bytes=st.sampled_from([0, 1, 700, 20_000, 1 << 21]),
    cache_bytes=st.sampled_from([0, 3_000, 1 << 20]),
    files=st.booleans(),
)


def expected(schema: pa.Schema, all_parts: list[Part], first: int, count: int) -> pa.Table:
    """Return the rows of neighbouring subpartitions, by subpartition, partition and place."""
    table = tabled([part.rows for part in all_parts], schema)
    targets = np.concatenate([part.targets for part in all_parts])
    order = np.argsort(targets, kind="stable")
    chosen = order[(targets[order] >= first) & (targets[order] < first + count)]
    return table.take(pa.array(chosen))


def ranges(subpartitions: int, borders: list[int]) -> list[tuple[int, int]]:
    """Return all subpartitions, cut into neighbouring ranges."""
    cuts = sorted({0, subpartitions, *(border % (subpartitions + 1) for border in borders)})
    return [(first, last - first) for first, last in itertools.pairwise(cuts)]


BORDERS = st.lists(st.integers(0, 2_000), max_size=6)
COUNTS = st.integers(1, 5) | st.sampled_from([64, 257, 2_000])
PACKED_FROM = st.sampled_from([0, 1, 3, 1_000_000])


@given(st.data(), SCHEMAS, COUNTS, st.sampled_from(CODECS), LIMITS, BORDERS)
def test_every_row_comes_back_once_in_its_subpartition(
    data: st.DataObject,
    schema: pa.Schema,
    subpartitions: int,
    codec: str,
    limits: Limits,
    borders: list[int],
) -> None:
    """Any data in any batches and segments is read back bit by bit, in order, range by range."""
    executors = data.draw(st.sampled_from([1, 2, 1_000_000]))
    all_parts = data.draw(st.lists(parts(schema, subpartitions), min_size=1, max_size=3))
    with (
        packed_from(data.draw(PACKED_FROM)),
        exchange(schema, all_parts, subpartitions, codec, limits) as written,
    ):
        whole = written.manifest()
        for first, count in ranges(subpartitions, borders):
            assert expected(schema, all_parts, first, count) == written.read(
                first, count, whole, executors
            )
            part = whole.part(first, count)
            assert expected(schema, all_parts, first, count) == written.read(
                first, count, part, executors
            )
        for at, rows in enumerate(written.read_at_once(whole)):
            assert expected(schema, all_parts, at, 1) == rows
        assert at == subpartitions - 1


@pytest.mark.slow
@given(st.data(), SCHEMAS.filter(len), st.integers(500, 1_000), st.sampled_from(CODECS), LIMITS)
@settings(max_examples=10)
def test_many_columns_of_few_rows_come_back(
    data: st.DataObject, some: pa.Schema, count: int, codec: str, limits: Limits
) -> None:
    """The rows of 500 to 1,000 columns of any types come back bit by bit, with one or two of them
    in most slices, by whatever way they are read."""
    narrow = data.draw(st.lists(parts(some, 6), min_size=1, max_size=2))
    columns = [at % len(some) for at in range(count)]
    schema = pa.schema([some.field(at).with_name(str(n)) for n, at in enumerate(columns)])
    all_parts = []
    for part in narrow:
        arrays = [part.rows.column(at).slice(0, 9) for at in columns]
        rows = pa.RecordBatch.from_arrays(arrays, schema=plain_schema(schema))
        all_parts.append(Part(rows, part.targets[:9], ()))
    with (
        packed_from(data.draw(PACKED_FROM)),
        exchange(schema, all_parts, 6, codec, limits) as written,
    ):
        whole = written.manifest()
        wanted = expected(schema, all_parts, 1, 3)
        assert wanted == written.read(1, 3, whole)
        assert wanted == pa.concat_tables(written.read_at_once(whole)[1:4])
        read = written.read_stretches(0, 6, whole)
        assert sum(part.rows.num_rows for part in all_parts) == read.num_rows


@pytest.mark.slow
@given(st.data(), SCHEMAS, COUNTS, st.sampled_from(CODECS), LIMITS, BORDERS, st.integers(0, 5_000))
def test_stretches_have_the_same_rows(
    data: st.DataObject,
    schema: pa.Schema,
    subpartitions: int,
    codec: str,
    limits: Limits,
    borders: list[int],
    group_bytes: int,
) -> None:
    """A task that combines reads every row of its range once, some partitions before the others,
    by groups of subpartitions, each row with its subpartition."""
    all_parts = data.draw(st.lists(parts(schema, subpartitions), min_size=1, max_size=3))
    with (
        packed_from(data.draw(PACKED_FROM)),
        exchange(schema, all_parts, subpartitions, codec, limits) as written,
    ):
        for first, count in ranges(subpartitions, borders):
            cuts = [0, *sorted(data.draw(st.lists(st.integers(0, 3), max_size=2))), 3]
            deployments = [
                InputGateDeployment(written.manifest().of(range(*each)), schema, first, count, 7)
                for each in itertools.pairwise(cuts)
            ]
            reader = written.environment.create_stretch_reader(deployments)
            groups = [list(group) for group in reader.groups(group_bytes)]
            stretches = [stretch for group in groups for stretch in group]
            batches = [reinterpret(rows, plain_schema(schema)) for rows, _ in stretches]
            numbers = np.concatenate([[], *(targets for _, targets in stretches)])
            order = pa.array(np.argsort(numbers, kind="stable"))
            read = tabled(batches, schema)
            assert expected(schema, all_parts, first, count) == read.take(order)
            tops = [max(int(targets.max()) for _, targets in group) for group in groups]
            assert sum(after < top for top, after in itertools.pairwise(tops)) < len(deployments)


@given(st.data(), SCHEMAS, st.integers(1, 40), LIMITS, BORDERS)
def test_a_task_that_combines_gets_the_places_of_its_rows(
    data: st.DataObject,
    schema: pa.Schema,
    subpartitions: int,
    limits: Limits,
    borders: list[int],
) -> None:
    """An index is cut to the subpartitions that the task reads. Whether it reads some partitions
    before the others or not, it reads each row once."""
    all_parts = data.draw(st.lists(parts(schema, subpartitions), min_size=1, max_size=5))
    with exchange(schema, all_parts, subpartitions, "lz4", limits) as written:
        for first, count in ranges(subpartitions, borders):
            wanted = share(WorkerPart(range(first, first + count)), written.state)
            manifest = written.environment.manifest_of_segments(
                written.descriptor, wanted.segments, 7
            )
            assert expected(schema, all_parts, first, count) == written.read(first, count, manifest)
            assert manifest.rows.sum() == manifest.part(first, count).rows.sum()
            bytes_max = data.draw(st.none() | st.integers(1, 5_000))
            reader = share_reader(
                written.environment, written.descriptor, wanted, schema, 7, bytes_max
            )
            stretches = [stretch for group in reader.groups(2_000) for stretch in group]
            batches = [reinterpret(rows, plain_schema(schema)) for rows, _ in stretches]
            numbers = np.concatenate([[], *(targets for _, targets in stretches)])
            read = tabled(batches, schema).take(pa.array(np.argsort(numbers, kind="stable")))
            assert expected(schema, all_parts, first, count) == read


@pytest.mark.parametrize("merges", [True, False])
def test_a_task_that_combines_reads_whole_objects(merges: bool) -> None:
    """A task whose rows are merged in files requests each object once. Another one has to read the
    same subpartitions of all objects, so it requests each object as often as its share is larger
    than what it may hold."""
    rows = pa.record_batch({"n": pa.array(np.random.default_rng(1).integers(0, 1 << 60, 1_000))})
    part = Part(rows, np.arange(1_000) % 40, ())
    limits = Limits(fetch_bytes=100_000, files=True, maps=merges)
    with exchange(rows.schema, [part] * 12, 40, "none", limits) as written:
        wanted = share(WorkerPart(range(40)), written.state)
        before = written.store.requests.gets
        bytes_max = limits.fetch_bytes if merges else None
        reader = share_reader(
            written.environment, written.descriptor, wanted, rows.schema, 7, bytes_max
        )
        assert 12_000 == sum(len(targets) for group in reader.groups(1_000) for _, targets in group)
        blocks = -(-written.manifest().sizes.sum() // limits.fetch_bytes)
        assert blocks > 1
        assert (1 if merges else blocks) * 12 == written.store.requests.gets - before
        size = exchange_size(written.state, lambda sizes: Readers(np.arange(len(sizes))))
        predicted = predict(size, Way(1, 1), limits, COSTS["own"]).combining.gets
        assert predicted == written.store.requests.gets - before


def test_a_hot_subpartition_is_read_within_the_limit() -> None:
    """The objects of a map task with many rows of one subpartition are read one after the other,
    and those of many map tasks in parts."""
    limits = Limits(segment_bytes=2_000, fetch_bytes=10_000)
    rows = pa.record_batch({"n": pa.array(np.random.default_rng(1).integers(0, 1 << 60, 20_000))})
    hot = Part(rows, np.full(20_000, 3), tuple(range(0, 20_000, 200)))
    small = [Part(rows.slice(at, 1_000), np.full(1_000, 3), ()) for at in range(0, 9_000, 1_000)]
    with exchange(rows.schema, [hot, *small], 5, "none", limits) as written:
        manifest, before = written.manifest(), written.store.requests.gets
        deployment = InputGateDeployment(manifest, rows.schema, 0, 5, 7)
        reader = written.environment.create_stretch_reader([deployment])
        first, *others = (int(block.sizes.sum()) for block in reader._blocks(deployment))
        assert first > limits.fetch_bytes >= max(others)
        assert len(others) > 5
        read = written.read_stretches(0, 5, manifest)
        assert pa.concat_tables([pa.table(rows), pa.table(rows.slice(0, 9_000))]) == read
        assert len(manifest.sources) == written.store.requests.gets - before


@given(
    subpartitions=st.integers(1, 60),
    rows=st.lists(st.integers(0, 4_000), min_size=1, max_size=8),
    hot=st.sampled_from([0.0, 0.3, 0.6, 0.99]),
    zipf=st.booleans(),
    text_bytes=st.sampled_from([0, 1_000]),
    share=st.integers(1, 8),
)
@settings(max_examples=30)
def test_requests_are_as_many_as_the_driver_predicts(
    subpartitions: int, rows: list[int], hot: float, zipf: bool, text_bytes: int, share: int
) -> None:
    """The requests of all readers, counted at the store, are those that the driver predicts from
    the indexes in the log."""
    draw = np.random.default_rng(len(rows))
    weights = 1 / np.arange(1, subpartitions + 1) if zipf else np.ones(subpartitions)
    weights *= (1 - hot) / weights.sum()
    weights[draw.integers(subpartitions)] += hot
    text = pa.array(["x" * text_bytes])
    made = []
    for count in rows:
        numbers = pa.array(draw.integers(0, 1 << 60, count))
        batch = pa.record_batch({"n": numbers, "t": text.take(pa.array([0] * count, pa.int8()))})
        made.append(Part(batch, draw.choice(subpartitions, count, p=weights / weights.sum()), ()))
    schema, limits = made[0].rows.schema, Limits(join_bytes=1 << 20, segment_bytes=2 << 20)
    with exchange(schema, made, subpartitions, "none", limits) as written:
        readers = Readers(np.arange(0, subpartitions, share))
        size = exchange_size(written.state, lambda _: readers)
        predicted = predict(size, DIRECT, limits, COSTS["own"]).reading.gets
        whole, before = written.manifest(), written.store.requests.gets
        for first in readers.firsts.tolist():
            written.read(first, min(share, subpartitions - first), whole)
        counted = written.store.requests.gets - before
        borders = size.objects if share > 1 else 1
        assert abs(predicted - counted) <= 0.25 * counted + borders


@given(st.data(), SCHEMAS, st.integers(1, 40), LIMITS)
def test_a_range_is_the_concatenation_of_its_subpartitions(
    data: st.DataObject, schema: pa.Schema, subpartitions: int, limits: Limits
) -> None:
    """Reading neighbours together gives the same rows as reading them one after the other."""
    all_parts = data.draw(st.lists(parts(schema, subpartitions), min_size=1, max_size=3))
    with exchange(schema, all_parts, subpartitions, "lz4", limits) as written:
        whole = written.manifest()
        single = [written.read(at, 1, whole) for at in range(subpartitions)]
        assert pa.concat_tables(single) == written.read(0, subpartitions, whole)
        assert single[-1] == written.read(subpartitions - 1, 1, whole.part(subpartitions - 1, 1))


@pytest.mark.slow
@given(st.data(), SCHEMAS, COUNTS, st.sampled_from(CODECS), LIMITS)
def test_a_segment_is_an_arrow_file(
    data: st.DataObject, schema: pa.Schema, subpartitions: int, codec: str, limits: Limits
) -> None:
    """Any Arrow reader finds the rows in an object, and the attempt in its footer."""
    part = data.draw(parts(schema, subpartitions))
    with exchange(schema, [part], subpartitions, codec, limits) as written:
        produced = written.state.produced(0)
        plain = []
        for summary in produced.segments:
            name = LAYOUT.segment(produced.attempt, summary.number)
            body = written.objects[name][0]
            with ipc.open_file(body) as reader:
                assert schema == reader.schema
                batches = [reader.get_batch(at) for at in range(reader.num_record_batches)]
                assert reader.metadata[b"headgate.attempt"] == str(produced.attempt).encode()
            check_index(written, name, summary, subpartitions)
            assert summary.rows == sum(batch.num_rows for batch in batches)
            assert (summary.size_bytes, summary.checksum) == (len(body), segment.checksum(body))
            plain += [reinterpret(batch, plain_schema(schema)) for batch in batches]
        assert len(produced.segments) == len(written.objects)
        assert ordered(tabled([part.rows], schema)) == ordered(tabled(plain, schema))


def check_index(written: Written, name: str, summary: SegmentSummary, subpartitions: int) -> None:
    """Assert that the index in the object agrees with the event."""
    stated = SegmentIndex.unpacked(summary.index, subpartitions)
    stored = segment.fetch_index(
        written.store, name, summary.size_bytes, attempt_of(0), subpartitions
    )
    assert stated.entries() == stored.entries()
    assert stated.starts.tolist() == stored.starts.tolist()
    assert (subpartitions,) == stored.rows.shape


def ordered(table: pa.Table) -> list[str]:
    """Return the rows in an order of their own."""
    return sorted(map(repr, table.to_pylist(maps_as_pydicts=None))) if table.num_columns else []


_POLARS = st.sampled_from(
    [
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.duration("us"),
        pa.string(),
        pa.large_string(),
        pa.binary(),
    ]
)
_POLARS_TYPES = st.recursive(
    _POLARS,
    lambda inner: st.one_of(
        inner.map(pa.large_list),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda kinds: pa.struct([(f"f{at}", kind) for at, kind in enumerate(kinds)])
        ),
    ),
    max_leaves=3,
)


@given(st.data(), st.lists(_POLARS_TYPES, min_size=1, max_size=3), st.sampled_from(CODECS))
def test_polars_reads_a_segment(data: st.DataObject, kinds: list[pa.DataType], codec: str) -> None:
    """Polars, which shares no code with our reader, finds the same rows."""
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    part = data.draw(parts(schema, 5))
    assume(len(part.targets) > 0)
    with exchange(schema, [part], 5, codec, Limits()) as written:
        ((body, _),) = written.objects.values()
    frame = pl.read_ipc(body)
    (batch,) = frame.to_arrow().cast(schema).combine_chunks().to_batches()
    order = np.argsort(part.targets, kind="stable")
    assert part.rows.take(pa.array(order)) == reinterpret(batch, plain_schema(schema))


SIZES = st.sampled_from([0, 10, 15_000, 17_000, 40_000])


@settings(max_examples=30)
@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=6), st.sampled_from([1, 3, 300]), LIMITS)
def test_batches_in_order_and_others_keep_the_order_of_rows(
    sizes: list[tuple[int, bool]], subpartitions: int, limits: Limits
) -> None:
    """A writer takes a large batch that comes in order as it is. Rows of one subpartition keep
    their order all the same."""
    draw = np.random.default_rng(len(sizes))
    drawn = [(draw.integers(0, subpartitions, size), ordered) for size, ordered in sizes]
    targets = [np.sort(each) if ordered else each for each, ordered in drawn]
    numbers = np.arange(sum(size for size, _ in sizes))
    schema = pa.schema([("a", pa.int64())])
    rows = pa.record_batch([pa.array(numbers)], schema=schema)
    cuts = tuple(np.cumsum([0, *(size for size, _ in sizes)])[1:-1].tolist())
    part = Part(rows, np.concatenate([np.zeros(0, np.int64), *targets]), cuts)
    with exchange(schema, [part], subpartitions, "lz4", limits) as written:
        every = expected(schema, [part], 0, subpartitions)
        assert every == written.read(0, subpartitions)


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_subpartition_is_several_batches(codec: str) -> None:
    """A subpartition over the size of a batch comes back whole, in batches of bounded size."""
    schema = pa.schema([("a", pa.int64())])
    rows = 3 * BATCH_BYTES // 8 + 1
    numbers = pa.array(np.arange(rows))
    part = Part(pa.record_batch([numbers], schema=schema), np.ones(rows, np.int64), ())
    with exchange(schema, [part], 3, codec, Limits()) as written:
        assert pa.table({"a": numbers}) == written.read(1, 1)
        deployment = InputGateDeployment(written.manifest(), schema, 0, 3, 7)
        batches = list(written.environment.create_input_gate(deployment))
    assert len(batches) == 4
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES


def test_an_index_too_large_for_the_event_is_read_from_the_footers() -> None:
    """Many large segments announce only their first indexes, and readers find the others in the
    footers."""
    schema = pa.schema([("a", pa.int64())])
    rows, subpartitions = 20_000, 2_000
    numbers = pa.array(np.arange(rows))
    targets = np.arange(rows) * 7 % subpartitions
    part = Part(
        pa.record_batch([numbers], schema=schema), targets, tuple(range(0, rows, subpartitions))
    )
    with exchange(schema, [part], subpartitions, "none", Limits(segment_bytes=1)) as written:
        announced = [len(summary.index) for summary in written.state.produced(0).segments]
        assert 0 < sum(announced) <= 128 << 10
        assert announced[0] > 0
        assert announced[-1] == 0
        assert expected(schema, [part], 0, subpartitions) == written.read(0, subpartitions)


@given(st.integers(1, 2_000), st.sampled_from([-1, 0, 65_535, 65_536, 1 << 32]))
@example(1, 65_535)
def test_a_row_for_no_subpartition_is_refused(subpartitions: int, beyond: int) -> None:
    """A row with a subpartition that the result does not have is `Invalid`."""
    schema = pa.schema([("a", pa.int64())])
    target = beyond if beyond < 0 else subpartitions + beyond
    part = Part(pa.record_batch([pa.array([1])], schema=schema), np.array([target]), ())
    with (
        pytest.raises(Invalid, match=f"subpartition {target} of {subpartitions}"),
        exchange(schema, [part], subpartitions, "none", Limits()),
    ):
        pass


def test_a_batch_of_another_schema_is_refused() -> None:
    """A batch with another schema than the result's is `Invalid`."""
    part = Part(pa.record_batch({"a": pa.array([1])}), np.array([0]), ())
    other = Part(pa.record_batch({"b": pa.array([1])}), np.array([0]), ())
    with exchange(part.rows.schema, [part], 1, "none", Limits()) as written:
        attempt = AttemptId(PartitionId(RESULT, 0), 1, 200)
        deployment = ResultPartitionDeployment(attempt, 1, written.schema, "none")
        writer = written.environment.create_result_partition_writer(deployment)
        with pytest.raises(Invalid, match="schema"):
            writer.write(other.rows, other.targets)
        writer.abort("refused")


pytestmark = pytest.mark.usefixtures("no_thread_stays")


def test_the_same_rows_have_the_same_fingerprint() -> None:
    """Two attempts at the same rows have one fingerprint; a missing or moved row changes it."""
    schema = pa.schema([("a", pa.int64())])
    rows = pa.record_batch([pa.array(np.arange(100))], schema=schema)
    moved = np.arange(100) % 3
    whole = Part(rows, np.arange(100) % 4, (30, 60))
    kinds = [whole, whole, Part(rows.slice(1), whole.targets[1:], (30,)), Part(rows, moved, ())]
    with exchange(schema, kinds, 4, "lz4", Limits()) as written:
        fingerprints = [written.state.produced(at).fingerprint for at in range(4)]
    assert fingerprints[0] is not None
    assert len(set(fingerprints)) == 3
    assert fingerprints[0] == fingerprints[1]

"""Random rows, and what is written of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from headgate.control.contract import ShuffleDescriptor
from headgate.control.events.types import (
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
    ResultRegistered,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.decide import step
from headgate.control.model.state import JobState, ResultState
from headgate.storage.contract import InputGateDeployment, ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import Manifest, build
from headgate.storage.format.segment import ARROW, PACKED
from headgate.storage.limits import Limits
from headgate.storage.reading.at_once import read_at_once
from headgate.storage.runtime import Runtime
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import BlobStore
from headgate.storage.writing import writer
from headgate.storage.writing.encoding import Run

JOB = JobId("job")
RESULT = ResultId("r1")
LAYOUT = Layout("root", JOB)
CODECS = ("lz4", "zstd", "none")
Longs = npt.NDArray[np.int64]
_BITS: dict[pa.DataType, pa.DataType] = {
    pa.float32(): pa.int32(),
    pa.float64(): pa.int64(),
    pa.date32(): pa.int32(),
    pa.time64("ns"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", "UTC"): pa.int64(),
    pa.timestamp("us", "America/Los_Angeles"): pa.int64(),
    pa.duration("us"): pa.int64(),
    pa.decimal128(38, 18): pa.binary(16),
    pa.decimal128(5, 0): pa.binary(16),
}
_SAME: tuple[pa.DataType, ...] = (
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
)
_LEAVES = st.sampled_from([*_SAME, *_BITS])
_NAMES = st.sampled_from(["a", "b", "", "é", "x y", "A" * 64])


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    """Make a field; one that holds only nulls is always nullable."""
    return pa.field(name, kind, nullable or kind == pa.null())


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    item = st.builds(_field, st.just("element"), inner, st.booleans())
    members = st.lists(st.builds(_field, _NAMES, inner, st.booleans()), max_size=3)
    return st.one_of(
        item.map(pa.list_),
        item.map(pa.large_list),
        members.filter(lambda fields: len({f.name for f in fields}) == len(fields)).map(pa.struct),
        st.builds(pa.map_, inner.filter(lambda kind: kind != pa.null()), inner),
    )


TYPES = st.recursive(_LEAVES, _nested, max_leaves=5)
FIELDS = st.builds(_field, _NAMES, TYPES, st.booleans())
SCHEMAS = st.lists(FIELDS, max_size=4).map(pa.schema)


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same layout whose values are plain bits."""
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    return _BITS.get(kind, kind)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain(field.type))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_plain_field(field) for field in schema])


def reinterpret(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same memory under another schema of the same layout."""
    _, array = batch.__arrow_c_array__()
    return pa.RecordBatch._import_from_c_capsule(schema.__arrow_c_schema__(), array)


def values(kind: pa.DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Return a strategy for Python values of a plain type."""
    strategy = _values(kind)
    return st.none() | strategy if nullable else strategy


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.lists(values(kind.value_type, kind.value_field.nullable), max_size=3)
    if pa.types.is_map(kind):
        key, item = values(kind.key_type, False), values(kind.item_type)
        return st.lists(st.tuples(key, item), max_size=3)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({f.name: values(f.type, f.nullable) for f in kind})
    if pa.types.is_integer(kind):
        high = 1 << (kind.bit_width - 1)
        return st.integers(-high, high - 1)
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=16, max_size=16)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return st.binary(max_size=9)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.text(max_size=5)
    return st.none() if kind == pa.null() else st.booleans()


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that one map task writes, the subpartition of each row, and where batches begin."""

    rows: pa.RecordBatch
    targets: Longs
    cuts: tuple[int, ...]

    def batches(self, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, Longs]]:
        whole = reinterpret(self.rows, schema)
        borders = [0, *sorted(self.cuts), len(self.targets)]
        for first, last in itertools.pairwise(borders):
            yield whole.slice(first, last - first), self.targets[first:last]


@st.composite
def parts(draw: st.DrawFn, schema: pa.Schema, subpartitions: int) -> Part:
    """Draw rows from a few values, for subpartitions that are even, skewed or all the same."""
    size = draw(st.integers(0, 4) | st.integers(0, 300))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    columns = []
    for field in plain_schema(schema):
        pool = draw(st.lists(values(field.type, field.nullable), min_size=1, max_size=6))
        columns.append(pa.array(pool, field.type).take(pa.array(rng.integers(0, len(pool), size))))
    whole = pa.RecordBatch.from_arrays(columns, schema=plain_schema(schema))
    rows = whole if columns else rowless(size)
    span = draw(st.sampled_from([1, 2, subpartitions]))
    low = draw(st.integers(0, max(0, subpartitions - span)))
    targets = rng.integers(low, min(subpartitions, low + span), size)
    cuts = draw(st.lists(st.integers(0, size), max_size=4))
    return Part(rows, targets.astype(np.int64), tuple(cuts))


def rowless(size: int) -> pa.RecordBatch:
    """Return rows without columns."""
    return pa.record_batch({"gone": pa.nulls(size)}).select([])


@dataclass(frozen=True, slots=True)
class Written:
    """A complete result in a bucket."""

    schema: pa.Schema
    descriptor: ShuffleDescriptor
    state: ResultState
    objects: Objects
    store: BlobStore
    environment: ObjectStoreEnvironment

    def manifest(self) -> Manifest:
        return build(self.descriptor, self.state, LAYOUT, self.store)

    def read(
        self, first: int, count: int, whole: Manifest | None = None, executors: int = 1
    ) -> pa.Table:
        """Return the rows that a gate gives, as a plain table."""
        source = whole or self.manifest()
        deployment = InputGateDeployment(source, self.schema, first, count, 7, executors=executors)
        batches = list(self.environment.create_input_gate(deployment))
        assert all(batch.schema == self.schema for batch in batches)
        return tabled([reinterpret(b, plain_schema(self.schema)) for b in batches], self.schema)

    def read_stretches(self, first: int, count: int, whole: Manifest) -> pa.Table:
        """Return the same rows as a task that combines reads them."""
        deployment = InputGateDeployment(whole, self.schema, first, count, 7)
        groups = self.environment.create_stretch_reader([deployment]).groups(1)
        batches = [rows for group in groups for rows, _ in group]
        return tabled([reinterpret(b, plain_schema(self.schema)) for b in batches], self.schema)

    def read_at_once(self, whole: Manifest) -> list[pa.Table]:
        """Return the rows of each subpartition, as a driver reads them."""
        read: list[list[pa.RecordBatch]] = [[] for _ in range(whole.count)]
        for at, batch in read_at_once(whole, self.schema, self.store, 60):
            read[at].append(reinterpret(batch, plain_schema(self.schema)))
        return [tabled(batches, self.schema) for batches in read]


def tabled(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return one table. Rows without columns become rows of nulls, which a table can count."""
    if len(schema):
        return pa.Table.from_batches(batches, plain_schema(schema))
    return pa.table({"rows": pa.nulls(sum(batch.num_rows for batch in batches))})


def attempt_of(partition: int) -> AttemptId:
    return AttemptId(PartitionId(RESULT, partition), 1, 100 + partition)


@contextmanager
def packed_from(nth: int) -> Iterator[None]:
    """Pack the segments from the `nth` on, and the later ones of the same attempts, whatever rows
    they have."""
    made = itertools.count()

    def form(runs: list[Run]) -> int:
        return PACKED if next(made) >= nth else ARROW

    with patch.object(writer, "form_of", form):
        yield


@contextmanager
def exchange(
    schema: pa.Schema,
    all_parts: list[Part],
    subpartitions: int,
    codec: str,
    limits: Limits,
    folders: int = 1,
) -> Iterator[Written]:
    """Write a result with one attempt per partition, and yield it. The process that writes it has
    so many local folders."""
    objects: Objects = {}
    store = MemoryBlobStore(objects)
    with ExitStack() as opening:
        local = tuple(Path(opening.enter_context(TemporaryDirectory())) for _ in range(folders))
        runtime = Runtime(folders=local)
        environment = ObjectStoreEnvironment(JOB, MemoryEventLog(), store, "root", limits, runtime)
        opening.callback(environment.close)
        descriptor = ShuffleDescriptor(JOB, RESULT, len(all_parts), subpartitions, 1)
        registered = ResultRegistered(RESULT, len(all_parts), subpartitions, "", "")
        state = JobState(JOB)
        facts: list[Fact] = [JobRegistered("", "", ""), registered]
        facts.append(PartitionRegistered(RESULT, 0, len(all_parts)))
        facts += [
            produce(environment, attempt_of(at), subpartitions, schema, part, codec)
            for at, part in enumerate(all_parts)
        ]
        for fact in facts:
            state, _ = step(state, fact)
        yield Written(schema, descriptor, state.results[RESULT], objects, store, environment)


def produce(
    environment: ObjectStoreEnvironment,
    attempt: AttemptId,
    subpartitions: int,
    schema: pa.Schema,
    part: Part,
    codec: str,
) -> Produced:
    """Write and announce one partition."""
    deployment = ResultPartitionDeployment(attempt, subpartitions, schema, codec)
    writer = environment.create_result_partition_writer(deployment)
    try:
        for batch, targets in part.batches(schema):
            writer.write(batch, targets)
        return writer.finish()
    except BaseException as exc:
        writer.abort(type(exc).__name__)
        raise

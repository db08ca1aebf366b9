"""The classes that Spark compiles in its executors give what Spark's own converters give."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate import Headgate
from headgate.connectors.spark.jvm.catalyst import CatalystDoor, ExchangePlan
from headgate.connectors.spark.jvm.compiled_classes import CompiledClasses
from headgate.connectors.spark.jvm.features import look_up, open_door
from headgate.connectors.spark.jvm.task_settings import TaskSettings
from headgate.connectors.spark.tasks.frames import Frames, RunFrames, Volume, layout_of
from headgate.connectors.spark.types import carried_schema, least_bytes

from .conftest import Place, setting
from .grouped import same

pytestmark = pytest.mark.timeout(240)

SUBPARTITION = pa.field("to", pa.int32())
WIDE = Decimal("9" * 38)
SIMPLE = ["true", "c0 is not null", "c0 <=> c0 and not c0 is null", "folder is null or c0 >= c0"]
COMPUTED = [
    "hash(c0) % 3 = 0",
    "c0 is not null and rand(7) < 0.5",
    "1 / hash(c0) > 0",
]
GUARDED = "x <> 0 and 100 / x > 30 and 100 / x < 70"
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(18,3)": st.decimals(-(10**14), 10**14, places=3),
    "decimal(38,0)": st.one_of(
        st.integers(-int(WIDE), int(WIDE)).map(Decimal),
        st.sampled_from([2**at + more for at in range(0, 121, 8) for more in (-1, 0)]).map(Decimal),
    ),
    "string": st.one_of(st.text(max_size=20), st.sampled_from(["", "x" * 255, "ä" * 129])),
    "binary": st.binary(max_size=300).map(bytearray),
    "date": st.dates(dt.date(1, 1, 1), dt.date(9999, 1, 1)),
    "void": st.none(),
}


@st.composite
def frames(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the types of some columns, sometimes of very many, and rows that repeat often."""
    keys = st.sampled_from(sorted(KINDS.keys() - {"void"}))
    kinds = [draw(keys), *draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=5))]
    kinds = kinds * draw(st.sampled_from([1, 1, 1, 13, 32]))
    nulls = draw(st.booleans())
    values = [st.one_of(st.none(), KINDS[kind]) if nulls else KINDS[kind] for kind in kinds]
    rows = draw(st.lists(st.tuples(*values), max_size=8))
    return kinds, rows * draw(st.sampled_from([1, 1, 40, 150]))


@pytest.fixture(scope="module")
def place() -> Place:
    return Place("embedded", {})  # no test depends on the services


@pytest.fixture(scope="module")
def door(spark: SparkSession) -> Iterator[CatalystDoor]:
    opened = open_door(spark, look_up(spark))
    assert opened is not None, "this Spark is known"
    with TaskSettings(spark, look_up(spark)).carried():
        yield opened


def whole(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    none = pa.RecordBatch.from_pylist([], schema)
    return pa.concat_batches([none, *batches])


def texts(rows: pa.RecordBatch | pa.Table) -> list[str]:
    """Return rows as texts that tell minus zero from zero, and equal numbers that are none."""
    return [str(row) for row in rows.to_pylist()]


def collected(spark: SparkSession, rdd: Any, frames: Frames) -> list[list[pa.RecordBatch]]:
    """Return the batches of each partition."""
    sent: RDD[Any] = RDD(rdd.toJavaRDD(), spark.sparkContext, frames)
    return sent.glom().collect()


def sorted_runs(
    spark: SparkSession, door: CatalystDoor, plan: ExchangePlan
) -> tuple[list[pa.RecordBatch], str]:
    """Make runs of a plan, and require that they hold the rows of Spark's own batches, ordered by
    subpartition. Return these batches, one for each partition, and the RDDs under the runs."""
    carried = carried_schema(plan.rows)
    sent = carried.append(SUBPARTITION)
    layout = layout_of(sent)
    assert layout is not None
    rdd = door.sorted_runs(plan.executed, layout)
    runs = collected(spark, rdd, RunFrames(sent, layout))
    batches = door.arrow_batches(plan.executed, least_bytes(carried))
    expected = [whole(parts, sent) for parts in collected(spark, batches, Frames(sent))]
    for made, given_rows in zip(runs, expected, strict=True):
        assert len(made) <= 2 + given_rows.nbytes // (8 << 20), "runs are not small"
        first = 0
        for run in made:
            run.validate(full=True)
            part = given_rows.slice(first, run.num_rows)
            order = sorted(
                range(part.num_rows), key=part.column(len(carried)).to_pylist().__getitem__
            )
            assert texts(part.take(pa.array(order, pa.int32()))) == texts(run)
            first += run.num_rows
        assert first == given_rows.num_rows
    return expected, str(rdd.toDebugString())


@settings(max_examples=25)
@given(frame=frames(), n=st.integers(1, 40), partitions=st.integers(1, 3), cut=st.integers(1, 700))
@example((["string", "int"], [("x" * (17 << 20), 1), ("y", 2), ("z" * (9 << 20), 3)]), 3, 1, 2)
@example((["decimal(38,0)"], [(None,), (Decimal(-1),), (WIDE,), (WIDE.copy_negate(),)]), 2, 1, 3)
@example((["boolean", "void"], [(None, None)] * 600), 2, 1, 599)
def test_rows_there_and_back(
    spark: SparkSession,
    door: CatalystDoor,
    frame: tuple[list[str], list[tuple[Any, ...]]],
    n: int,
    partitions: int,
    cut: int,
) -> None:
    """Record batches of what runs hold become the rows that they were, wherever they are cut."""
    kinds, rows = frame
    schema = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
    df = spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)
    plan = door.exchange_plan(df, n, ["c0"])
    carried = carried_schema(plan.rows)
    expected, _ = sorted_runs(spark, door, plan)
    stored = [part.select(range(len(carried))) for part in expected]
    pieces = [
        part.slice(at, cut).serialize().to_pybytes() + bytes(16)
        for part in stored
        for at in range(0, part.num_rows, cut)
    ]
    messages = spark.sparkContext.parallelize(pieces, 2)._to_java_object_rdd().rdd()
    classes = CompiledClasses(spark)
    back, _ = door.load(classes.read(messages), plan.rows, plan.rows)
    assert [line for part in stored for line in texts(part)] == texts(back.toArrow().cast(carried))


@pytest.mark.parametrize("kept", ["parquet", "orc", "cache"])
@settings(max_examples=4)
@given(
    frame=frames(),
    n=st.integers(1, 40),
    condition=st.sampled_from(SIMPLE + COMPUTED),
    off_heap=st.booleans(),
)
@example((["string"], [("x" * (17 << 20),), ("y",), ("z" * (9 << 20),)] * 2), 3, "true", False)
@example((["string"] * 2, [("x" * 70_000, "y" * 70_000)] * 600), 3, "true", True)
@example((["string"] * 2, [("x" * 70_000, "y" * 70_000), ("z", None)] * 9), 3, COMPUTED[1], False)
@example((["int", "decimal(38,0)"], [(1, None), (2, WIDE), (None, Decimal(-1))]), 2, "true", False)
def test_columns_of_a_scan(
    spark: SparkSession,
    door: CatalystDoor,
    tmp_path_factory: pytest.TempPathFactory,
    kept: str,
    frame: tuple[list[str], list[tuple[Any, ...]]],
    n: int,
    condition: str,
    off_heap: bool,
) -> None:
    """Runs of the columns of a scan hold the rows that Spark makes of them, also where a column is
    taken twice, or is the folder of its file. Spark's metrics count both alike."""
    kinds, rows = frame
    schema = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds) if kind != "void")
    there = [at for at, kind in enumerate(kinds) if kind != "void"]
    shorter = [tuple(row[at] for at in there) for row in rows]
    df = spark.createDataFrame(spark.sparkContext.parallelize(shorter, 1), schema)
    df = df.withColumn("folder", F.lit("somewhere"))
    if kept == "cache":
        df = df.cache()
    else:
        path = str(tmp_path_factory.mktemp(kept))
        df.write.save(path, kept, "overwrite", "folder")
        df = spark.read.schema(df.schema).format(kept).load(path)
    chosen = df.where(condition).select(*reversed(df.columns), F.col("c0").alias("again"))
    with setting(spark, {"spark.sql.columnVector.offheap.enabled": str(off_heap)}):
        plan = door.exchange_plan(chosen, n, ["c0"])
        batches, rdds = sorted_runs(spark, door, plan)
    counted = sum(batch.num_rows for batch in batches)
    assert counts_of_rows(plan.executed) <= {2 * counted, 2 * len(rows)}, "made in both ways"
    if kept != "cache" and len(chosen.columns) < 90:  # a scan of more columns gives rows
        no_rows = "FileScan" in rdds.splitlines()[3]
        assert no_rows == (condition in SIMPLE), "an RDD of rows is between the scan and the runs"
    df.unpersist()


def counts_of_rows(node: Any) -> set[int]:
    """Return the rows that the filter of a plan has let through, and those made of columns."""
    counts = set()
    while node.productPrefix() in {"WholeStageCodegenExec", "ProjectExec", "FilterExec"}:
        if node.productPrefix() == "FilterExec":
            counts.add(int(node.longMetric("numOutputRows").value()))
        node = node.child()
    if node.productPrefix() == "ColumnarToRowExec":
        counts.add(int(node.longMetric("numOutputRows").value()))
    return counts


def test_a_guard_in_a_condition(
    spark: SparkSession, door: CatalystDoor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is computed before its guard, also if it stands there twice."""
    path = str(tmp_path_factory.mktemp("guarded"))
    spark.range(2000).selectExpr("id", "cast(id % 5 as int) x").write.parquet(path, "overwrite")
    df = spark.read.parquet(path).where(GUARDED)
    batches, _ = sorted_runs(spark, door, door.exchange_plan(df, 4, ["id"]))
    assert sum(batch.num_rows for batch in batches) == 800


def test_sides_of_a_join_go_by_columns(
    spark: SparkSession,
    hg: Headgate,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """No rows are made of a scan because Spark chooses columns between it and the exchange."""
    path, made, rdds = str(tmp_path_factory.mktemp("joined")), CatalystDoor.sorted_runs, list[str]()
    spark.range(2000).selectExpr("id k", "id % 7 v", "id % 5 f").write.parquet(path, "overwrite")
    spark.read.parquet(path).createOrReplaceTempView("sides")

    def watched(*given: Any) -> Any:
        runs = made(*given)
        rdds.append(str(runs.toDebugString()))
        return runs

    monkeypatch.setattr(CatalystDoor, "sorted_runs", watched)
    query = "select a.v, b.f from sides a join sides b using (k) where a.f > 3 and b.v > 2"
    with setting(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        joined = spark.sql(query)
        assert sorted(joined.collect()) == sorted(hg.offload(joined).collect())
    assert [True, True] == ["FileScan" in text.splitlines()[3] for text in rdds]


@pytest.mark.parametrize("digits", [1, 18, 19])
def test_decimals_of_functions(spark: SparkSession, hg: Headgate, digits: int) -> None:
    """Functions return small decimals in Arrow's form, though exchanges store whole numbers."""
    value = f"if(id % 5 = 3, null, cast(4 - id as decimal({digits}, 0)))"
    df = spark.sql(f"select id % 3 k, {value} d from range(0, 9, 1, 2)")
    same(hg, df.groupBy("k").applyInArrow(lambda group: group, df.schema))


def test_rows_do_not_wait_for_the_next_message(spark: SparkSession, door: CatalystDoor) -> None:
    """The rows of a message can be used before the next one comes, which may take long, or fail."""

    def failing(index: int, nothing: Iterable[object]) -> Iterator[tuple[pa.Buffer, Volume]]:
        yield pa.record_batch({"c0": [7]}).serialize(), Volume(1, 8)
        raise ValueError("the second message")

    schema = spark.range(1).schema
    rows, _ = door.load(door.tasks.without_input(1, failing), schema, schema)
    assert [(7,)] == [tuple(row) for row in rows.take(1)]
    with pytest.raises(PySparkException, match="the second message"):
        rows.collect()

"""Every column type comes back exactly, by the private and by the public transport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid, attach
from headgate.connectors.spark.exchanges.rows import JvmRows
from headgate.connectors.spark.jvm.features import look_up
from headgate.connectors.spark.jvm.task_settings import TaskSettings
from headgate.connectors.spark.tasks.frames import Frames
from headgate.connectors.spark.types import carried_schema, stored_schema

pytestmark = pytest.mark.timeout(240)

SCALARS = {
    "boolean": "v % 2 = 0",
    "tinyint": "cast(v % 100 as tinyint)",
    "smallint": "cast(v as smallint)",
    "int": "cast(-v as int)",
    "bigint": "v * 1000003",
    "float": "cast(v as float) / 7",
    "double": "cast(v as double) / 7",
    "special_double": "case v % 4 when 0 then double('NaN') when 1 then -0.0D "
    "when 2 then double('-Infinity') else 0.0D end",
    "decimal": "cast(v as decimal(38, 18)) / 7",
    "small_decimal": "cast(v as decimal(9, 2))",
    "long_decimal": "cast(concat(if(v % 2 = 0, '', '-'), '99999999999999', 9999 - v)"
    " as decimal(18))",
    "fraction": "cast(concat(if(v % 2 = 0, '', '-'), '0.99999999999999', 9999 - v)"
    " as decimal(18, 18))",
    "decimals": "array(cast(v as decimal(9, 2)), null)",
    "string": "concat('ä€𝄞', v)",
    "collated": "concat('Ab', v) collate UNICODE_CI",
    "char": "cast(v as string)",
    "binary": "cast(cast(v as string) as binary)",
    "date": "date_add(date'1582-10-01', cast(v as int))",
    "timestamp": "timestamp_micros(v * 1234567)",
    "timestamp_ntz": "cast(timestamp_micros(v * 1234567) as timestamp_ntz)",
    "day_time": "make_dt_interval(v, 3, 4, 5.678901)",
    "year_month": "make_ym_interval(cast(v as int), 7)",
    "year": "cast(make_ym_interval(cast(v as int), 0) as interval year)",
    "void": "null",
    "variant": "parse_json(concat('{\"a\": ', v, '}'))",
    "list": "array(v, null, v + 1)",
    "empty_list": "cast(array() as array<string>)",
    "struct": "named_struct('x', v, 'y', cast(v as string))",
    "map": "map(v, cast(v as string), v + 1, null)",
    "nested_map": "named_struct('m', map(v, v + 1, v - 1, 2))",
    "deep": "array(named_struct('m', map('k', array(named_struct('z', v)))))",
    "nested_interval": "array(make_ym_interval(cast(v as int), 1))",
}
PRIVATE_ONLY = {"nested_interval"}
NO_KEY = {"variant", "void"}


def typed(spark: SparkSession, expression: str) -> DataFrame:
    """Return fifty rows, every fifth one null."""
    base = spark.range(0, 50, 1, 3).withColumnRenamed("id", "v")
    value = f"case when v % 5 = 3 then null else {expression} end"
    return base.selectExpr("v % 7 as k", f"{value} as c")


def every(spark: SparkSession, names: list[str]) -> DataFrame:
    """Return fifty rows with all these columns, every fifth one null."""
    base = spark.range(0, 50, 1, 3).withColumnRenamed("id", "v")
    columns = [f"if(v % 5 = 3, null, {SCALARS[name]}) as {name}_" for name in names]
    return base.selectExpr("v % 7 as k", *columns)


def rows(df: DataFrame) -> list[str]:
    """Return every row with its partition, as text that PySpark can collect and that hides
    nothing."""
    columns = []
    for name, kind in df.dtypes:
        column = F.col(name)  # PySpark cannot collect year-month intervals
        column = column.cast("string") if "interval" in kind else column
        columns.append(F.hex(column.cast("binary")) if kind.startswith("string") else column)
    return sorted(str(row) for row in df.select(F.spark_partition_id(), *columns).collect())


def same(expected: DataFrame, actual: DataFrame) -> None:
    """Assert that both frames have the same rows of the same types in the same partitions."""
    assert expected.schema == actual.schema
    assert rows(expected) == rows(actual)


@pytest.fixture(scope="module")
def public(spark: SparkSession) -> Iterator[Headgate]:
    """Attach a second job of the same session that uses public PySpark only."""
    spark.conf.set("spark.headgate.catalyst", "off")
    spark.conf.set("spark.headgate.job.id", "public-road")
    with attach(spark) as attached:
        yield attached


@settings(max_examples=10)
@given(
    names=st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=6, unique=True),
    keys=st.integers(1, 2),
    size=st.integers(0, 300),
    partitions=st.integers(1, 5),
    n=st.integers(1, 64),
)
def test_any_rows(
    spark: SparkSession,
    hg: Headgate,
    names: list[str],
    keys: int,
    size: int,
    partitions: int,
    n: int,
) -> None:
    """Columns of any types in any number of partitions come back as from `df.repartition`."""
    base = spark.range(0, size, 1, partitions).withColumnRenamed("id", "v")
    columns = [f"{SCALARS[name]} as {name}_" for name in names]
    df = base.selectExpr("v % 7 as k", *columns)
    by = ["k", *[f"{name}_" for name in names if name not in NO_KEY]][:keys]
    same(df.repartition(n, *by), hg.repartition(df, n, *by))


def transport_of(hg: Headgate, df: DataFrame, key: str) -> JvmRows:
    """Return the transport of a repartition into one partition."""
    exchanger = hg._exchanger
    assert exchanger.door is not None
    plan = exchanger.door.exchange_plan(df, 1, [key])
    return JvmRows(exchanger.door, plan)


def test_private_road(spark: SparkSession, hg: Headgate) -> None:
    """Columns of every type, with nulls, come back exactly and in their partitions."""
    df = every(spark, list(SCALARS))
    same(df.repartition(4, "k"), hg.repartition(df, 4, "k"))
    same(df.repartition(4, "k"), hg.read(hg.results()[-1].result))


def test_small_decimals_are_whole_numbers(spark: SparkSession, hg: Headgate) -> None:
    """A decimal that fits into 64 bits is stored as an integer: the JVM takes long to widen it."""
    df = spark.sql("select 1.5BD as a, cast(7 as decimal(18)) as b, cast(7 as decimal(19)) as c")
    stored = transport_of(hg, df, "a").schema
    assert [pa.int64(), pa.int64(), pa.decimal128(19)] == stored.types
    assert stored == carried_schema(stored_schema(df.schema))


def test_public_road(spark: SparkSession, public: Headgate) -> None:
    """The public transport gives the same rows in the same partitions."""
    df = every(spark, [name for name in SCALARS if name not in PRIVATE_ONLY])
    same(df.repartition(4, "k"), public.repartition(df, 4, "k"))
    same(df.repartition(4, "k"), public.read(public.results()[-1].result))


def test_each_road_reads_what_the_other_wrote(
    spark: SparkSession, hg: Headgate, public: Headgate
) -> None:
    """Each transport can read a result that the other one wrote."""
    df = every(spark, [name for name in SCALARS if name not in PRIVATE_ONLY])
    for writer, reader in ((hg, public), (public, hg)):
        writer.repartition(df, 4, "k")
        other = replace(writer._exchanger, door=reader._exchanger.door)
        read = other.read(writer.results()[-1].result)
        same(df.repartition(4, "k"), read)


@pytest.mark.parametrize(
    "name",
    [
        "collated",
        "map",
        "nested_map",
        "double",
        "struct",
        "list",
        "year_month",
        "binary",
        "fraction",
    ],
)
def test_as_key(spark: SparkSession, hg: Headgate, name: str) -> None:
    """Rows go where Spark's own partitioner puts them, for keys of any type."""
    df = typed(spark, SCALARS[name])
    same(df.repartition(4, "c"), hg.repartition(df, 4, "c"))


@pytest.mark.parametrize(("name", "kind"), [("collated", "string collate"), ("map", "map<")])
def test_public_road_refuses_keys(
    spark: SparkSession, public: Headgate, name: str, kind: str
) -> None:
    """A key whose SQL `hash` differs from Spark's partitioner is refused, and its type is named."""
    with pytest.raises(Invalid, match=f"key 'c' holds {kind}"):
        public.repartition(typed(spark, SCALARS[name]), 4, "c")


def test_public_road_refuses_what_it_cannot_carry(spark: SparkSession, public: Headgate) -> None:
    """A nested year-month interval is refused by column and type before the first task."""
    with pytest.raises(Invalid, match="column 'c' holds a year-month interval inside array"):
        public.repartition(typed(spark, SCALARS["nested_interval"]), 4, "k")


def test_what_never_holds_anything(spark: SparkSession, hg: Headgate) -> None:
    """Arrays without an element type are carried, and maps without one are refused."""
    arrays = spark.range(5).select("id", F.array().alias("x"), F.array(F.array()).alias("y"))
    expected = sorted(arrays.collect())
    assert expected == sorted(hg.repartition(arrays, 2, "id").collect())
    assert expected == hg.offload(arrays.orderBy("id")).collect()
    maps = spark.range(5).select("id", F.create_map().alias("x"))
    with pytest.raises(Invalid, match="map<void,void>"):
        hg.repartition(maps, 2, "id")


def test_null_structs_come_in_small_batches(spark: SparkSession, hg: Headgate) -> None:
    """Null structs come in small batches: Spark estimates almost no bytes for them, but in Arrow
    they have all their fields."""
    struct = f"struct<{', '.join(f'f{at}: bigint' for at in range(500))}>"
    df = spark.range(0, 20_000, 1, 1).selectExpr("id", f"cast(null as {struct}) s")
    transport = transport_of(hg, df, "id")
    sent = Frames(transport.schema.append(pa.field("to", pa.int32())))
    with TaskSettings(spark, look_up(spark)).carried():
        batches: RDD[Any] = RDD(transport._batches.toJavaRDD(), spark.sparkContext, sent)
        assert max(batches.map(lambda batch: batch.nbytes).collect()) < 20 << 20

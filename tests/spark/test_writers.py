"""Saves through a session's headgate: rows, files, schemas, errors and rules are Spark's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, SparkRuntimeException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headgate import Headgate

from ..quick_java import QUICK_JAVA
from .cluster import findings, recorded
from .conftest import build_session, real_place
from .entered import counted, detached, left, stored

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

Save = Callable[[DataFrame, str], Any]

DERBY = {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}
URL = "jdbc:derby:memory:headgate;create=true"
TO_FILES: dict[str, Save] = {
    "save": lambda df, to: df.write.format("csv").option("header", True).save(to),
    "parquet": lambda df, to: df.write.parquet(to, compression="gzip"),
    "orc": lambda df, to: df.write.orc(to),
    "json": lambda df, to: df.write.mode("append").json(to),
    "csv": lambda df, to: df.write.option("sep", ";").csv(to),
    "xml": lambda df, to: df.write.xml(to, rowTag="row"),
    "text": lambda df, to: df.selectExpr("concat(k, '-', n) as line").write.text(to),
    "partitionBy": lambda df, to: df.write.partitionBy("k").csv(to),
    "partitions": lambda df, to: (
        df.repartition(3, "n").sortWithinPartitions(F.desc("k")).write.csv(to)
    ),
    "in order": lambda df, to: df.orderBy(F.desc("k")).write.option("maxRecordsPerFile", 2).csv(to),
    "a limit": lambda df, to: df.orderBy("k").limit(3).write.csv(to),
    "twice": lambda df, to: twice(lambda: df.write.mode("overwrite").json(to)),
}
TO_TABLES: dict[str, Save] = {
    "saveAsTable": lambda df, to: df.write.saveAsTable(to),
    "saveAsTable append": lambda df, to: twice(lambda: df.write.saveAsTable(to, mode="append")),
    "saveAsTable overwrite": lambda df, to: twice(
        lambda: df.write.mode("overwrite").partitionBy("k").saveAsTable(to)
    ),
    "bucketBy": lambda df, to: df.write.bucketBy(3, "k").sortBy("n").saveAsTable(to),
    "clusterBy": lambda df, to: df.write.clusterBy("k").saveAsTable(to),
    "insertInto": lambda df, to: into(df, to).write.insertInto(to),
    "insertInto overwrite": lambda df, to: into(df, to).write.insertInto(to, overwrite=True),
    "jdbc": lambda df, to: df.write.jdbc(URL, to, "overwrite", DERBY),
    "create": lambda df, to: (
        df.writeTo(to).using("parquet").partitionedBy("k").tableProperty("a", "b").create()
    ),
    "append": lambda df, to: begun(df, f"derby.n.{to}").append(),
    "overwrite": lambda df, to: begun(df, f"derby.n.{to}").overwrite(F.lit(True)),
    "replace": lambda df, to: begun(df, f"derby.n.{to}").replace(),
    "createOrReplace": lambda df, to: begun(df, f"derby.n.{to}").createOrReplace(),
}


def twice(act: Callable[[], Any]) -> None:
    act()
    act()


def into(df: DataFrame, table: str) -> DataFrame:
    df.sparkSession.sql(
        f"create table {table} (x varchar(9) comment 'a', y char(4) not null, z bigint) "
        "using parquet"
    )
    return df.selectExpr("concat('k', k)", "string(n)", "k + n")


def begun(df: DataFrame, table: str) -> Any:
    """Create a table of version 2 with one row, and return a writer that writes to it."""
    empty = df.sparkSession.createDataFrame([(-1, -1)], df.schema)
    empty.writeTo(table).create()
    return df.writeTo(table)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = str(tmp_path_factory.mktemp("warehouse"))
    catalog = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    derby = {"": catalog, ".url": URL, ".driver": DERBY["driver"]}
    session = build_session(
        real_place(),
        "local[2]",
        **{
            "spark.sql.warehouse.dir": folder,
            "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dderby.system.home={folder}",
            **{f"spark.sql.catalog.derby{key}": value for key, value in derby.items()},
        },
    )
    session.conf.set("spark.headgate.sql.enabled", "true")
    session.sql("create namespace derby.n")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> str:
    spark.range(0, 100, 1, 2).selectExpr("id as k", "id % 7 as n").write.saveAsTable("source")
    return "source"


def files(folder: Path) -> list[tuple[str, str]]:
    """Return the files that Spark wrote, by the numbers in their names; text files with their
    content."""
    written = []
    for path in sorted(folder.rglob("part-*")):
        numbers = re.sub(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", path.name)
        text = path.suffix in (".csv", ".json", ".txt", ".xml")
        place = f"{path.parent.relative_to(folder)}/{numbers}"
        written.append((place, path.read_text() if text else ""))
    return written


@pytest.mark.parametrize("name", TO_FILES)
def test_files(spark: SparkSession, hg: Headgate, name: str, tmp_path: Path) -> None:
    """A save writes as many files as Spark's, and each has the same rows in the same order."""
    save, ours, theirs = TO_FILES[name], tmp_path / "ours", tmp_path / "theirs"
    with detached(hg, spark):
        save(counted(spark), str(theirs))
    assert 1 <= stored(hg, lambda: save(counted(spark), str(ours)))
    assert files(theirs) == files(ours) != []
    if name in ("parquet", "orc"):
        with detached(hg, spark):
            read = spark.read.format(name)
            assert read.load(str(theirs)).collect() == read.load(str(ours)).collect()


@pytest.mark.parametrize("name", TO_TABLES)
def test_tables(spark: SparkSession, hg: Headgate, name: str) -> None:
    """A save to a table gives the same rows and the same definition as Spark's."""
    save, to = TO_TABLES[name], name.replace(" ", "_")
    with detached(hg, spark):
        save(counted(spark), f"{to}_theirs")
    assert {} == left(hg, lambda: stored(hg, lambda: save(counted(spark), f"{to}_ours")))
    with detached(hg, spark):
        assert rows(spark, name, f"{to}_theirs") == rows(spark, name, f"{to}_ours") != []


def rows(spark: SparkSession, name: str, table: str) -> list[str]:
    if name == "jdbc":
        df = spark.read.jdbc(URL, table, properties=DERBY)
        return [df.schema.json(), *sorted(map(str, df.collect()))]
    if name in ("append", "overwrite", "replace", "createOrReplace"):
        df = spark.table(f"derby.n.{table}")
        return [df.schema.json(), *sorted(map(str, df.collect()))]
    df = spark.table(table)
    made = spark.sql(f"show create table {table}").collect()[0][0].replace(table, "")
    return [made, df.schema.json(), *sorted(map(str, df.collect()))]


def test_nowhere(spark: SparkSession, hg: Headgate) -> None:
    """A save to `noop` runs the whole query."""
    df = counted(spark)
    assert 1 == stored(hg, lambda: df.write.format("noop").mode("overwrite").save())


@pytest.mark.parametrize("path", ["project:dataset.table", "mongodb://host/db"])
def test_a_path_that_is_no_folder(spark: SparkSession, hg: Headgate, path: str) -> None:
    """A path that Hadoop cannot open is no obstacle, as many connectors take other names."""

    class Forgetting(DataSourceWriter):
        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            list(iterator)
            return WriterCommitMessage()

    class Nowhere(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nowhere"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return Forgetting()

    spark.dataSource.register(Nowhere)
    writer = counted(spark).write.format("nowhere").mode("overwrite")
    assert 1 == stored(hg, lambda: writer.save(path))


@pytest.mark.parametrize(
    "save",
    [
        lambda df, to: df.write.insertInto(to, overwrite=True),
        lambda df, to: df.write.mode("overwrite").saveAsTable(to),
    ],
)
def test_a_table_that_is_read(spark: SparkSession, hg: Headgate, table: str, save: Save) -> None:
    """A table that the query reads is not overwritten: Spark's own error is raised, the table keeps
    its rows, and nothing of ours stays."""
    df = spark.table(table).groupBy("n").agg(F.max("k").alias("k")).select("k", "n")

    def act() -> None:
        with pytest.raises(AnalysisException) as raised:
            save(df, table)
        assert "UNSUPPORTED_OVERWRITE.TABLE" == raised.value.getCondition()

    assert 1 <= stored(hg, act)
    assert 100 == spark.table(table).count()


def test_partitions_that_are_read(spark: SparkSession, hg: Headgate) -> None:
    """A query may still overwrite the partitions of the table that it reads, because Spark allows
    that."""
    spark.range(60).selectExpr("id", "id % 3 as p").write.partitionBy("p").saveAsTable("parted")
    df = spark.table("parted").where("p = 1").groupBy("p").agg(F.max("id").alias("id"))
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    df = df.select("id", "p")
    assert 1 == stored(hg, lambda: df.write.insertInto("parted", overwrite=True))
    spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    counts = spark.table("parted").groupBy("p").count().orderBy("p").collect()
    assert [20, 1, 20] == [row["count"] for row in counts]


@pytest.mark.parametrize("inside", ["", "/k=1"])
def test_files_that_are_read(
    spark: SparkSession, hg: Headgate, tmp_path: Path, inside: str
) -> None:
    """A query that overwrites the files that it reads is left to Spark and counted."""
    folder = f"{tmp_path}/some where"
    spark.range(9).selectExpr("id", "id % 2 as k").write.partitionBy("k").parquet(folder)
    df = spark.read.parquet(folder).groupBy("k").agg(F.max("id").alias("id"))

    def act() -> None:
        df.write.mode("overwrite").parquet(folder + inside)

    counts: dict[str, int] = left(hg, lambda: stored(hg, act))
    assert [(why.endswith("is read, and overwritten"), n) for why, n in counts.items()] == [
        (True, 1)
    ]
    assert 2 == spark.read.parquet(folder + inside).count()
    elsewhere = str(tmp_path / "elsewhere")
    spark.range(9).write.parquet(elsewhere)
    again = spark.read.parquet(folder + inside).groupBy("id").count()
    assert 1 == stored(hg, lambda: again.write.parquet(elsewhere, mode="overwrite"))


def test_a_catalog_that_cannot(spark: SparkSession, hg: Headgate) -> None:
    """A write that a table does not support fails with Spark's own error, and the table keeps its
    rows."""
    begun(counted(spark), "derby.n.kept")

    def act() -> None:
        with pytest.raises(AnalysisException, match="does not support dynamic overwrite"):
            counted(spark).writeTo("derby.n.kept").overwritePartitions()

    assert 1 == stored(hg, act)
    assert 1 == spark.table("derby.n.kept").count()


def test_what_is_there(spark: SparkSession, hg: Headgate, tmp_path: Path, table: str) -> None:
    """Nothing runs for a save that Spark refuses or skips because its target exists."""
    folder, df = str(tmp_path), counted(spark)
    for act in (
        lambda: df.write.parquet(folder),
        lambda: df.write.option("path", folder).save(),
        lambda: df.write.saveAsTable(table),
    ):
        with pytest.raises(AnalysisException, match="already exists"):
            assert 0 == stored(hg, act)
    assert 0 == stored(hg, lambda: df.write.csv(folder, mode="ignore"))
    assert 0 == stored(hg, lambda: df.write.mode("ignore").saveAsTable(table))


def test_a_write_that_fails(spark: SparkSession, hg: Headgate, tmp_path: Path) -> None:
    """A save that fails raises Spark's error, writes no row, and leaves nothing stored."""
    df = counted(spark).select("k", F.expr("assert_true(n < 0)").alias("wrong"))
    out = tmp_path / "out"

    def act() -> None:
        with pytest.raises(SparkRuntimeException, match="is not true"):
            df.write.parquet(str(out))

    assert 1 == stored(hg, act)
    assert [] == list(out.rglob("part-*.parquet"))
    assert findings(hg._services, recorded(hg)).live == ()


def test_a_writer_is_the_users(spark: SparkSession, hg: Headgate, tmp_path: Path) -> None:
    """A writer that has saved can save again, also when the session's actions are Spark's own."""
    writer = counted(spark).write.mode("append").option("sep", ";")
    assert 1 == stored(hg, lambda: writer.csv(str(tmp_path)))
    with detached(hg, spark):
        writer.csv(str(tmp_path))
        assert 14 == spark.read.csv(str(tmp_path), sep=";").count()
    assert 1 == stored(hg, lambda: writer.csv(str(tmp_path)))
    other = counted(spark.newSession()).write.mode("append").option("sep", ";")
    assert 0 == stored(hg, lambda: other.csv(str(tmp_path)))

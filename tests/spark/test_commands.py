"""SQL commands through a session's headgate: tables, answers, errors and rules are Spark's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkTypeError, SparkRuntimeException
from pyspark.sql import SparkSession

from headgate import Headgate

from .conftest import build_session, real_place
from .entered import detached, left, stored

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

COUNTS = "select k, count(*) n, cast(sum(n) as int) total from source group by k"
COMMANDS = {
    "insert": f"insert into {{}} {COUNTS}",
    "by name": f"insert into {{}} by name select total, k, n from ({COUNTS})",
    "some columns": "insert into {} (n, k) select distinct n, k from source",
    "a static partition": f"insert into {{}} partition (total = 7) select k, n from ({COUNTS})",
    "overwrite": f"insert overwrite {{}} {COUNTS} order by n, k",
    "with": f"with counts as ({COUNTS}) insert into {{}} select * from counts where n > 1",
    "several": "from source insert into {} select distinct k, n, 1 "
    "insert into {} select n, max(k), 2 group by n",
    "after comments": f"-- a comment;\n /* (another\n one) */ INSERT INTO {{}} {COUNTS}",
    "a subquery": "insert into {} select k, n, 1 from source where k = "
    "(select max(k) from source) group by k, n",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = str(tmp_path_factory.mktemp("warehouse"))
    session = build_session(real_place(), "local[2]", **{"spark.sql.warehouse.dir": folder})
    rows = session.range(0, 100, 1, 2)
    rows.selectExpr("int(id % 9) k", "id % 7 n").write.saveAsTable("source")
    session.conf.set("spark.headgate.sql.enabled", "true")
    yield session
    session.stop()


def empty(spark: SparkSession, table: str) -> str:
    spark.sql(f"drop table if exists {table}")
    spark.sql(
        f"create table {table} (k int, n bigint, total int) using parquet partitioned by (total)"
    )
    return table


def rows(spark: SparkSession, table: str) -> list[str]:
    return sorted(map(str, spark.table(table).collect()))


@pytest.mark.parametrize("command", COMMANDS)
def test_inserts(hg: Headgate, spark: SparkSession, command: str) -> None:
    """A table has the rows that Spark would insert, and no exchange of the command ran in Spark."""
    table, text = empty(spark, "made"), COMMANDS[command]
    with detached(hg, spark):
        spark.sql(text.replace("{}", table))
        expected = rows(spark, table)
    empty(spark, table)
    reasons = left(hg, lambda: None)
    assert stored(hg, lambda: spark.sql(text.replace("{}", table))) >= 1
    assert reasons == left(hg, lambda: None) == {}
    assert rows(spark, table) == expected != []


CREATED = {
    "create": f"create table {{}} using parquet as {COUNTS}",
    "partitioned": f"create table {{}} using orc partitioned by (n) comment 'a' as {COUNTS}",
    "buckets": f"create table {{}} using parquet clustered by (k) into 3 buckets as {COUNTS}",
    "if missing": f"create table if not exists {{}} using json as {COUNTS} order by k limit 5",
}


@pytest.mark.parametrize("command", CREATED)
def test_tables_that_are_created(hg: Headgate, spark: SparkSession, command: str) -> None:
    """A created table has the rows and the schema that Spark would give it."""
    with detached(hg, spark):
        spark.sql("drop table if exists made")
        spark.sql(CREATED[command].format("made"))
        expected, schema = rows(spark, "made"), spark.table("made").schema
    spark.sql("drop table made")
    assert stored(hg, lambda: spark.sql(CREATED[command].format("made"))) >= 1
    assert left(hg, lambda: None) == {}
    assert rows(spark, "made") == expected != []
    assert spark.table("made").schema == schema


def test_a_table_that_exists_needs_no_rows(hg: Headgate, spark: SparkSession) -> None:
    empty(spark, "made")
    text = CREATED["if missing"].format("made")
    assert stored(hg, lambda: spark.sql(text)) == 0
    assert rows(spark, "made") == []


CACHED = {
    "counts": "cache table counts",
    "`a table`": "cache table `a table`",
    "of_it": "CACHE TABLE of_it OPTIONS ('storageLevel' 'DISK_ONLY') AS " + COUNTS,
}


@pytest.mark.parametrize("table", CACHED)
def test_cached_tables(hg: Headgate, spark: SparkSession, table: str) -> None:
    """A cache is filled by the command, from an exchange that ran in Headgate."""
    if table != "of_it":
        spark.sql(f"create or replace temporary view {table} as {COUNTS} having k >= 0")
    before = len(hg.results())
    spark.sql(CACHED[table])
    assert len(hg.results()) == before + 1
    assert len(rows(spark, table)) == 9
    assert len(hg.results()) == before + 1
    assert spark.catalog.isCached(table)
    spark.sql(f"uncache table {table}")
    assert left(hg, lambda: None) == {}


def test_a_cache_that_cannot_be_filled_is_forgotten(hg: Headgate, spark: SparkSession) -> None:
    spark.sql(
        "create or replace temporary view failing as "
        "select k, max(raise_error('on purpose')) e from source group by k"
    )
    with pytest.raises(SparkRuntimeException, match="on purpose"):
        spark.sql("cache table failing")
    assert not spark.catalog.isCached("failing")
    with pytest.raises(SparkRuntimeException, match="on purpose"):
        spark.sql("cache table wrong as select raise_error('on purpose') e from source group by 1")
    assert not spark.catalog.tableExists("wrong")
    spark.sql("cache lazy table right as select distinct k from source")
    assert spark.catalog.isCached("right")


def test_a_folder_that_is_read_and_overwritten(
    hg: Headgate, spark: SparkSession, tmp_path: Path
) -> None:
    """A query that reads the folder that it overwrites is left to Spark."""
    spark.table("source").write.parquet(str(tmp_path / "a"))
    query = "select k, count(*) n from parquet.`{}` group by k"
    text = f"insert overwrite directory '{{}}' using parquet {query}"
    other, same = (
        text.format(tmp_path / "b", tmp_path / "a"),
        text.format(tmp_path / "a", tmp_path / "a"),
    )
    assert stored(hg, lambda: spark.sql(other)) == 1
    assert spark.read.parquet(str(tmp_path / "b")).count() == 9
    assert list(left(hg, lambda: spark.sql(same))) == [
        f"file://{tmp_path}/a is read, and overwritten"
    ]


WRONG = {
    "no such table": "insert into missing select distinct k from source",
    "too few columns": "insert into made select distinct k from source",
    "a type": "insert into made select map(1, 2), 1, 2 from source group by 1",
    "no SQL": "insert nothing",
    "itself": "insert overwrite made select distinct * from made",
    "comments only": "/* a */" * 60,
}


@pytest.mark.parametrize("command", WRONG)
def test_errors_are_sparks_own(hg: Headgate, spark: SparkSession, command: str) -> None:
    empty(spark, "made")
    with detached(hg, spark), pytest.raises(AnalysisException) as expected:
        spark.sql(WRONG[command])
    with pytest.raises(AnalysisException) as raised:
        spark.sql(WRONG[command])
    assert type(raised.value) is type(expected.value)
    assert raised.value.getCondition() == expected.value.getCondition()


def test_a_command_with_parameters_is_left_to_spark(hg: Headgate, spark: SparkSession) -> None:
    empty(spark, "made")
    text = "insert into made select k, n, :x from source group by k, n"
    reasons = left(hg, lambda: spark.sql(text, {"x": 3}))
    assert reasons == {"Spark's own: sql": 1}
    assert spark.table("made").distinct().count() == 63


def test_the_arguments_of_sql(hg: Headgate, spark: SparkSession) -> None:
    """The text may be given by its name, and parameters may have any name."""
    empty(spark, "made")
    text = "insert into made select k, n, 1 from source group by k, n"
    assert stored(hg, lambda: spark.sql(sqlQuery=text)) == 1
    assert stored(hg, lambda: spark.sql(text, args={})) == 1
    assert spark.sql("select {text} as a, {runs} as b", text=1, runs=2).collect() == [(1, 2)]
    wrong: Any = 0
    with pytest.raises(PySparkTypeError, match="args"):
        spark.sql(text, wrong)
    assert spark.table("made").count() == 126


def test_a_text_is_parsed_by_its_session(hg: Headgate, spark: SparkSession) -> None:
    """The settings of the session hold, whichever session the thread used before."""
    other = spark.newSession()
    other.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    spark.sql("drop table if exists texts")
    spark.sql("create table texts (k int, s string) using parquet")
    with hg._queries._inside(other):
        other.sql(r"insert into texts select k, 'a\nb' from source group by k")
    assert spark.table("texts").distinct().count() == 9
    assert spark.table("texts").where(r"s = r'a\nb'").count() == 9


def test_several_inserts_of_which_one_fails(hg: Headgate, spark: SparkSession) -> None:
    """No row is written before the exchanges of all inserts are done."""
    empty(spark, "made")
    with pytest.raises(SparkRuntimeException, match="on purpose"):
        spark.sql(
            "from source insert into made select k, n, 1 group by k, n "
            "insert into made select k, max(raise_error('on purpose')), 2 group by k"
        )
    assert spark.table("made").count() == 0


def test_several_inserts_into_the_table_that_they_read(hg: Headgate, spark: SparkSession) -> None:
    """No insert reads the rows of another."""
    empty(spark, "made")
    spark.sql("insert into made values (1, 1, 0), (1, 2, 0)")
    text = "from made {} select k, sum(n), 1 group by k {} select k, count(*), 2 group by k"
    assert stored(hg, lambda: spark.sql(text.replace("{}", "insert into made"))) == 2
    assert sorted(spark.table("made").collect()) == [(1, 1, 0), (1, 2, 0), (1, 2, 2), (1, 3, 1)]

"""Commands on Iceberg tables through a session's headgate: rows and answers are Spark's own.

Iceberg has no release for the newest Spark, so `make test-iceberg` runs these tests on another one,
with Iceberg's jar in `ICEBERG_JAR`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession

from headgate import Headgate

from .conftest import build_session, real_place
from .entered import detached, left, stored

JAR = os.environ.get("ICEBERG_JAR", "")
pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

COUNTS = "select k, count(*) n from source group by k"
FRESH = f"(select k + 5 as k, n from ({COUNTS}))"
MERGE = (
    f"merge into {{0}} t using {FRESH} s on t.k = s.k "
    "when matched and t.k = 6 then delete when matched then update set n = t.n + s.n "
    "when not matched then insert (k, n) values (s.k, s.n)"
)
COMMANDS = {
    "insert": f"insert into {{0}} {COUNTS}",
    "overwrite": f"insert overwrite {{0}} {COUNTS} having n > 1",
    "merge": MERGE,
    "merge all": f"merge into {{0}} t using {FRESH} s on t.k = s.k when matched then update set * "
    "when not matched then insert * when not matched by source and t.k = 2 then delete",
    "update": "update {0} set n = -1 where k in (select max(k) from source group by n)",
    "delete": "delete from {0} where k in (select max(k) from source group by n)",
    "delete all": "delete from {0} where k in (select k from source group by k)",
    "create": f"create table {{0}}_made using iceberg as {COUNTS}",
    "replace": f"create or replace table {{0}}_made using iceberg as {COUNTS}",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("warehouse")
    iceberg = "org.apache.iceberg.spark"
    session = build_session(
        real_place(),
        "local[2]",
        **{
            "spark.jars": JAR,
            "spark.sql.warehouse.dir": str(folder / "sparks"),
            "spark.sql.extensions": f"{iceberg}.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.ice": f"{iceberg}.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": str(folder / "ice"),
        },
    )
    rows = session.range(0, 100, 1, 2)
    rows.selectExpr("int(id % 9) k", "id % 7 n").write.saveAsTable("source")
    session.conf.set("spark.headgate.sql.enabled", "true")
    yield session
    session.stop()


LAYOUTS = {
    "plain": "using iceberg",
    "partitioned": "using iceberg partitioned by (k)",
    "merge on read": "using iceberg partitioned by (k) tblproperties ('format-version'='2', "
    "'write.merge.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
    "'write.delete.mode'='merge-on-read')",
}


def begun(spark: SparkSession, table: str, layout: str) -> None:
    for name in (table, f"{table}_made"):
        spark.sql(f"drop table if exists {name}")
    spark.sql(f"create table {table} (k int, n bigint) {LAYOUTS[layout]}")
    spark.sql(f"insert into {table} select int(id % 12), id from range(40)")


def written(spark: SparkSession, table: str, command: str) -> list[tuple[object, ...]]:
    made = f"{table}_made" if "made" in COMMANDS[command] else table
    return sorted(map(tuple, spark.table(made).collect()))


@pytest.fixture
def table(request: pytest.FixtureRequest, hg: Headgate, spark: SparkSession) -> str:
    """A table with rows."""
    with detached(hg, spark):
        begun(spark, "ice.db.ours", request.getfixturevalue("layout"))
    return "ice.db.ours"


@pytest.fixture
def expected(
    hg: Headgate, spark: SparkSession, command: str, layout: str
) -> list[tuple[object, ...]]:
    """The rows of a table that Spark has changed."""
    with detached(hg, spark):
        begun(spark, "ice.db.sparks", layout)
        spark.sql(COMMANDS[command].format("ice.db.sparks"))
        return written(spark, "ice.db.sparks", command)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands(
    hg: Headgate,
    spark: SparkSession,
    command: str,
    layout: str,
    table: str,
    expected: list[tuple[object, ...]],
) -> None:
    """A table has the rows that Spark would give it, and no exchange of the command ran in
    Spark, those for the partitions of the table included."""
    assert left(hg, lambda: None) == {}
    assert stored(hg, lambda: spark.sql(COMMANDS[command].format(table))) >= 1
    assert left(hg, lambda: None) == {}
    with detached(hg, spark):
        assert written(spark, table, command) == expected != []


KEPT = {
    "update": "update {} set n = -1 where k in (select -k from source group by k)",
    "delete": "delete from {} where n in (select min(n) from {})",
    "merge": "merge into {} t using (select -k as k, count(*) n from source group by k) s "
    "on t.k = s.k when matched then update set n = s.n",
}


def noted(spark: SparkSession, table: str) -> dict[str, str]:
    """Return the notes of a table about its last change, without those of sizes in bytes."""
    summaries = spark.sql(f"select summary from {table}.snapshots order by committed_at").collect()
    return {key: value for key, value in summaries[-1][0].items() if "size" not in key}


@pytest.mark.parametrize("command", KEPT)
def test_files_that_need_no_change(hg: Headgate, spark: SparkSession, command: str) -> None:
    """A command writes only those files anew that Spark would, and the table notes the same."""
    notes = []
    for table in ("ice.db.sparks", "ice.db.ours"):
        with detached(hg, spark):
            begun(spark, table, "plain")
            spark.sql(f"insert into {table} select int(-100 - id), -id from range(10)")
        with detached(hg, spark) if table.endswith("sparks") else nullcontext():
            spark.sql(KEPT[command].replace("{}", table))
        notes.append(noted(spark, table))
    assert left(hg, lambda: None) == {}
    assert notes[0] == notes[1]


@pytest.mark.parametrize("layout", ["partitioned"])
@pytest.mark.parametrize("command", ["insert", "merge", "create"])
def test_commands_that_are_left_to_spark(
    hg: Headgate,
    spark: SparkSession,
    command: str,
    layout: str,
    table: str,
    expected: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command whose query cannot be planned in Headgate is run by Spark, once."""

    def fails(*_: object) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(hg._queries, "query", fails)
    assert stored(hg, lambda: spark.sql(COMMANDS[command].format(table))) == 0
    with detached(hg, spark):
        assert written(spark, table, command) == expected != []

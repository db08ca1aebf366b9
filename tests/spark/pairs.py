"""Public actions under settings that change rows, by pairs, compared with Spark:
`python -m tests.spark.queries --pairs`.

Asks Spark for all its configuration keys, and keeps each switch that changes the rows, or the
error, of one of our expressions. Then draws runs until each action has met each value of each
setting, and each value of a setting each value of every other one. Ends with 1 if a run differs
from Spark.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate, attach
from headgate.connectors.spark.jvm import bridge

from .conftest import build_session, real_place, setting
from .entered import detached, entered

PARSED = "to_timestamp(concat('2020-1-', id % 5 + 1, ' x'), 'yyyy-MM-dd')"
# Expressions of a whole number `id`. What they give depends on settings of Spark.
ANSWERED = (
    "to_date(concat('1500-', id % 12 + 1, '-7'), 'yyyy-M-d')",
    "unix_timestamp(concat('2020-', id % 12 + 1), 'yyyy-M')",
    "date_format(timestamp_seconds(id * 7919), 'MMMM yyyy h')",
    "timestamp_seconds(id * 7919)",
    "cast(array(id, null) as string)",
    "cast(named_struct('u', id, 'v', null) as string)",
    "cast(map(id, null) as string)",
    "size(if(id % 2 = 0, null, array(id)))",
    "decimal(id) / 3.000000000000000001",
    "cast(id as decimal(38, 18)) * cast(7.123 as decimal(38, 18))",
    "split('a,b', '')[id % 2]",
    "substring('abc', int(id) - 3, 2)",
    "interval '1' day * id",
    "cast(interval '26' hour as string)",
    "float('1e-5') * id",
    "from_json(concat('{\"a\": ', id, ', \"b\": \"\"}'), 'a int, b int')",
    "from_csv(concat(id, ',,x'), 'a int, b string, c int')",
    "to_json(named_struct('a', id, 'b', null))",
    "date'1582-10-04' + int(id)",
    "months_between(timestamp'2020-02-29 00:00:00', timestamp_seconds(id * 86400))",
    "cast('2020-01-01 00:00:00' as timestamp) + make_interval(0, 0, 0, int(id))",
    "string(cast(id as double) / 3)",
    "round(id + 0.5, 0)",
    "concat(binary(string(id)), binary('x'))",
    "array_contains(array(1.0, null), id)",
    "exists(array(null, id), x -> x > 3)",
    "bround(cast(id as decimal(5, 2)) / 7, 3)",
    "cast(id as char(2))",
    "to_number(string(id), '99')",
    "conv('9223372036854775807', 10, -16)",
)
# Spark refuses these, unless a setting lets them pass.
REFUSED = (
    PARSED,
    "map_from_arrays(array(1, 1), array(id, 9L))[1]",
    "tinyint(id * 40)",
    "cast(concat(' ', id, 'x') as int)",
    "id div (id % 3)",
    "2147483647 + int(id)",
    "element_at(array(id), 2)",
    "array(id)[3]",
    "format_string('%0$s', id)",
    "hash(map(id, 1))",
    "cast(cast(id as binary) as string)",
    "elt(int(id) + 1, 'a', 'b')",
    "if(id in ('1', 'x'), 1, 2)",
    "parse_url(concat('h ttp://', id), 'HOST')",
)
# Values of keys that are no switches.
VALUES: Mapping[str, str] = {
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
# Under these, Spark runs every query.
NATIVE = {"spark.sql.analyzer.singlePassResolver.enabled"}
_SWITCHES = {"true": "false", "false": "true"}
_QUERY = """select {columns}, count(*) n from numbers p
    join (select j, max(x) m from (select id % 3 j, string({first}) x from numbers) group by j) q
    on p.id % 3 = q.j group by all"""
_ERRORS = 3  # are compared in a run
_TRIES = 20  # of which a run takes the one with most new pairs


def _shown(df: DataFrame, _: Path) -> list[str]:
    with redirect_stdout(io.StringIO()) as out:
        df.orderBy(*df.columns).show(5)
    return [out.getvalue()]


def _rows(df: DataFrame) -> list[str]:
    return sorted(str(tuple(row)) for row in df.collect())


def _saved(kind: str, df: DataFrame, folder: Path) -> list[str]:
    path = folder / os.urandom(4).hex()
    getattr(df.write, kind)(str(path))
    return _rows(getattr(df.sparkSession.read.schema(df.schema), kind)(str(path)))


def _table(text: str, df: DataFrame, _: Path) -> list[str]:
    """Run commands that write the rows of `given` into the table `written`."""
    spark = df.sparkSession
    df.createOrReplaceTempView("given")
    try:
        for command in text.split(";"):
            spark.sql(command)
        return _rows(spark.table("written"))
    finally:
        spark.catalog.uncacheTable("given")
        spark.sql("drop table if exists written")
        spark.catalog.dropTempView("written")


def _save_as(df: DataFrame, _: Path) -> list[str]:
    df.write.format("parquet").saveAsTable("written")
    rows = _rows(df.sparkSession.table("written"))
    df.sparkSession.sql("drop table written")
    return rows


def _of_pandas(df: DataFrame, _: Path) -> list[str]:
    frame: Any = df.toPandas()
    return sorted(map(str, frame.to_dict("records")))


def _foreach(df: DataFrame, _: Path) -> list[str]:
    count = df.sparkSession.sparkContext.accumulator(0)
    df.foreach(lambda row: count.add(hash(str(row)) % 1))
    df.foreachPartition(lambda rows: count.add(sum(1 for _ in rows)))
    return [str(count.value)]


Action = Callable[[DataFrame, Path], list[str]]
ACTIONS: Mapping[str, Action] = {
    "collect": lambda df, _: _rows(df),
    "tail": lambda df, _: [str(row) for row in df.orderBy(*df.columns).tail(5)],
    "toPandas": _of_pandas,
    "toArrow": lambda df, _: sorted(map(str, df.toArrow().to_pylist())),
    "foreach": _foreach,
    "checkpoint": lambda df, _: _rows(df.checkpoint()),
    "localCheckpoint": lambda df, _: _rows(df.localCheckpoint(eager=False)),
    "count": lambda df, _: [str(df.count()), str(df.distinct().count())],
    "show": _shown,
    "isEmpty": lambda df, _: [str(df.isEmpty())],
    "toLocalIterator": lambda df, _: sorted(map(str, df.toLocalIterator())),
    "rdd": lambda df, _: sorted(map(str, df.rdd.collect())),
    "cache": lambda df, _: _rows(df.cache()) + _rows(df.unpersist()),
    **{kind: lambda df, to, kind=kind: _saved(kind, df, to) for kind in ("parquet", "json")},  # type: ignore[misc]
    "saveAsTable": _save_as,
    "create table": lambda df, to: _table("create table written as table given", df, to),
    "insert": lambda df, to: _table(
        "create table written as select * from given where false; insert into written table given",
        df,
        to,
    ),
    "cache table": lambda df, to: _table("cache table written as table given", df, to),
}

# Below an RDD, Spark's own map stages run with its default settings, not with the session's: its
# right rows are those of another action.
BY_SPARK: Mapping[str, Action] = {
    **ACTIONS,
    "foreach": lambda df, _: [str(df.count())],
    "rdd": lambda df, _: sorted(map(str, df.collect())),
}


@dataclass(frozen=True, slots=True)
class Run:
    """An action under settings; keys that are left out have Spark's defaults."""

    action: str
    conf: Mapping[str, str]

    def pairs(self, keys: Sequence[str]) -> set[tuple[str, str]]:
        values = [self.action, *(f"{key}={self.conf.get(key, '')}" for key in keys)]
        return set(combinations(values, 2))


def known_keys(spark: SparkSession) -> dict[str, str]:
    """Return all configuration keys of this Spark, each with its default."""
    settings = bridge._module(spark._jvm, "org.apache.spark.sql.internal.SQLConf")
    entries = settings.getConfigEntries()
    return {str(each.key()): str(each.defaultValueString()) for each in entries.toArray()}


def switches(spark: SparkSession) -> dict[str, str]:
    """Return another value for each key of Spark that is a switch and may be set in a session."""
    return {
        key: _SWITCHES[default]
        for key, default in sorted(known_keys(spark).items())
        if default in _SWITCHES and key not in NATIVE and spark.conf.isModifiable(key)
    }


def answers(spark: SparkSession) -> dict[str, tuple[str, bool]]:
    """Return for each expression Spark's answer or error, and whether it is an answer."""
    columns = ", ".join(f"string({each})" for each in ANSWERED)
    try:
        rows = spark.sql(f"select {columns} from numbers").collect()
        answered = {
            e: (str(of), True) for e, of in zip(ANSWERED, zip(*rows, strict=True), strict=True)
        }
    except (PySparkException, Py4JJavaError):
        answered = {e: alone(spark, e) for e in ANSWERED}
    return answered | {each: alone(spark, each) for each in REFUSED}


def alone(spark: SparkSession, expression: str) -> tuple[str, bool]:
    return told(lambda: _rows(spark.sql(f"select string({expression}) from numbers")))


def told(act: Callable[[], list[str]]) -> tuple[str, bool]:
    """Return an answer or the condition of an error, and whether it is an answer."""
    try:
        return str(act()), True
    except PySparkException as exc:
        return f"{type(exc).__name__} {exc.getCondition()}", False
    except Py4JJavaError as exc:
        return str(exc.java_exception.getClass().getName()), False


def that_matter(spark: SparkSession, others: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under which Spark gives other rows or another error."""
    usual, changing = answers(spark), {}
    for key, value in others.items():
        with setting(spark, {key: value}):
            if answers(spark) != usual:
                changing[key] = value
    return changing


def runs(settings: Mapping[str, str], seed: int) -> Iterator[Run]:
    """Yield runs until each pair has been met."""
    random, keys, met = Random(seed), list(settings), set[tuple[str, str]]()
    lacking = {
        pair
        for action in ACTIONS
        for key in keys
        for pair in ((action, f"{key}="), (action, f"{key}={settings[key]}"))
    }
    for first, second in combinations(keys, 2):
        lacking |= {
            (f"{first}={a}", f"{second}={b}")
            for a in ("", settings[first])
            for b in ("", settings[second])
        }
    while lacking - met:
        drawn = [_drawn(settings, random) for _ in range(_TRIES)]
        best = max(drawn, key=lambda run: len(run.pairs(keys) & (lacking - met)))
        met |= best.pairs(keys)
        yield best


def _drawn(settings: Mapping[str, str], random: Random) -> Run:
    chosen = {key: value for key, value in settings.items() if random.random() < 0.5}
    return Run(random.choice(list(ACTIONS)), chosen)


def compare(spark: SparkSession, hg: Headgate, run: Run, folder: Path) -> str:
    """Return how the rows of a run differ from Spark's, empty if they do not. What Spark cannot
    compute under the settings is asked for alone: its error has to be the same."""
    with setting(spark, run.conf):
        with detached(hg, spark):
            known = answers(spark)
        answered = [each for each, (_, is_answer) in known.items() if is_answer]
        failing = [each for each in known if each not in answered]
        some = failing[:: max(1, len(failing) // _ERRORS)]
        for chosen in (answered, *([each] for each in some)):
            columns = ", ".join(f"string({each}) c{at}" for at, each in enumerate(chosen))
            text = _QUERY.format(columns=columns, first=chosen[0])
            action = run.action if chosen is answered else "collect"
            act, sparks = ACTIONS[action], BY_SPARK[action]
            with detached(hg, spark):
                expected, _ = told(partial(_acted, sparks, spark, text, folder))
            before = hg._results._last
            with entered(hg, spark):
                actual, is_answer = told(partial(_acted, act, spark, text, folder))
            if expected != actual:
                return f"{chosen}: {expected[:300]} is here {actual[:300]}"
            if is_answer and before == hg._results._last:
                return f"{chosen}: nothing ran here"
    return ""


def _acted(act: Action, spark: SparkSession, text: str, folder: Path) -> list[str]:
    return act(spark.sql(text), folder)


def prepare(spark: SparkSession, folder: Path) -> None:
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints whole errors
    spark.range(0, 12, 1, 2).createOrReplaceTempView("numbers")
    spark.sparkContext.setCheckpointDir(str(folder / "checkpoints"))


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder, wrong = Path(name), 0
        where = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
        spark = build_session(real_place(), "local[2]", **where)
        prepare(spark, folder)
        with attach(spark) as hg:
            changing = {**that_matter(spark, switches(spark)), **VALUES}
            print(f"{len(changing)} settings: {', '.join(changing)}", flush=True)
            for number, run in enumerate(runs(changing, 7), 1):
                if difference := compare(spark, hg, run, folder):
                    wrong += 1
                    print(
                        f"run {number}, {run.action} under {dict(run.conf)}: {difference}",
                        flush=True,
                    )
        print(f"{number} runs, {wrong} differ")
        spark.stop()
    return 1 if wrong else 0

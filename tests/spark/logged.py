"""An application with an event log, and its own report, with which the log is compared:
`python -m tests.spark.logged FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

from headgate import attach

from .conftest import READ_BY_TASKS, Place, build_session

SECRET = "opensesame"
QUERY = "select n, sum(v) s from orders join names using (k) group by n order by n"
SENT = (
    "select /*+ broadcast(names) */ * from (select k, sum(v) from orders group by k) join names"
    " using (k)"
)
ACTIONS: dict[str, Callable[[DataFrame, str], Any]] = {
    "collect": lambda df, folder: df.collect(),
    "toPandas": lambda df, folder: df.toPandas(),
    "toLocalIterator": lambda df, folder: list(df.toLocalIterator()),
    "rdd": lambda df, folder: df.rdd.count(),
    "parquet": lambda df, folder: df.write.parquet(folder),
}


def main(folder: Path) -> None:
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.headgate.sql.enabled": "true",
    }
    spark = build_session(Place("embedded", READ_BY_TASKS), "local[2]", **conf)
    with attach(spark) as hg:
        _views(spark)
        queries = {}
        for adaptive in ("true", "false"):
            spark.conf.set("spark.sql.adaptive.enabled", adaptive)
            for name in ACTIONS if adaptive == "true" else ["parquet"]:
                before = len(hg.results())
                ACTIONS[name](_query(spark), str(folder / f"{name}-{adaptive}"))
                key = f"{name}, {adaptive}"
                queries[key] = [each.result for each in hg.results()[before:]]
        before = len(hg.results())
        spark.sql(f"create table sums as {QUERY}")
        queries["sql"] = [each.result for each in hg.results()[before:]]
        before = len(hg.results())
        hg.offload(_query(spark)).collect()
        queries["offload"] = [each.result for each in hg.results()[before:]]
        before = len(hg.results())
        hg.repartition(spark.table("orders"), 3, "k").collect()
        queries["repartition"] = [each.result for each in hg.results()[before:]]
        before = len(hg.results())
        _pairs(spark).collect()
        queries["collect, of pairs"] = [each.result for each in hg.results()[before:]]
        before = len(hg.results())
        spark.sql(SENT).collect()
        queries["collect, of a broadcast"] = [each.result for each in hg.results()[before:]]
        for _ in _query(spark).toLocalIterator():
            break
        wrong = spark.range(9).selectExpr("if(id < 5, id, raise_error('wrong')) k")
        with suppress(SparkRuntimeException):
            wrong.groupBy("k").count().collect()
        spark.conf.set("spark.sql.redaction.string.regex", SECRET)
        spark.sparkContext.setJobDescription(f"with the password {SECRET}")
        _query(spark).collect()
        report = hg.report()
        print(
            json.dumps(
                {
                    "application": spark.sparkContext.applicationId,
                    "results": [asdict(each) for each in report.results],
                    "native": dict(report.native),
                    "queries": queries,
                }
            )
        )
    spark.stop()


def _query(spark: SparkSession) -> DataFrame:
    return spark.sql(QUERY)


def _pairs(spark: SparkSession) -> DataFrame:
    """Return a function of groups of two sides, which the tasks that read both exchanges call."""
    orders, names = (spark.table(name).groupBy("k") for name in ("orders", "names"))
    return orders.cogroup(names).applyInPandas(lambda left, _: left[["k"]].head(1), "k long")


def _views(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    orders = spark.range(0, 20_000, 1, 3).selectExpr("id % 1000 k", "id v")
    orders.createOrReplaceTempView("orders")
    names = spark.range(0, 1000, 1, 2).selectExpr("id k", "concat('n', id) n")
    names.createOrReplaceTempView("names")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

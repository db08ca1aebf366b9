"""An application of queries of TPC-DS: `python -m tests.chaos.tpcds`.

Each answer is compared with DuckDB's. A query goes through `offload`, or is an action of a session
with `spark.headgate.sql.enabled`. A later application of the same job starts over, because the
results of a query serve that query alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Row, SparkSession

from headgate import Headgate, attach
from tests.bench.answers import differs_in_order, near
from tests.bench.tpcds_data import Answer, answers, generate, in_spark, queries, views
from tests.doubles.tpcds import CONF

from .application import combine, combined, session, tell
from .plan import ACTION, IN_TURN, QUERIES

SCALE = 0.1
RIGHT = "the answers of DuckDB"

_SETTINGS = {
    "spark.executor.memory": "1g",
    # An executor killed every few seconds may fail one task more often than Spark allows.
    "spark.task.maxFailures": "16",
}


def prepare(folder: Path) -> None:
    """Make the tables, and DuckDB's answers to all queries of rounds."""
    generate(folder, SCALE)
    answers(folder, _texts(QUERIES))


def _texts(numbers: Sequence[int]) -> dict[int, str]:
    known = queries()
    return {number: known[number] for number in numbers}


def run(spark: SparkSession, texts: dict[int, str], expected: dict[int, Answer], way: str) -> None:
    tell("attaching")
    hg = attach(spark)
    for phase, (number, text) in zip(IN_TURN, texts.items(), strict=True):
        tell(phase, query=number)
        rows = (by_action if way == ACTION else by_offload)(spark, hg, in_spark(text))
        if differs := differs_in_order(expected[number], rows, near):
            tell(phase, query=number, read=f"query {number}: {differs}")
    read = RIGHT if hg.results() else "nothing ran here"
    counts = {"exchanges": len(hg.results()), "combined": combined(hg)}
    tell("closing", read=read, native=hg.report().native, **counts)
    hg.close()
    tell("closed")


def by_action(spark: SparkSession, hg: Headgate, text: str) -> list[Row]:
    return spark.sql(text).collect()


def by_offload(spark: SparkSession, hg: Headgate, text: str) -> list[Row]:
    out = hg.offload(spark.sql(text))
    rows = out.collect()
    hg.release(out)
    return rows


def main() -> None:
    given = json.loads(sys.argv[1])
    combine(given.get("combined"))
    folder, texts = Path(given["tables"]), _texts(given["queries"])
    enabled = {"spark.headgate.sql.enabled": str(given["way"] == ACTION).lower()}
    conf = {**given["conf"], **CONF, **enabled}
    spark = session(conf, "local-cluster[2,1,1024]", **_SETTINGS)
    views(spark, folder)
    run(spark, texts, answers(folder, texts), given["way"])
    spark.stop()


if __name__ == "__main__":
    main()

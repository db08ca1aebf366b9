"""The first query of a session: Spark's own, and through Headgate with and without preparation.

Each run is a program of its own, because a JVM and its workers are cold only once. The user is
taken to type for some seconds between attaching and the first query.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from pyspark.sql import SparkSession
from rich.table import Table

from headgate.control.clock import SYSTEM_CLOCK

from . import check
from .places import attached, session

_SIDES = {"Spark": "", "Headgate, not prepared": "false", "Headgate, prepared": "true"}
_TYPING_S = 8


def run(rounds: int) -> Table:
    took_ms: dict[str, list[list[float]]] = {side: [] for side in _SIDES}
    for _ in range(rounds):
        for side in _SIDES:
            command = [sys.executable, "-m", __name__, side]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            took_ms[side].append([float(ms) for ms in done.stdout.split()])
    table = Table("side", "first query ms", "second query ms")
    table.title = f"a query of five exchanges {_TYPING_S} s after attaching, median of {rounds}"
    for side, runs in took_ms.items():
        table.add_row(side, *(f"{median(each):.0f}" for each in zip(*runs, strict=True)))
    return table


def _measure(side: str) -> None:
    warm_up = _SIDES[side]
    spark = session({"spark.sql.autoBroadcastJoinThreshold": "-1"})
    if warm_up:
        spark.conf.set("spark.headgate.sql.enabled", "true")
        spark.conf.set("spark.headgate.warm.up", warm_up)
        with attached(spark, "real"):
            _query_twice(spark)
    else:
        _query_twice(spark)
    spark.stop()


def _query_twice(spark: SparkSession) -> None:
    SYSTEM_CLOCK.sleep_s(_TYPING_S)
    for _ in range(2):
        begun_s = SYSTEM_CLOCK.monotonic_s()
        spark.sql(check.QUERY).collect()
        print((SYSTEM_CLOCK.monotonic_s() - begun_s) * 1000)


if __name__ == "__main__":
    _measure(sys.argv[1])

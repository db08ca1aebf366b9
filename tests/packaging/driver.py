"""A Spark application of the Headgate that its Python has: `python driver.py CONF DEEDS`.

Prints the outcome of each deed as a line of JSON, then dies like a process that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from headgate import Headgate, attach
from headgate.control.errors import HeadgateError

ROWS = 60


def store(spark: SparkSession, hg: Headgate) -> str:
    """Store two results, one of them promoted, and return the name of this one."""
    rows = spark.range(ROWS).selectExpr("id % 7 as k", "id as v")
    hg.repartition(rows, 2, "v").count()
    kept = hg.repartition(rows, 3, "k")
    return hg.promote(kept)


def do(spark: SparkSession, deed: Mapping[str, str], outcome: dict[str, Any]) -> None:
    """Work on a job: `keep` closes it, `leave` does not, `ask` does so after a command, and `read`
    after it has read a promoted result."""
    session = spark.newSession()
    for key in ("job.id", "mode"):
        session.conf.set(f"spark.headgate.{key}", deed[key])
    hg = attach(session)
    if deed["do"] == "read":
        outcome["rows"] = hg.read(deed["promoted"]).count()
    else:
        outcome["promoted"] = store(session, hg)
    if deed["do"] == "ask":
        subprocess.run(deed["command"], shell=True, check=True, stdout=sys.stderr)
    if deed["do"] != "leave":
        hg.close()


def main(conf: Mapping[str, str], deeds: list[dict[str, str]]) -> None:
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for deed in deeds:
        outcome: dict[str, Any] = {}
        try:
            do(spark, deed, outcome)
        except HeadgateError as exc:
            outcome["error"] = f"{type(exc).__name__}: {exc}"
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
    os.kill(os.getpid(), signal.SIGKILL)

"""An application that does not know Headgate: `python started.py [what]`."""

import os
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def sums(spark: SparkSession) -> list[int]:
    grouped = spark.range(1000).groupBy((F.col("id") % 7).alias("k")).count()
    return [int(row[0]) for row in grouped.repartition(3, "k").select("count").collect()]


def tell_when_active(spark: SparkSession) -> None:
    """Print a line when Spark runs a stage: who interrupts an earlier call gets py4j's error."""
    while not spark.sparkContext.statusTracker().getActiveStageIds():
        threading.Event().wait(0.05)
    print("waits", flush=True)


def numbers() -> list[int]:
    """Return the number of descriptors and of threads of this process."""
    return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")]


def growth(spark: SparkSession, sessions: int) -> list[int]:
    """Make sessions that nobody keeps, some of which run a query, and return what has grown since
    the first of them."""
    before: list[int] = []
    for number in range(sessions):
        child = spark.newSession()
        if number % 50 == 0:
            assert sum(sums(child)) == 1000
            before = before or numbers()
    return [after - first for after, first in zip(numbers(), before, strict=True)]


def main(*what: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    print("sum", sum(sums(spark)), what, __name__)
    if "again" in what:
        spark.stop()
        spark = SparkSession.builder.getOrCreate()
        print("sum", sum(sums(spark)))
    if "child" in what:
        print("sum", sum(sums(spark.newSession())))
    if "sessions" in what:
        print("growth", max(growth(spark, 301)))
    if "attach" in what:
        import headgate

        with headgate.attach(spark) as hg:
            print("sum", sum(sums(spark)), "epoch", hg._exchanger.job_context.epoch)
    if "wait" in what:
        threading.Thread(target=tell_when_active, args=(spark,), daemon=True).start()
        spark.range(1).foreach(lambda _: __import__("time").sleep(60))
    if "fail" in what:
        raise ValueError("the application has failed")
    if "exit" in what:
        sys.exit(7)


if __name__ == "__main__":
    main(*sys.argv[1:])

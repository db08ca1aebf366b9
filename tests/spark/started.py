"""An application that does not know Headgate: `python started.py [what]`."""

import gc
import json
import os
import sys
import threading
from pathlib import Path

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


def numbers(spark: SparkSession) -> dict[str, list[int]]:
    """Return the numbers of descriptors, of threads, and of MiB of the driver and its JVM."""
    assert spark._jvm is not None
    java = spark._jvm.java.lang
    for _ in range(2):  # what is collected here goes in the JVM, too
        gc.collect()
        java.System.gc()
    counts = {}
    for name, pid in (("driver", os.getpid()), ("JVM", java.ProcessHandle.current().pid())):
        of = Path("/proc", str(pid))
        pages = int((of / "statm").read_text().split()[1])
        mib = pages * os.sysconf("SC_PAGE_SIZE") >> 20
        counts[name] = [len(os.listdir(of / "fd")), len(os.listdir(of / "task")), mib]
    heap = java.Runtime.getRuntime()
    counts["JVM"][2] = (heap.totalMemory() - heap.freeMemory()) >> 20
    return counts


def growth(spark: SparkSession, sessions: int) -> dict[str, list[list[int]]]:
    """Make sessions that nobody keeps, some of which run a query, and return the numbers of each
    process after the first of them and after the last."""
    before = dict[str, list[int]]()
    for number in range(sessions):
        child = spark.newSession()
        if number % 50 == 0:
            assert sum(sums(child)) == 1000
            before = before or numbers(spark)
    return {name: [before[name], after] for name, after in numbers(spark).items()}


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
        print("growth", json.dumps(growth(spark, int(what[-1]))))
    if "attach" in what:
        import headgate

        with headgate.attach(spark) as hg:
            print("sum", sum(sums(spark)), "epoch", hg._results.epoch)
    if "wait" in what:
        threading.Thread(target=tell_when_active, args=(spark,), daemon=True).start()
        spark.range(1).foreach(lambda _: __import__("time").sleep(60))
    if "fail" in what:
        raise ValueError("the application has failed")
    if "exit" in what:
        sys.exit(7)


if __name__ == "__main__":
    main(*sys.argv[1:])

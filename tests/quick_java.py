"""Let the JVMs of tests start in about half the time.

None of them lives long enough for the second compiler, and all of them load the same ten thousand
classes of Spark. `python -m tests.quick_java` runs a query and writes the classes that Java has
loaded and checked for it into a file, from which later JVMs take them. Java itself refuses a file
that another Java has written, or for other jars; make it anew then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

CLASSES = Path(sys.prefix, "classes.jsa")
_QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xlog:disable"
_FROM_FILE = f" -XX:SharedArchiveFile={CLASSES}"
QUICK_JAVA = _QUICK + (_FROM_FILE if CLASSES.exists() and CLASSES.stat().st_size else "")
_QUERY = """
    select a.k, count(distinct a.s) c, sum(a.x) x from rows a join rows b using (id)
    group by a.k order by x limit 3
"""
_ENDED_S = 120


def main() -> None:
    new = CLASSES.with_suffix(".new")
    new.unlink(missing_ok=True)
    conf = {
        "spark.driver.extraJavaOptions": f"{_QUICK} -XX:ArchiveClassesAtExit={new}",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    with TemporaryDirectory() as folder, builder.getOrCreate() as spark:
        gateway: Any = spark.sparkContext._gateway
        rows = spark.range(1000).selectExpr("id", "id % 7 k", "string(id) s", "id / 3 x")
        rows.write.parquet(f"{folder}/rows")
        stored = spark.read.parquet(f"{folder}/rows")
        stored.mapInArrow(_same, stored.schema).createOrReplaceTempView("rows")
        spark.sql(_QUERY).show()
    gateway.proc.stdin.close()
    gateway.proc.wait(_ENDED_S)
    new.rename(CLASSES)  # fails if Java has written none


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


if __name__ == "__main__":
    main()

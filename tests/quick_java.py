"""Let the JVMs of tests start in half the time.

None of them lives long enough for the second compiler, and all of them load the same ten thousand
classes of Spark. `python -m tests.quick_java` runs a few queries and writes the classes that Java
has loaded and checked for them into a file, from which later JVMs take them. A JVM of another Java,
or with other jars, loads its classes as ever.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

CLASSES = Path(sys.prefix, "classes.jsa")
_QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xlog:disable"
_FROM_FILE = f" -XX:SharedArchiveFile={CLASSES}"
QUICK_JAVA = _QUICK + (_FROM_FILE if CLASSES.exists() else "")
_QUERY = """
    select a.k, count(distinct a.s) c, sum(a.x) x from rows a join rows b using (id)
    group by a.k order by x limit 3
"""


def main() -> None:
    from pyspark.sql import SparkSession

    from headgate import attach

    conf = {
        "spark.driver.extraJavaOptions": f"{_QUICK} -XX:ArchiveClassesAtExit={CLASSES}",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    with TemporaryDirectory() as folder, builder.getOrCreate() as spark:
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        rows = spark.range(1000).selectExpr("id", "id % 7 k", "string(id) s", "id / 3 x")
        rows.write.parquet(f"{folder}/rows")
        with attach(spark) as hg:
            spark.read.parquet(f"{folder}/rows").createOrReplaceTempView("rows")
            hg.repartition(spark.table("rows"), 4, "k").collect()
            hg.offload(spark.sql(_QUERY)).show()
    java.stdin.close()
    java.wait(120)


if __name__ == "__main__":
    main()

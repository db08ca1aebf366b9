"""An application in whose Spark every private name is gone: Headgate gets at nothing of the JVM."""

import sys
from pathlib import Path
from typing import Any

import py4j
from py4j.java_gateway import JavaClass, JavaObject, JavaPackage, JVMView
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate

HEADGATE = str(Path(headgate.__file__).parent)
PY4J = str(Path(py4j.__file__).parent)
refused = 0


def refuse_headgate(kind: type[Any]) -> None:
    """Let only PySpark look at the members of objects of the JVM."""
    look_up = kind.__getattr__

    def member(self: Any, name: str) -> Any:
        global refused
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(PY4J):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(HEADGATE):
            refused += 1
            raise Py4JError(f"{name} does not exist in the JVM")
        return look_up(self, name)

    kind.__getattr__ = member


def main() -> None:
    for kind in (JavaObject, JavaClass, JavaPackage, JVMView):
        refuse_headgate(kind)
    spark = SparkSession.builder.getOrCreate()
    df = spark.range(0, 1000, 1, 3).select((F.col("id") % 7).alias("k"), "id")
    counted = df.groupBy("k").count().orderBy("k")
    assert [(k, 143 if k < 6 else 142) for k in range(7)] == [
        tuple(row) for row in counted.collect()
    ]
    hg = headgate.current(spark)
    out = hg.repartition(df, 3, "k")
    assert sorted(df.collect()) == sorted(out.collect())
    placed = [
        {(row.k, row.at) for row in each.select("k", F.spark_partition_id().alias("at")).collect()}
        for each in (df.repartition(3, "k"), out)
    ]
    assert placed[0] == placed[1]
    (result,) = hg.results()
    spark.conf.set("spark.sql.ansi.enabled", "false")
    assert 7 == hg.repartition(counted, 2, "k").count()
    hg.release(out)
    assert hg.report().native == {}
    assert refused > 10, "the private names were asked for"
    print("right", result.result, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

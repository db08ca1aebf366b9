"""An application whose tasks take long enough to be watched."""

import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import headgate


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    threading.Event().wait(0.5)
    yield from batches


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    with headgate.attach(spark) as hg:
        rows = spark.range(0, 40, 1, 8).mapInArrow(slow, "id long")
        hg.repartition(rows, 4, "id").count()
        print(hg.results())

"""An application of two exchanges by hand: `python -m tests.chaos.exchanges`.

The first exchange feeds the second one. A later application of the same job continues with the
complete results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, attach
from headgate.control.clock import SYSTEM_CLOCK

from .application import combine, combined, session, tell

ROWS, PARTITIONS = 48_000, 8
FIRST, SECOND = (8, "k"), (5, "v")
ROW_S = 0.0002
_MEMORY = {"spark.executor.memory": "512m"}


def orders(spark: SparkSession) -> DataFrame:
    number = F.col("id")
    text = F.repeat(F.sha2(number.cast("string"), 256), 8)
    return spark.range(0, ROWS, 1, PARTITIONS).select(
        (number % 997).alias("k"), number.alias("v"), text.alias("t")
    )


def slowly(df: DataFrame) -> DataFrame:
    """Return the same rows, so slowly that faults can strike meanwhile."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            SYSTEM_CLOCK.sleep_s(batch.num_rows * ROW_S)
            yield batch

    return df.mapInArrow(pass_on, df.schema)


def summed(df: DataFrame) -> list[str]:
    """Return the number of rows, and a sum over each row and its partition that no order
    changes."""
    hashed = F.xxhash64(F.spark_partition_id(), *df.columns).cast("decimal(38,0)").alias("h")
    row = df.select(hashed).agg(F.count("h"), F.sum("h")).first()
    assert row is not None
    return [str(row[0]), str(row[1])]


def undisturbed(spark: SparkSession) -> None:
    """Tell the sums of both exchanges as Spark alone computes them."""
    sums = [summed(orders(spark).repartition(*into)) for into in (FIRST, SECOND)]
    tell("closed", read=sums)


def disturbed(spark: SparkSession) -> None:
    tell("attaching")
    hg = attach(spark)
    there = complete(hg)
    tell("writing", found=sorted(there))
    first = exchanged(hg, orders(spark), FIRST, there)
    tell("rewriting")
    second = exchanged(hg, first, SECOND, there)
    tell("reading")
    sums = [summed(first), summed(slowly(second))]
    tell("closing", read=sums, combined=combined(hg))
    hg.close()
    tell("closed", read=sums)


def complete(hg: Headgate) -> dict[int, str]:
    """Return the results that can be read, by the number of their subpartitions."""
    return {
        result.subpartitions: result.result
        for result in hg.results()
        if result.consumable == result.partitions and result.released is None
    }


def exchanged(
    hg: Headgate, df: DataFrame, into: tuple[int, str], there: dict[int, str]
) -> DataFrame:
    if (result := there.get(into[0])) is not None:
        return hg.read(result)
    return hg.repartition(slowly(df), *into)


def main() -> None:
    given = json.loads(sys.argv[1])
    conf = given["conf"]
    combine(given.get("combined"))
    spark = session(conf, "local-cluster[2,1,512]" if conf else "local[2]", **_MEMORY)
    (disturbed if conf else undisturbed)(spark)
    spark.stop()


if __name__ == "__main__":
    main()

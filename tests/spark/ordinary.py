"""An ordinary application that does not know Headgate: `python ordinary.py FOLDER`."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType


def main(folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    facts = spark.range(0, 20_000, 1, 2).selectExpr("id", "id % 10 as k", "string(id) as s")
    facts.write.parquet(f"{folder}/facts")
    facts = spark.read.parquet(f"{folder}/facts")
    print(len(facts.repartition(3, "k").take(3)), facts.repartition(3, "s").isEmpty())
    groups = spark.range(10).selectExpr("id as k", "concat('g', id) as name")
    joined = facts.join(groups.hint("shuffle_hash"), "k")
    by_name = joined.groupBy("name").agg(F.count("*").alias("n"), F.sum("id").alias("x"))
    by_name.orderBy("name").show(3)
    print(joined.repartition(3, "s").limit(5).count(), facts.orderBy("s").first())
    cached = by_name.cache()
    print(cached.count(), cached.filter("n > 5").count())
    cached.unpersist()
    plus = F.udf(lambda number: number + 1, LongType())
    print(facts.select(plus("k").alias("k")).groupBy("k").count().count())
    facts.createOrReplaceTempView("facts")
    spark.sql("select k, count(distinct s) c from facts group by k order by c, k").show(3)
    spark.sql("select k, row_number() over (partition by k order by id) r from facts").show(3)
    by_name.write.partitionBy("name").parquet(f"{folder}/sums")
    print(len(by_name.toPandas()), next(facts.repartition(3, "s").toLocalIterator()).k < 10)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

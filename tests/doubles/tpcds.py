"""The queries of TPC-DS that have every kind of exchange, and settings under which these matter."""

from __future__ import annotations

CONF = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "16KB",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16KB",
}
QUERIES = {
    1: "one aggregate twice, compared with its own average",
    2: "all rows in order: a range",
    9: "scalar subqueries",
    14: "an intersection three times, a union, a rollup",
    32: "a correlated average",
    38: "intersections",
    51: "windows over windows, a full join",
    67: "a rollup under a rank",
    69: "semi and anti joins",
    87: "differences",
}

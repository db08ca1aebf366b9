"""The private door: the only code that touches Spark's internals through py4j.

`open_door` answers None where a name it needs is missing; the caller then keeps to public PySpark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

_PACKAGES = {
    "alias": "org.apache.spark.sql.catalyst.expressions.Alias",
    "named": "org.apache.spark.sql.catalyst.expressions.NamedExpression",
    "project": "org.apache.spark.sql.catalyst.plans.logical.Project",
    "dataset": "org.apache.spark.sql.classic.Dataset",
    "scan": "org.apache.spark.sql.execution.LogicalRDD",
}
TIME_ZONE = "UTC"


@dataclass(frozen=True, slots=True)
class HashPlan:
    """What Spark itself would do with `df.repartition(n, keys)`, taken apart."""

    rows: DataFrame
    subpartition: str
    attributes: Any
    partitioning: Any


class CatalystDoor:
    def __init__(self, spark: SparkSession, classes: dict[str, Any]) -> None:
        self._spark = spark
        self._session = spark._jsparkSession
        self._classes = classes

    def hash_plan(self, repartitioned: DataFrame, names: list[str], subpartition: str) -> HashPlan:
        """The rows under a repartition, renamed, with Spark's own partition id behind them."""
        node = repartitioned._jdf.queryExecution().analyzed()
        partitioning, child = node.partitioning(), node.child()
        attributes = child.output()
        carried = [
            self._alias(attributes.apply(at), name) for at, name in enumerate(names)
        ]
        carried.append(self._alias(partitioning.partitionIdExpression(), subpartition))
        project = self._classes["project"](self._seq(carried), child)
        rows = self._frame(self._classes["dataset"].ofRows(self._session, project))
        return HashPlan(rows, subpartition, attributes, partitioning)

    def arrow_schema(self, rows: DataFrame) -> pa.Schema:
        """The schema of the batches that `arrow_batches` gives."""
        return to_arrow_schema(
            rows.schema, error_on_duplicated_field_names_in_struct=True, timezone=TIME_ZONE
        )

    def arrow_batches(self, rows: DataFrame, batch_rows: int) -> Any:
        """The rows as a JavaRDD of Arrow batches, each as bytes."""
        return rows._jdf.toArrowBatchRdd(batch_rows, TIME_ZONE, True, False).toJavaRDD()

    def scan(self, read: DataFrame, plan: HashPlan) -> DataFrame:
        """A DataFrame over `read`'s rows whose attributes and partitioning Spark knows."""
        rdd = read._jdf.queryExecution().toRdd()
        assert rdd.getNumPartitions() == plan.partitioning.numPartitions(), "else rows are wrong"
        nothing = self._spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
        logical = self._classes["scan"](
            plan.attributes,
            rdd,
            plan.partitioning,
            self._seq([]),
            False,
            nothing,
            self._session,
            nothing,
            nothing,
            False,
        )
        return self._frame(self._classes["dataset"].ofRows(self._session, logical))

    def _alias(self, expression: Any, name: str) -> Any:
        nothing = self._spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
        number = self._classes["named"].newExprId()
        empty = self._seq([])
        return self._classes["alias"](expression, name, number, empty, nothing, empty)

    def _seq(self, items: list[Any]) -> Any:
        jvm: Any = self._spark._jvm
        java = jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(java).toSeq()

    def _frame(self, jdf: Any) -> DataFrame:
        return DataFrame(jdf, self._spark)


def open_door(spark: SparkSession) -> CatalystDoor | None:
    """The door into this session's JVM, None when it is not the one that we know."""
    jvm: Any = spark._jvm
    classes = {}
    for name, path in _PACKAGES.items():
        found = jvm
        for part in path.split("."):
            found = getattr(found, part)
        if type(found).__name__ != "JavaClass":
            return None
        classes[name] = found
    return CatalystDoor(spark, classes)

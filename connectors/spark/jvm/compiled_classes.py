"""Java classes as texts, which Spark compiles in its executors. No jar is needed.

Spark makes Java code for each query and sends it to the executors as text. The same way is open to
code that is written by hand: a text, the arguments of its class, and an RDD over whose partitions
the class iterates.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

from pyspark.sql import SparkSession

from .bridge import Jvm

_TEXTS = ("SortedRuns", "StoredRows", "CountedVolumes")


class CompiledClasses:
    """All classes. They are compiled when this is made.

    Raises:
        Py4JError: this Spark does not compile them.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext._jsc.sc()
        self._jvm = jvm = Jvm(spark)
        self._made = lru_cache(maxsize=256)(self._make)
        self._texts = {name: jvm["right"](jvm.compile(name)) for name in _TEXTS}
        self._planned = jvm.make("PlannedRuns")

    def runs(self, plan: Any, layout: str) -> Any:
        """Return the rows of a physical plan, whose last column is the number of the subpartition,
        as an RDD of runs in bytes."""
        text = self._texts["SortedRuns"]
        return self.bytes_of(self._planned.over(plan, layout, text, self._duration))

    def rows(self, messages: Any, layout: str) -> Any:
        """Return an RDD of rows of Spark's, over an RDD of rows that each have the bytes of a
        record batch."""
        return self._over(messages, "StoredRows", layout)

    def written(self, volumes: Any) -> Any:
        """Return an RDD of rows that have the rows of each volume, over an RDD of volumes in bytes.
        The tasks tell Spark the rows and bytes that they have written."""
        return self._over(volumes, "CountedVolumes", "written")

    def read(self, messages: Any) -> Any:
        """Return an RDD of rows that each have the bytes of an element of another RDD, which end
        with a volume. The tasks tell Spark the rows and bytes that they have read."""
        return self._over(messages, "CountedVolumes", "read")

    def bytes_of(self, rows: Any) -> Any:
        """Return an RDD of bytes, over an RDD of rows that have only these."""
        return rows.map(self._bytes, self._jvm.any)

    def _over(self, elements: Any, name: str, argument: str) -> Any:
        return elements.mapPartitionsWithEvaluator(self._made(name, argument), self._jvm.any)

    def _make(self, name: str, argument: str) -> Any:
        """Return what makes iterators of a class."""
        arguments = self._jvm["list"]()
        arguments.add(argument)
        return self._jvm["compiled"](self._texts[name], self._duration, arguments.toArray())

    @cached_property
    def _duration(self) -> Any:
        """Return the metric that Spark asks for. Nobody reads it."""
        return self._jvm.only("metrics").createMetric(self._context, "headgate")

    @cached_property
    def _bytes(self) -> Any:
        """Return a function that takes the bytes out of a row."""
        bound = self._jvm["bound"](0, self._jvm["types"].BinaryType, False)
        return self._jvm["evaluate"](self._jvm.seq([bound]))

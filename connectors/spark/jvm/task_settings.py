"""Pass a session's settings to the tasks of its jobs.

Spark's own actions pass them as local properties of their jobs. Jobs of RDDs do not: their tasks
would use Spark's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from .bridge import Jvm


class TaskSettings:
    """The settings of a session at the time when this object is made."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        configured = spark._jsparkSession.sessionState().conf().getAllConfs()
        self._settings = Jvm(spark).java_map(configured)

    @contextmanager
    def carried(self) -> Iterator[None]:
        """Pass the settings to the tasks of the jobs that this thread starts inside."""
        before = self._context.getLocalProperties()
        properties = before.clone()
        properties.putAll(self._settings)
        self._context.setLocalProperties(properties)
        try:
            yield
        finally:
            self._context.setLocalProperties(before)

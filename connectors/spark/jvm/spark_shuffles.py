"""Count the shuffles that Spark runs by itself and that no method of ours can see: streaming
queries, MLlib, callers in the JVM, RDDs, caches that are filled, some SQL commands.

The shuffles are those of the whole application, with all its sessions, as far as Spark still has
their jobs (`spark.ui.retainedJobs`). Spark's web pages may be off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from .scheduler import NativeJob, ended_jobs, native_jobs

ACCOUNTED = "headgate-accounted"
_FROM_PYTHON = re.compile(r" at (NativeMethodAccessorImpl\.java|<unknown>):\d+$")
_STREAMING = "\nrunId = "
_OF_PLANS = (
    "$anonfun$",
    "execute ",
    "toRdd ",
)  # call sites of plans that Spark runs below our jobs
_CACHE = re.compile("InMemoryTableScan|TableCacheQueryStage")


class SparkShuffleCounter:
    """Counts the shuffles from now on, by their reasons."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known = {job.jobId() for job in ended_jobs(spark)}
        self._counted: Counter[str] = Counter()
        self._stages: set[int] = set()

    def count(self) -> Mapping[str, int]:
        """Return the number of shuffles so far, by reason."""
        for job in native_jobs(self._spark, self._known):
            self._known.add(job.number)
            if ACCOUNTED not in job.tags:
                new = job.shuffles.keys() - self._stages
                self._counted.update(_reason(job, job.shuffles[stage]) for stage in new)
            self._stages |= job.shuffles.keys()
        return self._counted


@contextmanager
def accounted(context: SparkContext) -> Iterator[None]:
    """Leave the shuffles of jobs inside out of the count: the caller counts them with a better
    reason."""
    context.addJobTag(ACCOUNTED)
    try:
        yield
    finally:
        context.removeJobTag(ACCOUNTED)


def _reason(job: NativeJob, stage: str) -> str:
    if _STREAMING in job.description:
        return "Spark's own: a streaming query"
    if _CACHE.search(job.plan) or (not job.plan and stage.startswith(_OF_PLANS)):
        return "Spark's own: a cache is filled"
    return f"Spark's own: {_FROM_PYTHON.sub('', job.description or stage)}"

"""Shuffles that Spark has run by itself, which no method of ours could see: SQL commands, streaming
queries, MLlib, callers on the JVM, RDDs, caches that are filled.

They are those of the whole application, also of its other sessions, as far as Spark still knows
them (`spark.ui.retainedJobs`); it does without its web pages.
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
_OF_PLANS = ("$anonfun$", "execute ", "toRdd ")  # what Spark plans below what we run
_CACHE = re.compile("InMemoryTableScan|TableCacheQueryStage")


class SparkShuffleCounter:
    """Counts them from now on, by where they came from."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known = {job.jobId() for job in ended_jobs(spark)}
        self._counted: Counter[str] = Counter()
        self._stages: set[int] = set()

    def count(self) -> Mapping[str, int]:
        """How many there have been."""
        for job in native_jobs(self._spark, self._known):
            self._known.add(job.number)
            if ACCOUNTED not in job.tags:
                new = job.shuffles.keys() - self._stages
                self._counted.update(_reason(job, job.shuffles[stage]) for stage in new)
            self._stages |= job.shuffles.keys()
        return self._counted


@contextmanager
def accounted(context: SparkContext) -> Iterator[None]:
    """What Spark shuffles inside has been counted already, with a better reason."""
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

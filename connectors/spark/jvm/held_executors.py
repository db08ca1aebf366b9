"""Tell what keeps Spark's dynamic allocation from releasing executors that do nothing, behind the
private door.

Without an external shuffle service, an executor that has written one of Spark's own shuffles stays
until Spark deletes the shuffle, which it does when nothing in the driver refers to it any more and
the JVM has collected its garbage. An executor with cached partitions stays until they are dropped.
Each of the two has a setting that ends the wait earlier.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from ..report import Hold
from .bridge import Jvm
from .names import CLASSES
from .scheduler import await_listeners

_FOREVER_S = 2**31 - 1  # Spark's default for cached partitions; that for shuffles is longer


def holds(spark: SparkSession) -> tuple[Hold, ...]:
    """Return the data that keeps executors now; none without dynamic allocation."""
    core = spark.sparkContext._jsc.sc()
    if not (limits := hold_limits(spark)):
        return ()
    await_listeners(core)
    numbers = {"native shuffle": _shuffles(core, Jvm(spark)), "cached partition": _partitions(core)}
    counted = (replace(limit, number=numbers[limit.what]) for limit in limits)
    return tuple(hold for hold in counted if hold.number)


def hold_limits(spark: SparkSession) -> tuple[Hold, ...]:
    """Return the kinds of data that may keep executors, not counted, with the settings that bound
    the wait."""
    core = spark.sparkContext._jsc.sc()
    if not core.executorAllocationManager().isDefined():
        return ()
    entries, conf = Jvm(spark).only("configuration"), core.conf()
    cached = entries.DYN_ALLOCATION_CACHED_EXECUTOR_IDLE_TIMEOUT()
    limits = [_limit("cached partition", cached, conf.get(cached))]
    has_service = conf.get(entries.SHUFFLE_SERVICE_ENABLED())
    if not has_service and conf.get(entries.DYN_ALLOCATION_SHUFFLE_TRACKING_ENABLED()):
        shuffles = entries.DYN_ALLOCATION_SHUFFLE_TRACKING_TIMEOUT()
        limits.insert(0, _limit("native shuffle", shuffles, conf.get(shuffles) / 1000))
    return tuple(limits)


def _limit(what: str, entry: Any, seconds: float) -> Hold:
    return Hold(what, 0, str(entry.key()), seconds if seconds < _FOREVER_S else None)


def _shuffles(core: Any, jvm: Jvm) -> int:
    """Count the shuffles of which executors have rows. The field is read, because py4j cannot call
    an environment: its class names others that PySpark does not bring."""
    field = jvm["class"].forName(CLASSES["environment"]).getDeclaredField("mapOutputTracker")
    field.setAccessible(True)
    tracker = field.get(core.env())
    shuffles = map(int, tracker.shuffleStatuses().keys().mkString(" ").split())
    return sum(tracker.getNumAvailableOutputs(shuffle) > 0 for shuffle in shuffles)


def _partitions(core: Any) -> int:
    cached = core.statusStore().rddList(True)
    return sum(cached.apply(at).numCachedPartitions() for at in range(cached.size()))

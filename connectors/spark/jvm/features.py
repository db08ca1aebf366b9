"""Find out which features this Spark has, and open the door for them.

A feature is off where a name that it needs is missing, or a call of its own fails. One warning says
what is lost then. The rows of exchanges are right without any feature.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from threading import Lock
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from ..versions import NEWEST, version_of
from .bridge import REFUSALS, Jvm
from .catalyst import CatalystDoor
from .compiled_classes import CompiledClasses
from .names import NEEDS, Feature, Features
from .scheduler import try_scheduling

_LOG = logging.getLogger("headgate")
_ID = re.compile(r"\bo\d+\.")  # py4j's number of an object
_lock = Lock()
_known: WeakKeyDictionary[SparkContext, Features] = WeakKeyDictionary()
"""The features of each context."""


def look_up(spark: SparkSession) -> Features:
    """Return the features that this Spark has. The first call for a context logs what is lost."""
    with _lock:
        if (features := _known.get(spark.sparkContext)) is None:
            features = _known[spark.sparkContext] = _looked_up(spark)
        return features


def makes_room(spark: SparkSession) -> bool:
    """Return True if this Spark lets Headgate give task slots to reruns."""
    try:
        _try(spark, Feature.SCHEDULING)
    except REFUSALS:
        return False
    return True


def open_door(spark: SparkSession, features: Features) -> CatalystDoor | None:
    """Return the door into this session's JVM, None where exchanges use public PySpark only."""
    version = version_of(spark.version)
    if version is None or Feature.ROWS not in features:
        return None
    compiled = CompiledClasses(spark) if Feature.COMPILED in features else None
    return CatalystDoor(spark, Jvm(spark), version, compiled)


def _looked_up(spark: SparkSession) -> Features:
    features, reasons, lost = set[Feature](), dict[str, None](), list[str]()
    for feature, needs in NEEDS.items():
        if not features.issuperset(needs.features):
            continue  # what is lost with the other feature includes it
        try:
            _try(spark, feature)
        except REFUSALS as exc:
            reasons[_ID.sub("", str(exc).partition("\n")[0])] = None
            lost.append(needs.lost)
        else:
            features.add(feature)
    if lost:
        _LOG.warning(
            "Spark %s is not as Headgate knows it (%s). Rows are the same, but %s",
            spark.version,
            ", ".join(reasons),
            "; ".join(lost),
        )
    return frozenset(features)


def _try(spark: SparkSession, feature: Feature) -> None:
    Jvm(spark).require(NEEDS[feature])
    _PROBES[feature](spark)


def _try_rows(spark: SparkSession) -> None:
    if (version := version_of(spark.version)) is None:
        raise LookupError(f"newer than {NEWEST}")
    CatalystDoor(spark, Jvm(spark), version, None).try_converter()


def _try_settings(spark: SparkSession) -> None:
    spark.sparkContext._jsc.sc().getLocalProperties().clone()
    spark.conf._jconf.getAllAsJava().hashCode()


def _try_report(spark: SparkSession) -> None:
    core = spark.sparkContext._jsc.sc()
    core.statusStore(), core.executorAllocationManager()


_PROBES: Mapping[Feature, Callable[[SparkSession], object]] = {
    Feature.ROWS: _try_rows,
    Feature.COMPILED: CompiledClasses,
    Feature.QUERIES: lambda spark: spark._jsparkSession.sessionUUID(),
    Feature.ORDER: lambda _: None,
    Feature.COMMANDS: lambda spark: spark._jsparkSession.sessionState().sqlParser(),
    Feature.PAGES: lambda spark: Jvm(spark).only("json").mapper(),
    Feature.SETTINGS: _try_settings,
    Feature.SCHEDULING: lambda spark: try_scheduling(spark.sparkContext),
    Feature.REPORT: _try_report,
}
"""Calls that fail where a feature cannot be used although its names are there."""

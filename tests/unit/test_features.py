"""A Spark that lacks something loses the features that need it, and says so once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from headgate.connectors.spark.jvm import features
from headgate.connectors.spark.jvm.features import look_up, open_door
from headgate.connectors.spark.jvm.names import NEEDS, Feature, Features

ALL = frozenset(Feature)


def looked_up(
    monkeypatch: pytest.MonkeyPatch, failing: Feature | None, version: str = "4.3.0"
) -> Features:
    """Look up the features of a Spark in which all names are there, and a feature fails."""

    def probe(feature: Feature, _: object) -> None:
        if feature is failing:
            raise Py4JError(f"o12.{feature} does not exist")

    probes: dict[Feature, Callable[[Any], object]] = {
        each: partial(probe, each) for each in Feature
    }
    if failing is None:
        probes[Feature.ROWS] = features._try_rows
    monkeypatch.setattr(features, "_PROBES", probes)
    monkeypatch.setattr(features, "Jvm", lambda _: SimpleNamespace(require=lambda _: None))
    context = type("Context", (), {})()
    spark: Any = SimpleNamespace(version=version, sparkContext=context)
    known = look_up(spark)
    assert known is look_up(spark)
    return known


@pytest.mark.parametrize("failing", Feature)
def test_a_feature_is_off_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: Feature
) -> None:
    """A feature that fails takes along only those that need it. One warning says what is lost."""
    known = looked_up(monkeypatch, failing)
    lost = {failing}
    for feature in Feature:
        if lost.intersection(NEEDS[feature].features):
            lost.add(feature)
    assert ALL - lost == known
    (warning,) = caplog.messages
    assert NEEDS[failing].lost in warning
    assert f"({failing} does not exist)" in warning


def test_an_unknown_version_runs_natively(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer minor version has neither rows nor queries, so that public PySpark is used, and
    nothing fails."""
    known = looked_up(monkeypatch, None, version="4.9.0")
    assert {Feature.PAGES, Feature.SETTINGS, Feature.SCHEDULING, Feature.REPORT} == known
    spark: Any = SimpleNamespace(version="4.9.0")
    assert open_door(spark, ALL) is None
    (warning,) = caplog.messages
    assert "Spark 4.9.0 is not as Headgate knows it (newer than 4.3)" in warning
    assert NEEDS[Feature.ROWS].lost in warning

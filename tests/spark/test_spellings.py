"""Sizes and times mean what they mean in Spark's own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from headgate.control.units import BYTES, MICROSECONDS, read_bytes, read_ms

from .conftest import Place, build_session


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """Yield the class with which Spark reads its settings."""
    session: SparkSession = build_session(Place("none", {}), "local[1]")
    jvm: Any = session.sparkContext._jvm
    yield jvm.org.apache.spark.network.util.JavaUtils
    session.stop()


def value(read: Callable[[str], int], text: str) -> int | None:
    """Return the value of a text, or None if it is refused."""
    try:
        return read(text)
    except (ValueError, CapturedException):
        return None


def test_spark_reads_the_same(java: Any) -> None:
    """Every suffix of either is one of both, and other texts are refused by both. The only
    differences: a part of a millisecond is an error here, and nothing in Spark; not every version
    of Spark knows `kib`."""
    spellings = ["64mm", "1.5m", "1 m", "", "m", "5", " 7K ", "9PB", "3Min", "2H"]
    suffixes = {*BYTES, *MICROSECONDS, "e", "eb", "ns", "w", "sec", "y", "hr"}
    spellings += [f"12{suffix}" for suffix in suffixes - {"us"}] + ["12000us"]
    if value(java.byteStringAsBytes, "12kib") is None:
        spellings = [text for text in spellings if not text.endswith("ib")]
    sizes = {text: value(read_bytes, text) for text in spellings}
    times = {text: value(read_ms, text) for text in spellings}
    assert sizes == {text: value(java.byteStringAsBytes, text) for text in spellings}
    assert times == {text: value(java.timeStringAsMs, text) for text in spellings}

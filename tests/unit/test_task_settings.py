"""A thread gets its own local properties back, wherever it is interrupted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.connectors.spark.jvm.names import Features
from headgate.connectors.spark.jvm.task_settings import TaskSettings, require_carried


class Context:
    """A Spark context, as public PySpark shows it, whose `interrupted`th change is interrupted."""

    def __init__(self, interrupted: int) -> None:
        self.properties = {"spark.jobGroup.id": "mine", "spark.job.tags": "a,b"}
        self._left = interrupted

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: str | None) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        self.properties[key] = value or ""
        if value is None:
            del self.properties[key]

    def addJobTag(self, tag: str) -> None:
        self.setLocalProperty("spark.job.tags", f"{self.properties['spark.job.tags']},{tag}")

    def cancelJobsWithTag(self, tag: str) -> None:
        """There are no jobs."""


@pytest.mark.parametrize("interrupted", range(1, 7))
def test_an_interrupt_leaves_nothing_behind(interrupted: int) -> None:
    """Neither settings nor tags stay with a thread that is interrupted before its jobs begin."""
    context = Context(interrupted)
    before = dict(context.properties)
    conf = SimpleNamespace(getAll={"spark.sql.ansi.enabled": "false"})
    spark: Any = SimpleNamespace(sparkContext=context, conf=conf)
    carried = TaskSettings(spark, Features()).carried("text")
    with pytest.raises(KeyboardInterrupt), carried:
        pytest.fail("not interrupted")
    assert before == context.properties
    with pytest.raises(AssertionError):
        require_carried()

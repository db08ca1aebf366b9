"""Pass a session's settings to the tasks of its jobs.

Spark's own actions pass them as local properties of their jobs, and the tags by which a user may
end the jobs. Jobs of RDDs have neither: their tasks would use Spark's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from .bridge import Jvm

DESCRIPTION = "spark.job.description"
WRITES = "headgate: write"
"""The first words of the description of each job whose last stage writes a result."""
_TAGS = "spark.job.tags"
_REDACTIONS = ("spark.redaction.string.regex", "spark.sql.redaction.string.regex")
_JAVAS = ("&&", "[[")
_HIDDEN = "*********(redacted)"


class TaskSettings:
    """The settings of a session at the time when this object is made."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        configured = spark._jsparkSession.sessionState().conf().getAllConfs()
        self._settings = Jvm(spark).java_map(configured)
        self._tags = _session_tags(spark)

    @cached_property
    def hide(self) -> Callable[[str], str]:
        return hiding(self._settings.get)

    @contextmanager
    def carried(self, description: str = "") -> Iterator[None]:
        """Pass the settings to the tasks of the jobs that this thread starts inside. Spark's pages
        show the description of these jobs, if there is one."""
        before = self._context.getLocalProperties()
        properties = before.clone()
        properties.putAll(self._settings)
        tags = [tag for tag in (properties.getProperty(_TAGS), *self._tags) if tag]
        properties.setProperty(_TAGS, ",".join(tags))
        if description:
            properties.setProperty(DESCRIPTION, description)
        self._context.setLocalProperties(properties)
        try:
            yield
        finally:
            self._context.setLocalProperties(before)

    def describe(self, description: str) -> None:
        """Describe the jobs that this thread starts from now on."""
        self._context.setLocalProperty(DESCRIPTION, description)


def _session_tags(spark: SparkSession) -> list[str]:
    """Return the tags by which `interruptAll` and `interruptTag` find the jobs of a session; none
    where this Spark has no such tags."""
    try:
        session = spark._jsparkSession
        return [session.sessionJobTag(), session.managedJobTags().get().values().mkString(",")]
    except Py4JError:
        return []


def hiding(setting: Callable[[str], str | None]) -> Callable[[str], str]:
    """Return a function that redacts a text as Spark redacts its plans, by Spark's settings. A
    pattern that Java may read in another way than Python redacts the whole text."""
    asked = [text for key in _REDACTIONS if (text := setting(key))]
    try:
        if any(odd in text for text in asked for odd in _JAVAS):
            raise re.error("sets of sets")
        patterns = [re.compile(expression) for expression in asked]
    except re.error:
        return lambda text: _HIDDEN

    def hide(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(_HIDDEN, text)
        return text

    return hide

"""Pass a session's settings to the tasks of its jobs.

Spark's own actions pass them as local properties of their jobs, and the tags by which a user may
end the jobs. Jobs of RDDs have neither: their tasks would use Spark's defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from .bridge import Jvm

DESCRIPTION = "spark.job.description"
WRITES = "headgate: write"
"""The first words of the description of each job whose last stage writes a result."""
_REDACTIONS = ("spark.redaction.string.regex", "spark.sql.redaction.string.regex")
_JAVAS = ("&&", "[[")
_HIDDEN = "*********(redacted)"


class TaskSettings:
    """The settings of a session at the time when this object is made."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = Jvm(spark)
        with self._jvm.together() as calls:
            session, context = spark._jsparkSession, spark.sparkContext._jsc
            configured = calls.on(session).sessionState().conf().getAllConfs()
            settings = self._jvm.java_map(configured)
            redactions = [settings.get(key) for key in _REDACTIONS]
            self._context, self._settings, *self._redactions = calls.now(
                calls.on(context).sc(), settings, *redactions
            )
        self._tags = _session_tags(self._jvm, session)

    @cached_property
    def hide(self) -> Callable[[str], str]:
        """Return a function that redacts a text as Spark redacts its plans in this session."""
        return hiding(self._redactions)

    @contextmanager
    def carried(self, description: str = "") -> Iterator[None]:
        """Pass the settings to the tasks of the jobs that this thread starts inside. Spark's pages
        show the description of these jobs, if there is one. An interrupt ends those that run."""
        tag = f"headgate-{os.urandom(8).hex()}"
        with self._jvm.together() as calls:
            context = calls.on(self._context)
            before = context.getLocalProperties()
            properties = before.clone()
            properties.putAll(self._settings)
            if description:
                properties.setProperty(DESCRIPTION, description)
            context.setLocalProperties(properties)
            for each in (*self._tags, tag):
                context.addJobTag(each)
            (before,) = calls.now(before)
        try:
            yield
        except KeyboardInterrupt:
            with suppress(Py4JError):  # PySpark's own call fails while one of this thread waits
                self._context.cancelJobsWithTag(tag)
            raise
        finally:
            self._context.setLocalProperties(before)

    def describe(self, description: str) -> None:
        """Describe the jobs that this thread starts from now on."""
        self._context.setLocalProperty(DESCRIPTION, description)


def _session_tags(jvm: Jvm, session: Any) -> list[str]:
    """Return the tags by which `interruptAll` and `interruptTag` find the jobs of a session; none
    where this Spark has no such tags."""
    try:
        with jvm.together() as calls:
            tags = calls.on(session).managedJobTags().get().values().mkString(",")
            named, more = calls.now(calls.on(session).sessionJobTag(), tags)
        return [named, *filter(None, more.split(","))]
    except Py4JError:
        return []


def hiding(expressions: Iterable[str | None]) -> Callable[[str], str]:
    """Return a function that redacts a text as Spark redacts its plans by these expressions, if it
    has some. An expression that Java may read in another way than Python redacts the whole text."""
    asked = [text for text in expressions if text]
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

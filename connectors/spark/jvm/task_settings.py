"""Read a session's configuration, and start jobs of Spark with what the user has set.

Spark's own actions pass the settings of the session to their tasks as local properties of their
jobs, and the tags by which a user may end the jobs. Jobs that start outside of an action have
neither: their tasks use Spark's defaults, and give other rows. So each call of ours that may start
a job asks `require_carried` first, and only `TaskSettings.carried` satisfies it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, cast

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from .names import Feature, Features

DESCRIPTION = "spark.job.description"
TAGS = "spark.job.tags"
WRITES = "headgate: write"
"""The first words of the description of each job whose last stage writes a result."""
_REDACTIONS = ("spark.redaction.string.regex", "spark.sql.redaction.string.regex")
_JAVAS = ("&&", "[[")
_HIDDEN = "*********(redacted)"
_OF_THREADS = ("spark.jobGroup.id", "spark.job.interruptOnCancel")
_thread = threading.local()
"""Its `carried` are the settings that the jobs of the thread have."""


class TaskSettings:
    """The settings of a session, and the group and tags of the thread, at the time when this object
    is made. Without their feature, public PySpark passes them on, key by key, and the tags of the
    session are unknown."""

    def __init__(self, spark: SparkSession, features: Features) -> None:
        context = self._context = spark.sparkContext
        self._core: Any = None
        self._settings: Mapping[str, str]
        tags: list[str] = []
        if Feature.SETTINGS in features:
            self._core, self._settings = context._jsc.sc(), spark.conf._jconf.getAllAsJava()
            tags = _session_tags(spark._jsparkSession)
        else:
            self._settings = dict(spark.conf.getAll)
        self._redactions = [self._settings.get(key) for key in _REDACTIONS]
        self._tags = [*tags, *filter(None, (context.getLocalProperty(TAGS) or "").split(","))]
        of_thread = {key: context.getLocalProperty(key) for key in _OF_THREADS}
        self._of_thread = {key: value for key, value in of_thread.items() if value}

    @cached_property
    def hide(self) -> Callable[[str], str]:
        """Return a function that redacts a text as Spark redacts its plans in this session."""
        return hiding(self._redactions)

    @contextmanager
    def carried(self, description: str = "") -> Iterator[None]:
        """Pass the settings to the tasks of the jobs that this thread starts inside. Spark's pages
        show the description of these jobs, if there is one. An interrupt ends those that run."""
        outside = getattr(_thread, "carried", None)
        if outside is self and not description:
            yield
            return
        tag = f"headgate-{os.urandom(8).hex()}"
        before, inside = self._properties({DESCRIPTION: description} if description else {})
        _thread.carried = self
        try:
            self._pass(inside)
            for each in (*self._tags, tag):
                self._context.addJobTag(each)
            yield
        except KeyboardInterrupt:
            with suppress(Py4JError):  # PySpark's own call fails while one of this thread waits
                self._context.cancelJobsWithTag(tag)
            raise
        finally:
            _thread.carried = outside
            self._pass(before)

    def _properties(self, described: Mapping[str, str]) -> tuple[Any, Any]:
        """Return the local properties that the thread has, and those that its jobs are to have:
        all of them, or without the feature those that change."""
        if self._core is None:
            given = {**self._of_thread, **self._settings, **described}
            return {key: self._context.getLocalProperty(key) for key in (*given, TAGS)}, given
        before = self._core.getLocalProperties()
        properties = before.clone()
        properties.putAll(self._settings)
        for key, value in self._of_thread.items():
            properties.putIfAbsent(key, value)
        for key, value in described.items():
            properties.setProperty(key, value)
        return before, properties

    def _pass(self, properties: Any) -> None:
        """Let the jobs of the thread have these local properties."""
        if self._core is not None:
            self._core.setLocalProperties(properties)
            return
        for key, value in properties.items():
            self._context.setLocalProperty(key, value)

    def describe(self, description: str) -> None:
        """Describe the jobs that this thread starts from now on."""
        self._context.setLocalProperty(DESCRIPTION, description)


def require_carried() -> None:
    """Assert that jobs of this thread carry the settings of a session: the caller starts one."""
    assert getattr(_thread, "carried", None) is not None, "this job would have Spark's settings"


class SessionSettings:
    """The configuration of a session, which is read again only after a change."""

    def __init__(self, spark: SparkSession) -> None:
        self._conf, self._jvm = spark.conf, cast(Any, spark._jvm)
        self._seen: int | None = None
        """A number that changes with any key or value."""

    def changed(self, prefix: str) -> dict[str, str] | None:
        """Return the texts of the keys that begin with `prefix`, None if no key has changed since
        `note` was called."""
        try:
            java = self._conf._jconf
            self._now = int(java.getAll().hashCode())  # Java's sum misses values that change places
            texts: Any = None if self._now == self._seen else java.getAllAsJava()
        except Py4JError:  # to get them all takes longer
            texts = self._conf.getAll
            self._now = hash(frozenset(texts.items()))
        if self._now == self._seen:
            return None
        is_java = isinstance(texts, JavaObject)
        keys = (
            self._jvm.java.lang.String.join("\n", texts.keySet()).split("\n") if is_java else texts
        )
        return {key: texts[key] for key in keys if key.startswith(prefix)}

    def note(self) -> None:
        """Take the texts that `changed` returned for known."""
        self._seen = self._now


def _session_tags(session: Any) -> list[str]:
    """Return the tags by which `interruptAll` and `interruptTag` find the jobs of a session; none
    where this Spark has no such tags."""
    try:
        tags = session.managedJobTags().get().values().mkString(",")
        return [session.sessionJobTag(), *filter(None, tags.split(","))]
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

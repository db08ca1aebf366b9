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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from .bridge import Jvm

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
    is made."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = Jvm(spark)
        with self._jvm.together() as calls:
            session, context = spark._jsparkSession, spark.sparkContext._jsc
            configured = calls.on(session).sessionState().conf().getAllConfs()
            settings = self._jvm.java_map(configured)
            core = calls.on(context).sc()
            asked = [settings.get(key) for key in _REDACTIONS]
            asked += [core.getLocalProperty(key) for key in (TAGS, *_OF_THREADS)]
            self._context, self._settings, *texts = calls.now(core, settings, *asked)
        self._redactions, (tags, *of_thread) = texts[:2], texts[2:]
        self._of_thread = dict(zip(_OF_THREADS, of_thread, strict=True))
        named = (tags or "").split(",")
        self._tags = [*_session_tags(self._jvm, session), *filter(None, named)]

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
        with self._jvm.together() as calls:
            context = calls.on(self._context)
            before = context.getLocalProperties()
            properties = before.clone()
            properties.putAll(self._settings)
            for key, value in self._of_thread.items():
                if value:
                    properties.putIfAbsent(key, value)
            if description:
                properties.setProperty(DESCRIPTION, description)
            context.setLocalProperties(properties)
            for each in (*self._tags, tag):
                context.addJobTag(each)
            (before,) = calls.now(before)
        _thread.carried = self
        try:
            yield
        except KeyboardInterrupt:
            with suppress(Py4JError):  # PySpark's own call fails while one of this thread waits
                self._context.cancelJobsWithTag(tag)
            raise
        finally:
            _thread.carried = outside
            self._context.setLocalProperties(before)

    def describe(self, description: str) -> None:
        """Describe the jobs that this thread starts from now on."""
        self._context.setLocalProperty(DESCRIPTION, description)


def require_carried() -> None:
    """Assert that jobs of this thread carry the settings of a session: the caller starts one."""
    assert getattr(_thread, "carried", None) is not None, "this job would have Spark's settings"


class SessionSettings:
    """The configuration of a session, which is read again only after a change."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = Jvm(spark)
        self._session = spark._jsparkSession
        self._seen: int | None = None
        """A number that changes with any key or value."""

    def changed(self, prefix: str) -> dict[str, str] | None:
        """Return the texts of the keys that begin with `prefix`, None if no key has changed since
        `note` was called."""
        with self._jvm.together() as calls:
            (self._now,) = calls.now(calls.on(self._session).conf().getAll().hashCode())
        if self._now == self._seen:
            return None
        with self._jvm.together() as calls:
            texts = calls.on(self._session).conf().getAll()
            texts, lines = calls.now(texts, texts.keySet().mkString("\n"))
            keys = [key for key in lines.split("\n") if key.startswith(prefix)]
            return dict(zip(keys, calls.now(*map(calls.on(texts).apply, keys)), strict=True))

    def note(self) -> None:
        """Take the texts that `changed` returned for known."""
        self._seen = self._now


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

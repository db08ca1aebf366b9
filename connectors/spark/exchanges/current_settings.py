"""The settings of a session that hold for its next action."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock

from pyspark.sql import SparkSession

from ....storage.stores.costs import COSTS
from ..jvm.task_settings import SessionSettings
from ..settings import (
    FOR_THE_NEXT_ACTION,
    PREFIX,
    ExchangeSettings,
    read_exchange_settings,
    texts_of,
)
from .budget import Budget

_LOG = logging.getLogger("headgate")


class CurrentSettings:
    """The settings of a session that hold for its next action.

    An action sees its session's configuration as it was when the action began, for one call of the
    JVM while no key has changed. A key that holds from attach on and is changed later is not
    obeyed: a line of the log says so, once for each new value.
    """

    def __init__(self, spark: SparkSession, store_kind: str) -> None:
        """Look the settings up, as those with which the session was attached. `store_kind` is the
        kind of store whose prices hold if no key names one."""
        self._session = SessionSettings(spark)
        self._store_kind = store_kind
        self._ignored: dict[str, str | None] = {}
        self._lock = Lock()
        self._attached: Mapping[str, str] | None = None
        self.look_up()

    def of(self, spark: SparkSession) -> CurrentSettings:
        """Return the settings of another session, which has the same job."""
        return CurrentSettings(spark, self._store_kind)

    def is_like(self, other: CurrentSettings) -> bool:
        """Return True if two sessions were attached with the same settings that hold from attach
        on. Names of jobs do not count."""

        def kept(settings: CurrentSettings) -> dict[str, str]:
            texts, others = settings._attached or {}, (*FOR_THE_NEXT_ACTION, "job.id")
            return {key: text for key, text in texts.items() if key not in others}

        return kept(self) == kept(other)

    def look_up(self) -> ExchangeSettings:
        """Return the settings for an action that begins now.

        Raises:
            Invalid: a key has been set since that is unknown, or whose value cannot be used.
        """
        with self._lock:
            if (changed := self._session.changed(PREFIX)) is not None:
                texts = texts_of(changed)
                self.exchanges = read_exchange_settings(texts)
                self._warn(texts)
                self._session.note()
            return self.exchanges

    @property
    def budget(self) -> Budget:
        now = self.exchanges
        prices = self._store_kind if now.prices == "auto" else now.prices
        return Budget(now.budget, now.budget_job, now.budget_warn, COSTS[prices])

    def _warn(self, texts: Mapping[str, str]) -> None:
        """Log which keys have changed that hold from attach on."""
        if self._attached is None:
            self._attached = texts
        keys = (self._attached.keys() | texts.keys()) - FOR_THE_NEXT_ACTION
        changed = {key: texts.get(key) for key in keys if texts.get(key) != self._attached.get(key)}
        if new := sorted(PREFIX + key for key, _ in changed.items() - self._ignored.items()):
            _LOG.warning(
                "ignored, because it was changed after the session was attached: %s; attach again, "
                "or set it back",
                ", ".join(new),
            )
        self._ignored = changed

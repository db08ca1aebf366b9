"""The description of an exchange before it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from ....control.ids import ResultId, exchange_name
from ....control.model.state import ResultState
from ....storage.format.segment import Longs
from ....storage.reading.ways import Readers
from ..jvm.catalyst import Lineage
from ..jvm.pages.query_page import QueryPage
from ..jvm.task_settings import TaskSettings
from ..tasks.exchange_tasks import MapTask
from .rerun import MapStage

_LABEL_CHARS, _LINE_CHARS = 200, 60
_SCHEMA_CHARS = 100_000


class Rows(Protocol):
    """The rows that go into an exchange."""

    @property
    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the stored rows."""

    def lineage(self) -> Lineage:
        """Return how far the map stage can be trusted to give the same rows again."""

    def writes(self, task: MapTask) -> MapStage:
        """Return the map stage whose tasks write the rows."""


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """All that is known of an exchange before it runs."""

    result: ResultId
    label: str
    rows: Rows
    schema: str
    """Spark's schema as JSON for later readers, empty if it is too large for the log."""
    subpartitions: int
    settings: TaskSettings
    """The settings of the session, which reruns of lost partitions have, too."""
    readers_of: Callable[[Longs], Readers]
    """Gives the tasks that will read subpartitions of such bytes."""
    copied: ResultState | None = None
    """The result whose rows are combined, if they are not those of a query."""

    @property
    def name(self) -> str:
        return exchange_name(self.result, self.label)


def schema_text(named: StructType, settings: TaskSettings) -> str:
    """Return a schema for the log, with names redacted as Spark redacts them."""
    hide = settings.hide
    columns = [StructField(hide(f.name), f.dataType, f.nullable, f.metadata) for f in named]
    text = StructType(columns).json()
    return text if len(text) <= _SCHEMA_CHARS else ""  # then only the segments have it


def label_of(text: str, settings: TaskSettings, page: QueryPage) -> str:
    """Return the label of an exchange: the user's line and its partitioning, redacted as Spark
    redacts its plans."""
    return f"{settings.hide(page.line)[-_LINE_CHARS:]}: {settings.hide(text)[:_LABEL_CHARS]}"

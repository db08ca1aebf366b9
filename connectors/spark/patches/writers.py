"""Saves of sessions whose queries run through their headgate without being told to.

Spark itself writes, with its writer as the user has set it up; only where the rows come from is
another DataFrame. Its plan still names what the query reads, so that Spark's own rules hold: about
a table that is written while it is read, and about what may be null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from inspect import signature
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2

from ..jvm.saves import target, written_from


class RunQuery(Protocol):
    def __call__(
        self, of: DataFrame, query: DataFrame, *, refusal: str
    ) -> AbstractContextManager[DataFrame]: ...


FILES = ("parquet", "orc", "json", "csv", "text", "xml")
ONCE = ("save", "saveAsTable", *FILES)
KEEPS = ("error", "errorifexists", "default", "ignore")
SAVES: dict[type, tuple[str, ...]] = {
    DataFrameWriter: (*ONCE, "insertInto", "jdbc"),
    DataFrameWriterV2: (
        "append",
        "create",
        "createOrReplace",
        "overwrite",
        "overwritePartitions",
        "replace",
    ),
}


def saves(run: RunQuery, is_entered: Callable[[DataFrame], bool]) -> dict[tuple[type, str], Any]:
    """What takes the place of each method that saves."""
    return {
        (kind, name): _saved(kind.__dict__[name], run, is_entered)
        for kind, names in SAVES.items()
        for name in names
    }


def _saved(
    original: Callable[..., Any], run: RunQuery, is_entered: Callable[[DataFrame], bool]
) -> Callable[..., Any]:
    parameters = signature(original)

    @wraps(original)
    def save(self: Any, *args: Any, **more: Any) -> Any:
        df: DataFrame = self._df
        given = parameters.bind(self, *args, **more).arguments
        if not is_entered(df) or _is_settled(self, original.__name__, given):
            return original(self, *args, **more)
        query = df.select("*")  # Spark plans each save anew
        with run(df, query, refusal=_refusal(self, original.__name__, given)) as out:
            if out is query:
                return original(self, *args, **more)
            with written_from(self, out.union(df.where(F.lit(False)))):
                return original(self, *args, **more)

    return save


def _is_settled(writer: Any, name: str, given: Mapping[str, Any]) -> bool:
    """Whether Spark asks for no row: it would not touch what is there already."""
    if name not in ONCE:
        return False
    if _mode(writer, given) not in KEEPS:
        return False
    if name == "saveAsTable":
        return bool(writer._spark.catalog.tableExists(given["name"]))
    return target(writer, given.get("path"))[1]


def _refusal(writer: Any, name: str, given: Mapping[str, Any]) -> str:
    """Why the query is left to Spark: it reads files that go before the last stage has read them.
    Spark itself has no rule about that, but more exchanges than we need."""
    if name not in ("save", *FILES) or _mode(writer, given) != "overwrite":
        return ""
    folder, exists = target(writer, given.get("path"))
    read = writer._df.inputFiles() if exists else []
    overlap = any(_plain(file).startswith(f"{_plain(folder)}/") for file in read)
    return f"{folder} is read, and overwritten" if overlap else ""


def _mode(writer: Any, given: Mapping[str, Any]) -> str:
    return str(given.get("mode") or writer._jwrite.curmode().name()).lower()


def _plain(uri: str) -> str:
    """Without what Java's ways to write a URI differ in."""
    return re.sub("^([^:]*):/+", r"\1:/", uri)

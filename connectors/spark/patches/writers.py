"""Replace PySpark's saves, so that the queries of entered sessions run in Headgate automatically.

Spark itself writes, with the writer that the user has set up, but takes the rows from another
DataFrame. The plan of that DataFrame still names the sources of the query, so that Spark's own
rules hold: about a table that is written while it is read, and about columns that may be null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2

from ..jvm.saves import target, written_from
from .runs import Runs

FILES = ("parquet", "orc", "json", "csv", "text", "xml")
ONCE = ("save", "saveAsTable", *FILES)
KEEPS = ("error", "errorifexists", "default", "ignore")
SAVES: dict[type, tuple[str, ...]] = {
    DataFrameWriter: (*ONCE, "insertInto", "jdbc"),
    DataFrameWriterV2: (
        *("append", "create", "createOrReplace", "overwrite", "overwritePartitions", "replace"),
    ),
}


def save(runs: Runs, original: Callable[..., Any], writer: Any, *args: Any, **more: Any) -> Any:
    """Save the rows of a writer's DataFrame, by the original method."""
    df, name = writer._df, original.__name__
    arguments = signature(original).bind(writer, *args, **more).arguments
    if _is_settled(writer, name, arguments):
        return original(writer, *args, **more)
    query = df.select("*")  # Spark plans each save anew
    with runs.once(query, False, _refusal(writer, name, arguments)) as out:
        if out is query:
            return original(writer, *args, **more)
        with written_from(writer, out.union(df.where(F.lit(False)))):
            return original(writer, *args, **more)


def _is_settled(writer: Any, name: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if no row is needed: the target exists, and the mode then refuses or skips."""
    if name not in ONCE:
        return False
    if _mode(writer, arguments) not in KEEPS:
        return False
    if name == "saveAsTable":
        return bool(writer._spark.catalog.tableExists(arguments["name"]))
    return target(writer, arguments.get("path"))[1]


def _refusal(writer: Any, name: str, arguments: Mapping[str, Any]) -> str:
    """Return why the query is left to Spark, empty if it is not. A query that reads the files that
    it overwrites is left: our last stage may read them after they are deleted, where in Spark's
    plan an exchange above them has run before. No rule of Spark's forbids such a query."""
    if name not in ("save", *FILES) or _mode(writer, arguments) != "overwrite":
        return ""
    folder, exists = target(writer, arguments.get("path"))
    return overwritten_input(writer._df, folder) if exists else ""


def overwritten_input(df: DataFrame, folder: str) -> str:
    """Return why a query is left to Spark that overwrites a folder, empty if it reads no file of
    the folder."""
    reads = any(_plain(file).startswith(f"{_plain(folder)}/") for file in df.inputFiles())
    return f"{folder} is read, and overwritten" if reads else ""


def _mode(writer: Any, arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("mode") or writer._jwrite.curmode().name()).lower()


def _plain(uri: str) -> str:
    """Return a URI with one slash after its scheme: Java writes one or three."""
    return re.sub("^([^:]*):/+", r"\1:/", uri)

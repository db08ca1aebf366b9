"""Give access to PySpark's writers in the JVM, behind the private door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame


def target(writer: Any, path: str | None) -> tuple[str, bool]:
    """Return the folder that a Spark writer would write to, and whether it exists. The folder is
    empty for other targets: some sources take a path for another kind of name, which Hadoop cannot
    open."""
    java, context = writer._jwrite, writer._spark.sparkContext
    option = java.extraOptions().get("path")
    if path is None and option.isEmpty():
        return "", False
    try:
        folder = context._jvm.org.apache.hadoop.fs.Path(path or option.get())
        files = folder.getFileSystem(writer._spark._jsparkSession.sessionState().newHadoopConf())
        return str(files.makeQualified(folder).toUri().toString()), bool(files.exists(folder))
    except (Py4JError, PySparkException):
        return "", False


@contextmanager
def written_from(writer: Any, df: DataFrame) -> Iterator[None]:
    """Let a Spark writer, of either version, save the rows of another DataFrame inside."""
    java = getattr(writer, "_jwriter", None) or writer._jwrite
    replacements = {"df": df._jdf, "logicalPlan": df._jdf.queryExecution().logical()}
    fields = [
        field for field in java.getClass().getDeclaredFields() if field.getName() in replacements
    ]
    before = []
    for field in fields:
        field.setAccessible(True)
        before.append(field.get(java))
        field.set(java, replacements[field.getName()])
    try:
        yield
    finally:
        for field, value in zip(fields, before, strict=True):
            field.set(java, value)

"""PySpark's writers on the JVM's side, behind the private door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame


def target(writer: Any, path: str | None) -> tuple[str, bool]:
    """The folder into which one of Spark's writers would write, empty where it is none, and whether
    it is there. To some sources a path is a name of another kind, which Hadoop cannot open."""
    java, context = writer._jwrite, writer._spark.sparkContext
    found = java.extraOptions().get("path")
    if path is None and found.isEmpty():
        return "", False
    try:
        folder = context._jvm.org.apache.hadoop.fs.Path(path or found.get())
        files = folder.getFileSystem(writer._spark._jsparkSession.sessionState().newHadoopConf())
        return str(files.makeQualified(folder).toUri().toString()), bool(files.exists(folder))
    except (Py4JError, PySparkException):
        return "", False


@contextmanager
def written_from(writer: Any, df: DataFrame) -> Iterator[None]:
    """Let one of Spark's writers, of either version, save the rows of another DataFrame."""
    java = getattr(writer, "_jwriter", None) or writer._jwrite
    given = {"df": df._jdf, "logicalPlan": df._jdf.queryExecution().logical()}
    fields = [field for field in java.getClass().getDeclaredFields() if field.getName() in given]
    before = []
    for field in fields:
        field.setAccessible(True)
        before.append(field.get(java))
        field.set(java, given[field.getName()])
    try:
        yield
    finally:
        for field, value in zip(fields, before, strict=True):
            field.set(java, value)

"""Give access to PySpark's writers in the JVM, behind the private door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession


def target(writer: Any, path: str | None) -> tuple[str, bool]:
    """Return the folder that a Spark writer would write to, and whether it exists. The folder is
    empty for other targets: some sources take a path for another kind of name, which Hadoop cannot
    open."""
    option = writer._jwrite.extraOptions().get("path")
    if path is None and option.isEmpty():
        return "", False
    try:
        return folder_of(writer._spark, path or option.get())
    except (Py4JError, PySparkException):
        return "", False


def folder_of(spark: SparkSession, path: str) -> tuple[str, bool]:
    """Return the URI of a folder, and whether it exists."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return str(files.makeQualified(folder).toUri().toString()), bool(files.exists(folder))


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

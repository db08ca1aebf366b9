"""Replace `SparkSession.sql`, so that the queries under SQL commands run in Headgate automatically.

The command stays Spark's own: it is analyzed, its query runs in Headgate, and it then writes the
stored rows. A text with parameters is left to Spark as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from inspect import signature
from operator import is_
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ..queries.commands import CacheCommand, WritingCommand, open_command
from .runs import Runs
from .writers import overwritten_input


def run_sql(
    runs: Runs,
    original: Callable[..., DataFrame],
    spark: SparkSession,
    /,
    *args: Any,
    **more: Any,
) -> DataFrame:
    """Run a text of SQL. Only commands that write or cache rows run a query now."""
    run = partial(original, spark, *args, **more)
    given = signature(original).bind(spark, *args, **more).arguments
    text, has_names = given["sqlQuery"], "kwargs" in given
    if not isinstance(text, str) or has_names or given.get("args") not in (None, {}, []):
        return run()
    with runs.active():
        command = open_command(spark, text)
    if isinstance(command, CacheCommand):
        return _cache(runs, spark, command)
    return run() if command is None else _write(runs, command, run)


def _write(runs: Runs, command: WritingCommand, run: Callable[[], DataFrame]) -> DataFrame:
    """Run a command with the rows of its queries, or `run` it if Spark runs these too."""
    with ExitStack() as running:
        rows = [
            running.enter_context(runs.once(query, False, _refusal(query, folder)))
            for query, folder in zip(command.queries, command.folders, strict=True)
        ]
        spark_runs = all(map(is_, rows, command.queries))
        return run() if spark_runs else command.run(rows)


def _refusal(query: DataFrame, folder: str) -> str:
    return overwritten_input(query, folder) if folder else ""


def _cache(runs: Runs, spark: SparkSession, command: CacheCommand) -> DataFrame:
    answer = command.run()
    try:
        with runs.once(spark.table(command.table).groupBy().count(), True, "") as rows:
            rows.collect()
    except BaseException:
        command.undo()
        raise
    return answer

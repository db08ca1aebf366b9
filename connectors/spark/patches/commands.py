"""Replace `SparkSession.sql`, so that the queries under SQL commands run in Headgate automatically.

The command stays Spark's own: it is analyzed, its query runs here, and it then writes the stored
rows. A text with parameters is left to Spark as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ..jvm.commands import CacheCommand, WritingCommand, open_commands
from .runs import Runs
from .writers import overwritten_input


def run_sql(
    runs: Runs,
    original: Callable[..., DataFrame],
    spark: SparkSession,
    text: str,
    args: Any = None,
    **named: Any,
) -> DataFrame:
    """Run a text of SQL. Only commands that write or cache rows run a query now."""
    commands = [] if args or named else open_commands(spark, text)
    if isinstance(commands, CacheCommand):
        return _cache(runs, spark, commands)
    if not commands:
        return original(spark, text, args, **named)
    alone = partial(original, spark, text) if len(commands) == 1 else None
    return [_write(runs, command, alone) for command in commands][-1]


def _write(runs: Runs, command: WritingCommand, alone: Callable[[], DataFrame] | None) -> DataFrame:
    """Run a command with the rows of its query, or `alone` if Spark runs the query too."""
    refusal = overwritten_input(command.query, command.folder) if command.folder else ""
    with runs.once(command.query, False, refusal) as rows:
        return alone() if alone and rows is command.query else command.run(rows)


def _cache(runs: Runs, spark: SparkSession, command: CacheCommand) -> DataFrame:
    answer = command.run()
    try:
        with runs.once(spark.table(command.table).groupBy().count(), True, "") as rows:
            rows.collect()
    except BaseException:
        command.undo()
        raise
    return answer

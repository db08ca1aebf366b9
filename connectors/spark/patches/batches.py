"""Replace `DataStreamWriter.foreachBatch`, so that the queries of its function run in Headgate
automatically. Spark calls the function with rows of another session, which the stream has made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark.sql import DataFrame

from .runs import Runs


def foreach_batch(
    runs: Runs, original: Callable[..., Any], writer: Any, func: Callable[[DataFrame, int], Any]
) -> Any:
    """Let a stream call `func` for each batch, with the session of the batch entered."""

    session = writer._spark  # which must live as long as the stream: its headgate lives no longer

    @wraps(func)
    def entered(batch: DataFrame, number: int) -> None:
        assert session is not None
        with runs.inside(batch.sparkSession):
            func(batch, number)

    return original(writer, entered)

"""The ways in which an entered session runs queries: the calls of the replacements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

Run = Callable[[DataFrame, bool, str], AbstractContextManager[DataFrame]]


@dataclass(frozen=True, slots=True)
class Runs:
    """The ways in which a session runs queries.

    Those that are a `Run` take the query, whether the driver collects its rows (a limit then needs
    no exchange), and why Spark has to run the whole query, empty when it need not.
    """

    once: Run
    """Run a query that is asked for once."""
    again: Run
    """Run a DataFrame of the user's, whose rows later actions may ask for."""
    keep: Run
    """Run a query whose rows stay readable after the action."""
    inside: Callable[[SparkSession], AbstractContextManager[None]]
    """Enter another session, of a stream's batches, for as long as the context is open."""
    active: Callable[[], AbstractContextManager[None]]
    """Make the session the active one of this thread for as long as the context is open."""
    are_on: Callable[[], bool]
    """Return False if Spark runs the session's next action itself."""

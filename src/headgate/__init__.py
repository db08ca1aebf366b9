"""Headgate: a shuffle for PySpark whose data outlives every executor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .control import __version__ as __version__
from .control.errors import (
    Closed,
    Conflict,
    Corrupt,
    Fenced,
    HeadgateError,
    Invalid,
    Lost,
    OutcomeUnknown,
    Retryable,
    Unavailable,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .connectors.spark.session import Headgate
    from .connectors.spark.tasks.exchange_tasks import WorkerSettings
    from .infra.ui.driver_page import DriverPage

__all__ = [
    "Closed",
    "Conflict",
    "Corrupt",
    "Fenced",
    "Headgate",
    "HeadgateError",
    "Invalid",
    "Lost",
    "OutcomeUnknown",
    "Retryable",
    "Unavailable",
    "attach",
    "current",
]


def attach(spark: SparkSession) -> Headgate:
    """Attach Headgate to a Spark session, configured by the session's `spark.headgate.*` keys.

    Raises:
        Invalid: the version of Spark, the configuration, the session or an executor cannot be used.
        Unavailable: the broker or the store cannot be reached.
    """
    from .connectors.spark.versions import version_of

    version_of(spark.version)  # a version that is too old lacks the names imported next
    from .connectors.spark.attach import attach_session
    from .infra.embedded import start_embedded
    from .infra.start.session_hook import give_up

    give_up(spark)
    return attach_session(spark, start_embedded, _serve_page)


def current(spark: SparkSession | None = None) -> Headgate:
    """Return the headgate that was attached to a session last, by default to the active session:
    also one that `headgate run`, `%load_ext headgate` or the start-up hook has attached.

    Raises:
        Invalid: no headgate is attached, or no session is active.
    """
    from .connectors.spark.session import current

    return current(spark)


def _serve_page(worker: WorkerSettings, port: int) -> DriverPage:
    from .infra.ui.driver_page import DriverPage

    return DriverPage(worker, port)


def load_ipython_extension(shell: object) -> None:
    """Attach the sessions of a notebook: `%load_ext headgate`. Workers run the notebook's Python,
    unless somebody has chosen another. `%headgate` shows the report of the present session's job,
    `%headgate results` its exchanges."""
    from .infra.start.commands import name_python
    from .infra.start.session_hook import attach_present, install, magic

    name_python(os.environ)
    install(by_default=True)
    attach_present()
    if hasattr(shell, "register_magic_function"):
        shell.register_magic_function(magic, "line", "headgate")


def unload_ipython_extension(shell: object) -> None:
    """Close the headgates of a notebook, and leave its later sessions to Spark: `%unload_ext
    headgate`."""
    from .infra.start.session_hook import uninstall

    uninstall()


def __getattr__(name: str) -> Any:
    """Import Spark only when `Headgate` is used: executors and tools need not wait for it."""
    if name == "Headgate":
        from .connectors.spark.session import Headgate

        return Headgate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Attach a session: check everything, register the job, and make its headgate."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ...control import __version__
from ...control.contract import ShuffleMasterContext
from ...control.errors import Invalid
from ...control.ids import job_id
from ...storage.limits import Limits
from ...storage.stores.costs import kind_of
from .exchanges.current_settings import CurrentSettings
from .exchanges.progress import Progress, ProgressLine, progress_line
from .exchanges.rerun import Reruns
from .exchanges.run import Exchanger
from .exchanges.stored import StoredResults
from .jvm.features import look_up, makes_room, open_door
from .jvm.held_executors import hold_limits
from .jvm.names import Feature, Features
from .jvm.pages.query_page import QueryPage
from .jvm.task_settings import TaskSettings
from .queries.session_queries import SessionQueries
from .report import Hold
from .services import JobServices, StartLocal, StartPage, open_services
from .session import Headgate
from .settings import ENCRYPTED, PREFIX, ExchangeSettings, Settings, is_true, read_settings
from .tasks.shipping import cause, probe, ship
from .versions import SOCKETS, version_of
from .warm_up import WarmUp

_LOG = logging.getLogger("headgate")
_PINNED = "PYSPARK_PIN_THREAD"
_SPARKS_BAR = "spark.ui.showConsoleProgress"
_TASKS_MEMORY = "spark.executor.pyspark.memory"


def attach_session(
    spark: SparkSession, local: StartLocal, page: StartPage | None = None
) -> Headgate:
    """Check settings, executors and services, register the job, and return its headgate.

    Raises:
        Invalid: the session, a setting, an executor or a service cannot be used.
        Unavailable: the broker or the store cannot be reached, or no master answers in time.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise Invalid("a Spark Connect session has no JVM at hand: attach a classic session")
    settings = read_settings(spark.conf.getAll)
    if settings.attaching.log_level != "application":
        _log_from(settings.attaching.log_level.upper())
    context = spark.sparkContext
    job = job_id(settings.job_id or default_job(context.applicationId))
    _require_local_python(context)
    features = look_up(spark) if settings.attaching.catalyst != "off" else Features()
    with QueryPage(spark, features, dict):
        _require_headgate(spark, features)
    _hint_at_sockets(spark)
    _hint_at_threads()
    limits = _limits_of(context, settings.limits)
    services = open_services(replace(settings, limits=limits), job, local, str(context.master))
    try:
        kind = kind_of(services.worker.store, dict(services.worker.s3))
        current = CurrentSettings(spark, kind)
        headgate = _register(spark, settings, services, current, features)
    except BaseException:
        services.close()
        raise
    if page is not None and settings.attaching.ui_port is not None:
        services.show(page, settings.attaching.ui_port)
    return headgate


def _log_from(level: str) -> None:
    """Let this process show its lines from a level on: where the application shows its own, or on
    stderr as long as it has set up no logging."""
    logger = logging.getLogger("headgate")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(lambda _: not logging.root.handlers)  # which may come later
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


def _limits_of(context: SparkContext, limits: Limits) -> Limits:
    """Return the limits of tasks: their processes write no files if Spark is to encrypt its own,
    and map none if it limits their memory."""
    conf = context.getConf()
    maps = conf.get(_TASKS_MEMORY, None) is None
    return replace(limits, maps=maps, files=not is_true(conf.get(ENCRYPTED)))


def default_job(application: str) -> str:
    """Return the default name of an application's job.

    Local and standalone masters name applications after the time, so two applications at one broker
    may share an id. Their job names also carry a checksum of the driver's host and process id.
    """
    if not application.startswith(("local-", "app-")):
        return application
    driver = f"{socket.gethostname()}/{os.getpid()}"
    return f"{application}-{crc32(driver.encode()):08x}"


def _register(
    spark: SparkSession,
    settings: Settings,
    services: JobServices,
    current: CurrentSettings,
    features: Features,
) -> Headgate:
    worker = services.worker
    name = f"driver {os.urandom(4).hex()}"
    context = ShuffleMasterContext(settings.master, name, __version__)
    master = services.factory.create_shuffle_master(context)
    reruns = Reruns(
        spark.sparkContext,
        worker.job,
        str(spark.sparkContext.appName),
        lambda result: master.state().results.get(result),
        makes_room=makes_room(spark),
    )
    try:
        master.start()
        master.register_job(reruns)
        state = master.state()
        services = services.marked(state)
        store, worker = services.store, services.worker
        results = StoredResults(master, store, worker, state.epoch, reruns)
        door = open_door(spark, features)
        if Feature.REPORT in features:
            _hint_at_held_executors(hold_limits(spark), settings.exchanges)
        progress = Progress(_line(spark))
        exchanger = Exchanger(spark, features, door, current, results, progress)
        queries = SessionQueries(
            exchanger, services.require_whole_log, settings.attaching.catalyst == "off"
        )
        warm_up = WarmUp(exchanger, door) if door and settings.attaching.warm_up else None
        return Headgate(exchanger, queries, services, warm_up).begin()
    except BaseException:
        master.close()
        raise


def _line(spark: SparkSession) -> ProgressLine | None:
    """Return the line for the progress of exchanges, unless Spark shows their stages itself."""
    is_shown = is_true(spark.sparkContext.getConf().get(_SPARKS_BAR))
    return None if is_shown else progress_line()


def _require_local_python(context: SparkContext) -> None:
    """Ask the Python of local workers for its headgate, if it is not this one. A task that cannot
    import it fails with many lines of Java's before the one that helps.

    Raises:
        Invalid: workers would have another headgate, or none.
    """
    workers = shutil.which(context.pythonExec)
    shipped = context.getConf().get("spark.submit.pyFiles", "")  # may have headgate for the workers
    is_local = str(context.master).split("[")[0] == "local"
    if not is_local or shipped or workers is None:
        return
    if os.path.abspath(workers) == sys.executable:
        return
    ask = "import headgate; print(headgate.__version__)"
    asked = subprocess.run([workers, "-c", ask], capture_output=True, text=True, check=False)
    if (installed := asked.stdout.strip() or "none") != __version__:
        raise Invalid(
            f"the Python of the workers, {workers}, has headgate {installed}, the driver has "
            f"{__version__}: set PYSPARK_PYTHON={sys.executable}"
        )


def _require_headgate(spark: SparkSession, features: Features) -> None:
    """Run a probe in every task slot, to check that the present executors can run our tasks.
    Executors that join later are checked by their first task."""
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    try:
        nowhere: RDD[Any] = context.parallelize([], slots)
        with TaskSettings(spark, features).carried("headgate: check executors"):
            nowhere.mapPartitionsWithIndex(ship(probe)).collect()
    except PySparkException as exc:
        raise cause(exc) or exc from None


def _hint_at_sockets(spark: SparkSession) -> None:
    version = version_of(spark.version)
    on = is_true(spark.sparkContext.getConf().get(SOCKETS))
    if not on and (version is None or version.sockets):
        _LOG.info(
            "%s is off: a Python task costs about 50 ms instead of 15; set it when the "
            "session is built",
            SOCKETS,
        )


def _hint_at_threads() -> None:
    if not is_true(os.environ.get(_PINNED, "true")):
        _LOG.warning(
            "%s=false: queries that run side by side may end each other; unset it", _PINNED
        )


def _hint_at_held_executors(limits: Sequence[Hold], settings: ExchangeSettings) -> None:
    """Log what dynamic allocation would wait for without end, and by which settings."""
    if not (endless := {limit.what: limit.setting for limit in limits if limit.after_s is None}):
        return
    left = ""
    if "native shuffle" in endless and not settings.sql_enabled:
        left = f"; {PREFIX}sql.enabled=false leaves the exchanges of all actions to Spark"
    elif "native shuffle" in endless and settings.sql_from_bytes:
        left = f"; {PREFIX}sql.from.bytes={settings.sql_from_bytes} leaves exchanges to Spark"
    _LOG.warning(
        "dynamic allocation keeps executors for ever that have a %s, because %s not set%s",
        " or a ".join(endless),
        " and ".join(endless.values()) + (" is" if len(endless) == 1 else " are"),
        left,
    )

"""A session's headgate: attach, exchange, look, release, close."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from itertools import count
from types import TracebackType
from typing import Any, Self

from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from ...control import __version__
from ...control.contract import MasterSettings
from ...control.errors import Closed, Invalid
from ...control.ids import JobId, ResultId, job_id
from ...control.master import DriverMaster, Speaker
from ...storage.release import StorageRelease
from .catalyst import open_door
from .exchange import Exchange, Exchanger, Means
from .repairs import Repairs
from .report import JobReport, ResultReport, job_report
from .services import Services, StartLocal, open_services
from .settings import Settings, read_settings
from .shipping import cause, probe, ship

_LOG = logging.getLogger("headgate")
_SOCKETS = "spark.python.unix.domain.socket.enabled"


class Headgate:
    """Hands exchanges of one Spark session to Kafka and object storage."""

    def __init__(self, exchanger: Exchanger, services: Services) -> None:
        self._exchanger = exchanger
        self._services = services
        self._numbers = count(1)
        self._exchanges: weakref.WeakKeyDictionary[DataFrame, Exchange]
        self._exchanges = weakref.WeakKeyDictionary()
        self._closed = False

    @property
    def job(self) -> JobId:
        """The name under which the log holds this session's exchanges."""
        return self._exchanger.means.worker.job

    def repartition(self, df: DataFrame, n: int, *columns: str | Column) -> DataFrame:
        """The rows of `df` in exactly `n` partitions, each row where `df.repartition` puts it.

        The rows are written now and read whenever the returned DataFrame is used.

        Raises:
            Invalid: `n`, a column or its type cannot be used; nothing has run.
            Unavailable: no decision came in time; names what was waited for.
        """
        self._require_open()
        if n < 1 or not columns:
            raise Invalid(f"repartition needs n of 1 or more and a column, not n={n}, {columns}")
        self._services.require_whole_log()
        result = ResultId(f"{self._exchanger.means.epoch}-{next(self._numbers):04d}")
        exchange = self._exchanger.run(df, n, columns, result)
        self._exchanges[exchange.frame] = exchange
        return exchange.frame

    def read(self, result: str) -> DataFrame:
        """The rows of a complete result of this job, also one that an earlier driver has written
        under the same `spark.headgate.job.id`; `results` has the names.

        Raises:
            Invalid: there is no such result, it is released, or not complete.
        """
        self._require_open()
        exchange = self._exchanger.read(ResultId(result))
        self._exchanges[exchange.frame] = exchange
        return exchange.frame

    def results(self) -> tuple[ResultReport, ...]:
        """Every exchange of the job, in the order in which they were made."""
        return self.report().results

    def report(self) -> JobReport:
        """Rows, bytes, requests and price of the job's exchanges, as the log has them."""
        return job_report(self._exchanger.means.master.state(self.job))

    def release(self, df: DataFrame) -> None:
        """Delete what is stored for a DataFrame that `repartition` or `read` returned.

        Raises:
            Invalid: the DataFrame is none of these, or was released before.
        """
        self._require_open()
        exchange = self._exchanges.pop(df, None)
        if exchange is None:
            raise Invalid(
                "release takes a DataFrame that repartition or read returned, and takes it once"
            )
        self._exchanger.means.repairs.forget(exchange.descriptor.result)
        self._exchanger.means.master.release_partition_externally(exchange.descriptor)

    def close(self) -> None:
        """Release all that the job has and wait until it is deleted; later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._exchanger.means.repairs.close()
        try:
            self._exchanger.means.master.unregister_job(self.job)
        finally:
            self._exchanger.means.master.close()
            self._services.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this headgate is closed; attach the session again")


class _JobContext:
    """What the master may ask of this driver."""

    def __init__(self, job: JobId, application: str, repairs: Repairs) -> None:
        self.job_id = job
        self.application = application
        self._repairs = repairs

    def on_fatal_error(self, error: BaseException) -> None:
        _LOG.error("the shuffle master of job %s cannot go on: %s", self.job_id, error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        self._repairs.start(missing)


def attach_session(spark: SparkSession, local: StartLocal) -> Headgate:
    """Check everything, register the job, and hand out its headgate."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise Invalid("a Spark Connect session has no JVM at hand: attach a classic session")
    settings = read_settings(spark.conf.getAll)
    context = spark.sparkContext
    job = job_id(settings.job_id or context.applicationId)
    _require_headgate(spark)
    _hint_at_sockets(spark)
    services = open_services(settings, job, local, str(context.master), context.defaultParallelism)
    try:
        return _register(spark, settings, services)
    except BaseException:
        services.close()
        raise


def _register(spark: SparkSession, settings: Settings, services: Services) -> Headgate:
    worker = services.worker
    release = StorageRelease(services.store, worker.root)
    speaker = Speaker(f"driver {os.urandom(4).hex()}", __version__, worker.store)
    chosen = MasterSettings(settings.wait_ms, mode=settings.mode, lease_ms=settings.lease_ms)
    master = DriverMaster(services.log, release, chosen, speaker)
    repairs = Repairs(
        spark.sparkContext, lambda result: master.state(worker.job).results.get(result)
    )
    master.start()
    try:
        master.register_job(_JobContext(worker.job, str(spark.sparkContext.appName), repairs))
    except BaseException:
        master.close()
        raise
    epoch = master.state(worker.job).epoch
    door = open_door(spark) if settings.catalyst == "auto" else None
    if door is None and settings.catalyst == "auto":
        _LOG.warning(
            "Spark %s has no door that is known: rows are the same, but Spark does not know "
            "their partitioning",
            spark.version,
        )
    means = Means(master, services.store, worker, settings, epoch, repairs)
    return Headgate(Exchanger(spark, means, door), services)


def _require_headgate(spark: SparkSession) -> None:
    """Every executor that is there now can run our tasks; later ones are checked at first use."""
    context = spark.sparkContext
    slots = max(1, context.defaultParallelism)
    try:
        nowhere: RDD[Any] = context.parallelize([], slots)
        nowhere.mapPartitionsWithIndex(ship(probe)).collect()
    except PySparkException as exc:
        raise cause(exc) or exc from None


def _hint_at_sockets(spark: SparkSession) -> None:
    if spark.sparkContext.getConf().get(_SOCKETS, "false") != "true":
        _LOG.warning(
            "%s is off: a Python task costs about 50 ms instead of 15; set it when the "
            "session is built (Spark 4.1 and later)",
            _SOCKETS,
        )

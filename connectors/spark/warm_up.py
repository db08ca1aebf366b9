"""Prepare a session for its first query while the user types.

A job of its own takes a row through the JVM and back in each task slot, as an exchange does: two
Python workers for each slot import what tasks need and open their clients, and the JVM loads its
classes. Nothing is stored and nothing is logged. If anything fails, the first query meets the same
error and raises it.
"""

from __future__ import annotations

import logging
import os
import threading

from pyspark import SparkContext
from pyspark.sql.types import LongType, StructField, StructType

from .exchanges.rows import JvmRows, StoredReader
from .exchanges.run import Exchanger
from .jvm.catalyst import CatalystDoor
from .jvm.names import Feature
from .jvm.scheduler import end_jobs
from .jvm.task_settings import TaskSettings
from .queries.planner import Planner
from .tasks.warm_up_task import WarmUpTask

_LOG = logging.getLogger("headgate")
_ROWS = StructType([StructField("k", LongType())])
_PATIENCE_S = 3.0
_CLOSE_S = 5.0


class WarmUp:
    """Runs in a thread, from its creation until it has ended or is closed."""

    def __init__(self, exchanger: Exchanger, door: CatalystDoor) -> None:
        self._exchanger = exchanger
        self._door = door
        self._tag = f"headgate-warm-up-{os.urandom(8).hex()}"
        self._settings = TaskSettings(exchanger.spark, exchanger.features)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-warm-up", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait a limited time until the job has ended. It is ended by force only after a while:
        Spark would log a warning for each of its tasks."""
        self._closed.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            end_jobs(self._context, self._tag)
            self._thread.join(_CLOSE_S)

    @property
    def _context(self) -> SparkContext:
        return self._exchanger.spark.sparkContext

    def _run(self) -> None:
        try:
            self._context.addJobTag(self._tag)
            with self._settings.carried("headgate: prepare workers for the first query"):
                self._prepare()
        except Exception as exc:  # it is the first query's turn to raise it
            if not self._closed.is_set():
                _LOG.info("the session was not prepared for its first query: %s", exc)

    def _prepare(self) -> None:
        spark = self._exchanger.spark
        slots, reader = self._context.defaultParallelism, StoredReader(spark, self._door, _ROWS)
        task = WarmUpTask(self._exchanger.results.worker, slots, reader.schema)
        rows, _ = reader.reads(task, self._exchanger.frames_of)
        if Feature.QUERIES in self._exchanger.features:
            Planner(spark, self._exchanger.features, self._door).plan(rows.groupBy("k").count())
        plan = self._door.exchange_plan(rows, slots, ["k"])
        if not self._closed.is_set():
            JvmRows(self._door, plan).writes(task).run()

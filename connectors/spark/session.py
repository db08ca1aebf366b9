"""A session's headgate: attach, exchange, look, release, close."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from itertools import count
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from ...control.clock import Deadline
from ...control.contract import MasterSettings
from ...control.errors import Closed, Invalid
from ...control.ids import JobId, ResultId, job_id
from ...control.kafka import KafkaEventLog, KafkaSettings, TopicSettings
from ...control.master import DriverMaster, Speaker
from ...storage.contract import Limits
from ...storage.release import StorageRelease
from ...storage.stores import open_store
from .catalyst import open_door
from .exchange import Exchange, Exchanger
from .settings import Settings, read_settings
from .worker import WorkerSettings


class Headgate:
    """Hands exchanges of one Spark session to Kafka and object storage."""

    def __init__(self, exchanger: Exchanger, close: Callable[[], None]) -> None:
        self._exchanger = exchanger
        self._close = close
        self._numbers = count(1)
        self._exchanges: weakref.WeakKeyDictionary[DataFrame, Exchange]
        self._exchanges = weakref.WeakKeyDictionary()

    def repartition(self, df: DataFrame, n: int, *columns: str) -> DataFrame:
        """The rows of `df` in `n` partitions by columns, where `df.repartition` puts them."""
        name = ResultId(f"r{next(self._numbers)}")
        exchange = self._exchanger.hash(df.repartition(n, *columns), name)
        self._exchanges[exchange.frame] = exchange
        return exchange.frame

    def release(self, df: DataFrame) -> None:
        """Delete what was stored for a DataFrame that `repartition` returned."""
        exchange = self._exchanges.pop(df, None)
        if exchange is None:
            raise Invalid("release takes a DataFrame that repartition returned, once")
        self._exchanger.master.release_partition_externally(exchange.descriptor)

    def close(self) -> None:
        """Release all of the job's results and wait until they are deleted."""
        self._close()


class _Context:
    def __init__(self, job: JobId, application: str) -> None:
        self.job_id = job
        self.application = application

    def on_fatal_error(self, error: BaseException) -> None:
        pass


def attach(spark: SparkSession) -> Headgate:
    settings = read_settings(dict(spark.sparkContext.getConf().getAll()))
    job = job_id(settings.job_id or spark.sparkContext.applicationId)
    kafka = KafkaSettings(settings.broker, settings.topic_prefix, TopicSettings(settings.topic_partitions, settings.topic_replication, settings.topic_retention_ms), options=settings.kafka)
    log = KafkaEventLog(kafka)
    log.prepare(Deadline.after(settings.attach_ms / 1000))
    store, root = open_store(settings.store, settings.s3)
    store.check(Deadline.after(settings.attach_ms / 1000))
    master = DriverMaster(log, StorageRelease(store, root), MasterSettings(settings.wait_ms), Speaker(f"driver {os.urandom(4).hex()}", "0.1.0"))
    master.start()
    master.register_job(_Context(job, spark.sparkContext.appName))
    limits = Limits(settings.segment_bytes, settings.fetch_bytes, settings.fetch_parallel, settings.join_bytes, settings.cache_bytes)
    worker = WorkerSettings(f"{job} {os.urandom(4).hex()}", job, kafka, settings.store, root, tuple(settings.s3.items()), limits, settings.wait_ms / 1000)
    exchanger = Exchanger(spark, master, worker, settings, open_door(spark))
    def close():
        master.unregister_job(job); master.close(); log.close(); store.close()
    return Headgate(exchanger, close)

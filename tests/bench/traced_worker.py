"""PySpark's daemon whose workers record spans. Spark starts it by `spark.python.daemon.module`."""

from __future__ import annotations

from pyspark import daemon

from headgate.connectors.spark.tasks.exchange_tasks import MapTask, ReadTask
from headgate.connectors.spark.tasks.frames import Frames
from headgate.control.kafka.log import KafkaReceipt
from headgate.storage.stores.s3.store import S3BlobStore
from headgate.storage.writing import writer

from .spans import trace, trace_waits

trace_waits(MapTask, "write", "worker", "write")
trace_waits(Frames, "load_stream", "worker", "rows from the JVM")
trace(writer, "sort", "worker", "sort")
trace(writer, "encode", "worker", "encode")
trace(S3BlobStore, "put", "worker", "put")
trace(S3BlobStore, "get", "worker", "get")
trace(KafkaReceipt, "offset", "worker", "confirm")
trace_waits(ReadTask, "frames", "worker", "read")

if __name__ == "__main__":
    daemon.manager()

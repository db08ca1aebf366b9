"""The live page of one job, in the process of its driver.

Guarantees that the log is read only while somebody looks, by a reader of its own in threads of its
own, and that `close` waits for no viewer.
"""

from __future__ import annotations

from threading import Thread

from ...connectors.spark.tasks.exchange_tasks import WorkerSettings
from ...control.kafka.log import KafkaEventLog
from ...storage.stores.open_store import open_store
from ..serving import ServerSettings
from .bucket_check import BucketCheck
from .log_reader import LogReader
from .server import UiServer

_POLL_S = 0.1


class DriverPage:
    def __init__(self, worker: WorkerSettings, port: int) -> None:
        """Serve the page at 127.0.0.1.

        Raises:
            Invalid: the port cannot be used.
        """
        self._log = KafkaEventLog(worker.kafka)
        self._reader = LogReader(self._log, only=worker.job)
        bucket = BucketCheck(
            self._log, worker.store, lambda: open_store(worker.store, dict(worker.s3))
        )
        self._server = UiServer(self._reader, ServerSettings(port=port), bucket)
        self.url = f"{self._server.url}#/job/{worker.job}"
        serve = self._server.serve_forever
        self._thread = Thread(target=serve, args=(_POLL_S,), name="headgate-ui", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.end()
        self._thread.join()
        self._reader.close()
        self._log.close()

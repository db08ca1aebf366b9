"""Tell the JVM many at a time which of its objects Python has dropped.

py4j tells it one by one, in a thread that takes the interpreter from the threads that plan: a third
of all calls of the JVM. Here these objects wait for a fifth of a second and go together.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Thread
from typing import Any

from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID, Py4JError
from pyspark.sql import SparkSession

from .....control.clock import SYSTEM_CLOCK

_WAIT_S = 0.2
_OWN = 2  # objects that a call makes and drops itself: they alone are no reason for another call
_KEPT = (ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID)  # Python can get them by name again


class DroppedObjects:
    """Stands in for the queue in which py4j's client puts what Python has dropped. `bound` is the
    set of the names under which the JVM keeps objects for Python."""

    def __init__(self, queue: deque[Any], bound: Any, util: Any) -> None:
        self._queue = queue
        self._bound = bound
        self._names_of = util.Collections.list
        self._words = util.StringTokenizer
        self._dropped: deque[str] = deque()
        self._thread = Thread(target=self._run, name="headgate-dropped", daemon=True)
        self._thread.start()

    def appendleft(self, entry: Any) -> None:
        """Take a client and the name of an object. Everything else is for py4j. The collector of
        garbage may call this at any place, so it waits for nothing."""
        if isinstance(entry, tuple) and self._thread.is_alive():
            if entry[1] not in _KEPT:
                self._dropped.append(entry[1])
        else:
            self._queue.appendleft(entry)

    def _run(self) -> None:
        with suppress(Py4JError, OSError):  # the JVM has ended
            while True:
                SYSTEM_CLOCK.sleep_s(_WAIT_S)
                if (count := len(self._dropped)) > _OWN:
                    names = [self._dropped.popleft() for _ in range(count)]
                    self._bound.removeAll(self._names_of(self._words(" ".join(names))))


def release_together(spark: SparkSession) -> None:
    """Let the JVM of a session hear of dropped objects together. Do nothing where it does already,
    or where py4j's client has no such queue."""
    gateway: Any = spark.sparkContext._gateway
    client = gateway._gateway_client
    queue = getattr(client, "finalizer_deque", None)
    if isinstance(queue, deque):
        with suppress(Py4JError):  # then py4j goes on as before
            bound = gateway.java_gateway_server.getGateway().getBindings().keySet()
            client.finalizer_deque = DroppedObjects(queue, bound, gateway.jvm.java.util)

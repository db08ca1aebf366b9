"""DataFrames that actions have run, by the user's DataFrame.

Spark plans a DataFrame once: a second action on it has the same `current_timestamp()` and skips the
map stages that have run. So an answer here lives as long as the user's DataFrame.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from pyspark.sql import DataFrame

Answer = dict[bool, DataFrame]  # the rows, by whether the driver collects them


class Answers:
    def __init__(self, release: Callable[[DataFrame], None]) -> None:
        """Call `release` with each answer whose user's DataFrame is gone. A thread of its own calls
        it, because Python may collect a DataFrame at any point of the program."""
        self._release = release
        self._known: weakref.WeakKeyDictionary[DataFrame, Answer] = weakref.WeakKeyDictionary()
        self._gone: SimpleQueue[DataFrame | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def get(self, asked: DataFrame, collected: bool) -> DataFrame | None:
        return self._known.get(asked, {}).get(collected)

    def add(self, asked: DataFrame, rows: DataFrame, reading: bool | None) -> None:
        """Keep an answer for actions that collect rows (`reading` is True), for actions that do not
        (False), or for both (None)."""
        self._start()
        served = (True, False) if reading is None else (reading,)
        self._known.setdefault(asked, {}).update(dict.fromkeys(served, rows))
        weakref.finalize(asked, self._gone.put, rows).atexit = False

    def close(self) -> None:
        """Stop releasing answers."""
        self._gone.put(None)
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._sweep, name="headgate-answers", daemon=True
                )
                self._thread.start()

    def _sweep(self) -> None:
        while (rows := self._gone.get()) is not None:
            self._release(rows)
            del rows

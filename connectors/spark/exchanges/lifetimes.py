"""What is stored for rows that outlive the call they were made by: those of `offload`, of RDDs,
checkpoints and caches.

It is released when Spark has nothing any more that could read it, as Spark does with the files of
its own shuffles.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ....control.contract import ShuffleDescriptor
from ....control.errors import HeadgateError
from ....control.ids import ResultId
from ..jvm.caches import Reader

_LOG = logging.getLogger("headgate")
Results = tuple[ShuffleDescriptor, ...]


class NoReader(Reader):
    """Stands for rows that nobody has, and that could not be released at once."""

    def __init__(self) -> None:
        pass

    def is_gone(self) -> bool:
        return True


class Lifetimes:
    def __init__(self, release: Callable[[Results], None]) -> None:
        self._release = release
        self._readers: dict[Reader, Results] = {}
        self._lock = threading.Lock()

    @property
    def results(self) -> set[ResultId]:
        with self._lock:
            return {one.result for results in self._readers.values() for one in results}

    def add(self, reader: Reader, results: Results) -> None:
        with self._lock:
            self._readers[reader] = results

    def forget(self, results: Results) -> None:
        """Somebody else has released them."""
        with self._lock:
            self._readers = {one: mine for one, mine in self._readers.items() if mine != results}

    def sweep(self) -> None:
        """Release what nobody can read any more; where that fails, the next sweep goes on."""
        with self._lock:
            gone = [(one, mine) for one, mine in self._readers.items() if one.is_gone()]
        for one, results in gone:
            try:
                self._release(results)
            except HeadgateError as exc:
                _LOG.warning("what was kept stays stored until a later query: %s", exc)
                return
            with self._lock:
                self._readers.pop(one, None)

    def close(self) -> None:
        """Everything is about to be released."""
        with self._lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()

"""Lifetimes of results that outlive the call that made them: for `offload`, RDDs, checkpoints and
caches.

A result is released when nothing is left in Spark that could read it, as Spark deletes the files of
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
    """The reader of rows that are already unreachable, but whose release has failed."""

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
            return {
                descriptor.result for results in self._readers.values() for descriptor in results
            }

    def add(self, reader: Reader, results: Results) -> None:
        with self._lock:
            self._readers[reader] = results

    def forget(self, results: Results) -> None:
        """Forget results that somebody else has released."""
        with self._lock:
            self._readers = {
                reader: mine for reader, mine in self._readers.items() if mine != results
            }

    def sweep(self) -> None:
        """Release the results that nothing can read any more; after a failure the next sweep goes
        on."""
        with self._lock:
            gone = [(reader, mine) for reader, mine in self._readers.items() if reader.is_gone()]
        for reader, results in gone:
            try:
                self._release(results)
            except HeadgateError as exc:
                _LOG.warning(
                    "results that are no longer needed stay stored until a later query: %s", exc
                )
                return
            with self._lock:
                self._readers.pop(reader, None)

    def close(self) -> None:
        """Close and forget all readers: every result is about to be released."""
        with self._lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()

"""Show in one line how far the running map stages are, while somebody looks.

Assumes that Spark shows no progress bar of its own. Guarantees: the numbers are those that the
driver has folded from the log already. No error of a terminal fails an exchange, and none delays
one of them by more than a second. Without a line no thread is started.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, TextIO

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal

from ....control.clock import PACE, SYSTEM_CLOCK, Pace
from ....control.ids import ResultId, exchange_name
from ....control.model.state import ResultState
from ....storage.reading.ways import puts
from ..tables import shortened

_LOG = logging.getLogger("headgate")
_NAME_CELLS = 50
_WIDTH = 80
_CLEAR_S = 1.0

StateOf = Callable[[ResultId], ResultState | None]


class ProgressLine(Protocol):
    """A place where one line is shown, and replaced."""

    def show(self, text: str) -> None: ...

    def clear(self) -> None: ...


@dataclass(slots=True)
class TerminalLine:
    """The last line of a terminal."""

    stream: TextIO
    _cells: int = 0
    """The length of the line that is shown."""

    def show(self, text: str) -> None:
        try:
            width = os.get_terminal_size(self.stream.fileno()).columns - 1
        except OSError:
            width = _WIDTH
        text = set_cell_size(text, width) if cell_len(text) > width > 0 else text
        blank = " " * (self._cells - cell_len(text))
        self._cells = cell_len(text)
        self.stream.write(f"\r{text}{blank}")
        self.stream.flush()

    def clear(self) -> None:
        if self._cells:
            self.stream.write(f"\r{' ' * self._cells}\r")
            self.stream.flush()
            self._cells = 0


@dataclass(slots=True)
class NotebookLine:
    """A part of a cell's output in a notebook."""

    display: Callable[..., Any]
    """IPython's function."""
    _handle: Any = None

    def show(self, text: str) -> None:
        bundle = {"text/plain": text}
        if self._handle is None:
            self._handle = self.display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
            self._handle = None


def progress_line() -> ProgressLine | None:
    """Return the line that the user of this process sees, if anybody looks."""
    with suppress(Exception):  # no session fails because its streams or its shell are odd
        ipython = sys.modules.get("IPython")
        if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
            return NotebookLine(import_module("IPython.display").display)
        return TerminalLine(sys.stderr) if sys.stderr.isatty() else None
    return None


@dataclass(slots=True)
class Progress:
    """The progress of a job's exchanges."""

    line: ProgressLine | None = None
    """None if nobody looks."""
    pace: Pace = PACE
    _running: dict[ResultId, float] = field(default_factory=dict)
    """The time at which each exchange began."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def of(self, result: ResultId, state_of: StateOf) -> Iterator[None]:
        """Show an exchange while the block runs, unless the log is for errors alone."""
        if self.line is None or not _LOG.isEnabledFor(logging.WARNING):
            yield
            return
        self._begin(result, self.line, state_of)
        try:
            yield
        finally:
            self._end(result)

    def _begin(self, result: ResultId, line: ProgressLine, state_of: StateOf) -> None:
        with self._lock:
            self._running[result] = SYSTEM_CLOCK.monotonic_s()
            if self._thread is not None:
                return
            self._ended = threading.Event()
            thread = threading.Thread(
                target=self._run,
                args=(line, state_of, self._ended),
                name="headgate-progress",
                daemon=True,
            )
            with suppress(RuntimeError):  # the process ends or has too many threads
                thread.start()
                self._thread = thread

    def _end(self, result: ResultId) -> None:
        """End the thread after the last exchange. If its terminal is stuck, nothing is shown any
        more."""
        with self._lock:
            del self._running[result]
            if self._running or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._ended.set()
        thread.join(_CLEAR_S)
        if thread.is_alive():
            self.line = None

    def _run(self, line: ProgressLine, state_of: StateOf, ended: threading.Event) -> None:
        last = ""
        try:
            if ended.wait(self.pace.retry_s):
                return
            while not ended.wait(self.pace.poll_s):
                if (text := self._text(state_of)) != last:
                    line.show(text)
                    last = text
            line.clear()
        except Exception as exc:  # a terminal may be closed, a notebook may raise anything
            self.line = None
            _LOG.debug("progress is not shown any more: %s", exc)

    def _text(self, state_of: StateOf) -> str:
        with self._lock:
            running = dict(self._running)
        for result, began_s in running.items():
            if (state := state_of(result)) is not None:
                took_s, more = SYSTEM_CLOCK.monotonic_s() - began_s, len(running) - 1
                return progress(state, took_s) + f"  and {more} more" * (more > 0)
        return ""


def progress(state: ResultState, took_s: float) -> str:
    """Return in one line how far a map stage is."""
    written = state.totals.written
    parts = (
        shortened(exchange_name(state.registered.result, state.registered.label), _NAME_CELLS),
        f"{len(state.production.winners)}/{state.registered.partitions} partitions",
        decimal(written.stored_bytes),
        f"{puts(written.segments, written.stored_bytes):,} PUT",
        f"{written.throttled:,} throttled" if written.throttled else "",
        f"{took_s:.0f} s",
    )
    return "  ".join(filter(None, parts))

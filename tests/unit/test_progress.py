"""A line says how far exchanges are, and cannot harm them."""

from __future__ import annotations

import io
import logging
import sys
import threading
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headgate.connectors.spark.exchanges.progress import (
    NotebookLine,
    Progress,
    TerminalLine,
    progress,
    progress_line,
)
from headgate.control.clock import Pace
from headgate.control.events.types import ResultRegistered
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.model.persistent import PersistentMap
from headgate.control.model.state import Production, ResultState, Totals, Written

FIRST, SECOND = ResultId("1-0001"), ResultId("1-0002")
WINNERS = PersistentMap({n: AttemptId(PartitionId(FIRST, n), 1, n) for n in range(12)})
STATE = ResultState(
    ResultRegistered(FIRST, 40, 4, "", "orders by customer"),
    Production(winners=WINNERS),
    totals=Totals(written=Written(12, 12, 99, 1_200_000_000)),
)
LINE = "1-0001 orders by customer  12/40 partitions  1.2 GB  12 PUT  7 s"
SOON = Pace(poll_s=0.01, retry_s=0.01)
WAIT_S = 20.0


@dataclass(slots=True)
class Shown:
    """A line that keeps what it shows."""

    texts: list[str] = field(default_factory=list)
    seen: threading.Event = field(default_factory=threading.Event)

    def show(self, text: str) -> None:
        self.texts.append(text)
        self.seen.set()

    def clear(self) -> None:
        self.texts.append("")


def threads() -> list[str]:
    """Return the names of the threads that show progress."""
    return [t.name for t in threading.enumerate() if t.name == "headgate-progress"]


def test_the_text() -> None:
    """It has the name, the partitions, the bytes, the requests and the time."""
    assert progress(STATE, 7.2) == LINE
    label = "\x1b[31m" + "long " * 20
    registered = replace(STATE.registered, label=label)
    written = replace(STATE.totals.written, throttled=3)
    text = progress(replace(STATE, registered=registered, totals=Totals(written=written)), 7.2)
    assert text.isprintable()
    assert "…  12/40 partitions" in text
    assert "3 throttled" in text


def test_a_terminal_has_one_line() -> None:
    """A text replaces the one before it, fits in the width, and goes without a trace."""
    stream = io.StringIO()
    line = TerminalLine(stream)
    line.clear()
    line.show("12345")
    line.show("12")
    line.clear()
    line.show("x" * 200)
    assert stream.getvalue() == "\r12345\r12   \r  \r\r" + "x" * 80


def test_it_is_shown_while_exchanges_run() -> None:
    """The line appears after a while, counts the others, and is gone after the last one."""
    line = Shown()
    shown = Progress(line, SOON)
    states = {FIRST: STATE}
    with shown.of(FIRST, states.get):
        with shown.of(SECOND, states.get):
            assert line.seen.wait(WAIT_S)
            assert threads() == ["headgate-progress"]
        assert "" not in line.texts
    assert threads() == []
    assert (
        line.texts[0]
        == "1-0001 orders by customer  12/40 partitions  1.2 GB  12 PUT  0 s  and 1 more"
    )
    assert line.texts[-1] == ""
    with shown.of(FIRST, states.get):
        line.seen.clear()
        assert line.seen.wait(WAIT_S)
    assert line.texts[-2] == "1-0001 orders by customer  12/40 partitions  1.2 GB  12 PUT  0 s"


def test_a_short_exchange_shows_nothing() -> None:
    line = Shown()
    with Progress(line, Pace(retry_s=WAIT_S)).of(FIRST, lambda result: STATE):
        assert threads() == ["headgate-progress"]
    assert (line.texts, threads()) == ([], [])


def test_nothing_runs_when_nobody_looks(caplog: pytest.LogCaptureFixture) -> None:
    """Without a line, or with a log for errors alone, there is no thread."""
    with Progress().of(FIRST, lambda result: STATE):
        assert threads() == []
    caplog.set_level(logging.ERROR, "headgate")
    with Progress(Shown()).of(FIRST, lambda result: STATE):
        assert threads() == []


def test_a_broken_line_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shown after an error of the line, and the exchange raises its own."""
    line, failed = Shown(), threading.Event()

    def show(text: str) -> None:
        failed.set()
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(Shown, "show", lambda self, text: show(text))
    shown = Progress(line, SOON)
    states = {FIRST: STATE}

    def fail() -> None:
        with shown.of(FIRST, states.get):
            assert failed.wait(WAIT_S)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (shown.line, threads()) == (None, [])


def test_a_stuck_terminal_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange does not wait for a terminal that takes no text, and later ones show nothing."""
    stuck, free = threading.Event(), threading.Event()

    def show(self: Shown, text: str) -> None:
        stuck.set()
        free.wait(WAIT_S)

    monkeypatch.setattr(Shown, "show", show)
    shown = Progress(Shown(), SOON)
    with shown.of(FIRST, {FIRST: STATE}.get):
        assert stuck.wait(WAIT_S)
    assert not free.is_set()
    assert shown.line is None
    assert threads() == ["headgate-progress"]
    free.set()
    for thread in threading.enumerate():
        if thread.name == "headgate-progress":
            thread.join(WAIT_S)


def test_a_notebook_updates_one_output() -> None:
    """The first text makes an output, others replace it, the last one is empty."""
    calls: list[tuple[Any, ...]] = []
    handle = SimpleNamespace(update=lambda bundle, raw: calls.append(("update", bundle, raw)))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        calls.append(("display", bundle, raw, display_id))
        return handle

    line = NotebookLine(display)
    line.clear()
    line.show("a")
    line.show("b")
    line.clear()
    assert calls == [
        ("display", {"text/plain": "a"}, True, True),
        ("update", {"text/plain": "b"}, True),
        ("update", {"text/plain": ""}, True),
    ]


class Stream(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal, or a kernel of IPython, has a line; files, closed streams and scripts have
    none."""
    monkeypatch.setattr(sys, "stderr", terminal := Stream())
    assert progress_line() == TerminalLine(terminal)
    terminal.close()
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert progress_line() is None
    shell = SimpleNamespace()
    ipython: Any = ModuleType("IPython")
    ipython.display = ModuleType("IPython.display")
    ipython.display.display = print
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    assert progress_line() is None
    shell.kernel = None
    assert progress_line() is None
    shell.kernel = object()
    assert progress_line() == NotebookLine(print)
    del ipython.get_ipython
    assert progress_line() is None

"""Spans: which thread did what from when to when, in all processes of one query.

A process that is told where by `SPANS_FILE` appends its spans to that file. The clock is the
machine's, so that spans of several processes can be compared.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from headgate.control.clock import SYSTEM_CLOCK

SPANS_FILE = "HEADGATE_BENCH_SPANS"


@dataclass(frozen=True, slots=True)
class Span:
    process: str
    thread: str
    step: str
    start_s: float
    end_s: float

    @property
    def ms(self) -> float:
        return (self.end_s - self.start_s) * 1000


def record(process: str, step: str, start_s: float, end_s: float) -> None:
    thread = f"{os.getpid()}-{threading.get_ident()}"
    line = json.dumps([process, thread, step, start_s, end_s]) + "\n"
    with open(os.environ[SPANS_FILE], "ab", buffering=0) as file:
        file.write(line.encode())


def read(file: Path) -> list[Span]:
    return [Span(*json.loads(line)) for line in file.read_text().splitlines()]


def trace(owner: Any, name: str, process: str, step: str) -> None:
    """Record a span for each call of a function from now on."""
    call: Callable[..., Any] = getattr(owner, name)

    @wraps(call)
    def traced(*given: Any, **named: Any) -> Any:
        start_s = SYSTEM_CLOCK.monotonic_s()
        try:
            return call(*given, **named)
        finally:
            record(process, step, start_s, SYSTEM_CLOCK.monotonic_s())

    setattr(owner, name, traced)


def trace_waits(owner: Any, name: str, process: str, step: str) -> None:
    """Record a span for each wait for an element of a generator from now on."""
    make: Callable[..., Iterator[Any]] = getattr(owner, name)

    @wraps(make)
    def traced(*given: Any, **named: Any) -> Iterator[Any]:
        elements = make(*given, **named)
        while True:
            start_s = SYSTEM_CLOCK.monotonic_s()
            try:
                element = next(elements)
            except StopIteration:
                return
            finally:
                record(process, step, start_s, SYSTEM_CLOCK.monotonic_s())
            yield element

    setattr(owner, name, traced)

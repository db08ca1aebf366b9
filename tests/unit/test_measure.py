"""The benchmarks measure the work, and not their own looking at processes."""

from __future__ import annotations

import os

from ..bench.measure import Cost, Meter


def test_looking_at_processes_is_no_wall_time() -> None:
    """The wall time of no work is small beside the time that it takes to look at processes."""
    here = os.getpid()
    looks = Meter(here, (here,) * 2000, ())
    inner: list[Cost] = []
    whole = Meter(here, (), ()).measure(lambda: inner.append(looks.measure(lambda: None)))
    assert inner[0].wall_s < whole.wall_s / 10
    assert 0 < inner[0].store_s

"""The number of groups that pandas holds at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.spark.tasks.grouped import pandas_functions
from headgate.connectors.spark.tasks.grouped.external_groups import Groups, Sorted


def test_windows_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of groups is bounded by its bytes, and has at least one group."""
    monkeypatch.setattr(pandas_functions, "_WINDOW_BYTES", 10_000)
    widths = [*[1] * 2_000, 4_000, 4_000, 4_000, 20_000, 1]
    rows = pa.table({"c": ["x" * width for width in widths]})
    starts = np.arange(len(widths) + 1)
    whole = Groups([pa.array(starts[:-1])], [Sorted(rows, starts)], ["more"])
    windows = list(pandas_functions._windows(whole))
    parts = [(len(window.keys[0]), window.sides[0].rows) for window in windows]
    assert rows == pa.concat_tables(part for _, part in parts)
    assert all(part.nbytes <= 10_000 or groups == 1 for groups, part in parts)
    assert len(windows) < 10
    assert ["more"] == [more for window in windows for more in window.more]

"""Collect garbage less often while worlds run, because they are full of cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

COLLECT_AFTER = (50_000, 20, 50)


@pytest.fixture(autouse=True)
def rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    yield
    gc.set_threshold(*before)

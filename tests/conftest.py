"""Shared by all tests: Hypothesis profiles, and the check that no thread of ours outlives its test.

`ci` is the profile unless HYPOTHESIS_PROFILE names another: `quick` in `make quick`, `long` in
nights.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headgate.control.clock import SYSTEM_CLOCK, Deadline

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci", deadline=None, print_blob=True, max_examples=40, suppress_health_check=_SLOW
)
settings.register_profile(
    "quick", deadline=None, print_blob=True, max_examples=10, suppress_health_check=_SLOW
)
settings.register_profile(
    "long", deadline=None, print_blob=True, max_examples=3000, suppress_health_check=_SLOW
)
for named in ("BROKER", "STORE", "S3_ENDPOINT"):  # exported by users of `make stack`
    os.environ.pop(f"HEADGATE_{named}", None)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("headgate-")}


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    """Assert that every thread of ours that a test started ends with the test."""
    before = running()
    yield
    deadline = Deadline.after(5.0)
    while running() - before and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.005)
    assert set() == running() - before

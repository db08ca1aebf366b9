"""Contracts as tests, and faults on purpose: for users who write a log or a store of their own.

A subclass of a suite gives the fixture that makes an implementation, and pytest runs the contract
on it. `FaultyBlobStore` and `FaultyEventLog` raise a planned error at the n-th call of an
operation.

Assumes pytest, of the extra `testing`. No other room imports this one.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    f"{__name__}.blob_store_suite",
    f"{__name__}.event_log_basics",
    f"{__name__}.event_log_suite",
    f"{__name__}.master_group_suite",
)

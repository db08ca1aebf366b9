"""Fixtures that several integration tests share."""

from __future__ import annotations

from ..doubles.real_masters import log

__all__ = ["log"]

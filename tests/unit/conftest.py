"""Fixtures that several unit tests share."""

from __future__ import annotations

from ..doubles.commands import log, objects
from ..doubles.group_masters import masters_in_a_hurry
from ..doubles.jobs import in_a_hurry
from ..doubles.stacks import stack

__all__ = ["in_a_hurry", "log", "masters_in_a_hurry", "objects", "stack"]

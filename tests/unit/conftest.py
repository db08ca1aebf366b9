"""Fixtures that several unit tests share."""

from __future__ import annotations

from ..doubles.commands import log, objects
from ..doubles.stacks import stack
from ..doubles.viewers import timed, viewer

__all__ = ["log", "objects", "stack", "timed", "viewer"]

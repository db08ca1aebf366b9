"""`headgate master`: run a process of the group that decides for session jobs."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys

from ..control import __version__
from ..control.contract import MasterSettings, ShuffleMasterContext
from ..control.errors import Invalid
from .spelling import Spelling
from .target import Target

_SLOT = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_AUTHOR = re.compile(rf"master ({_SLOT.pattern}) [0-9a-f]{{8}}")
STEP_EVENTS_MAX = 5_000
_COLLECTED = 100_000, 20, 50  # thresholds of the collector's three generations


def spare_collector() -> None:
    """Make collections rare: a master keeps nearly all of its objects, and makes no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED)


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Spelling("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("headgate").addHandler(handler)
    logging.getLogger("headgate").setLevel(logging.INFO)


def slot_of(author: str) -> str | None:
    """Return the slot of the master that has written an event; None if no such master has."""
    match = _AUTHOR.fullmatch(author)
    return match[1] if match else None


def run(target: Target, slot: str) -> None:
    """Decide until SIGTERM or SIGINT, and log to stderr.

    Raises:
        Invalid: the broker, the store or the slot cannot be used.
        Conflict: another process has taken the slot.
    """
    if not _SLOT.fullmatch(slot):
        raise Invalid(f"slot {slot!r}: use 1 to 100 letters, digits, '_', '.' or '-'")
    log_to_stderr()
    spare_collector()
    settings = MasterSettings(step_events_max=STEP_EVENTS_MAX)
    name = f"master {slot} {os.urandom(4).hex()}"
    context = ShuffleMasterContext(settings, name, __version__)
    with target.services().group_master(context, slot) as master:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: master.stop())
        master.run()

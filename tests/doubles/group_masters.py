"""A group of masters in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import MasterSettings
from headgate.control.log import EventLog
from headgate.control.master.group_master import GroupMaster
from headgate.control.master.group_steps import MasterIdentity
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from .jobs import HURRIED
from .logs import STEP_EVENTS_MAX
from .stacks import WAIT_MS, Stack


@contextmanager
def mastering(
    stack: Stack, log: EventLog | None = None, slot: str = "one", look_ms: int = 5_000
) -> Iterator[list[object]]:
    """Run a session master in a thread; yield a list that gets its error if it ends by itself."""
    me = MasterIdentity(slot, f"master {slot} {next(stack.drivers)}", SYSTEM_CLOCK, "")
    settings = MasterSettings(WAIT_MS, STEP_EVENTS_MAX, look_ms=look_ms, pace=HURRIED)
    storage = ObjectDeleter(stack.store, "root")
    master = GroupMaster(log or stack.inner, storage, settings, me)
    ended: list[object] = []

    def run() -> None:
        try:
            master.run()
        except Exception as exc:
            ended.append(exc)

    thread = threading.Thread(target=run, name=f"headgate-session-{slot}")
    thread.start()
    try:
        yield ended
    finally:
        master.stop()
        thread.join(5.0)

"""Objects are deleted once the log has ordered it, however long it takes and whatever fails."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import Invalid, Unavailable
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Consumable,
    ReleaseRequested,
    ResultRegistered,
)
from headgate.control.ids import JobId, ResultId
from headgate.control.master.announcer import Announcer
from headgate.control.master.deletions import Deletion, DeletionRetrier, Orders
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import ResultState
from headgate.testing.faulty_log import LogFault

from ..doubles.jobs import (
    OPENING,
    RESULT,
    SETTINGS,
    WAIT_MS,
    Job,
    OrderedStorage,
    attempt,
    audited,
    bodies,
    deleted_objects,
    looping,
    ordered,
    produced,
    state_facts,
)
from ..doubles.logs import FaultyLog
from ..doubles.steps import StoppedClock
from ..doubles.storages import BusyStorage, SlowStorage, stored

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def test_objects_go_only_when_the_order_is_committed() -> None:
    """An uncommitted step deletes nothing. The committed one does, and the deletion is
    announced."""
    log = MemoryEventLog()
    for nth in range(1, 6):
        storage = OrderedStorage(log)
        state_facts(log, *OPENING, produced(0, 1, nth), AttemptFailed(attempt(1, 7, nth), "oom"))
        faulty = FaultyLog(log, LogFault("commit", nth, Unavailable("injected")))
        with looping(faulty, storage) as loop:
            gone = 2 * nth - 1
            assert loop.wait_for(deleted_objects(gone), "deletion")
    assert len(ordered(log)) == audited(log).state.results[RESULT].fate.deleted


def test_a_crash_between_commit_and_delete_is_made_up_for() -> None:
    """The next start deletes objects whose deletion was committed and is not confirmed."""
    log = MemoryEventLog()
    storage = OrderedStorage(log, failing=True)
    with looping(log, storage) as loop:
        state_facts(
            log, *OPENING, produced(0, 1), produced(0, 2), AttemptStarted(attempt(1, 3), "")
        )
        state_facts(log, ReleaseRequested(RESULT, "asked"))
        assert loop.wait_for(
            lambda s: any(r.fate.released for r in s.results.values()) or None, "it"
        )
    assert set() == storage.deleted
    storage.failing = False
    with looping(log, storage) as loop:
        assert loop.wait_for(deleted_objects(3), "deletion")
    assert {attempt(0, 1), attempt(0, 2), attempt(1, 3)} == storage.deleted
    assert audited(log).state.results[RESULT].production.attempts == {}
    assert [body for body in bodies(log) if isinstance(body, Consumable)][1:] == []


@pytest.mark.slow
def test_a_close_waits_for_as_long_as_objects_go() -> None:
    """A close waits for any number of objects, as long as some are deleted during each wait."""
    log = MemoryEventLog()
    driver = stored(log, 12)
    storage = cast(SlowStorage, driver._storage)
    storage.takes_s = 0.3 * WAIT_MS / 1000
    driver.unregister_job()
    assert 12 == len(storage.deleted)
    assert {} == audited(log).state.results[ResultId("r11")].production.attempts


def test_a_close_that_failed_is_called_again() -> None:
    """A close that cannot delete raises an error, and a second call deletes the rest."""
    log = MemoryEventLog()
    driver = stored(log, 3)
    storage = cast(SlowStorage, driver._storage)
    storage.failing = True
    with pytest.raises(Unavailable, match="the deletion of every object"):
        driver.unregister_job()
    storage.failing = False
    driver.unregister_job()
    assert (3, set()) == (len(storage.deleted), storage.early)
    audited(log)


def test_deletion_is_tried_until_the_store_is_back() -> None:
    """A deletion is retried until the store can be reached again."""
    log = MemoryEventLog()
    state_facts(log, *OPENING, produced(0, 1), produced(1, 2))
    with looping(log, storage=BusyStorage(log)) as loop:
        state_facts(log, ReleaseRequested(RESULT, "tests"), by="driver")
        assert loop.wait_for(deleted_objects(2), "deletion")
    audited(log)


@pytest.mark.parametrize("error", [Invalid("403: the token has expired"), KeyError("Location")])
def test_a_refusal_may_pass(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A deletion that the store refuses runs again when the credentials, or the clock, are right.
    One line says so, whatever the number of results."""
    log, quick = MemoryEventLog(), replace(SETTINGS, look_ms=100)
    storage = BusyStorage(log, failures=3, error=error)
    state_facts(log, *OPENING, produced(0, 1), produced(1, 2))
    with looping(log, storage, settings=quick) as loop:
        began_s = SYSTEM_CLOCK.monotonic_s()
        state_facts(log, ReleaseRequested(RESULT, "tests"), by="driver")
        assert loop.wait_for(deleted_objects(2), "deletion")
        assert SYSTEM_CLOCK.monotonic_s() - began_s > 0.3  # it waits between the tries
    audited(log)
    assert 3 == sum("could not delete objects" in line for line in caplog.messages)


def test_a_refusal_holds_back_one_job(caplog: pytest.LogCaptureFixture) -> None:
    """A store that refuses the deletions of one job delays those of no other job, and each job
    that is refused is named."""
    clock, log = StoppedClock(), MemoryEventLog()
    failed, result = DeletionRetrier(clock, 5.0), ResultState(cast(ResultRegistered, OPENING[1]))
    first, second, third = (
        Deletion(announcer, result, (), Orders(announcer, failed))
        for announcer in (Announcer(JobId(name), "master") for name in ("one", "two", "three"))
    )
    expired = BusyStorage(log, failures=2, error=Invalid("403: the token has expired"))
    first.run(expired, log, Deadline.after(1.0))
    second.run(BusyStorage(log, failures=1), log, Deadline.after(1.0))
    third.run(expired, log, Deadline.after(1.0))
    assert [second] == failed.take()
    assert [] == failed.take()
    named = [line.partition(" yet:")[0] for line in caplog.messages]
    assert [f"could not delete objects of r1 of job {name}" for name in ("one", "three")] == named
    clock.at_ms += 5_001
    assert [first, third] == sorted(failed.take(), key=lambda deletion: deletion.job)


def test_close_after_a_refusal() -> None:
    """A close that the store has refused succeeds when it is called again."""
    log = MemoryEventLog()
    storage = BusyStorage(log, failures=0, error=Invalid("403: the token has expired"))
    master = DriverMaster(log, storage, SETTINGS, DriverIdentity("driver", "0"))
    master.register_job(Job())
    state_facts(log, *OPENING[1:], produced(0, 1), produced(1, 2))
    state_facts(log, ReleaseRequested(RESULT, "tests"), by="driver")
    deadline = Deadline.after(5.0)
    while len(storage.deleted) < 2 and not deadline.passed:
        deadline.pause()
    storage.failures = 1
    with pytest.raises(Invalid, match="expired"):
        master.unregister_job()
    master.unregister_job()
    master.close()
    assert 2 == len(storage.deleted)

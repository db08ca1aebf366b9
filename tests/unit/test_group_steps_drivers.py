"""A driver in mode `session`, with the masters that decide for its jobs in threads beside it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import PER_JOB, SESSION, MasterSettings, ShuffleDescriptor
from headgate.control.errors import (
    Conflict,
    Fenced,
    HeadgateError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
)
from headgate.control.events.types import (
    Fact,
    JobRegistered,
    LeaseExpired,
    PartitionRegistered,
    Produced,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.log import EventLog
from headgate.control.master import group_master as session_module
from headgate.control.master.announcer import Announcer
from headgate.control.master.deletions import THREADS_MAX, Clearing, Deletion
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.group_master import GroupMaster
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.control.memory.log import MemoryEventLog
from headgate.control.model.state import JobState, ResultState
from headgate.storage.upkeep.object_deletion import ObjectDeleter
from headgate.testing.faulty_log import LogFault

from ..doubles.group_masters import mastering
from ..doubles.jobs import HURRIED, OPENING, RESULT, Job, bodies, events, produced
from ..doubles.logs import STEP_EVENTS_MAX, FaultyLog
from ..doubles.stacks import LAYOUT, PARTITIONS, WAIT_MS, Stack, produce, read, register

_PATIENT_MS, WAIT_S = 10_000, 10.0

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@contextmanager
def driving(stack: Stack, mode: str = SESSION, wait_ms: int = WAIT_MS) -> Iterator[DriverMaster]:
    settings = MasterSettings(wait_ms, STEP_EVENTS_MAX, mode, pace=HURRIED)
    me = DriverIdentity(f"driver {next(stack.drivers)}", "0")
    master = DriverMaster(stack.inner, ObjectDeleter(stack.store, "root"), settings, me)
    master.start()
    try:
        yield master
    finally:
        master.close()


def small_job(stack: Stack, driver: DriverMaster) -> None:
    with stack.environment() as environment:
        driver.register_job(Job())
        descriptor = register(driver)
        for partition in range(PARTITIONS):
            produce(stack, environment, descriptor, partition)
        read(stack, environment, driver, descriptor)
        driver.release_partition_externally(descriptor)
        driver.unregister_job()


def test_a_job_of_a_session() -> None:
    """The group alone decides for a session job, which ends with nothing stored."""
    stack = Stack()
    with mastering(stack, slot="one"), mastering(stack, slot="two"), driving(stack) as driver:
        small_job(stack, driver)
    stack.ended()
    speakers = {r.event.by.split()[0] for r in events(stack.inner) if r.event.basis is not None}
    assert {"master"} == speakers


def test_a_promoted_result_takes_the_markers_of_its_job_with_it() -> None:
    """Markers stay for as long as a result that outlives its job, which a master may delete."""
    stack, marker = Stack(), f"{LAYOUT.markers(1)}0"
    with mastering(stack, look_ms=50), driving(stack) as driver, stack.environment() as environment:
        driver.register_job(Job())
        descriptor = register(driver)
        for partition in range(PARTITIONS):
            produce(stack, environment, descriptor, partition)
        driver.await_complete(descriptor)
        stack.store.put(marker, b"key", "w")
        driver.promote_partitions(descriptor, SYSTEM_CLOCK.now_ms() + 500)
        driver.unregister_job()
        assert marker in stack.objects
        deadline = Deadline.after(WAIT_S)
        while stack.objects and not deadline.passed:
            deadline.pause()
    stack.ended()


def test_the_driver_hears_of_what_the_log_shows_only() -> None:
    """The driver gets no answer and no new state before the master's commit has ended."""
    stack = Stack()
    slow = FaultyLog(stack.inner)
    with mastering(stack, slow), driving(stack) as driver:
        driver.register_job(Job())
        slow.may_commit.clear()
        loop = driver.answers
        answer = loop.ask(JobRegistered(SESSION, "0", "again"))
        with pytest.raises(TimeoutError):
            answer.result(0.1)
        assert driver.state().epoch == 1
        slow.may_commit.set()
        assert [2] == [decision.epoch for decision in answer.result(1.0)]  # type: ignore[union-attr]
        driver.register_job(Job())
        driver.unregister_job()
    stack.ended()


def test_deletions_that_wait_are_not_handed_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that joins again forgets the deletions that waited for a thread, because it gets
    every order again. That holds for ten joins while the store is slow; a running deletion may run
    once more."""
    log, storage = MemoryEventLog(1), SlowStorage()
    orders, joined = Counter[GroupSteps](), list[GroupSteps]()
    jobs = [JobId(f"job-{number}") for number in range(20)]
    for job in jobs:
        registered = JobRegistered(SESSION, "0", "tests")
        say(log, job, registered, *OPENING[1:], produced(0, 1), ReleaseRequested(RESULT, "tests"))

    class Flapping(GroupSteps):
        def __init__(self, log: EventLog, me: MasterIdentity, settings: MasterSettings) -> None:
            joined.append(self)
            super().__init__(log, me, settings)

        def step(self, timeout_s: float) -> tuple[Deletion | Clearing, ...]:
            if orders[self] == len(jobs) and len(joined) <= 10:
                raise Unavailable("injected")
            deletions = super().step(timeout_s)
            orders[self] += len(deletions)
            return deletions

    monkeypatch.setattr(session_module, "GroupSteps", Flapping)
    me = MasterIdentity("one", "master one", SYSTEM_CLOCK, "")
    master = GroupMaster(log, storage, MasterSettings(WAIT_MS, pace=HURRIED), me)
    thread = threading.Thread(target=master.run)
    thread.start()
    await_true(lambda: len(joined) > 10 and orders[joined[10]] == len(jobs))
    storage.may_delete.set()
    await_true(lambda: {*jobs} == {*storage.deleted})
    master.stop()
    thread.join(5.0)
    assert len(storage.deleted) <= len(jobs) + THREADS_MAX


class SlowStorage:
    """A store that deletes the objects of `slow` jobs, or of all, when it may."""

    def __init__(self, *slow: JobId) -> None:
        self.deleted: list[JobId] = []
        self.may_delete = threading.Event()
        self._slow = slow

    def delete(self, job: JobId, result: ResultState, attempts: Collection[AttemptId]) -> int:
        if job in self._slow or not self._slow:
            self.may_delete.wait(5.0)
        self.deleted.append(job)
        return len(attempts)

    def sweep(self, closed: JobState) -> int:
        return 0


def test_no_job_waits_for_the_deletions_of_another() -> None:
    """While the store of one job does not answer, however many of its objects are to go, other jobs
    are deleted, and silent drivers lose their leases."""
    tenant, silent, quick = JobId("tenant"), JobId("silent"), JobId("quick")
    log, storage = MemoryEventLog(1), SlowStorage(tenant)
    opening = (JobRegistered(SESSION, "0", "tests"), *OPENING[1:], produced(0, 1))
    say(log, tenant, *opening)
    for number in range(50):
        say(log, tenant, *a_release(ResultId(f"more-{number}")))
    say(log, quick, *opening, ReleaseRequested(RESULT, "tests"))
    say(log, silent, JobRegistered(SESSION, "0", "tests", lease_ms=50))
    me = MasterIdentity("one", "master one", SYSTEM_CLOCK, "")
    settings = MasterSettings(WAIT_MS, look_ms=20, pace=HURRIED)
    master = GroupMaster(log, storage, settings, me)
    thread = threading.Thread(target=master.run)
    thread.start()
    await_true(lambda: quick in storage.deleted)
    await_true(lambda: any(isinstance(body, LeaseExpired) for body in said(log, silent)))
    assert tenant not in storage.deleted
    storage.may_delete.set()
    await_true(lambda: storage.deleted.count(tenant) == 50)
    master.stop()
    thread.join(5.0)


def say(log: MemoryEventLog, job: JobId, *facts: Fact) -> None:
    announcer = Announcer(job, "driver")
    for fact in facts:
        log.append(announcer.fact(fact))


def said(log: MemoryEventLog, job: JobId) -> list[object]:
    records = log.read_all(Deadline.after(1.0))
    return [recorded.event.body for recorded in records if recorded.event.job == job]


def a_release(name: ResultId) -> tuple[Fact, ...]:
    attempt = AttemptId(PartitionId(name, 0), 1, 1)
    return (
        ResultRegistered(name, 1, 1, "", ""),
        PartitionRegistered(name, 0, 1),
        Produced(attempt, (SegmentSummary(0, 9, 1, 0, b""),)),
        ReleaseRequested(name, "tests"),
    )


def await_true(condition: Callable[[], bool]) -> None:
    deadline = Deadline.after(5.0)
    while not condition():
        assert not deadline.passed, "it never came"
        SYSTEM_CLOCK.sleep_s(0.005)


def test_without_any_master_a_wait_says_so() -> None:
    """Without any master, a wait ends at its deadline with an error that says so."""
    stack = Stack()
    with (
        driving(stack) as driver,
        pytest.raises(
            Unavailable,
            match=f"{WAIT_MS} ms for the decision on JobRegistered .*no master has answered",
        ),
    ):
        driver.register_job(Job())


def test_a_job_notices_a_delay_when_masters_go() -> None:
    """Without a master, consumable results can still be read. Requests wait until another master
    comes."""
    stack = Stack()
    with driving(stack) as driver, stack.environment() as environment:
        with mastering(stack):
            driver.register_job(Job())
            descriptor = register(driver)
            for partition in range(PARTITIONS):
                produce(stack, environment, descriptor, partition)
            driver.await_complete(descriptor)
        read(stack, environment, driver, descriptor)
        produce_more(stack, descriptor)
        with pytest.raises(Unavailable, match="no master has answered"):
            driver.release_partition_externally(descriptor)
        with mastering(stack, slot="two"):
            driver.unregister_job()
    stack.ended()


def produce_more(stack: Stack, descriptor: ShuffleDescriptor) -> None:
    """Write another attempt while there is no master."""
    with stack.environment() as environment:
        produce(stack, environment, descriptor, 0)


def test_the_first_of_two_drivers_is_fenced() -> None:
    """Every call and every wait of a replaced driver ends with `Fenced`, as in mode `per-job`."""
    stack, job = Stack(), Job()
    with mastering(stack), driving(stack) as first, driving(stack) as second:
        first.register_job(job)
        descriptor = register(first)
        second.register_job(Job())
        with pytest.raises(Fenced, match="has attached to job"):
            first.await_complete(descriptor)
        with pytest.raises(Fenced):
            first.release_partition_externally(descriptor)
        assert descriptor.epoch + 1 == register(second).epoch
        second.unregister_job()
    assert [Fenced] == [type(error) for error in job.errors]
    stack.ended()


@pytest.mark.parametrize(("first", "then"), [(PER_JOB, SESSION), (SESSION, PER_JOB)])
def test_a_job_keeps_its_mode(first: str, then: str) -> None:
    """A job of one mode cannot be registered in the other mode, and nothing is written for the
    attempt."""
    stack = Stack()
    with mastering(stack):
        with driving(stack, first) as driver:
            driver.register_job(Job())
            before = len(bodies(stack.inner))
            with (
                driving(stack, mode=then) as other,
                pytest.raises(Invalid, match=f"in mode {first}"),
            ):
                other.register_job(Job())
            if first == SESSION:
                driver.unregister_job()
                assert before < len(bodies(stack.inner))
            else:
                assert before == len(bodies(stack.inner))
        with driving(stack, first) as driver:
            driver.register_job(Job())
            driver.unregister_job()
    stack.ended()


def test_a_master_whose_slot_is_taken_ends() -> None:
    """The former master of a slot ends with `Conflict`, and its successor serves the job."""
    stack = Stack()
    with mastering(stack) as former, driving(stack) as driver:
        driver.register_job(Job())
        with mastering(stack) as successor:
            driver.unregister_job()
            deadline = Deadline.after(_PATIENT_MS / 1000)
            while not former and not deadline.passed:
                SYSTEM_CLOCK.sleep_s(0.01)
            assert [Conflict] == [type(error) for error in former]
        assert [] == successor
    stack.ended()


FAILURES: list[tuple[str, HeadgateError, bool]] = [
    *[(n, Unavailable("injected"), False) for n in ("join", "poll", "end", "begin", "write")],
    *[("commit", error, False) for error in (Unavailable("injected"), Fenced("injected"))],
    *[("commit", OutcomeUnknown("injected"), after) for after in (False, True)],
    ("append", Unavailable("injected"), False),
    *[("append", OutcomeUnknown("injected"), after) for after in (False, True)],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "error", "after"),
    FAILURES,
    ids=[f"{name}-{type(error).__name__}-{after}" for name, error, after in FAILURES],
)
def test_any_one_call_of_a_masters_log_may_fail(
    operation: str, error: HeadgateError, after: bool
) -> None:
    """Whichever call of a master's log fails, the job is only delayed. The next master repeats a
    deletion whose end could not be announced."""
    unanswered = operation == "append" and isinstance(error, OutcomeUnknown)
    wait_ms = WAIT_MS if unanswered else _PATIENT_MS
    for nth in range(1, 25):
        stack = Stack()
        faulty = FaultyLog(stack.inner, LogFault(operation, nth, error, after))
        with driving(stack, wait_ms=wait_ms) as driver:
            with mastering(stack, faulty):
                if unanswered:
                    with suppress(Unavailable):
                        small_job(stack, driver)
                else:
                    small_job(stack, driver)
            if operation == "append":
                with mastering(stack, slot="next"):
                    driver.register_job(Job())
                    driver.unregister_job()
        stack.ended()
        if faulty.calls[operation] < nth:
            return
    assert operation in ("poll", "end"), "some call of it was never tried"


def test_the_result_is_named() -> None:
    """The error about a result that never completes names the result, and does not blame the
    masters."""
    stack = Stack()
    with mastering(stack), driving(stack) as driver:
        driver.register_job(Job())
        descriptor = register(driver)
        with pytest.raises(Unavailable, match=f"partitions of result {RESULT}") as caught:
            driver.await_complete(descriptor)
        assert "no master" not in str(caught.value)
        driver.unregister_job()
    stack.ended()

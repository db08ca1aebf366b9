"""A small job on a master whose log and store fail, and the clean-up by a later driver."""

from __future__ import annotations

from threading import Event

import pytest

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import ShuffleDescriptor
from headgate.control.errors import (
    Closed,
    Fenced,
    HeadgateError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
)
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    JobRegistered,
    ResultRegistered,
    Superseded,
    WayChosen,
)
from headgate.control.events.types import Event as Stated
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.log import EventLog, Receipt
from headgate.storage.stores.port import BlobStore
from headgate.storage.stores.retries import RetrySettings
from headgate.testing.faulty_log import LogFault
from headgate.testing.faulty_store import FaultPlan, FaultyBlobStore, Operation, PlannedFault

from ..doubles.jobs import JOB, RESULT, Deaf, Job, bodies, events, state_facts
from ..doubles.logs import FaultyLog
from ..doubles.stacks import (
    LAYOUT,
    PARTITIONS,
    SUBPARTITIONS,
    Stack,
    produce,
    read,
    register,
    write,
)

pytestmark = pytest.mark.usefixtures("no_thread_stays")


def small_job(stack: Stack, log: EventLog, store: BlobStore | None = None) -> None:
    with stack.master(log, store) as master, stack.environment(log) as environment:
        master.register_job(Job())
        descriptor = register(master)
        for partition in range(descriptor.partitions):
            produce(stack, environment, descriptor, partition)
        read(stack, environment, master, descriptor)
        master.release_partition_externally(descriptor)
        master.unregister_job()
    stack.ended()


def explained(stack: Stack, log: EventLog, store: BlobStore | None = None) -> bool:
    """Run a small job. Return False if it ends with an error that does not say what failed."""
    try:
        small_job(stack, log, store)
    except HeadgateError as exc:
        return any(word in str(exc) for word in ("injected", f"job {JOB}", f"result {RESULT}"))
    return True


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_commit_in_doubt_loses_no_answer(stack: Stack, nth: int) -> None:
    """A driver gets the answers to its registration and its end, whichever commit has no answer."""
    log = FaultyLog(stack.inner, LogFault("commit", nth, OutcomeUnknown("injected"), after=True))
    with stack.master(log) as master:
        master.register_job(Job())
        master.unregister_job()


@pytest.mark.parametrize("partitions", [0, 1, 7])
def test_events_of_an_exchange_are_few(stack: Stack, partitions: int) -> None:
    """An exchange takes at most 4 events a partition, 2 a subpartition, and a few of its own."""
    log = FaultyLog(stack.inner)
    with stack.master(log) as master, stack.environment() as environment:
        master.register_job(Job())
        descriptor = register(master, partitions)
        for partition in range(partitions):
            produce(stack, environment, descriptor, partition)
        read(stack, environment, master, descriptor)
        master.unregister_job()
    assert len(events(stack.inner)) <= 4 * partitions + 2 * SUBPARTITIONS + 10


@pytest.mark.parametrize("error", [Unavailable("injected"), OutcomeUnknown("injected")])
def test_a_way_that_the_log_does_not_take_fails_nothing(stack: Stack, error: HeadgateError) -> None:
    """The way of an exchange is for operators: the driver does not wait for the log, and goes on
    without it."""
    log = FaultyLog(stack.inner)
    with stack.master(log) as master:
        master.register_job(Job())
        register(master)
        log.fault = LogFault("append", log.calls["append"] + 1, error)
        master.announce(WayChosen(RESULT, "direct", 1, 1))
        master.unregister_job()
    assert WayChosen not in map(type, bodies(stack.inner))


FAILURES = [
    *[
        (operation, Unavailable("injected"), False)
        for operation in ("open_decisions", "follow", "poll", "begin", "write", "commit", "append")
    ],
    ("commit", OutcomeUnknown("injected"), False),
    ("commit", OutcomeUnknown("injected"), True),
    ("append", OutcomeUnknown("injected"), False),
    ("append", OutcomeUnknown("injected"), True),
]
CALLS_MAX = 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "error", "after"),
    FAILURES,
    ids=[f"{name}-{type(error).__name__}-{after}" for name, error, after in FAILURES],
)
def test_any_one_call_may_fail(operation: str, error: HeadgateError, after: bool) -> None:
    """Whichever call of the log fails, the job ends right or with an error that says what failed,
    and a later driver ends the job."""
    for nth in range(1, CALLS_MAX):
        stack = Stack()
        log = FaultyLog(stack.inner, LogFault(operation, nth, error, after))
        assert explained(stack, log)
        stack.end()
        if log.calls[operation] < nth:
            return
    assert operation in ("poll", "append"), "some call of it was never tried"


STORE_CALLS = [Operation.CREATE, Operation.GET, Operation.DELETE, Operation.LIST, Operation.UPLOADS]


@pytest.mark.parametrize("operation", STORE_CALLS)
def test_any_one_call_of_the_masters_store_may_fail(operation: Operation) -> None:
    """Whichever call of the store fails for the master, a later driver deletes what is left."""
    for nth in range(1, 6):
        stack = Stack()
        plan = FaultPlan((PlannedFault(operation, nth, error=Unavailable("injected")),))
        store = FaultyBlobStore(stack.store, plan, RetrySettings(tries_max=1))
        assert explained(stack, FaultyLog(stack.inner), store)
        stack.end()


def test_a_driver_that_dies_leaves_what_is_consumable(stack: Stack) -> None:
    """The next driver reads a complete result of a dead driver; late objects of the old epoch are
    deleted."""
    with stack.environment() as environment:
        with stack.master() as first:
            first.register_job(Job())
            descriptor = register(first)
            for partition in range(PARTITIONS):
                produce(stack, environment, descriptor, partition)
            first.await_complete(descriptor)
            other = register(first, result=ResultId("r2"))
        with stack.master() as second:
            second.register_job(Job())
            late = AttemptId(PartitionId(other.result, 0), descriptor.epoch, 77)
            write(environment, late)
            read(stack, environment, second, descriptor)
            again = register(second, result=other.result)
            assert (descriptor.epoch + 1) == again.epoch
            for partition in range(PARTITIONS):
                produce(stack, environment, again, partition)
            read(stack, environment, second, again)
    refused = [b for b in bodies(stack.inner) if isinstance(b, Superseded)]
    assert [late] == [superseded.attempt for superseded in refused]


def test_the_first_of_two_drivers_is_fenced(stack: Stack) -> None:
    """Every call and every wait of a replaced driver ends with `Fenced`."""
    job = Job()
    with stack.master() as first, stack.master() as second:
        first.register_job(job)
        descriptor = register(first)
        second.register_job(Job())
        with pytest.raises(Fenced):
            first.await_complete(descriptor)
        with pytest.raises(Fenced):
            first.release_partition_externally(descriptor)
        with pytest.raises(Fenced):
            first.unregister_job()
        assert descriptor.epoch + 1 == register(second).epoch
    assert [Fenced] == [type(error) for error in job.errors]


@pytest.mark.parametrize("call", ["poll", "begin"])
def test_a_driver_that_is_fenced_before_it_is_accepted_tries_again(stack: Stack, call: str) -> None:
    """A new driver whose registration the former driver interrupts by deciding again gets the job
    in the end, and only the former driver is fenced."""
    former, later = Job(), Job()
    going = Event()
    going.set()

    class Interrupted(FaultyLog):
        def meet(self, operation: str) -> LogFault | None:
            assert operation != call or going.wait(5.0)
            return super().meet(operation)

        def append(self, fact: Stated) -> Receipt:
            if isinstance(fact.body, JobRegistered) and not self.calls["append"]:
                going.clear()
                SYSTEM_CLOCK.sleep_s(0.1)
                register(first)
            receipt = super().append(fact)
            going.set()
            return receipt

    with stack.master() as first:
        first.register_job(former)
        with stack.master(Interrupted(stack.inner)) as second:
            second.register_job(later)
            register(second, result=ResultId("r2"))
            with pytest.raises(Fenced):
                first.await_complete(ShuffleDescriptor(JOB, RESULT, 1, 1, 1))
    assert ([Fenced], []) == ([type(error) for error in former.errors], later.errors)


def test_objects_of_dead_attempts_go_with_the_job(stack: Stack) -> None:
    """Unregistering deletes the objects of a task that died before its event, started before or
    after the release, and objects that no event names."""
    with stack.master() as master, stack.environment() as environment:
        master.register_job(Job())
        descriptor = register(master)
        produce(stack, environment, descriptor, 0)
        early = AttemptId(PartitionId(RESULT, 1), descriptor.epoch, 50)
        state_facts(stack.inner, AttemptStarted(early, "host"))
        stack.store.put(LAYOUT.segment(early, 0), b"left", "w")
        master.release_partition_externally(descriptor)
        late = AttemptId(PartitionId(RESULT, 1), descriptor.epoch, 51)
        stack.store.put(LAYOUT.segment(late, 0), b"left", "w")
        state_facts(stack.inner, AttemptStarted(late, "host"), by="late task")
        stack.store.put(f"{LAYOUT.prefix}00/unknown/0/1-1/0", b"left", "w")
        stack.store.put("root/another/00/r/0/1-1/0", b"stays", "w")
        master.unregister_job()
    assert list(stack.objects) == ["root/another/00/r/0/1-1/0"]
    stack.objects.clear()
    stack.ended()


def test_failed_attempts_are_deleted_while_the_job_runs(stack: Stack) -> None:
    """The objects of a failed attempt are deleted before the job ends."""
    with stack.master() as master, stack.environment() as environment:
        master.register_job(Job())
        descriptor = register(master)
        failed = AttemptId(PartitionId(RESULT, 0), descriptor.epoch, 50)
        stack.store.put(LAYOUT.segment(failed, 0), b"left", "w")
        state_facts(stack.inner, AttemptStarted(failed, ""), AttemptFailed(failed, "oom"))
        for partition in range(PARTITIONS):
            produce(stack, environment, descriptor, partition)
        state = master.await_complete(descriptor)
        assert failed not in state.production.winners.values()
        loop = master.answers
        loop.wait_for(lambda s: None if s.results[RESULT].doomed else True, "deletion")
        assert LAYOUT.segment(failed, 0) not in stack.objects
        read(stack, environment, master, descriptor)


def test_refused_partitions_are_invalid(stack: Stack) -> None:
    """To register partitions that the result does not have is `Invalid` at once."""
    with stack.master() as master:
        master.register_job(Job())
        register(master)
        with pytest.raises(Invalid, match=f"result {RESULT}"):
            register(master, PARTITIONS + 1)


def test_a_released_result_is_invalid(stack: Stack) -> None:
    """Waiting for a released result, or registering its partitions, is `Invalid`."""
    with stack.master() as master:
        master.register_job(Job())
        descriptor = register(master)
        master.release_partition_externally(descriptor)
        master.release_partition_externally(descriptor)
        with pytest.raises(Invalid, match="released"):
            master.await_complete(descriptor)
        with pytest.raises(Invalid, match=f"result {RESULT}"):
            register(master)


def test_a_master_without_a_job_is_invalid(stack: Stack) -> None:
    """A call before the registration of a job is `Invalid`."""
    descriptor = ShuffleDescriptor(JOB, RESULT, 1, 1, 1)
    with stack.master() as master:
        for ask in (
            master.unregister_job,
            lambda: master.release_partition_externally(descriptor),
            lambda: master.await_complete(descriptor),
            master.state,
            lambda: register(master),
        ):
            with pytest.raises(Invalid, match="no job is registered"):
                ask()


def test_waits_name_what_they_wait_for(stack: Stack) -> None:
    """The error that ends a wait for a result names that result."""
    with stack.master() as master:
        master.register_job(Job())
        descriptor = register(master)
        with pytest.raises(Unavailable, match=f"partitions of result {RESULT} .* of job {JOB}"):
            master.await_complete(descriptor)


@pytest.mark.parametrize("fact", [1, 2])
def test_a_result_is_registered_when_the_log_has_both_facts(stack: Stack, fact: int) -> None:
    """Tasks may begin once a result is registered, so an error of either fact is raised before."""
    faulty = FaultyLog(stack.inner)
    with stack.master(faulty) as master:
        master.register_job(Job())
        error = OutcomeUnknown("injected")
        faulty.fault = LogFault("append", faulty.calls["append"] + fact, error, after=True)
        registered = ResultRegistered(RESULT, PARTITIONS, SUBPARTITIONS, "", "")
        with pytest.raises(OutcomeUnknown, match="injected"):
            master.register_partition_with_producer(registered)


def test_a_registration_that_failed_may_be_repeated(stack: Stack) -> None:
    """A failed registration leaves nothing behind, and the job may be registered later."""
    deaf = Deaf(stack.inner)
    with stack.master(deaf) as master:
        with pytest.raises(
            Unavailable, match=f"job {JOB} could not be stored in time: nobody answers"
        ):
            master.register_job(Job())
        with pytest.raises(Invalid, match="no job is registered"):
            master.state()
    job = Job()
    with stack.master() as master:
        master.register_job(job)
        master.register_job(job)
        assert job.errors == []
        assert register(master).epoch == 2
        assert sum(isinstance(body, JobRegistered) for body in bodies(stack.inner)) == 2


def test_ids_of_a_job_that_is_registered_again_do_not_repeat(stack: Stack) -> None:
    """All events of a driver have different ids, also after it registers the job again."""
    with stack.master() as master:
        for _ in range(2):
            master.register_job(Job())
            register(master)
    ids = [recorded.event.id for recorded in events(stack.inner)]
    assert len(ids) == len(set(ids))


def test_a_closed_master_serves_nobody(stack: Stack) -> None:
    """A closed master knows no job, and a question to it is `Closed`."""
    with stack.master() as master:
        master.register_job(Job())
        loop = master.answers
        master.close()
        with pytest.raises(Invalid):
            master.state()
        with pytest.raises(Closed):
            loop.ask(JobRegistered("", "", ""))


def test_a_job_can_be_registered_after_its_end(stack: Stack) -> None:
    """The name of an ended job may be used again: new results are accepted, old ones stay
    released."""
    for number in range(2):
        with stack.master() as master, stack.environment() as environment:
            master.register_job(Job())
            descriptor = register(master, result=ResultId(f"r{number}"))
            for partition in range(PARTITIONS):
                produce(stack, environment, descriptor, partition)
            read(stack, environment, master, descriptor)
            master.unregister_job()
        stack.ended()

"""A driver whose network is gone for a while, on real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import MasterSettings
from headgate.control.errors import Fenced, Unavailable
from headgate.control.events.types import Produced, ResultRegistered, SegmentSummary
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.log import StateRecord
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.group_steps import GroupSteps, MasterIdentity
from headgate.storage.stores.files import FileBlobStore
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from ..doubles.loads import steady
from ..doubles.real_masters import LIMIT_S, Context, events_of, give_up_steps, hurry, wait_for
from ..link import Link

pytestmark = pytest.mark.real

HERE = "127.0.0.2"


@pytest.fixture
def link(log: KafkaEventLog) -> Iterator[Link]:
    with closing(Link(log.settings.bootstrap, HERE)) as proxy:
        yield proxy


def driver(log: KafkaEventLog, folder: Path, name: str) -> DriverMaster:
    release = ObjectDeleter(FileBlobStore(folder), "")
    return DriverMaster(log, release, MasterSettings(60_000), DriverIdentity(name, "0"))


@pytest.mark.timeout(180)
def test_a_driver_that_was_cut_off_leaves_its_successor_alone(
    log: KafkaEventLog, link: Link, tmp_path: Path
) -> None:
    """A driver that loses Kafka while it decides, and comes back after another driver has taken the
    job over, is fenced, and its successor's work goes on."""
    job, result = JobId("job"), ResultId("r")
    far = KafkaEventLog(replace(log.settings, bootstrap=link.bootstrap, request_timeout_s=2.0))
    first, second = driver(far, tmp_path, "first"), driver(log, tmp_path, "second")
    context, errors = Context(job), list[BaseException]()
    context.on_fatal_error = errors.append  # type: ignore[method-assign,assignment]
    first.register_job(context)
    registered = ResultRegistered(result, 500, 1, "", "")
    first.register_partition_with_producer(registered).result(LIMIT_S)

    tasks = Announcer(job, "tasks")
    for number in range(4_000):
        attempt = AttemptId(PartitionId(result, number % 500), 1, number)
        log.append(tasks.fact(Produced(attempt, (SegmentSummary(0, 4, 1, 0, b""),))))
        if number == 1_000:
            wait_for(
                lambda: bool(first.state().results[result].production.winners),
                "nothing is decided",
            )
            link.cut()
    SYSTEM_CLOCK.sleep_s(5.0)  # time for the first driver's step to end and be retried
    second.register_job(Context(job))
    assert 2 == second.state().epoch
    link.mend()
    wait_for(lambda: bool(errors), "the first driver does not hear of the second one")
    assert [Fenced] == [type(error) for error in errors]
    again = ResultRegistered(ResultId("again"), 1, 1, "", "")
    described = second.register_partition_with_producer(again)
    assert 2 == described.result(LIMIT_S).epoch
    second.unregister_job()
    decided = [record.event.by for record in events_of(log, job) if record.event.basis is not None]
    assert sorted(decided) == decided, "the first driver has decided behind the second one"
    first.close()
    second.close()
    far.close()


def test_steps_that_are_given_up_leave_nothing(log: KafkaEventLog, link: Link) -> None:
    """A step whose broker does not answer leaves neither threads nor descriptors behind."""
    give_up_steps(replace(log.settings, bootstrap=link.bootstrap), link)


def test_masters_that_join_again_leave_nothing(log: KafkaEventLog, link: Link) -> None:
    """A master that loses the broker inside of a step, and joins the group again, leaves neither
    threads nor descriptors behind."""
    far = KafkaEventLog(replace(log.settings, bootstrap=link.bootstrap))

    def join() -> None:
        me = MasterIdentity("one", "master one", SYSTEM_CLOCK, "")
        with closing(GroupSteps(far, me, MasterSettings())) as steps:
            while not any(partition.recovered for partition in steps._held.values()):
                steps.step(0.1)
            hurry(steps._membership)
            steps._membership.begin()
            link.cut()
            steps._membership.keep(StateRecord("job", b"unsent"))
            with pytest.raises(Unavailable):
                steps._membership.commit({0: 0})
            link.mend()

    with closing(far):
        far.partition(JobId("job"))
        join()
        with steady():
            for _ in range(3):
                join()

"""Jobs that begin, speak and are forgotten in one partition, whose state may be lost: no driver
takes a job that has events in the log for a new one."""

from __future__ import annotations

from contextlib import closing

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from headgate.control.clock import Deadline
from headgate.control.ids import JobId
from headgate.control.log import StateRecord, coverage_of
from headgate.control.master.announcer import Announcer
from headgate.control.memory.log import MemoryEventLog
from headgate.control.snapshots.resume import begin, forget, read_snapshots, take_up

from ..doubles.jobs import REGISTERED

JOBS = st.sampled_from([JobId("a"), JobId("b"), JobId("c")])


def soon() -> Deadline:
    return Deadline.after(1.0)


class Beginnings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryEventLog(1)
        self.begun: set[JobId] = set()
        self.first: dict[JobId, int] = {}

    @rule(job=JOBS)
    def begins(self, job: JobId) -> None:
        """A driver that begins later goes on where the job's events begin, or before."""
        begin(self.log, job, soon())
        self.begun.add(job)
        with closing(take_up(self.log, job, soon()).follower) as follower:
            at = max(self.log.oldest(job), self.first.get(job, follower.position()))
            assert follower.position() <= at

    @precondition(lambda self: self.begun)
    @rule(job=JOBS)
    def speaks(self, job: JobId) -> None:
        if job in self.begun:
            event = Announcer(job, "driver").fact(REGISTERED)
            self.first.setdefault(job, self.log.append(event).offset(soon()))

    @rule(job=JOBS)
    def is_forgotten(self, job: JobId) -> None:
        """A sweep forgets a job only if the log has no event of it."""
        if job not in self.first and self.log.read_state(job, soon()):
            assert forget(self.log, job, soon())
            self.begun.discard(job)

    @precondition(lambda self: self.first)
    @rule()
    def state_is_lost(self) -> None:
        """The state topic of a log that is in use is deleted and made again."""
        keys = [*self.log.read_state(None, soon()), coverage_of(0)]
        with closing(self.log.open_decisions(JobId("hand"))) as decisions:
            decisions.begin()
            for key in keys:
                decisions.keep(StateRecord(key, None))
            decisions.commit(0)

    @precondition(lambda self: not read_snapshots(self.log, None, soon()))
    @rule(share=st.floats(0, 1))
    def head_is_lost(self, share: float) -> None:
        """Retention removes events, all of a job or none."""
        before = int(self.log.written(JobId("a")) * share)
        self.log.expire(JobId("a"), min([before, *self.first.values()]))


TestBeginnings = Beginnings.TestCase

"""The event log in memory, compared with a model that is only a list."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from headgate.control.clock import Deadline
from headgate.control.errors import Fenced
from headgate.control.events.types import Event, JobAccepted, JobUnregistered
from headgate.control.ids import JobId
from headgate.control.log import Decisions
from headgate.control.memory.log import MemoryEventLog

JOBS = [JobId("a"), JobId("b")]


@dataclass(eq=False)
class Holder:
    """A holder of a job's decisions: the log's object, and the model's view of it."""

    job: JobId
    decisions: Decisions
    fenced: bool = False
    begun: bool = False
    step: int | None = None


@dataclass
class Model:
    """A list of records (job, name, step), where a marker has no job. A step has a number and ends
    once."""

    records: list[tuple[JobId | None, str, int | None]] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)

    def end_step(self, holder: Holder, fate: str) -> None:
        holder.begun = False
        if holder.step is not None:
            self.fates[holder.step] = fate
            self.records.append((None, "", None))
            holder.step = None

    def stable(self) -> int:
        for offset, (_, _, step) in enumerate(self.records):
            if step is not None and self.fates[step] == "open":
                return offset
        return len(self.records)

    def seen_by(self, job: JobId) -> list[tuple[int, str]]:
        return [
            (offset, name)
            for offset, (owner, name, step) in enumerate(self.records[: self.stable()])
            if owner == job and (step is None or self.fates[step] == "committed")
        ]


class MemoryLogMachine(RuleBasedStateMachine):
    holders: Bundle[Holder] = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryEventLog(partitions=1)
        self.model = Model()
        self.newest: dict[JobId, Holder] = {}
        self.followers = {job: self.log.follow(job) for job in JOBS}
        self.seen: dict[JobId, list[tuple[int, str]]] = {job: [] for job in JOBS}
        self.number = 0

    def name(self) -> str:
        self.number += 1
        return f"e{self.number}"

    @rule(job=st.sampled_from(JOBS))
    def append(self, job: JobId) -> None:
        fact = Event(self.name(), job, "", 0, "test", None, JobUnregistered(""))
        assert len(self.model.records) == self.log.append(fact).offset(Deadline.after(1))
        self.model.records.append((job, fact.id, None))

    @rule(target=holders, job=st.sampled_from(JOBS))
    def open_decisions(self, job: JobId) -> Holder:
        if (former := self.newest.get(job)) is not None:
            former.fenced = True
            self.model.end_step(former, "aborted")
        holder = self.newest[job] = Holder(job, self.log.open_decisions(job))
        return holder

    @rule(holder=holders)
    def begin(self, holder: Holder) -> None:
        if holder.fenced:
            with pytest.raises(Fenced):
                holder.decisions.begin()
        elif not holder.begun:
            holder.decisions.begin()
            holder.begun = True

    @rule(holder=holders)
    def write(self, holder: Holder) -> None:
        decision = Event(self.name(), holder.job, "", 0, "test", 0, JobAccepted(1))
        if holder.fenced:
            with pytest.raises(Fenced):
                holder.decisions.write(decision)
        elif holder.begun:
            holder.decisions.write(decision)
            if holder.step is None:
                holder.step = self.number
                self.model.fates[self.number] = "open"
            self.model.records.append((holder.job, decision.id, holder.step))

    @rule(job=st.sampled_from(JOBS))
    def go_on(self, job: JobId) -> None:
        """Let the newest holder write, in a new step if none is open, so that steps of several jobs
        overlap."""
        if (holder := self.newest.get(job)) is not None:
            self.begin(holder)
            self.write(holder)

    @rule(holder=holders, fate=st.sampled_from(["committed", "aborted", "closed"]))
    def end(self, holder: Holder, fate: str) -> None:
        calls = {
            "committed": lambda: holder.decisions.commit(0),
            "aborted": holder.decisions.abort,
            "closed": holder.decisions.close,
        }
        if holder.fenced and fate != "closed":
            with pytest.raises(Fenced):
                calls[fate]()
        elif holder.begun or fate != "committed":
            calls[fate]()
            self.model.end_step(holder, fate)

    @precondition(lambda self: self.model.records)
    @rule(job=st.sampled_from(JOBS), limit=st.integers(1, 5))
    def poll(self, job: JobId, limit: int) -> None:
        records = self.followers[job].poll(limit, 0)
        assert len(records) <= limit
        self.seen[job] += [(recorded.offset, recorded.event.id) for recorded in records]
        visible = self.model.seen_by(job)
        assert visible[: len(self.seen[job])] == self.seen[job]
        passed = self.followers[job].position()
        assert [place for place in visible if place[0] < passed] == self.seen[job]

    @rule(job=st.sampled_from(JOBS))
    def read_again(self, job: JobId) -> None:
        follower = self.log.follow(job)
        records = follower.poll(1000, 0)
        assert self.model.seen_by(job) == [(r.offset, r.event.id) for r in records]
        assert self.model.stable() == follower.position()

    @invariant()
    def the_end_is_where_readers_stall(self) -> None:
        assert self.model.stable() == self.followers[JOBS[0]].end()

    def teardown(self) -> None:
        names = [r.event.id for r in self.log.read_all(Deadline.after(1))]
        visible = sorted(place for job in JOBS for place in self.model.seen_by(job))
        assert [name for _, name in visible] == names


# Readers see what the model's list says, for any interleaving of two jobs' facts and steps.
TestMemoryLog = MemoryLogMachine.TestCase
TestMemoryLog.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

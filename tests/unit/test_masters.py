"""The page of the masters: members, partitions, decisions that are due, and decisions a second."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from headgate.control.events.types import AttemptStarted, Event, JobFailed
from headgate.control.ids import JobId
from headgate.control.inquiry.listing import JobCondition
from headgate.infra.ui.log_reader import LogReader
from headgate.infra.ui.masters import masters_page

from ..doubles.groups import JOBS, OPENING, Storage, drive, state_facts
from ..doubles.jobs import attempt
from ..doubles.scripted_jobs import ScriptedJob, TimedLog
from ..doubles.steps import StoppedClock
from ..doubles.viewers import Viewer
from ..doubles.watched_jobs import joined_by

MINUTE_MS = 60_000


class Group:
    """A log whose masters' page is read at times that the test sets."""

    def __init__(self) -> None:
        self.log = TimedLog()
        self.log.clock.at_ms = 10 * MINUTE_MS
        self.clock = StoppedClock()
        self.clock.at_ms = self.log.clock.at_ms
        self.reader = LogReader(self.log, self.clock)

    def page(self, after_ms: int = 3_000) -> Any:
        self.clock.at_ms += after_ms
        listing, group = self.reader.listing(), self.reader.group()
        return masters_page(
            group, listing.deciders, listing.jobs, listing.due, self.reader.partition
        )


def test_a_log_without_masters_says_so(timed: TimedLog, viewer: Viewer) -> None:
    """A log of drivers that decide for their own jobs has no master, and no job for one."""
    ScriptedJob(timed, "j")
    page = viewer.value("/api/masters")
    assert (0, []) == (page["jobs"], page["masters"])
    assert [None] * 4 == [each["slot"] for each in page["partitions"]]
    assert 0 < page["now_ms"]


def test_masters_show_what_they_hold_and_decide() -> None:
    """Each master has its partitions, its jobs and its decisions of the last minute; a decision
    that nobody has made yet is due, in the partition of its job and with the master of that."""
    group = Group()
    masters = [joined_by(group.log, slot) for slot in ("a", "b")]
    drive(group.log, Storage(), *masters)
    for job in JOBS:
        state_facts(group.log, job, *OPENING)
    waiting = group.page()
    assert (8, 16) == (waiting["jobs"], sum(each["due"] for each in waiting["partitions"]))
    assert [None] * 4 == [each["lag"] for each in waiting["partitions"]]
    drive(group.log, Storage(), *masters)
    page = group.page()
    first, second = page["masters"]
    assert [("a", [0, 2]), ("b", [1, 3])] == [
        (it["slot"], it["partitions"]) for it in page["masters"]
    ]
    assert [0] * 4 == [each["due"] for each in page["partitions"]]
    decisions = {slot: 0 for slot in "ab"}
    for job in JOBS:
        decisions["ab"[group.log.partition(job) % 2]] += 2
    assert decisions == {it["slot"]: it["decisions_per_s"] * 60 for it in page["masters"]}
    assert 8 == first["jobs"] + second["jobs"] == sum(it["jobs"] for it in page["partitions"])
    for each in page["partitions"]:
        jobs = [job for job in JOBS if group.log.partition(job) == each["partition"]]
        assert (len(jobs), group.log.written(jobs[0])) == (each["jobs"], each["end"])
        assert each["end"] - each["decided"] == each["lag"] > 0
    state_facts(group.log, JOBS[0], AttemptStarted(attempt(0, 1), "worker-1"))
    again = group.page(MINUTE_MS + 3_000)
    assert [0.0, 0.0] == [it["decisions_per_s"] for it in again["masters"]]
    assert first["last_ms"] == again["masters"][0]["last_ms"] == group.log.clock.at_ms
    assert {it["last_job"] for it in again["masters"]} < set(JOBS)


def test_a_master_that_is_gone_is_named() -> None:
    """A master that has decided and does not belong to the group any more stays on the page for an
    hour, and nobody holds its partitions until they are shared out again."""
    group = Group()
    masters = [joined_by(group.log, slot) for slot in ("a", "b")]
    drive(group.log, Storage(), *masters)
    for job in JOBS:
        state_facts(group.log, job, *OPENING)
    drive(group.log, Storage(), *masters)
    group.log.evict("b")
    page = group.page()
    assert [("a", True), ("b", False)] == [(it["slot"], it["is_member"]) for it in page["masters"]]
    assert ["a", None, "a", None] == [each["slot"] for each in page["partitions"]]
    assert [] == page["masters"][1]["partitions"]
    drive(group.log, Storage(), masters[0])
    assert {"a"} == {each["slot"] for each in group.page()["partitions"]}
    assert ["a", "b"] == [it["slot"] for it in group.page(50 * MINUTE_MS)["masters"]]
    assert ["a"] == [it["slot"] for it in group.page(10 * MINUTE_MS)["masters"]]


def test_decisions_of_drivers_count_for_no_master() -> None:
    """Only what masters of the group decide is counted, and each decision once, also if its job is
    read again from its start because its log does not explain itself."""
    group = Group()
    ScriptedJob(group.log, "j", start_ms=group.log.clock.at_ms)
    master = joined_by(group.log, "a")
    drive(group.log, Storage(), master)
    state_facts(group.log, JobId("job-0"), *OPENING)
    drive(group.log, Storage(), master)
    wrong = Event("1.9", JobId("job-0"), "", 0, "master a 0000000a", 0, JobFailed("nothing"))
    with closing(group.log.open_decisions(JobId("job-0"))) as decisions:
        decisions.begin()
        decisions.write(wrong)
        decisions.commit(0)
    rates = [group.page()["masters"][0]["decisions_per_s"] for _ in range(3)]
    assert [2 / 60] * 3 == rates
    assert JobCondition.DAMAGED in [each.condition for each in group.reader.listing().jobs]

"""The cost of a job that starts among many events of others, and of scans of all jobs.

One partition of a real broker holds the facts of a hundred other jobs, each with a snapshot behind
its last fact, as its master leaves it. Everything is measured twice: before those events are
written, and behind them.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial

from confluent_kafka.admin import AdminClient
from rich.table import Table

from headgate.control.clock import Deadline
from headgate.control.contract import MasterSettings
from headgate.control.errors import Unavailable
from headgate.control.events import codec
from headgate.control.events.types import Consumed, JobRegistered
from headgate.control.ids import JobId, ResultId
from headgate.control.inquiry.audit import fold
from headgate.control.inquiry.job_view import JobView
from headgate.control.inquiry.neglected import follow_jobs, neglected
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.kafka.records import produce
from headgate.control.kafka.settings import KafkaSettings, TopicSettings
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.model.replay import Snapshot
from headgate.control.model.state import JobState, ResultState
from headgate.control.snapshots import records
from headgate.control.snapshots.records import Standing
from headgate.control.snapshots.resume import read_snapshots
from headgate.infra.devstack import stack

OTHERS = 100
LIMIT_S = 3_600.0


class Context:
    """A job that is registered and does nothing more; by default its application names it."""

    def __init__(self, job: JobId, application: str = "") -> None:
        self.job_id = job
        self.application = application or job

    def on_fatal_error(self, error: BaseException) -> None:
        raise AssertionError(error)

    def reproduce(self, missing: Mapping[ResultId, frozenset[int]]) -> None:
        raise AssertionError("nothing is lost here")


class Untouched:
    """A storage without objects."""

    def delete(self, job: JobId, result: ResultState, attempts: object) -> int:
        return 0

    def sweep(self, closed: JobState) -> int:
        return 0


def run(events: int) -> Table:
    state = stack.status()
    assert state is not None, "start the stack first: make stack"
    prefix, topic = f"bench-{time.time_ns()}", TopicSettings(1, 1, 86_400_000)
    settings = KafkaSettings(state.bootstrap, prefix, topic)
    table = Table("seconds for", "without others", "among them")
    table.title = (
        f"among {events:,} events of {OTHERS} jobs; load average before {os.getloadavg()[0]:.1f}"
    )
    try:
        with closing(KafkaEventLog(settings)) as log:
            log.prepare(Deadline.after(LIMIT_S))
            before = measured(settings, "before")
            fill(log, events)
            for what, took_s in measured(settings, "behind").items():
                table.add_row(what, f"{before[what]:.2f}", f"{took_s:.2f}")
    finally:
        admin = AdminClient({"bootstrap.servers": state.bootstrap})
        for deleted in admin.delete_topics([created.name for created in settings.topics]).values():
            deleted.result(LIMIT_S)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.caption = f"peak of this process: {peak_mib:.0f} MiB"
    return table


def fill(log: KafkaEventLog, events: int) -> None:
    """Write each job's events in a row, followed by its snapshot."""
    producer, each = log._clients.producer(), events // OTHERS
    for number in range(OTHERS):
        job = JobId(f"other-{number}")
        announcer, place = Announcer(job, "bench"), log._clients.place(job)
        registered = JobRegistered("per-job", "0", "bench")
        log.append(announcer.fact(registered)).offset(Deadline.after(LIMIT_S))
        fact = announcer.fact(Consumed(ResultId("1-0000"), 0, 1, 1, 50_000, 1 << 20, 8))
        record, headers = codec.encode(fact), codec.headers(fact)
        send = partial(produce, producer, place, job, record, lambda *_: None, headers)
        for _ in range(each):
            while not _handed_over(send):
                producer.poll(0.01)
        producer.flush(LIMIT_S)
        position = log.written(job)
        state = JobState(job, 1)
        kept = Snapshot(state, (), position, 0, "per-job", registered, announcer.clock.now_ms())
        with closing(log.open_decisions(job)) as decisions:
            decisions.begin()
            for state_record in records.write(kept, Standing())[0]:
                decisions.keep(state_record)
            decisions.commit(position)


def _handed_over(hand_over: partial[None]) -> bool:
    try:
        hand_over()
    except Unavailable:  # the client's queue is full
        return False
    return True


def measured(settings: KafkaSettings, name: str) -> dict[str, float]:
    """Measure each act with clients of its own, as in a new process."""
    job, took_s = JobId(name), dict[str, float]()
    wide = MasterSettings(wait_ms=int(LIMIT_S * 1000))
    with closing(KafkaEventLog(settings)) as log:
        log.prepare(Deadline.after(LIMIT_S))
        driver = DriverMaster(log, Untouched(), wide, DriverIdentity("driver", "0"))
        with closing(driver):
            began_s = time.perf_counter()
            driver.register_job(Context(job))
            took_s["a driver to begin its job"] = time.perf_counter() - began_s
        with closing(DriverMaster(log, Untouched(), wide, DriverIdentity("named", "0"))) as named:
            began_s = time.perf_counter()
            named.register_job(Context(JobId(f"{name}-named"), "bench"))
            took_s["the first driver of a job with a name of its own"] = (
                time.perf_counter() - began_s
            )
        with closing(
            DriverMaster(log, Untouched(), wide, DriverIdentity("next", "0"))
        ) as successor:
            began_s = time.perf_counter()
            successor.register_job(Context(job))
            took_s["the next driver to take it over"] = time.perf_counter() - began_s
    with closing(KafkaEventLog(settings)) as log, closing(JobView(log, job)) as watch:
        began_s = time.perf_counter()
        watch.state(Deadline.after(LIMIT_S))
        took_s["a task's first look at it"] = time.perf_counter() - began_s
    with closing(KafkaEventLog(settings)) as log:
        began_s = time.perf_counter()
        known = read_snapshots(log, None, Deadline.after(LIMIT_S))
        positions = {other: snapshot.position for other, snapshot in known.items()}
        assert fold(log.read_all(Deadline.after(LIMIT_S), positions), known)
        took_s["the states of all jobs, as fsck has them"] = time.perf_counter() - began_s
        began_s = time.perf_counter()
        news = log.read_all(Deadline.after(LIMIT_S), positions)
        jobs = follow_jobs(news, known)
        list(neglected(jobs, {}, time.time_ns() // 1_000_000, log.oldest))
        took_s["who is to be swept"] = time.perf_counter() - began_s
    return took_s

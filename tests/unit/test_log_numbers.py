"""The numbers of jobs, for alarms: the same as those of reports, and the same after a restart."""

from __future__ import annotations

from threading import Event
from typing import Any, get_args

import pytest

from headgate.connectors.spark.report import JobReport, job_report
from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.errors import Lost, Unavailable
from headgate.control.events import types
from headgate.control.events.types import (
    AttemptFailed,
    Produced,
    PromoteRequested,
    Recorded,
)
from headgate.control.ids import JobId, ResultId
from headgate.control.inquiry.reading import states
from headgate.control.memory.log import MemoryTail
from headgate.control.model.apply import _GONE_MAX
from headgate.control.model.replay import Derived, Replay
from headgate.control.model.state import JobState
from headgate.infra.cli import fields
from headgate.infra.metrics import families
from headgate.infra.metrics.families import FAMILIES, OF_A_JOB, MetricValues
from headgate.infra.metrics.log_numbers import LogNumbersReader
from headgate.infra.metrics.regular_fsck import RegularFsck
from headgate.infra.ui import pages
from headgate.infra.ui.log_reader import LogReader
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.upkeep.fsck import Kind

from ..doubles.commands import KeptLog, exchange
from ..doubles.scrapes import DatedLog, Scraped, catch_up, of_jobs, reading, scraped, values
from ..doubles.scripted_jobs import START_MS, ScriptedJob, TimedLog
from ..doubles.steps import StoppedClock
from ..doubles.watched_jobs import LOST, NightlyOrders

COUNTERS = [family.name for family in OF_A_JOB if family.type == "counter"]
LATENCY = "headgate_decision_latency_seconds"


@pytest.fixture
def dated() -> DatedLog:
    return DatedLog()


def falls(before: Scraped, after: Scraped) -> list[tuple[str, ...]]:
    """Return the counters of jobs that are lower, or gone."""
    return [key for key in before if key[0] in COUNTERS and after.get(key, -1.0) < before[key]]


def by_kind(scrape: Scraped) -> dict[str, float]:
    return {key[1]: n for key, n in scrape.items() if key[0] == "headgate_events_total"}


def undecided(job: ScriptedJob, name: str) -> types.Event:
    """Return a fact from which decisions follow."""
    attempt = job.begin("r", 0)
    return types.Event(name, job.job, "", job.now_ms, "task", None, Produced(attempt, (), 1))


# Agreement


def test_numbers_are_those_of_the_reports(timed: TimedLog) -> None:
    """Bytes, rows, requests and price are those of `headgate report` and of the list of jobs."""
    orders = NightlyOrders(timed, START_MS + 64_000)
    orders.begin()
    orders.write({3, 5})
    ScriptedJob(timed, "other").register("r", 2, 2, "x")
    shown = scraped(reading(timed))
    for listed in LogReader(timed, timed.clock).listing().jobs:
        job, row = str(listed.job), fields.job_fields(listed)
        report = job_report(states(timed, job)[0])
        assert row["written_bytes"] == shown["headgate_written_bytes_total", job]
        assert report.stored_bytes == shown["headgate_written_bytes_total", job]
        assert row["stored_bytes"] == shown["headgate_stored_bytes", job]
        assert row["exchanges"] == shown["headgate_exchanges_total", job]
        assert row["heard_ms"] == shown["headgate_driver_heard_timestamp_seconds", job] * 1000
        assert row["lease_ms"] == shown["headgate_lease_seconds", job] * 1000
        assert 1 == shown["headgate_job_condition", row["state"], job]
        assert sum(r.rows for r in report.results) == shown["headgate_written_rows_total", job]
        assert report.read_bytes == shown["headgate_read_bytes_total", job]
        assert report.gets == shown["headgate_get_requests_total", job]
        assert report.puts == shown["headgate_estimated_put_requests", job]
        assert report.price_usd == shown["headgate_estimated_price_dollars", job]
        assert report.throttled_gets == shown["headgate_throttled_requests_total", "get", job]
    reached = {
        state: shown["headgate_partitions", "nightly-orders", state] for state in ("writing",)
    }
    assert {"writing": 2} == reached
    assert 22 + 24 == shown["headgate_partitions", "nightly-orders", "consumable"]
    assert 1 == shown["headgate_job_info", "tests", "other", "per-job", "0.1.0"]


@pytest.mark.slow
def test_twenty_exchanges_agree_to_the_byte(log: KeptLog, objects: Objects) -> None:
    """The bytes of metrics, report, list of jobs, fsck and bucket are the same number."""
    for number in range(20):
        exchange(log, objects, close=False, result=ResultId(f"r{number}"))
    store, clock = MemoryBlobStore(objects), StoppedClock(SYSTEM_CLOCK.now_ms())
    reader = reading(log, clock)
    numbers = reader.numbers()
    assert numbers is not None
    checked = RegularFsck(log, store, "root", 60.0).check()
    shown = values(MetricValues().collect(numbers, checked))
    (row,) = pages.jobs_page(LogReader(log).listing())["jobs"]
    report = job_report(states(log, "j")[0])
    in_bucket = sum(stat.size_bytes for stat in store.list("root/"))
    assert {in_bucket} == {
        shown["headgate_written_bytes_total", "j"],
        shown["headgate_stored_bytes", "j"],
        shown["headgate_fsck_live_bytes",],
        row["written_bytes"],
        row["stored_bytes"],
        report.stored_bytes,
    }
    assert 20 == shown["headgate_exchanges_total", "j"] == len(report.results)
    assert 20 * 300 == shown["headgate_written_rows_total", "j"]
    assert len(objects) == shown["headgate_written_objects_total", "j"] == report.puts
    assert 0 == sum(shown["headgate_fsck_findings", kind.value] for kind in Kind)


def test_states_of_partitions(timed: TimedLog) -> None:
    """A lost partition is ordered again; partitions of a released result wait for their deletion,
    and are then no longer counted."""
    orders = NightlyOrders(timed, START_MS + 64_000)
    orders.begin()
    orders.write(set())
    orders.lose(LOST)
    reader = reading(timed)
    assert 1 == scraped(reader)["headgate_partitions", "nightly-orders", "again"]
    orders.repair(LOST)
    orders.job.close()
    catch_up(reader)
    assert 48 == scraped(reader)["headgate_partitions", "nightly-orders", "released"]
    orders.end()
    catch_up(reader)
    assert 0 == scraped(reader)["headgate_partitions", "nightly-orders", "released"]


def test_every_family_is_there(dated: DatedLog, objects: Objects) -> None:
    """No metric is declared without ever having a value."""
    job = ScriptedJob(dated, "j")
    job.register("r", 1, 1, "x")
    job.write_all("r", [0])
    reader = reading(dated)
    dated.append(undecided(job, "late"))
    catch_up(reader)
    numbers = reader.numbers()
    assert numbers is not None
    fsck = RegularFsck(dated, MemoryBlobStore(objects), "root", 1.0, dated.clock)
    metrics = MetricValues().collect(numbers, fsck.check())
    assert [] == [metric.name for metric in metrics if not metric.samples]
    assert len(FAMILIES) == len(metrics)


# Restarts


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_restart_changes_no_number_of_a_job(timed: TimedLog, keeps: bool, forgets: bool) -> None:
    """A new process has the same numbers, from events, from a snapshot, or from a snapshot alone.
    What it counts itself begins at zero, so that nothing is counted twice."""
    orders = NightlyOrders(timed, START_MS + 64_000)
    before = reading(timed)
    if keeps:
        orders.job.keep_snapshot()
    if keeps and forgets:
        timed.expire(orders.job.job, timed.written(orders.job.job))
    orders.begin()
    orders.write({3})
    orders.lose(LOST)
    if forgets:
        orders.end()
    catch_up(before)
    after = reading(timed)
    assert of_jobs(scraped(before)) == of_jobs(scraped(after))
    assert 20 < len(of_jobs(scraped(after)))
    counted = {
        key: value for key, value in scraped(after).items() if key[0] == "headgate_events_total"
    }
    assert {0.0} == set(counted.values())
    assert 0 < scraped(before)["headgate_events_total", "Consumable"]


def test_counters_never_go_down(timed: TimedLog) -> None:
    """No counter of a job falls while its results are written, read, released, deleted, and at last
    forgotten one by one, or while another driver takes the job over."""
    job = ScriptedJob(timed, "j")
    reader, made, before = reading(timed), MetricValues(), dict[tuple[str, ...], float]()
    for number in range(_GONE_MAX + 5):
        name = f"r{number}"
        job.register(name, 1, 1, "x")
        job.write_all(name, [0])
        job.read(name, 0, 10, 100)
        job.release(name)
        job.delete(name)
        if number % 20 == 0 or number > _GONE_MAX - 5:
            catch_up(reader)
            after = dict(scraped(reader, made))
            assert [] == falls(before, after)
            before = after
    assert _GONE_MAX + 5 == before["headgate_written_objects_total", "j"]
    assert _GONE_MAX + 5 == before["headgate_deleted_objects_total", "j"]
    assert of_jobs(before) == of_jobs(scraped(reading(timed)))


def test_nothing_is_shown_before_the_log_is_read(
    timed: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader on its way to the end of the log has no numbers: counters that are not there yet
    would look like counters that began anew."""
    job = ScriptedJob(timed, "j")
    job.register("r", 9, 1, "x")
    poll = MemoryTail.poll
    monkeypatch.setattr(MemoryTail, "poll", lambda tail, limit, wait_s: poll(tail, 1, wait_s))
    reader = LogNumbersReader(timed, timed.clock)
    for _ in range(5):
        reader.step(0.0)
        assert None is reader.numbers()
    catch_up(reader)
    assert 1 == scraped(reader)["headgate_exchanges_total", "j"]


def test_each_event_costs_once(timed: TimedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of events are replayed once each, and scrapes between them replay nothing and
    compute nothing of jobs that have not changed."""
    jobs = [ScriptedJob(timed, f"j{number}") for number in range(20)]
    for job in jobs:
        job.register("r", 200, 1, "x")
    reader, made = reading(timed), MetricValues()
    scraped(reader, made)
    for job in jobs[:5]:
        job.write_all("r", range(200))
    replayed, reported = list[int](), list[JobId]()
    observe, report = Replay.observe, job_report

    def watched(replay: Replay, recorded: Recorded) -> tuple[Derived, ...]:
        replayed.append(recorded.offset)
        return observe(replay, recorded)

    def counted(state: JobState, *more: Any) -> JobReport:
        reported.append(state.job)
        return report(state, *more)

    monkeypatch.setattr(Replay, "observe", watched)
    monkeypatch.setattr(families, "job_report", counted)
    catch_up(reader)
    for _ in range(3):
        catch_up(reader)
        shown = scraped(reader, made)
        assert 1_000 == sum(shown["headgate_written_objects_total", it.job] for it in jobs)
    assert 5 * (200 * 3 + 1) == len(replayed)
    assert sorted(job.job for job in jobs[:5]) == sorted(reported)


@pytest.mark.parametrize("silent", ["poll", "offsets"])
def test_numbers_stay_while_the_log_is_away(
    timed: TimedLog, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """If the log cannot be read, the last numbers stay, and the time of reading tells their age."""
    job = ScriptedJob(timed, "j")
    reader = reading(timed)
    before = scraped(reader)

    def away(*arguments: object) -> None:
        raise Unavailable("no broker")

    monkeypatch.setattr(MemoryTail, silent, away)
    timed.clock.at_ms += 9_000
    with pytest.raises(Unavailable):
        reader.step(0.0)
    assert before == scraped(reader)
    assert job.now_ms / 1000 == before["headgate_exporter_read_timestamp_seconds",]


def test_an_outage_is_logged_once(
    timed: TimedLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader goes on when the log is back, and writes one line for each time it was away."""
    ending, outcomes = Event(), [Unavailable("a"), Unavailable("b"), None, Unavailable("c"), None]

    def step(reader: LogNumbersReader, timeout_s: float) -> None:
        outcome = outcomes.pop(0)
        if not outcomes:
            ending.set()
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(LogNumbersReader, "step", step)
    monkeypatch.setattr(ending, "wait", lambda seconds: None)
    LogNumbersReader(timed).run(ending)
    assert ["the log was not read: a", "the log was not read: c"] == caplog.messages


def test_lost_events_lead_to_a_new_reading(timed: TimedLog) -> None:
    """If retention was faster than the reader, nothing is shown until the log is read again."""
    job = ScriptedJob(timed, "j")
    reader = reading(timed)
    before = scraped(reader)
    job.register("r", 1, 1, "x")
    job.write_all("r", [0])
    timed.expire(job.job, job.keep_snapshot())
    with pytest.raises(Lost):
        reader.step(0.0)
    assert None is reader.numbers()
    catch_up(reader)
    assert [] == falls(before, scraped(reader))
    assert 1_000 == scraped(reader)["headgate_written_bytes_total", "j"]


# What the log tells beside states


def test_latency_is_that_of_decisions_since_the_start(dated: DatedLog) -> None:
    """The latency of a decision is the time from its fact, by the log's clock. The decisions from
    before the start do not count again."""
    job = ScriptedJob(dated, "j")
    job.register("r", 3, 1, "x")
    reader = reading(dated)
    assert 0 == scraped(reader)[f"{LATENCY}_count", "per-job"]
    job.write_all("r", range(3))
    catch_up(reader)
    shown = scraped(reader)
    assert 4 == shown[f"{LATENCY}_count", "per-job"]
    assert 0.008 == pytest.approx(shown[f"{LATENCY}_sum", "per-job"])
    assert 4 == shown[f"{LATENCY}_bucket", "0.005", "per-job"]
    assert 0 == shown[f"{LATENCY}_count", "session"]


def test_nothing_is_kept_of_what_is_settled(dated: DatedLog) -> None:
    """The reader keeps no times of facts that are decided, or of results that are released."""
    job = ScriptedJob(dated, "j")
    reader = reading(dated)
    job.register("r", 1, 1, "x")
    job.write_all("r", [0])
    job.release("r")
    catch_up(reader)
    reader._look()
    assert ({}, {}) == (reader._asked, reader._registered)


def test_a_log_without_times_has_no_latency(timed: TimedLog) -> None:
    """No latency is made up if the log does not say when it took an event."""
    job = ScriptedJob(timed, "j")
    reader = reading(timed)
    job.register("r", 1, 1, "x")
    catch_up(reader)
    shown = scraped(reader)
    assert 0 < shown["headgate_events_total", "PartitionAccepted"]
    assert 0 == shown[f"{LATENCY}_count", "per-job"]


@pytest.mark.parametrize("kind", [DatedLog, TimedLog])
def test_decisions_that_are_due_show(kind: type[TimedLog]) -> None:
    """A fact that waits for its decision is counted, with its time: its author's, or the log's."""
    job = ScriptedJob(log := kind(), "j")
    job.register("r", 1, 1, "x")
    reader = reading(log)
    assert 0 == scraped(reader)["headgate_due_decisions", "j"]
    job.now_ms += 7_000
    late = undecided(job, "late")
    log.clock.at_ms = 0  # the time at which a log of authors' times took a fact
    log.append(late)
    catch_up(reader)
    shown = scraped(reader)
    assert 2 == shown["headgate_due_decisions", "j"]
    assert job.now_ms / 1000 == shown["headgate_oldest_due_fact_timestamp_seconds", "j"]


def test_the_oldest_result_is_known_after_a_restart(timed: TimedLog) -> None:
    """The time of the oldest result that is not released comes from its registration, even if a
    snapshot has that event; if the log has lost it, the job's beginning stands for it."""
    key = "headgate_oldest_unreleased_result_timestamp_seconds", "j"
    job = ScriptedJob(timed, "j")
    reader = reading(timed)
    assert key not in scraped(reader)
    times = []
    for name in ("a", "b"):
        job.now_ms += 10_000
        times.append(job.now_ms / 1000)
        job.register(name, 1, 1, "x")
    job.keep_snapshot()
    catch_up(reader)
    assert times[0] == scraped(reader)[key] == scraped(reading(timed))[key]
    job.release("a")
    catch_up(reader)
    assert times[1] == scraped(reader)[key] == scraped(reading(timed))[key]
    timed.expire(job.job, job.keep_snapshot())
    assert START_MS / 1000 == scraped(reading(timed))[key]
    job.release("b")
    catch_up(reader)
    assert key not in scraped(reader)


def test_events_are_counted_by_kind(timed: TimedLog) -> None:
    """Each kind has its counter from the start on, so that the first event of a kind is seen."""
    job = ScriptedJob(timed, "j")
    job.register("r", 1, 1, "x")
    attempt = job.begin("r", 0)
    reader = reading(timed)
    job.state(AttemptFailed(attempt, "oom"))
    catch_up(reader)
    kinds = by_kind(scraped(reader))
    new = {kind: number for kind, number in kinds.items() if number}
    assert {"AttemptFailed": 1, "Superseded": 1} == new
    assert len(get_args(types.Body)) == len(kinds)


def test_records_that_are_no_events_are_counted(timed: TimedLog) -> None:
    """Only records that came since the start are counted."""
    job = ScriptedJob(timed, "j")
    timed.put_record(job.job, job.job, b"garbage")
    reader = reading(timed)
    key = ("headgate_exporter_rejected_records_total",)
    assert 0 == scraped(reader)[key]
    timed.put_record(job.job, job.job, b"garbage")
    catch_up(reader)
    assert 1 == scraped(reader)[key]


def test_offsets_and_lag(timed: TimedLog) -> None:
    """The ends of the log are those of its partitions; the lag is the part that is not read."""
    job = ScriptedJob(timed, "j")
    reader, number = reading(timed), str(timed.partition(job.job))
    timed.expire(job.job, 1)
    shown = scraped(reader)
    assert timed.written(job.job) == shown["headgate_log_end_offset", number]
    assert 0 == shown["headgate_exporter_lag_records", number]
    job.register("r", 1, 1, "x")
    reader._look()
    shown = scraped(reader)
    assert 4 == shown["headgate_exporter_lag_records", number]
    assert 1 == shown["headgate_log_oldest_offset", number]


# Conditions, and the end


def test_a_silent_driver_is_neglected(timed: TimedLog) -> None:
    """The condition of a job is that of `headgate jobs`; a heartbeat counts as a word."""
    job = ScriptedJob(timed, "j")
    reader = reading(timed)
    timed.clock.at_ms += 61_000
    catch_up(reader)
    shown = scraped(reader)
    assert (
        1
        == shown["headgate_jobs", "neglected"]
        == shown["headgate_job_condition", "neglected", "j"]
    )
    timed.beat(job.job)
    catch_up(reader)
    assert (0, 1) == tuple(scraped(reader)["headgate_jobs", it] for it in ("neglected", "running"))


def test_the_numbers_of_an_ended_job_go(timed: TimedLog) -> None:
    """A job that is over has numbers for another hour. It is still counted, until the log forgets
    it. A job that has left a result for others keeps its numbers."""
    ended, lasting = ScriptedJob(timed, "j"), ScriptedJob(timed, "k")
    lasting.register("r", 1, 1, "x")
    lasting.write_all("r", [0])
    lasting.state(PromoteRequested(ResultId("r"), 0), by="driver")
    reader = reading(timed)
    for job in (ended, lasting):
        job.close()
    timed.clock.at_ms += 3_500_000
    catch_up(reader)
    assert of_jobs(scraped(reader), "j")
    timed.clock.at_ms += 200_000
    catch_up(reader)
    assert {} == of_jobs(scraped(reader), "j")
    assert {} != of_jobs(scraped(reader), "k")
    assert 2 == scraped(reader)["headgate_jobs", "ended"]
    assert of_jobs(scraped(reader)) == of_jobs(scraped(reading(timed)))
    timed.expire(JobId("j"), timed.written(JobId("j")))
    catch_up(reader)
    timed.clock.at_ms += 60_000
    catch_up(reader)
    assert 1 == scraped(reader)["headgate_jobs", "ended"]

"""The numbers of the live page: those of the commands, and those of partitions over time."""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.control.contract import MasterSettings
from headgate.control.inquiry.reading import known
from headgate.infra.ui import pages
from headgate.infra.ui.log_reader import LogReader
from headgate.storage.stores.memory import Objects

from ..doubles.commands import JOB, RESULT, KeptLog, exchange, ran
from ..doubles.scripted_jobs import START_MS, ScriptedJob, TimedLog
from ..doubles.viewers import Viewer
from ..doubles.watched_jobs import LARGE, LOST, ORDERS, STRAGGLER, NightlyOrders

MANY = 10_000
PAGE_CPU_S_MAX = 1.0


@pytest.fixture
def kept(log: KeptLog) -> Iterator[Viewer]:
    """Return a viewer of the log that commands read, too."""
    viewer = Viewer(log)
    yield viewer
    viewer.close()


def by_command(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran(*arguments, "--json")[1]]


# The numbers


def test_jobs_have_the_numbers_of_the_command(log: KeptLog, objects: Objects, kept: Viewer) -> None:
    """The list of jobs has what `headgate jobs` prints, the price that `headgate report` prints,
    and so has the page of one job."""
    exchange(log, objects, close=False, settings=MasterSettings(lease_ms=60_000), place="s3://b/r")
    (listed,) = by_command("jobs")
    (report,) = by_command("report", "--job", JOB)
    (row,) = kept.value("/api/jobs")["jobs"]
    assert listed | {"price_usd": report["price_usd"], "read_bytes": report["read_bytes"]} == row
    page = kept.value(f"/api/job?job={JOB}")
    assert row == page["job"]
    (mine,), (theirs,) = page["report"]["exchanges"], report["exchanges"]
    assert theirs == {name: mine[name] for name in theirs}
    totals = {name: value for name, value in report.items() if name != "exchanges"}
    assert totals == {name: page["report"][name] for name in totals}


def test_every_offset_has_the_numbers_of_the_command(
    log: KeptLog, objects: Objects, kept: Viewer
) -> None:
    """At each offset of a job's life the pages count what `headgate state --at` counts."""
    exchange(log, objects, close=True)
    offsets = [event["offset"] for event in by_command("events", "--job", JOB)]
    assert len(offsets) > 15
    for place, offset in enumerate(offsets, 1):
        (state,) = by_command("state", "--job", JOB, "--at", str(offset))
        page = kept.value(f"/api/job?job={JOB}&event={place}")
        assert (offset, place) == (page["moment"]["offset"], page["moment"]["event"])
        shown = [
            (it["result"], it["writing"], it["consumable_now"], it["complete"], it["released"])
            for it in page["report"]["exchanges"]
        ]
        assert shown == [
            (it["result"], it["writing"], it["consumable"], it["complete"], it["released"])
            for it in state["results"]
        ]
        assert (state["epoch"], state["closed"]) == (page["job"]["epoch"], page["job"]["closed"])
        for result in state["results"]:
            exchanged = kept.value(f"/api/exchange?job={JOB}&result={RESULT}&at={offset}")[
                "exchange"
            ]
            assert result["written"]["rows"] == exchanged["rows"]  # nothing is lost here
            assert result["reads"]["requests"] == exchanged["gets"]
            assert result["deleted"] == exchanged["deleted"]


def test_an_exchange_begins_with_its_registration(timed: TimedLog, viewer: Viewer) -> None:
    """The page of an exchange goes back no further than to its registration, where it is empty."""
    job = ScriptedJob(timed, "j")
    for name in ("r", "s"):
        job.register(name, 2, 1, "repartition")
    job.write_all("s", range(2))
    page = viewer.value("/api/exchange?job=j&result=s&event=1")
    assert (5, ["pending"] * 2) == (page["moment"]["event"] - 1, page["phases"])
    assert 1 == viewer.value("/api/job?job=j&event=1")["moment"]["event"]
    assert "no result s" in viewer.value("/api/exchange?job=j&result=s&at=0")["error"]


def test_states_begin_at_the_snapshot(log: KeptLog, objects: Objects, kept: Viewer) -> None:
    """A page whose first events the log has lost begins at the snapshot, and says so for an offset
    before it."""
    exchange(log, objects, close=False, settings=MasterSettings(snapshot_events=4))
    (snapshot,) = known(log, JOB).values()
    log.expire(JOB, snapshot.position)
    (listed,) = by_command("jobs")
    job = kept.value(f"/api/job?job={JOB}")["job"]
    assert listed == {name: job[name] for name in listed}
    with kept.ask(f"/api/job?job={JOB}&at={snapshot.position - 2}") as answer:
        assert 404 == answer.status
        assert "are gone" in json.loads(answer.read())["error"]


# One exchange


def test_an_exchange_shows_where_it_is_uneven(timed: TimedLog, viewer: Viewer) -> None:
    """A partition that takes long, one that is large, one that is lost, and a reader that has much
    are named; the lost one shows its attempts, and why the second was made."""
    orders = NightlyOrders(timed, START_MS)
    orders.begin()
    orders.write({STRAGGLER})
    orders.lose(LOST)
    address = f"job={ORDERS}&result=1-0003"
    page = viewer.value(f"/api/exchange?{address}")
    assert ("again", "writing") == (page["phases"][LOST], page["phases"][STRAGGLER])
    assert {"again": 1, "writing": 1, "consumable": 22} == page["exchange"]["reached"]
    assert [it["index"] for it in page["outliers"] if it["what"] == "stored bytes"] == [LARGE]
    slow = [it["index"] for it in page["outliers"] if it["what"] == "written in ms"]
    assert slow == [STRAGGLER]
    orders.repair(LOST)
    orders.finish(STRAGGLER)
    orders.read()
    page = viewer.value(f"/api/exchange?{address}")
    assert {"consumable": 24} == page["exchange"]["reached"]
    assert 24 == page["exchange"]["consumable"] == page["exchange"]["consumable_now"]
    assert 11 in [it["index"] for it in page["outliers"] if it["what"] == "read bytes"]
    columns = page["attempts"]
    tries = [n for n, index in enumerate(columns["partition"]) if index == LOST]
    first, second = tries
    assert columns["TrackingStopped"][first] < columns["AttemptStarted"][second]
    assert columns["TrackingStopped"][second] is None
    assert [False, True] == [columns["wins"][n] for n in tries]
    made = viewer.value(f"/api/partition?{address}&partition={LOST}")["attempts"]
    assert ["its map stage was run", "404 read twice"] == [
        made[0]["reason"],
        *re.findall("404 read twice", made[1]["reason"]),
    ]
    orders.end()
    assert {"deleted": 24} == viewer.value(f"/api/exchange?{address}")["exchange"]["reached"]


def test_times_of_partitions_follow_the_log(timed: TimedLog, viewer: Viewer) -> None:
    """The columns of an attempt are the times of its events, since the result was registered."""
    job = ScriptedJob(timed, "j")
    job.register("r", 1, 1, "repartition")
    job.now_ms += 100
    attempt = job.begin("r", 0)
    job.now_ms += 50
    job.produce(attempt, 10, 99)
    job.now_ms += 25
    job.release("r")
    job.now_ms += 5
    job.delete("r")
    columns = viewer.value("/api/exchange?job=j&result=r")["attempts"]
    expected = {"AttemptStarted": 100, "Produced": 150, "Consumable": 152, "Released": 177}
    assert expected == {name: columns[name][0] for name in expected}
    assert (180, 10, 99) == tuple(columns[name][0] for name in ("Deleted", "rows", "bytes"))


@pytest.mark.slow
def test_ten_thousand_partitions_take_less_than_a_second(timed: TimedLog) -> None:
    """A page of an exchange with 10,000 partitions takes less than a second of a processor."""
    job = ScriptedJob(timed, "wide")
    job.register("r", MANY, MANY, "repartition")
    job.write_all("r", range(MANY), 3)
    reader = LogReader(timed)
    with reader.history("wide") as history:
        gc.collect()
        before_s = sum(os.times()[:2])
        page = pages.exchange_page(pages.Moment.of(history, None, job.now_ms), "r")
        assert MANY == page["phases"].count("consumable") == len(page["attempts"]["name"])
        assert json.dumps(page)
        past = history.records[MANY].offset
        pages.exchange_page(pages.Moment.of(history, past, 0), "r")
        assert sum(os.times()[:2]) - before_s < 2 * PAGE_CPU_S_MAX
    reader.close()

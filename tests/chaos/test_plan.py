"""The plan of chaos keeps the promises of a seed."""

from __future__ import annotations

from itertools import islice
from xml.etree import ElementTree

import pytest

from headgate.control.contract import SESSION

from ..doubles.loads import Load
from .memory import Samples, drawn
from .plan import (
    ACTION,
    APPLICATIONS,
    BETWEEN_S,
    BUNDLES_MAX,
    EXCHANGES,
    FAULTS,
    IN_TURN,
    KILLED,
    OFFLOAD,
    QUERIES,
    RANGES_MAX,
    REPLACED,
    SOAKED,
    TPCDS,
    faults,
    plan,
)


def test_a_seed_is_a_plan() -> None:
    """A seed always gives the same rounds, and another seed gives others."""
    assert list(islice(plan(7), 40)) == list(islice(plan(7), 40))
    assert list(islice(plan(7), 40)) != list(islice(plan(8), 40))


def test_every_fault_comes_once_before_any_comes_again() -> None:
    """Every fault comes once in as many rounds as there are faults."""
    rounds = list(islice(plan(7), 2 * len(FAULTS)))
    for part in (rounds[: len(FAULTS)], rounds[len(FAULTS) :]):
        assert sorted(FAULTS) == sorted((planned.victim, planned.how) for planned in part)


@pytest.mark.parametrize("application", APPLICATIONS)
def test_every_fault_meets_every_application(application: str) -> None:
    """Ten seeds, each with as many rounds as there are faults, have each fault for each
    application."""
    rounds = [planned for seed in range(1, 11) for planned in islice(plan(seed), len(FAULTS))]
    met = {
        (planned.victim, planned.how)
        for planned in rounds
        if planned.work.application == application
    }
    assert set(FAULTS) == met


def test_one_application_alone() -> None:
    """A plan for one kind of application has no other kind, and still every fault."""
    rounds = list(islice(plan(7, [TPCDS]), len(FAULTS)))
    assert {TPCDS} == {planned.work.application for planned in rounds}
    assert set(FAULTS) == {(planned.victim, planned.how) for planned in rounds}


def test_queries_and_ways_are_drawn() -> None:
    """Rounds have every query and both ways, and no query twice in a round."""
    works = [planned.work for planned in islice(plan(7, [TPCDS]), 40)]
    assert {OFFLOAD, ACTION} == {work.way for work in works}
    assert set(QUERIES) == {number for work in works for number in work.queries}
    assert {len(IN_TURN)} == {len(set(work.queries)) for work in works}


@pytest.mark.parametrize("application", APPLICATIONS)
def test_exchanges_are_combined_in_half_of_the_rounds(application: str) -> None:
    """About half of the rounds of each application combine, in every way that can be drawn."""
    works = [planned.work for planned in islice(plan(7, [application]), 300)]
    ways = [work.combined for work in works if work.combined]
    assert 120 < len(ways) < 180
    drawn = {(b, r) for b in range(1, BUNDLES_MAX + 1) for r in range(1, RANGES_MAX + 1)}
    assert drawn == set(ways)


def test_a_victim_is_there() -> None:
    """Masters are struck only in mode `session`, and executors and workers only while tasks run."""
    for planned in islice(plan(7), 200):
        assert planned.work.mode == SESSION or planned.victim != "master"
        if planned.victim in ("executor", "worker"):
            assert {strike.phase for strike in planned.strikes} <= set(planned.work.phases[1:-2])


def test_a_driver_is_replaced_after_it_has_attached() -> None:
    """A driver that is held up while it attaches would be the last to register."""
    replaced = [planned for planned in islice(plan(7), 200) if planned.how == REPLACED]
    assert len(replaced) > 10
    assert "attaching" not in {strike.phase for planned in replaced for strike in planned.strikes}


def test_how_often_a_victim_is_struck() -> None:
    """Queries lose executors and workers every few seconds, a service once or twice."""
    times: dict[tuple[str, str], set[int]] = {}
    for planned in islice(plan(7), 200):
        times.setdefault((planned.work.application, planned.victim), set()).add(
            len(planned.strikes)
        )
        order = [planned.work.phases.index(strike.phase) for strike in planned.strikes]
        assert sorted(order) == order
        assert planned.work.application == EXCHANGES or {"closing"}.isdisjoint(
            strike.phase for strike in planned.strikes
        )
        if planned.work.application == TPCDS and planned.victim in ("executor", "worker"):
            assert all(BETWEEN_S[0] <= at.after_s <= BETWEEN_S[1] for at in planned.strikes)
            assert planned.how != KILLED or {0.0} == {at.lasts_s for at in planned.strikes}
    for victim in ("master", "leader", "coordinator", "store"):
        assert {1, 2} == times[TPCDS, victim]
    assert {1} == times[TPCDS, "driver"]
    assert all(times[TPCDS, victim] == {12} for victim in ("executor", "worker"))
    assert all(n == {1} for (application, _), n in times.items() if application == EXCHANGES)


def test_hours_have_every_fault() -> None:
    """Each application meets each fault, but a driver whose memory is watched is not killed."""
    first, again = (list(islice(faults(7, 4), 2_000)) for _ in range(2))
    assert first == again
    met = {(fault.at, fault.victim, fault.how) for fault in first}
    wanted = {(at, victim, how) for at in range(4) for victim, how in SOAKED}
    assert met == wanted - {(at, "driver", KILLED) for at in (1, 3)}


def test_what_grows_is_told() -> None:
    """A process is compared with what it held in the second quarter, if it lived then."""
    life, end = range(0, 1_000, 5), 1_000.0
    samples = Samples(dict)
    samples.lives = {
        ("flat", 1): [(at, Load(9, 30, 100.0 + at % 10)) for at in life],
        ("late", 2): [(at, Load(9, 30, 100.0 + at)) for at in life if at > end / 2],
        ("gone", 3): [(at, Load(9, 30, 100.0 + at)) for at in life if at < end / 2],
        ("leaks", 4): [(at, Load(9, 30, 100.0 + at / 10)) for at in life],
        ("opens", 5): [(at, Load(9 + at // 25, 30 + at // 20, 100.0)) for at in life],
    }
    samples.close()
    assert [
        "leaks (4) has grown: mib from 137 to 187",
        "opens (5) has grown: threads from 24 to 44, descriptors from 48 to 73",
    ] == list(samples.growing())
    picture = ElementTree.fromstring(drawn(samples.lives))
    lines = [element for element in picture if element.tag.endswith("polyline")]
    assert len(lines) == len(samples.lives)

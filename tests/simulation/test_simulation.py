"""Whole jobs from one seed each: every guarantee holds, and a seed has one history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from .world import Outcome, simulate

ROOT = Path(__file__).parents[2]
SEEDS = 200
BLOCK = 20
SMALL = 104  # a seed with a small job, each of whose calls can fail once
SHARES = 4
SMALL_SESSION, SMALL_COMBINING, EVERY = 72, 134, 20
MANY = 20


@lru_cache(maxsize=SEEDS)
def outcome_of(seed: int) -> Outcome:
    return simulate(seed)


LATER = [pytest.param(start, marks=pytest.mark.slow) for start in range(BLOCK, SEEDS, BLOCK)]


@pytest.mark.parametrize("start", [0, *LATER])
def test_what_must_hold_does(start: int) -> None:
    """No seed breaks a guarantee; a failing seed is named."""
    outcomes = [outcome_of(seed) for seed in range(start, start + BLOCK)]
    assert {} == {outcome.seed: outcome.violations for outcome in outcomes if outcome.violations}
    assert sum(outcome.faults.total() for outcome in outcomes) > BLOCK


def test_an_undisturbed_job_has_no_faults_and_leaves_nothing() -> None:
    """A job without faults ends at once, and its own deletions leave nothing."""
    outcome = simulate(1, calm=True)
    assert () == outcome.violations
    assert 0 == outcome.faults.total()
    assert 0 == outcome.left


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_each_call_may_fail(share: int) -> None:
    """A small job comes to its end whichever single chance for a fault is taken."""
    fail_each(SMALL, 1 + share, SHARES)


@pytest.mark.slow
def test_calls_of_a_session_may_fail() -> None:
    """A small session job comes to its end whichever single chance is taken, of those that are
    tried."""
    fail_each(SMALL_SESSION, 1, EVERY)


def fail_each(seed: int, first: int, every: int) -> None:
    chances = simulate(seed, nth=0).chances
    assert chances > 300
    outcomes = {nth: simulate(seed, nth=nth) for nth in range(first, chances + 1, every)}
    assert {} == {
        nth: outcome.violations for nth, outcome in outcomes.items() if outcome.violations
    }
    assert all(1 == outcome.faults.total() for outcome in outcomes.values())


@pytest.mark.slow
def test_calls_of_a_job_that_combines_may_fail() -> None:
    """A small job that combines its objects comes to its end whichever single chance is taken, of
    those that are tried."""
    assert simulate(SMALL_COMBINING, nth=0).copies["combined"]
    fail_each(SMALL_COMBINING, 1, EVERY)


@pytest.mark.slow
def test_combined_results_have_every_fate() -> None:
    """Results are combined, are read as they are because that fails, and are made again."""
    fates: Counter[str] = Counter()
    for seed in range(SEEDS):
        fates += outcome_of(seed).copies
    assert {"combined", "not read", "made again", "read after a loss"} == set(fates)


@pytest.mark.slow
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_of_many_exchanges(seed: int, chained: bool) -> None:
    """A job with many exchanges goes on as long as its driver, even if each exchange reads the one
    before."""
    outcome = simulate(seed, exchanges=MANY, chained=chained)
    assert () == outcome.violations
    assert outcome.faults.total() > MANY


@pytest.mark.slow
def test_one_seed_has_one_history() -> None:
    """Two runs of a seed have the same trace, even in a process with another hash seed."""
    seeds = (3, 8, 21)
    traces = [simulate(seed).trace for seed in seeds]
    assert traces == [simulate(seed).trace for seed in seeds]
    assert len(set(traces)) == len(seeds)
    code = (
        f"from tests.simulation.world import simulate as s; print(*[s(n).trace for n in {seeds}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert traces == done.stdout.split()

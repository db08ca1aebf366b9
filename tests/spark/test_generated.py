"""Random queries: Headgate's answer is Spark's, under settings that change from query to query."""

from __future__ import annotations

import os

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate import Headgate
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.exchanges.rows import read_by_driver
from headgate.connectors.spark.patches import actions
from headgate.connectors.spark.patches.writers import SAVES

from . import pairs
from .asked import answer, ask, smallest, told
from .entered import entered
from .generated import parts, query, shrunk
from .grammar import BY_SETTINGS, RULES, tables
from .watched import Watched, lacks

FIRST, COUNT = (int(os.environ.get(name, "0")) for name in ("QUERIES_FROM", "QUERIES"))
SEEDS = range(FIRST, FIRST + (COUNT or 40))
_SHRUNK_MAX = 3


@pytest.mark.real
@pytest.mark.timeout(1200 + 10 * len(SEEDS))
def test_generated_queries(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every random query has Spark's rows in Spark's order, and all its exchanges run in Headgate.
    The driver reads what is small, in every other query.

    A query that differs is shrunk and shown. Queries that Spark itself cannot run are rare and
    skipped. Together the queries reach every part of the product that the grammar is made for.
    """
    tables(spark)
    watched = Watched(monkeypatch)
    wrong: dict[int, str] = {}
    exchanges, unanswered = 0, []
    driver = [lambda *task: None, read_by_driver]
    for seed in SEEDS:
        monkeypatch.setattr(run, "read_by_driver", driver[seed % 2])
        tree = query(seed)
        outcome = ask(spark, hg, tree)
        watched.end()
        exchanges += outcome.exchanges
        if outcome.unanswered:
            unanswered.append((seed, outcome.unanswered))
        if outcome.said:
            if len(wrong) < _SHRUNK_MAX:
                tree = smallest(spark, hg, tree)
                watched.forget()
            wrong[seed] = f"{outcome.said}; at its smallest: {tree.text}"
    assert not wrong, "\n".join(f"seed {seed}: {reason}" for seed, reason in wrong.items())
    assert exchanges > len(SEEDS)
    assert len(unanswered) * 20 <= len(SEEDS), unanswered
    assert [] == list(lacks(watched.reached, len(SEEDS)))


@pytest.mark.real
@pytest.mark.timeout(300 + 5 * len(SEEDS))
def test_generated_caches(spark: SparkSession, hg: Headgate) -> None:
    """A cache of a random query that is filled through Headgate has Spark's rows."""
    tables(spark)
    filled = 0
    for seed in SEEDS[::10]:
        tree = query(seed)
        try:
            _, expected = answer(spark, hg, tree)
        except (PySparkException, Py4JError):
            continue
        cached, before = spark.sql(tree.statement).cache(), len(hg.results())
        assert expected == told(hg.offload(cached), tree), tree.text
        assert expected == told(cached, tree), tree.text
        filled += len(hg.results()) > before
        cached.unpersist()
    assert filled >= len(SEEDS[::10]) // 2


@pytest.mark.real
def test_a_comparison_with_itself_is_none(spark: SparkSession, hg: Headgate) -> None:
    """The harness refuses an answer of Spark's that came through Headgate."""
    tables(spark)
    with entered(hg, spark), pytest.raises(AssertionError, match="ran through Headgate"):
        answer(spark, hg, query(0))


def test_every_action_meets_settings() -> None:
    """The runs under pairs of settings have every method that is replaced; saves have one
    replacement, of which there are some."""
    saves = {name for names in SAVES.values() for name in names} | {"foreachBatch"}
    names = {name for _, name in actions._methods()} - saves
    assert {"foreachPartition", "sql"} == names - pairs.ACTIONS.keys()
    assert saves & pairs.ACTIONS.keys()


def test_pairs_are_all_met() -> None:
    """Each value of a setting meets each action, and each value of another setting."""
    settings = {f"s{at}": "on" for at in range(4)}
    drawn = list(pairs.runs(settings, 1))
    met = set().union(*(run.pairs(list(settings)) for run in drawn))
    assert len(met) == len(pairs.ACTIONS) * 8 + 6 * 4
    assert len(drawn) < len(pairs.ACTIONS) * 4


@pytest.mark.parametrize("text", BY_SETTINGS)
def test_settings_matter_everywhere(text: str) -> None:
    """One query in two hundred or more has an expression that depends on settings at this place."""
    place, drawn = RULES["relation"].index(text), 0
    for seed in range(2000):
        drawn += any((part.rule, part.choice) == ("relation", place) for part in parts(query(seed)))
    assert drawn >= 10


def test_shrinking() -> None:
    """A large query that is wrong for one reason shrinks to little more than that reason."""
    large = (tree for seed in range(99) if "full join" in (tree := query(seed)).text)
    longest = max(large, key=lambda tree: len(tree.text))
    small = shrunk(longest, lambda tree: "full join" in tree.text)
    assert small.statement.count("full join") == 1
    assert small.statement.count("select") <= 5
    assert len(small.text) < len(longest.text) / 2


def test_settings_shrink_away() -> None:
    """Shrinking drops every setting that is not needed for the query to be wrong."""
    drawn = (tree for seed in range(99) if "LEGACY" in (tree := query(seed)).text)
    longest = max(drawn, key=lambda tree: len(tree.settings))
    small = shrunk(longest, lambda tree: "LEGACY" in tree.text)
    assert {"2", "-1", "LEGACY"} == set(small.settings.values())
    assert "select a a, b, c c, d, s from few0" == small.statement

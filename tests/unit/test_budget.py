"""Budgets: amounts as people write them, and exchanges that are refused before they cost."""

from __future__ import annotations

import logging
from math import inf

import pytest

from headgate.connectors.spark.exchanges.budget import NO_LIMIT, Budget, Cost, read_budget
from headgate.control.errors import Invalid
from headgate.storage.stores.costs import COSTS, kind_of

OWN = COSTS["own"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", NO_LIMIT),
        ("$0.50", Cost(0.5, inf, inf)),
        ("100000 requests", Cost(inf, 100_000, inf)),
        ("20g", Cost(inf, inf, 20 << 30)),
        (" 2TB , $3,1 requests ", Cost(3.0, 1, 2 << 40)),
        ("512", Cost(inf, inf, 512)),
    ],
)
def test_amounts_as_people_write_them(text: str, limit: Cost) -> None:
    assert read_budget(text) == limit


@pytest.mark.parametrize(
    "text", ["fifty", "$", "-1g", "5 euros", "1.5g", "1g, 2g", "1e9", "$1 requests"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_budget(text)


@pytest.mark.parametrize(
    ("exchange", "job", "named"),
    [
        ("99 requests", "", "spark.headgate.budget = 99 requests"),
        ("$0.09", "", "spark.headgate.budget = $0.09"),
        ("1k", "", "spark.headgate.budget = 1,024 bytes"),
        ("", "149 requests", "spark.headgate.budget.job = 149 requests"),
    ],
)
def test_an_exchange_over_a_limit_is_refused(exchange: str, job: str, named: str) -> None:
    """The error has the figures, and the setting to change. What the job has spent counts only for
    the limits of the job."""
    cost, of_job = Cost(0.1, 100, 2_000), Cost(1.1, 150, 1 << 40)
    budget = Budget(read_budget(exchange), read_budget(job), False, OWN)
    with pytest.raises(Invalid, match=r"e would bring the cost to .*requests") as caught:
        budget.check("e", cost, of_job)
    assert named in str(caught.value)


def test_an_exchange_within_its_limits_runs(caplog: pytest.LogCaptureFixture) -> None:
    limits = read_budget("$0.10, 100 requests, 2k")
    Budget(limits, NO_LIMIT, False, OWN).check("e", Cost(0.1, 100, 2_048), Cost())
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        Budget(limits, NO_LIMIT, True, OWN).check("e", Cost(0.1, 101, 2_048), Cost())
    assert "101 requests" in caplog.text


def test_a_session_without_limits_checks_nothing() -> None:
    assert not Budget(NO_LIMIT, NO_LIMIT, False, OWN).is_limited
    assert Budget(NO_LIMIT, read_budget("1g"), False, OWN).is_limited


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("s3://bucket/root", {}, "s3-standard"),
        ("s3://bucket--usw2-az1--x-s3/root", {}, "s3-express"),
        ("s3://bucket/root", {"endpoint": "http://127.0.0.1:9000"}, "own"),
        ("file:///folder", {}, "own"),
    ],
)
def test_the_kind_of_a_store(url: str, options: dict[str, str], kind: str) -> None:
    assert kind_of(url, options) == kind

"""Budgets: amounts as people write them, and exchanges that are refused before they cost."""

from __future__ import annotations

import logging
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.spark.exchanges.budget import NO_LIMIT, Budget, Cost, read_budget, spent
from headgate.connectors.spark.report import JobReport, ResultReport, Results
from headgate.control.errors import Invalid
from headgate.control.model.state import Forgotten
from headgate.storage.stores.costs import COSTS, kind_of
from headgate.storage.stores.request_meter import RequestCounts

from ..doubles.segments import RESULT

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
        ("$1,000", Cost(1_000.0, inf, inf)),
        ("$0.50,100 requests", Cost(0.5, 100, inf)),
        ("20g,1,000,000 requests", Cost(inf, 1_000_000, 20 << 30)),
        ("1,024 bytes, $12,345.5", Cost(12_345.5, inf, 1_024)),
    ],
)
def test_amounts_as_people_write_them(text: str, limit: Cost) -> None:
    assert read_budget(text) == limit


@pytest.mark.parametrize(
    "text",
    ["fifty", "$", "-1g", "5 euros", "1.5g", "1g, 2g", "1e9", "$1 requests", "$10,100 requests"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_budget(text)


@given(
    st.builds(
        Cost,
        st.one_of(st.just(inf), st.integers(0, 10**12).map(lambda micros: micros / 10**6)),
        st.one_of(st.just(inf), st.integers(0, 1 << 56)),
        st.one_of(st.just(inf), st.integers(0, 1 << 56)),
    )
)
def test_a_limit_is_printed_as_it_may_be_written(limit: Cost) -> None:
    """The error about a limit shows it in a form that the setting takes."""
    assert limit == read_budget(str(limit))


@pytest.mark.parametrize(
    ("released", "consumed", "gets"),
    [(None, 0, 10), (None, 3, 10), (None, 4, 7), ("asked for", 0, 7)],
)
def test_a_job_has_spent_what_its_readers_will_send(
    released: str | None, consumed: int, gets: int
) -> None:
    """The requests that are expected of readers count until all is read, or released. The bytes
    have their price, too."""
    result = ResultReport(
        RESULT, "", 2, 4, 2, consumed, 9, 3 << 30, 0, 2, 7, 10, 1 << 30, released, way="direct"
    )
    report = JobReport("job", Results([result]), {}, Forgotten(), RequestCounts())
    costs = COSTS["s3-express"]
    expected = 2 * costs.put_usd + gets * costs.get_usd + 3 * 0.0032 + 0.0006
    cost = spent(report, costs)
    assert (2 + gets, 3 << 30) == (cost.requests, cost.stored_bytes)
    assert pytest.approx(expected) == cost.usd


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
        ("s3://bucket/root", {"endpoint": "https://s3.eu-west-1.amazonaws.com"}, "s3-standard"),
        ("s3://bucket/root", {"endpoint": "https://s3.amazonaws.com.example.org"}, "own"),
        ("s3://bucket/root", {"region": "cn-north-1"}, "s3-standard"),
        ("file:///folder", {}, "own"),
    ],
)
def test_the_kind_of_a_store(
    url: str, options: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert kind_of(url, options) == kind


def test_the_environment_may_name_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of one's own has no bill, also if only the environment says where it is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")
    assert kind_of("s3://bucket/root", {}) == "own"

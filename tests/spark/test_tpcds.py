"""Ten queries of TPC-DS with every kind of exchange: Headgate, Spark and DuckDB agree."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pyspark.sql import Row, SparkSession

from headgate import Headgate

from ..bench.answers import differs_in_order, near
from ..bench.measured import left
from ..bench.tpcds_data import Answer, answers, generate, in_spark, queries, views
from ..doubles.tpcds import QUERIES
from .entered import entered, finished

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SCALE = 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """A query's text for Spark, and DuckDB's answer."""

    text: str
    answer: Answer


@pytest.fixture(scope="module")
def cases(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Case]:
    folder = tmp_path_factory.mktemp("tpcds") / "tables"
    generate(folder, SCALE)
    views(spark, folder)
    texts = {number: text for number, text in queries().items() if number in QUERIES}
    correct = answers(folder, texts)
    return {number: Case(in_spark(text), correct[number]) for number, text in texts.items()}


@pytest.fixture(scope="module")
def spark_answers(
    spark: SparkSession, hg: Headgate, cases: dict[int, Case]
) -> dict[int, list[Row]]:
    return {number: spark.sql(decider.text).collect() for number, decider in cases.items()}


@pytest.mark.parametrize("number", QUERIES)
def test_spark_is_right(
    cases: dict[int, Case], spark_answers: dict[int, list[Row]], number: int
) -> None:
    """Spark and DuckDB give the same rows in the same order, and at least one row."""
    assert "" == differs_in_order(cases[number].answer, spark_answers[number], near)
    assert cases[number].answer != []


@pytest.mark.parametrize("number", QUERIES)
def test_offloaded(
    spark: SparkSession,
    hg: Headgate,
    cases: dict[int, Case],
    spark_answers: dict[int, list[Row]],
    number: int,
) -> None:
    """An offloaded query gives Spark's answer, and every exchange runs in Headgate."""
    out = hg.offload(spark.sql(cases[number].text))
    done = finished(hg, out)
    assert "" == differs_in_order(spark_answers[number], out.collect())
    assert () == done.refused
    assert () != done.results
    hg.release(out)
    assert "" == left(hg)


@pytest.mark.parametrize("number", QUERIES)
def test_actions(
    spark: SparkSession,
    hg: Headgate,
    cases: dict[int, Case],
    spark_answers: dict[int, list[Row]],
    number: int,
) -> None:
    """An action of the session gives Spark's answer, and leaves nothing stored."""
    before = len(hg.results())
    with entered(hg, spark):
        given = spark.sql(cases[number].text).collect()
    assert "" == differs_in_order(spark_answers[number], given)
    assert before < len(hg.results())
    assert "" == left(hg)

"""A session that has run more jobs than Spark remembers."""

from __future__ import annotations

import pytest

from headgate import attach

from .conftest import build_session, real_place


@pytest.mark.real
@pytest.mark.timeout(300)
def test_what_spark_has_forgotten() -> None:
    """The report, and a later headgate, skip jobs whose stages Spark has already dropped."""
    few = {"spark.ui.retainedStages": "2", "spark.headgate.sql.enabled": "true"}
    spark = build_session(real_place(), "local[2]", **few)
    try:
        for _ in range(2):
            with attach(spark) as hg:
                for number in range(6):
                    pairs = spark.sparkContext.parallelize([(number, 1)], 2)
                    assert [(number, 1)] == pairs.reduceByKey(int.__add__).collect()
                assert hg.report().native
    finally:
        spark.stop()

"""The numbers of twenty exchanges agree to the byte, wherever they are shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from headgate import Headgate, attach
from headgate.control.clock import SYSTEM_CLOCK
from headgate.infra.cli.app import app
from headgate.infra.metrics.log_numbers import LogNumbersReader
from headgate.infra.ui import pages
from headgate.infra.ui.log_reader import LogReader

from ..doubles.scrapes import scraped
from .cluster import result_objects
from .conftest import Place

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SAME = ("rows", "stored_bytes", "read_bytes", "puts", "gets", "predicted_gets", "partitions")


@pytest.fixture(scope="module")
def job(spark: SparkSession) -> Iterator[Headgate]:
    """Run twenty exchanges of many sizes; some are read twice, some in part, one not at all."""
    spark.conf.set("spark.headgate.job.id", f"numbers-{SYSTEM_CLOCK.now_ms()}")
    with attach(spark) as hg:
        kept: list[DataFrame] = []
        for number in range(20):
            rows = spark.range(0, 50 * number**2, 1, 1 + number % 5)
            wide = rows.withColumn("text", F.sha2(F.col("id").cast("string"), 256))
            kept.append(hg.repartition(wide, 1 + number % 7, "id"))
            for _ in range(number % 3):
                kept[-1].collect()
            if number % 4 == 1:
                kept[-1].limit(1).collect()
            if number % 6 == 5:
                hg.release(kept.pop(0))
        yield hg


def test_the_numbers_agree(place: Place, job: Headgate) -> None:
    """`hg.report()`, `headgate report`, the live page, metrics and the bucket have the same
    numbers, for each exchange and in total."""
    report = job.report()
    assert 20 == len(report.results)
    conf = {name.removeprefix("spark.headgate."): value for name, value in place.conf.items()}
    arguments = ["report", "--json", "--job", job.job, "--broker", conf["broker"]]
    (printed,) = map(json.loads, CliRunner().invoke(app, arguments).stdout.splitlines())
    reader = LogReader(job._services.log)
    with reader.history(job.job) as history:
        moment = pages.Moment.of(history, None, SYSTEM_CLOCK.now_ms())
        page = json.loads(json.dumps(pages.job_page(moment, 0)))
    stored = Counter[str]()
    for name, size_bytes in result_objects(job).items():
        stored[name.split("/")[-4]] += size_bytes
    for result, shown, drawn in zip(
        report.results, printed["exchanges"], page["report"]["exchanges"], strict=True
    ):
        numbers = {name: getattr(result, name) for name in SAME}
        assert numbers == {name: shown[name] for name in SAME}
        assert numbers == {name: drawn[name] for name in SAME}
        if result.released is None:
            assert stored[result.result] == result.stored_bytes
    metrics = LogNumbersReader(job._services.log, SYSTEM_CLOCK)
    with closing(metrics):
        while metrics.numbers() is None:
            metrics.step(0.5)
        shown = scraped(metrics)
    for name, total in (
        ("written_bytes_total", report.stored_bytes),
        ("written_rows_total", sum(result.rows for result in report.results)),
        ("read_bytes_total", report.read_bytes),
        ("get_requests_total", report.gets),
        ("estimated_price_dollars", report.price_usd),
        ("stored_bytes", stored.total()),
    ):
        assert total == shown[f"headgate_{name}", str(job.job)], name
    for name in ("stored_bytes", "read_bytes", "puts", "gets", "price_usd"):
        assert getattr(report, name) == printed[name] == page["report"][name]

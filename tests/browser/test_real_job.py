"""A real job is watched in a real browser, from its registration to the deletion of its objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import expect
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate, attach
from headgate.control.clock import SYSTEM_CLOCK
from headgate.infra.serving import ServerSettings
from headgate.infra.target import Target
from headgate.infra.ui.server import UiServer

from ..spark.cluster import kill_executors
from ..spark.conftest import Place, build_session, real_place
from .conftest import Page, serving, shoot

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
PARTITIONS, TASK_S = 6, 4.0
KILLED = re.compile("was superseded: failed|has not ended")  # a worker may outlive its executor
FIRST_LOOK_MS = 90_000  # at a log that has been used for months


@pytest.fixture(scope="module")
def place() -> Place:
    return real_place()


@pytest.fixture(scope="module")
def spark(place: Place) -> Iterator[SparkSession]:
    job = f"watched-{SYSTEM_CLOCK.now_ms()}"
    more = {"spark.executor.memory": "1g", "spark.headgate.job.id": job}
    session = build_session(place, "local-cluster[2,1,1024]", **more)
    yield session
    session.stop()


@pytest.fixture
def server(place: Place) -> Iterator[UiServer]:
    """Serve the page from a log reader of its own, as `headgate ui` does."""
    target = Target(place.conf["spark.headgate.broker"], "", "headgate")
    with closing(target.open_log()) as log, serving(log, ServerSettings()) as server:
        yield server


def slow(spark: SparkSession) -> DataFrame:
    """Return rows of which each task takes a while."""

    def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        SYSTEM_CLOCK.sleep_s(TASK_S)
        yield from batches

    return spark.range(0, 60_000, 1, PARTITIONS).mapInArrow(late, "id long")


def test_a_real_job_from_beginning_to_end(
    page: Page, server: UiServer, spark: SparkSession, pictures: Path
) -> None:
    """The job appears when it is registered. Its map tasks, a killed executor, the readers and the
    deletion of all objects show without a reload, and the slider goes back to its beginning."""
    page.goto(server.url)
    expect(page.locator("#pulse")).to_have_text("live", timeout=FIRST_LOOK_MS)
    hg: Headgate = attach(spark)
    row = page.locator("tbody tr", has=page.get_by_role("link", name=hg.job, exact=True))
    expect(row).to_contain_text("running", timeout=FIRST_LOOK_MS)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(hg.repartition, slow(spark), 8, "id")
        page.goto(f"{server.url}#/job/{hg.job}/1-0001")
        known = page.locator("#known")
        expect(known).to_contain_text("being written")
        expect(known).to_contain_text(re.compile("[23] consumable"))
        assert 2 == kill_executors(spark)
        out = written.result()
    expect(known).to_have_text(f"{PARTITIONS} consumable")
    page.locator("#only").select_option("tried")
    expect(page.locator("#shown")).to_have_text(f"2 of {PARTITIONS} partitions")
    page.locator("#lives").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("main")).to_contain_text(KILLED)
    page.locator("#only").select_option("")
    assert 60_000 == out.count()
    expect(page.locator("main")).to_contain_text("8 of 8")
    expect(page.locator(".tile", has_text="gets expected")).to_be_visible()
    shoot(page, pictures, "killed", "light")
    hg.close()
    expect(known).to_have_text(f"{PARTITIONS} deleted")
    page.locator("#slider").fill("6")
    expect(known).to_contain_text("not begun")
    page.locator("#live").click()
    expect(known).to_have_text(f"{PARTITIONS} deleted")
    page.keyboard.press("Escape")
    expect(page.locator(".tile .state")).to_have_text("ended")

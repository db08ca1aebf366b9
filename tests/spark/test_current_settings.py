"""Keys that are set after a session was attached: the next action obeys them, or the log names
them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headgate import Headgate, Invalid, attach, current
from headgate.connectors.spark import attach as attaching
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.report import ResultReport
from headgate.connectors.spark.settings import FOR_THE_NEXT_ACTION, PREFIX
from headgate.control.events.types import BY_DRIVER, Consumed
from headgate.storage.reading.ways import choose, predict
from headgate.storage.stores.costs import COSTS

from .cluster import recorded
from .conftest import Place, setting
from .entered import SQL, counted, stored

pytestmark = pytest.mark.timeout(120)

ROWS = 2_000


@pytest.fixture(scope="module")
def place() -> Place:
    return Place("embedded", {})


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "headgate")

    def said() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return texts

    return said


def exchanged(spark: SparkSession, hg: Headgate) -> ResultReport:
    """Run an exchange, read its rows, and return the report on it."""
    out = hg.repartition(spark.range(ROWS), 2, "id")
    assert ROWS == len(out.collect())
    last = hg.results()[-1]
    hg.release(out)
    return last


def test_actions_are_switched_on_and_off(spark: SparkSession, hg: Headgate) -> None:
    """The next action of any kind sees the key, set by Python or by SQL, and rows are the same."""

    def act() -> list[tuple[int, int]]:
        return sorted((row.k, row.n) for row in counted(spark).collect())

    expected = act()
    assert 0 == stored(hg, act)
    assert {} == dict(hg.report().native)
    for enabled, exchanges in (("true", 1), ("FALSE", 0), ("true", 1)):
        spark.conf.set(SQL, enabled)
        assert exchanges == stored(hg, lambda: expected == act() or pytest.fail("other rows"))
    spark.sql(f"set {SQL}=false")
    assert 0 == stored(hg, act)
    spark.conf.unset(SQL)
    assert 0 == stored(hg, counted(spark).count)
    native = [why for why in hg.report().native if "collect" in why]
    assert [f"Spark's own: collect at {__file__}:"] == [why.rstrip("0123456789") for why in native]


def test_a_pause_is_of_one_session(spark: SparkSession, hg: Headgate) -> None:
    """While a block runs, all threads of the session use Spark, and another session does not. The
    last block that ends switches its session on again, also after an error."""
    other = spark.newSession()
    with (
        setting(spark, {SQL: "true"}),
        setting(other, {SQL: "true", f"{PREFIX}job.id": f"{hg.job}-other"}),
        attach(other) as theirs,
    ):

        def collected(hg: Headgate, session: SparkSession) -> int:
            return stored(hg, lambda: counted(session).collect())

        def elsewhere() -> int:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(collected, hg, spark).result()

        def failing() -> None:
            with hg.paused():
                assert (0, 1) == (elsewhere(), collected(theirs, other))
                raise ZeroDivisionError

        with hg.paused():
            with pytest.raises(ZeroDivisionError):
                failing()
            assert 0 == collected(hg, spark)
            assert 2 == exchanged(spark, hg).subpartitions
        assert 1 == elsewhere() == collected(hg, spark)
        assert (current(spark), current(other)) == (hg, theirs)
    with pytest.raises(Invalid, match="no headgate is attached"):
        current(other)


def test_values_that_change_places_are_seen(spark: SparkSession, hg: Headgate) -> None:
    """Two keys that get each other's value are two changes, although Java's hash of a map stays."""
    session = spark.newSession()
    settings = hg._exchanger.current.of(session)
    for first, second in (("2", "3"), ("3", "2")):
        session.conf.set(f"{PREFIX}sql.from.bytes", first)
        session.conf.set("spark.sql.shuffle.partitions", second)
        assert int(first) == settings.look_up().sql_from_bytes


def test_what_an_exchange_uses_is_looked_up(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key for the next action changes the next exchange."""
    ways = []

    def choosing(*given: Any) -> Any:
        ways.append("any")
        return choose(*given)

    def predicting(*given: Any) -> Any:
        ways.append("direct")
        return predict(*given)

    monkeypatch.setattr(run, "choose", choosing)
    monkeypatch.setattr(run, "predict", predicting)
    current = hg._exchanger.current
    seen = set()

    def changed(key: str, text: str) -> ResultReport:
        seen.add(key)
        with setting(spark, {PREFIX + key: text}):
            return exchanged(spark, hg)

    by_driver, costs = exchanged(spark, hg), current.budget.costs
    assert ["any"] == ways
    small, large = by_driver.result, changed("driver.read.bytes", "0").result
    bodies = [record.event.body for record in recorded(hg)]
    read = [(body.result, body.task == BY_DRIVER) for body in bodies if isinstance(body, Consumed)]
    assert {(small, True), (large, False)} == {each for each in read if each[0] in (small, large)}
    assert changed("codec", "none").stored_bytes > by_driver.stored_bytes
    changed("combine", "false")
    assert "direct" == ways[-1]
    assert changed("prices", "s3-express").rows == ROWS
    assert costs != current.budget.costs == COSTS["s3-express"]
    for key in ("budget", "budget.job"):
        with pytest.raises(Invalid, match=rf"over spark\.headgate\.{key} = 9 bytes"):
            changed(key, "9 bytes")
        with setting(spark, {f"{PREFIX}{key}": "9 bytes"}):
            assert changed("budget.warn", "true").rows == ROWS
    with setting(spark, {SQL: "true"}):
        seen.add("sql.enabled")
        with setting(spark, {f"{PREFIX}sql.from.bytes": "-1"}):
            seen.add("sql.from.bytes")
            assert 0 == stored(hg, lambda: counted(spark).collect())
        assert 1 == stored(hg, lambda: counted(spark).collect())
    assert seen == FOR_THE_NEXT_ACTION


def test_what_holds_from_attach_on_is_named(
    spark: SparkSession, hg: Headgate, warned: Callable[[], list[str]]
) -> None:
    """A key that can no longer be obeyed is named once for each new value, without the value."""
    exchanged(spark, hg)
    assert [] == warned()
    with setting(spark, {f"{PREFIX}wait.ms": "90s", f"{PREFIX}s3.region": "secret"}):
        for _ in range(2):
            exchanged(spark, hg)
        (line,) = warned()
        assert f"{PREFIX}s3.region, {PREFIX}wait.ms; attach again" in line
        assert "secret" not in line
        spark.conf.set(f"{PREFIX}wait.ms", "91s")
        exchanged(spark, hg)
        (line,) = warned()
        assert f"attached: {PREFIX}wait.ms;" in line
    exchanged(spark, hg)
    assert [] == warned()


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("sql.enable", "true", "the nearest key is spark.headgate.sql.enabled"),
        ("sql.enabled", "ture", "one of true, false"),
        ("budget", "a lot", "limits such as"),
        ("catalyst", "on", "one of auto, off"),
    ],
)
def test_what_cannot_be_used_is_refused(
    spark: SparkSession, hg: Headgate, key: str, text: str, error: str
) -> None:
    """An action fails as attaching would, until the key is mended."""
    with setting(spark, {PREFIX + key: text}):
        for act in (counted(spark).collect, lambda: hg.repartition(spark.range(9), 2, "id")):
            with pytest.raises(Invalid, match=error):
                act()
    assert 7 == len(counted(spark).collect())


@pytest.fixture
def without_door(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Headgate]:
    """Attach a session that is limited to public PySpark: nobody asks for private names."""
    monkeypatch.setattr(attaching, "look_up", lambda _: pytest.fail("names were asked for"))
    other = spark.newSession()
    job = {f"{PREFIX}catalyst": "off", f"{PREFIX}job.id": f"{hg.job}-public"}
    with setting(other, job), attach(other) as attached:
        yield attached


def test_actions_that_cannot_run_here_are_not_left_out_silently(without_door: Headgate) -> None:
    """Without the private door the key that switches actions on is refused when it is set later."""
    session = without_door._exchanger.spark
    assert current(session) is without_door
    assert 7 == len(counted(session).collect())
    with setting(session, {SQL: "true"}), pytest.raises(Invalid, match=r"catalyst=auto"):
        counted(session).collect()

"""A Spark without some of its private names gives the same rows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid
from headgate.connectors.spark.jvm import bridge, features
from headgate.connectors.spark.jvm.names import NEEDS, Feature, Needs
from headgate.connectors.spark.queries.session_queries import SessionQueries

from ..quick_java import QUICK_JAVA
from .conftest import Place

pytestmark = pytest.mark.timeout(300)


def paths(needs: Needs) -> set[str]:
    return {*needs.classes.values(), *(f"{path}$" for path in needs.objects.values())}


NAMES = sorted(set().union(*map(paths, NEEDS.values())))


@pytest.fixture(scope="module")
def place() -> Place:
    return Place("embedded", {})  # the driver reads what is small, as for users


def session_without(
    spark: SparkSession, hg: Headgate, monkeypatch: pytest.MonkeyPatch, name: str
) -> Headgate:
    """Return a headgate of a job for a Spark that lacks a name."""
    find = bridge._find

    def found(jvm: Any, path: str) -> Any:
        if path == name:
            raise LookupError(f"no {path}")
        return find(jvm, path)

    monkeypatch.setattr(bridge, "_find", found)
    known = features._looked_up(spark)
    door = features.open_door(spark, known)
    exchanger = replace(hg._exchanger, features=known, door=door)
    queries = SessionQueries(exchanger, lambda: None, is_public=False)
    return Headgate(exchanger, queries, hg._services)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_name(
    spark: SparkSession,
    hg: Headgate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """Without a name, the features that need it are off, and no other: one warning says what is
    lost, and an exchange and a query give the same rows."""
    other = session_without(spark, hg, monkeypatch, name)
    lost = {feature for feature, needs in NEEDS.items() if name in paths(needs)}
    known = other._exchanger.features
    assert not lost & known
    df = spark.range(0, 6, 1, 2).select((F.col("id") % 3).alias("k"), "id")
    assert sorted(df.collect()) == sorted(other.repartition(df, 2, "k").collect())
    query = df.groupBy("k").agg(F.sum("id").alias("s")).orderBy("k")
    if Feature.QUERIES in known:
        out = other.offload(query)
        assert [(0, 3), (1, 5), (2, 7)] == [tuple(row) for row in out.collect()]
        in_spark = other.report().native
        assert (Feature.ORDER in known) == (not in_spark), in_spark
    else:
        with pytest.raises(Invalid, match="needs a Spark that Headgate knows"):
            other.offload(query)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"no {name}" in warning
    roots = [each for each in lost if not lost.intersection(NEEDS[each].features)]
    assert all(NEEDS[each].lost in warning for each in roots)


def test_without_every_name(tmp_path: Path) -> None:
    """An application all of whose private names are gone, started by `headgate run`, has the right
    rows, one warning and a clean end."""
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
    }
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    application = Path(__file__).with_name("without_private.py")
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "run", *words, str(application)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    assert "right" in done.stdout
    assert 1 == done.stderr.count("is not as Headgate knows it"), done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]

"""TPC-H and TPC-DS asked by an application that does not know Headgate: by Spark alone, and started
by `headgate run`, as a script and under `spark-submit`.

Each way has the same `spark-defaults.conf`. The answers must be those of Spark alone, and the log
must have the exchanges of the application, all of them released.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyspark
from rich.table import Table

from headgate.control.inquiry.reading import states
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.kafka.settings import KafkaSettings

from ..spark.conftest import Place, real_place
from . import tpcds_data, tpch
from .answers import differs_in_order

Rows = Mapping[str, Sequence[Sequence[Any]]]

_APPLICATION = Path(__file__).with_name("asking.py")
_RUN = (sys.executable, "-m", "headgate", "run")
_ALONE = "Spark alone"
_WAYS: Mapping[str, Sequence[str]] = {
    _ALONE: (sys.executable,),
    "headgate run": _RUN,
    "headgate run spark-submit": (*_RUN, str(Path(pyspark.__file__).parent / "bin/spark-submit")),
}
_CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "6g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers of an application, and what the log has of its exchanges."""

    rows: Rows
    took_s: float
    exchanges: int
    left: int
    """Exchanges that were not released."""


def suites(scale: float) -> Iterator[tuple[str, Path, dict[int, str]]]:
    """Yield the name, the folder of tables and the queries of each suite."""
    yield "TPC-H", tpch.tables(scale), tpch.queries()
    folder = tpcds_data.tables(scale)
    texts = tpcds_data.queries()
    yield "TPC-DS", folder, {number: tpcds_data.in_spark(text) for number, text in texts.items()}


def run(scale: float) -> Iterator[Table]:
    for name, folder, texts in suites(scale):
        made = Table("started by", "seconds", "exchanges", "not released", "right")
        made.title = f"{name}, scale {scale:g}, by an application that does not know Headgate"
        expected: Rows = {}
        for way in _WAYS:
            given = ask(way, folder, texts)
            expected = expected or given.rows
            right = len(given.rows) - len(wrong(expected, given.rows))
            numbers = (f"{given.took_s:.1f}", given.exchanges, given.left)
            made.add_row(way, *map(str, numbers), f"{right} of {len(texts)}")
        yield made


def wrong(expected: Rows, given: Rows) -> list[str]:
    """Return the queries whose answers differ, in their rows or in the order of equal rows."""
    return [
        number
        for number, rows in expected.items()
        if differs_in_order(rows, given[number])
        and differs_in_order(_sorted(rows), _sorted(given[number]))
    ]


def _sorted(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return sorted(rows, key=str)


def ask(way: str, tables: Path, texts: Mapping[int, str]) -> Answered:
    """Start the application in one of the ways, and wait for its answers."""
    place, job = real_place(), f"unchanged-{os.urandom(4).hex()}"
    with TemporaryDirectory() as folder:
        queries, answers = Path(folder, "queries.json"), Path(folder, "answers.pickle")
        queries.write_text(json.dumps(texts))
        conf = _CONF | ({} if way == _ALONE else {**place.conf, "spark.headgate.job.id": job})
        lines = (f"{key} {value}\n" for key, value in conf.items())
        Path(folder, "spark-defaults.conf").write_text("".join(lines))
        words = [*_WAYS[way], str(_APPLICATION), str(tables.absolute()), str(queries), str(answers)]
        environment = os.environ | {"SPARK_CONF_DIR": folder, "PYSPARK_PYTHON": sys.executable}
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        rows, took_s, is_alone = pickle.loads(answers.read_bytes())
    assert is_alone == (way == _ALONE), f"{way} has Spark's rows only if Headgate is not there"
    exchanges, left = (0, 0) if way == _ALONE else _exchanges(place, job)
    return Answered(rows, took_s, exchanges, left)


def _exchanges(place: Place, job: str) -> tuple[int, int]:
    """Return the number of a job's exchanges, and of those that were not released."""
    with closing(KafkaEventLog(KafkaSettings(place.conf["spark.headgate.broker"]))) as log:
        (state,) = states(log, job)
    left = sum(result.fate.released is None for result in state.results.values())
    return len(state.results) + state.forgotten.results, left

"""TPC-H: every query's answer by Spark and through Headgate, in turn, in one warm session."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import Row, SparkSession
from rich.table import Table

from headgate import Headgate
from headgate.control.clock import SYSTEM_CLOCK, Deadline

from ..spark.cluster import findings, recorded
from .places import DATA, attached

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
_QUERIES = Path(__file__).with_name("tpch.sql")
_ORDER = re.compile(r"order by ([^()]*?)(?:limit \d+)?$")
_EXACT = 1e-9
_DELETED_S = 20


@dataclass(slots=True)
class Measured:
    """One query: its seconds each round, what ran here and what did not, bytes, what is wrong."""

    spark_s: list[float]
    ours_s: list[float]
    taken: int = 0
    refused: int = 0
    size_bytes: int = 0
    wrong: str = ""


def views(spark: SparkSession, scale: float) -> None:
    """The tables, made once."""
    folder = DATA / f"tpch-{scale:g}"
    if not folder.exists():
        tool = str(Path(sys.executable).with_name("tpchgen-cli"))
        command = [tool, "parquet", "-s", f"{scale:g}", "--output-dir", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for table in TABLES:
        spark.read.parquet(str(folder / f"{table}.parquet")).createOrReplaceTempView(table)


def queries() -> dict[int, str]:
    texts = re.split(r"^-- (\d+)$", _QUERIES.read_text(), flags=re.MULTILINE)[1:]
    return {
        int(n): text.strip().rstrip(";") for n, text in zip(texts[::2], texts[1::2], strict=True)
    }


def run(spark: SparkSession, scale: float, rounds: int, chosen: Sequence[int] = ()) -> Table:
    views(spark, scale)
    asked = {number: text for number, text in queries().items() if not chosen or number in chosen}
    measured = {number: Measured([], []) for number in asked}
    title = f"TPC-H, scale {scale:g}, median of {rounds}"
    with attached(spark, "real") as (hg, _):
        for turn in range(rounds + 1):
            for number, text in asked.items():
                one = measured[number]
                if turn == 1:
                    one.spark_s, one.ours_s = [], []  # the first round was to warm up
                _measure(spark, hg, text, one)
        found = findings(hg._services, recorded(hg)).found
    return _table(measured, f"{title}; fsck has {len(found)} findings")


def _measure(spark: SparkSession, hg: Headgate, text: str, one: Measured) -> None:
    begun_s = time.monotonic()
    expected = spark.sql(text).collect()
    one.spark_s.append(time.monotonic() - begun_s)
    begun_s = time.monotonic()
    out = hg.offload(spark.sql(text))
    given = out.collect()
    one.ours_s.append(time.monotonic() - begun_s)
    done = hg._offloaded[out]
    one.size_bytes = sum(int(each.written.sizes.sum()) for each in done.exchanges)
    one.taken, one.refused = len(done.results) + done.reused, len(done.refused)
    hg.release(out)
    one.wrong = one.wrong or differs(expected, given, text) or _left(hg)


def _left(hg: Headgate) -> str:
    """What the store still has of a query that was released."""
    services, deadline = hg._services, Deadline.after(_DELETED_S)
    prefix = f"{services.worker.root}/{hg.job}/"
    while objects := [stat.name for stat in services.store.list(prefix)]:
        if deadline.passed:
            return f"{len(objects)} objects left, as {objects[0]}"
        SYSTEM_CLOCK.sleep_s(0.02)
    return ""


def differs(expected: list[Row], given: list[Row], text: str) -> str:
    """How two answers differ; rows that tie in the query's order may come in any."""
    if len(expected) != len(given):
        return f"{len(given)} rows, not {len(expected)}"
    found = _ORDER.search(text)
    names = re.findall(r"(\w+)(?: desc)?(?:,|$)", found.group(1).strip()) if found else []
    end = 0
    for key, tied in groupby(expected, lambda row: tuple(row[name] for name in names)):
        start, end = end, end + len(list(tied))
        for row in given[start:end]:
            if not _same(key, tuple(row[name] for name in names)):
                return f"{row} stands where {key} belongs"
        cut = "limit" in text and end == len(expected)
        ours, theirs = (sorted(rows[start:end], key=str) for rows in (given, expected))
        if not cut and not all(map(_same, theirs, ours)):
            return f"other rows of {key}"
    return ""


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(
        math.isclose(a, b, rel_tol=_EXACT) if isinstance(a, float) else a == b
        for a, b in zip(one, other, strict=True)
    )


def _table(measured: dict[int, Measured], title: str) -> Table:
    table = Table(title=title)
    for column in ("query", "Spark s", "Headgate s", "ratio", "taken", "refused", "MB", "wrong"):
        table.add_column(column, justify="right")
    whole = Measured([0.0], [0.0])
    for number, one in measured.items():
        table.add_row(str(number), *_cells(one))
        whole.spark_s[0] += median(one.spark_s)
        whole.ours_s[0] += median(one.ours_s)
        whole.taken += one.taken
        whole.refused += one.refused
        whole.size_bytes += one.size_bytes
    whole.wrong = str(sum(bool(one.wrong) for one in measured.values()))
    table.add_row("all", *_cells(whole))
    return table


def _cells(one: Measured) -> list[str]:
    theirs, ours = median(one.spark_s), median(one.ours_s)
    times = [f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}"]
    return [*times, str(one.taken), str(one.refused), f"{one.size_bytes / 1e6:.1f}", one.wrong]

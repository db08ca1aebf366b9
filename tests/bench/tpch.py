"""TPC-H: every query in Spark and through Headgate, in turn, in one warm session."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from rich.table import Table

from headgate import Headgate

from ..spark.cluster import findings, recorded
from ..spark.entered import finished
from .answers import differs
from .measured import Measured, left, table
from .places import DATA, attached

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
_QUERIES = Path(__file__).with_name("tpch.sql")


def tables(scale: float) -> Path:
    """Return the folder with the tables of a scale, which is made once."""
    folder = DATA / f"tpch-{scale:g}"
    return folder if folder.exists() else generated(folder, scale)


def generated(folder: Path, scale: float) -> Path:
    """Write every table as a Parquet file, and return the folder."""
    tool = str(Path(sys.executable).with_name("tpchgen-cli"))
    command = [tool, "parquet", "-s", f"{scale:g}", "--output-dir", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def views(spark: SparkSession, scale: float) -> None:
    for name in TABLES:
        spark.read.parquet(str(tables(scale) / f"{name}.parquet")).createOrReplaceTempView(name)


def queries() -> dict[int, str]:
    texts = re.split(r"^-- (\d+)$", _QUERIES.read_text(), flags=re.MULTILINE)[1:]
    return {
        int(n): text.strip().rstrip(";") for n, text in zip(texts[::2], texts[1::2], strict=True)
    }


def run(spark: SparkSession, scale: float, rounds: int, chosen: Sequence[int] = ()) -> Table:
    views(spark, scale)
    asked = {number: text for number, text in queries().items() if not chosen or number in chosen}
    measured = {number: Measured([], []) for number in asked}
    title = f"TPC-H, scale {scale:g}, median of {rounds} warm rounds"
    with attached(spark, "real") as (hg, _):
        for _ in range(rounds + 1):
            for number, text in asked.items():
                _measure(spark, hg, text, measured[number])
        reported = findings(hg._services, recorded(hg)).found
    return table(measured, f"{title}; fsck has {len(reported)} findings")


def _measure(spark: SparkSession, hg: Headgate, text: str, query: Measured) -> None:
    begun_s = time.monotonic()
    expected = spark.sql(text).collect()
    query.spark_s.append(time.monotonic() - begun_s)
    begun_s = time.monotonic()
    out = hg.offload(spark.sql(text))
    given = out.collect()
    query.ours_s.append(time.monotonic() - begun_s)
    done = finished(hg, out)
    query.size_bytes = sum(int(each.stored.sizes.sum()) for each in done.exchanges)
    query.taken, query.refused = len(done.results) + done.reused, len(done.refused)
    hg.release(out)
    query.wrong = query.wrong or differs(expected, given, text) or left(hg)

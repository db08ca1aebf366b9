"""TPC-DS from DuckDB: the tables, the texts of the 99 queries, and DuckDB's answers.

Texts are changed by rules, never one by one. The order of a query becomes total for both engines:
every column of its answer is a further key, so that tied rows come in one order only, even where a
limit cuts through them. Spark gets back-ticks for double quotes, and DuckDB puts nulls where Spark
does.
"""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from .places import DATA

Answer = list[tuple[Any, ...]]

_EXTENSION = "extensions/v{}/tpcds.duckdb_extension"
_NULLS_AS_IN_SPARK = "set default_null_order = 'nulls_first_on_asc_last_on_desc'"
_TABLES = "select table_name from duckdb_tables() order by all"
_TEXTS = "select query_nr, query from tpcds_queries() order by all"
_PARENTHESES_AND_ORDERS = re.compile(r"[()]|\border\s+by\b", re.IGNORECASE)
_END = re.compile(r"(\s+limit\s+\d+)?[\s;]*$", re.IGNORECASE)


def tables(scale: float) -> Path:
    """Return the folder with the tables of a scale, which is made once."""
    folder = DATA / f"tpcds-{scale:g}"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        generate(unfinished, scale)
        unfinished.rename(folder)
    return folder


def generate(folder: Path, scale: float) -> None:
    """Write every table as a Parquet file."""
    folder.mkdir(parents=True)
    with _duckdb() as door:
        door.execute(f"call dsdgen(sf = {scale})")
        for (table,) in door.execute(_TABLES).fetchall():
            door.execute(f"copy {table} to '{folder / table}.parquet' (format parquet)")


def views(spark: SparkSession, folder: Path) -> None:
    for path in folder.glob("*.parquet"):
        spark.read.parquet(str(path)).createOrReplaceTempView(path.stem)


def queries() -> dict[int, str]:
    """Return the text of each query, in DuckDB's spelling."""
    with _duckdb() as door:
        door.execute("call dsdgen(sf = 0)")
        texts = door.execute(_TEXTS).fetchall()
        return {n: totally_ordered(text, len(door.sql(text).columns)) for n, text in texts}


def totally_ordered(text: str, columns: int) -> str:
    """Make every column a further key of the whole query's order, if it has an order."""
    depth, ordered = 0, False
    for token in _PARENTHESES_AND_ORDERS.findall(text):
        depth += {"(": 1, ")": -1}.get(token, 0)
        ordered |= depth == 0 and token != ")"
    keys = "".join(f", {at}" for at in range(1, columns + 1)) if ordered else ""
    return _END.sub(lambda end: keys + (end[1] or ""), text, count=1)


def in_spark(text: str) -> str:
    return text.replace('"', "`")


def answers(folder: Path, asked: Mapping[int, str]) -> dict[int, Answer]:
    """Return DuckDB's answers on the tables in a folder; each is made once and kept there."""
    path = folder / "answers.pickle"
    known: dict[str, Answer] = pickle.loads(path.read_bytes()) if path.exists() else {}
    if missing := [text for text in asked.values() if text not in known]:
        with _duckdb() as door:
            door.execute(_NULLS_AS_IN_SPARK)
            for table in folder.glob("*.parquet"):
                door.execute(f"create view {table.stem} as from '{table}'")
            known |= {text: door.execute(text).fetchall() for text in missing}
        path.write_bytes(pickle.dumps(known))
    return {number: known[text] for number, text in asked.items()}


def _duckdb() -> duckdb.DuckDBPyConnection:
    extension = files("duckdb_extension_tpcds") / _EXTENSION.format(duckdb.__version__)
    door = duckdb.connect()
    door.execute(f"load '{extension}'")
    return door

"""The ways to carry an exchange: their requests and times, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from headgate import Headgate
from headgate.connectors.spark.exchanges import run as exchange_run
from headgate.control.events.types import Consumed, Produced
from headgate.control.ids import ResultId
from headgate.storage.reading.ways import DIRECT, Prediction, choose, predict

from ..spark.cluster import recorded
from ..spark.conftest import setting
from ..spark.entered import by_spark_alone
from .exchange import add
from .places import attached, consume

_ROWS, _PARTITIONS, _SUBPARTITIONS = 12_000_000, 200, 2_000
_ROW_BYTES = 85  # stored
_KEY = "hash(id) % 100000"
SPREADS = {
    "": _KEY,
    "hot 30": f"if(id % 10 < 3, 7, {_KEY})",
    "hot 60": f"if(id % 10 < 6, 7, {_KEY})",
    "hot 99": f"if(id % 100 > 0, 7, {_KEY})",
    "zipf": "cast(pow(100000, rand(2)) as int)",
    "few": "id div 300",
    "sorted": "id",
}
"""The keys of rows, by their spread. Sorted rows go to ranges of keys, others where the hash of
their key says."""


class Shape(NamedTuple):
    partitions: int
    subpartitions: int
    megabytes: int
    """The bytes of the rows, less what each slice takes beside them."""
    spread: str = ""
    columns: int = 0
    """The columns of numbers, in place of those of narrow rows."""

    def __str__(self) -> str:
        wide = f"{self.columns:,} columns" if self.columns else ""
        return " ".join(
            filter(None, (f"{self.partitions} x {self.subpartitions}", self.spread, wide))
        )


SHAPES = (
    Shape(8, 32, 10),
    Shape(2, 100, 300),
    Shape(20, 20, 400),
    Shape(8, 200, 100),
    Shape(50, 500, 200),
    Shape(200, 200, 100),
    Shape(400, 400, 50),
    Shape(200, 1_000, 20),
    Shape(10, 5_000, 200),
    Shape(100, 2_000, 400),
    Shape(8, 200, 100, "hot 30"),
    Shape(50, 500, 200, "hot 60"),
    Shape(8, 200, 100, "hot 99"),
    Shape(200, 1_000, 100, "hot 99"),
    Shape(8, 200, 100, "zipf"),
    Shape(100, 2_000, 100, "zipf"),
    Shape(10, 10_000, 100, "hot 60"),
    Shape(8, 200, 100, columns=1_000),
    Shape(40, 100, 100, "hot 60", columns=1_000),
    Shape(200, 1_000, 20, "few"),
    Shape(400, 400, 10, "sorted"),
    Shape(400, 400, 10, "few"),
)
"""The exchanges that hold the model against what happens."""
_OFF = 0.25  # requests may differ by this part of those that were predicted


def run(spark: SparkSession) -> Table:
    df = _rows(spark, _ROWS, _PARTITIONS)
    table = Table("way", "PUT", "GET", "MB", "s", "JVM", "Python", "store", "broker")
    table.title = f"{_PARTITIONS} x {_SUBPARTITIONS}; CPU seconds of each process"
    for name, combine in {"direct": "false", "combined": "true"}.items():
        with setting(spark, {"spark.headgate.combine": combine}):
            table.add_row(name, *_figures(spark, df))
    table.add_row("Spark's own", *_own(spark, df))
    return table


def shapes(spark: SparkSession) -> Table:
    """Run exchanges of many shapes, each directly and, if that is chosen, combined."""
    table = Table("shape", "MB", "way", "predicted", "GET", "ratio", "predicted s", "s", "ratio")
    table.title = "requests and seconds from the end of the map stage to the end of the last reader"
    wrong = []
    for shape in SHAPES:
        df = _of(spark, shape)
        for combine in ("false", "true"):
            with setting(spark, {"spark.headgate.combine": combine}):
                measured = _measured(spark, df, shape)
            if combine == "true" and measured.prediction.way == DIRECT:
                continue
            table.add_row(str(shape), *measured.cells())
            if abs(measured.predicted_gets / measured.gets - 1) > _OFF:
                wrong.append(str(shape))
    if wrong:
        table.caption = f"predicted wrongly: {', '.join(wrong)}"
    return table


@dataclass(frozen=True, slots=True)
class _Measured:
    prediction: Prediction
    gets: int
    took_s: float
    stored_bytes: int

    @property
    def predicted_gets(self) -> int:
        return self.prediction.combining.gets + self.prediction.reading.gets

    def cells(self) -> Iterator[str]:
        way, gets = self.prediction.way, self.predicted_gets
        yield f"{self.stored_bytes / 1e6:.0f}"
        yield "direct" if way == DIRECT else f"{way.bundles} x {way.ranges}"
        yield from (f"{gets:,}", f"{self.gets:,}", f"{gets / self.gets:.2f}")
        seconds = self.prediction.seconds
        yield from (f"{seconds:.2f}", f"{self.took_s:.2f}", f"{seconds / self.took_s:.2f}")


def _measured(spark: SparkSession, df: DataFrame, shape: Shape) -> _Measured:
    predictions: list[Prediction] = []

    def noting(made: Any) -> Any:
        def predicted(*given: Any) -> Prediction:
            predictions.append(made(*given))
            return predictions[-1]

        return predicted

    with pytest.MonkeyPatch.context() as patch, attached(spark, "real") as (hg, _):
        patch.setattr(exchange_run, "choose", noting(choose))
        patch.setattr(exchange_run, "predict", noting(predict))
        known = {result.result for result in hg.results()}
        if shape.spread == "sorted":
            consume(hg.offload(df.repartitionByRange(shape.subpartitions, "k")))
        else:
            consume(hg.repartition(df, shape.subpartitions, "k"))
        return _from_log(hg, predictions[-1], known)


def _from_log(hg: Headgate, prediction: Prediction, known: set[ResultId]) -> _Measured:
    first, *others = (result for result in hg.results() if result.result not in known)
    names = {result.result for result in (first, *others)}
    mapped_ms = read_ms = gets = 0
    for event in (each.event for each in recorded(hg)):
        match event.body:
            case Produced() as produced if produced.attempt.partition.result == first.result:
                mapped_ms = max(mapped_ms, event.time_ms)
            case Consumed() as consumed if consumed.result in names:
                read_ms = max(read_ms, event.time_ms)
                gets += consumed.requests
    return _Measured(prediction, gets, (read_ms - mapped_ms) / 1000, first.stored_bytes)


def _of(spark: SparkSession, shape: Shape) -> DataFrame:
    """Return the rows of a shape."""
    row_bytes = 8 * shape.columns or _ROW_BYTES
    count = shape.megabytes * 1_000_000 // row_bytes
    key = SPREADS[shape.spread]
    if not shape.columns:
        return _rows(spark, count, shape.partitions, key)
    numbers = spark.range(0, count, 1, shape.partitions).withColumn("k", F.expr(key))
    return numbers.select(
        "k", *(F.expr(f"hash(id, {at}) / 7D c{at}") for at in range(shape.columns - 1))
    )


def _rows(spark: SparkSession, count: int, partitions: int, key: str = _KEY) -> DataFrame:
    numbers = spark.range(0, count, 1, partitions)
    text = F.sha2(F.col("id").cast("string"), 256).alias("s")
    return numbers.select("id", F.expr(key).alias("k"), F.rand(1).alias("x"), text)


def _figures(spark: SparkSession, df: DataFrame) -> list[str]:
    with attached(spark, "real") as (hg, meter):
        made: list[DataFrame] = []
        before = hg.report()  # of the same application
        write = meter.measure(lambda: made.append(hg.repartition(df, _SUBPARTITIONS, "k")))
        cost = add(write, meter.measure(lambda: consume(made[0])))
        report = hg.report()
        last = report.results[-1]
        return [
            f"{report.puts - before.puts:,}",
            f"{report.gets - before.gets:,}",
            f"{last.stored_bytes / 1e6:.0f}",
            *(f"{cpu_s:.1f}" for cpu_s in (cost.wall_s, cost.jvm_s, cost.python_s)),
            *(f"{cpu_s:.1f}" for cpu_s in (cost.store_s, cost.broker_s)),
        ]


def _own(spark: SparkSession, df: DataFrame) -> list[str]:
    with attached(spark, "real") as (hg, meter), by_spark_alone(hg):
        cost = meter.measure(lambda: consume(df.repartition(_SUBPARTITIONS, "k")))
    figures = (f"{cpu_s:.1f}" for cpu_s in (cost.wall_s, cost.jvm_s, cost.python_s))
    return ["", "", "", *figures, "", ""]

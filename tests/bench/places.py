"""The Spark session that is measured, and the services that it is attached to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate import Headgate, Invalid, attach
from headgate.infra.devstack import stack

from ..processes import descendants
from .measure import Meter

ROWS = 10_000_000
DATA = Path(".bench")


def session(more: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """Open the session in which both sides of every comparison run."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    state = stack.status()
    if state is not None:
        os.environ["AWS_ACCESS_KEY_ID"] = state.access_key
        os.environ["AWS_SECRET_ACCESS_KEY"] = state.secret_key
    conf = {
        "spark.driver.memory": "6g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.local.dir": str(DATA.absolute() / "spark"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]").appName("headgate-bench")
    for key, value in (conf | dict(more)).items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def rows(spark: SparkSession, count: int = ROWS) -> DataFrame:
    """Return four columns in eight files: a key of 100,000 values, a number, a float, a short
    string."""
    path = DATA / f"rows-{count}.parquet"
    if not path.exists():
        made = spark.range(0, count, 1, 8).select(
            (F.expr("hash(id)") % 100_000).cast("long").alias("k"),
            F.col("id").alias("v"),
            F.rand(1).alias("x"),
            F.concat(F.lit("name-"), F.col("id") % 5000).alias("s"),
        )
        made.write.parquet(str(path))
    return spark.read.parquet(str(path))


@contextmanager
def attached(spark: SparkSession, place: str) -> Iterator[tuple[Headgate, Meter]]:
    """Attach to the embedded or the real stack; yield the headgate and a meter of all its
    processes."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    if place == "real":
        state = stack.status()
        if state is None or not state.is_up():
            raise Invalid("start the stack first: make stack")
        spark.conf.set("spark.headgate.broker", state.bootstrap)
        spark.conf.set("spark.headgate.store", f"s3://{state.bucket}/bench")
        spark.conf.set("spark.headgate.s3.endpoint", state.endpoint)
        stores = tuple(node.pid for node in state.nodes if node.name == "minio" and node.pid)
        brokers = tuple(node.pid for node in state.nodes if node.name != "minio" and node.pid)
        with attach(spark) as hg:
            yield hg, Meter(jvm, stores, brokers)
        for key in ("broker", "store", "s3.endpoint"):
            spark.conf.unset(f"spark.headgate.{key}")
    else:
        before = set(descendants(os.getpid()))
        with attach(spark) as hg:
            services = set(descendants(os.getpid())) - before - {jvm} - set(descendants(jvm))
            yield hg, Meter(jvm, tuple(services), ())


def consume(df: DataFrame) -> None:
    """Read every row of every column, and drop it."""
    df.write.format("noop").mode("overwrite").save()

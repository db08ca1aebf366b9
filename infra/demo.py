"""`headgate demo`: run one exchange on the embedded stack, and show what its log tells.

The demo uses Headgate as a user does, and the log and the bucket through their ports. Nothing
stays: the broker and the bucket end with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import IO

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.text import Text

from ..connectors.spark.attach import attach_session
from ..connectors.spark.session import Headgate
from ..control.clock import SYSTEM_CLOCK
from ..control.events.types import Consumable, Recorded
from ..control.inquiry.audit import audit, fold
from ..control.inquiry.reading import read
from ..control.kafka.log import KafkaEventLog, KafkaSettings
from ..control.log import EventLog
from ..storage.stores.open_store import open_store
from ..storage.upkeep.fsck import check
from .cli import lives, views
from .embedded import EmbeddedStack, start_embedded

_JOB = "demo"
_PREFIX = "headgate"
_ROWS = 300_000
_CUSTOMERS = 5_000
_PARTITIONS = 8
_SUBPARTITIONS = 8
_LOG_TAIL_CHARS = 4_000
_CONF: dict[str, bool | float | int | str | None] = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # ours is shown
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": str(_SUBPARTITIONS),
    "spark.headgate.job.id": _JOB,
    "spark.headgate.broker": "",  # embedded, in spite of the defaults of this machine
    "spark.headgate.store": "",
}


def run() -> int:
    """Run the demo; return exit code 1 when a promise was not kept."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    started_s = SYSTEM_CLOCK.monotonic_s()
    console.rule("[bold]Headgate: a shuffle whose data outlives every executor", align="left")
    with ExitStack() as opening:
        with console.status("starting a broker, a bucket and Spark …"):
            stack = opening.enter_context(start_embedded())
            spark = opening.enter_context(_session())
            services = _Kept(stack.bootstrap, stack.endpoint, stack.bucket)
            headgate = opening.enter_context(attach_session(spark, lambda: services))
            settings = KafkaSettings(stack.bootstrap, _PREFIX, embedded=True)
            log = opening.enter_context(closing(KafkaEventLog(settings)))
        took_s = SYSTEM_CLOCK.monotonic_s() - started_s
        console.print(
            f"broker {stack.bootstrap}, bucket {stack.endpoint}/{stack.bucket}, "
            f"Spark {spark.version} {spark.sparkContext.master}: up in {took_s:.1f} s"
        )
        fine = _Demo(console, stack, spark, headgate, log).show()
    console.print(_NEXT)
    took_s = SYSTEM_CLOCK.monotonic_s() - started_s
    console.rule(f"[bold]{'all as promised' if fine else 'NOT as promised'}, {took_s:.0f} s")
    return 0 if fine else 1


@dataclass(frozen=True, slots=True)
class _Kept:
    """The embedded stack for a session that must not end it: the log is read after the session."""

    bootstrap: str
    endpoint: str
    bucket: str

    def close(self) -> None:
        """Do nothing: `run` closes the stack."""


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Start Spark; show what the JVM writes only if it does not start."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("headgate demo").config(map=_CONF)
    with tempfile.TemporaryFile("w+") as jvm_stderr:
        try:
            with _stderr_in(jvm_stderr):
                spark = builder.getOrCreate()
        except BaseException:
            jvm_stderr.seek(0)
            sys.stderr.write(jvm_stderr.read()[-_LOG_TAIL_CHARS:])
            raise
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _stderr_in(file: IO[str]) -> Iterator[None]:
    """Send stderr to the file; a process started meanwhile goes on writing there."""
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@dataclass(frozen=True, slots=True)
class _Demo:
    console: Console
    stack: EmbeddedStack
    spark: SparkSession
    headgate: Headgate
    log: EventLog

    def show(self) -> bool:
        """Run the exchange and show its log; return True if every promise was kept."""
        orders = _orders(self.spark)
        self._title(f"{_ROWS:,} orders, repartitioned by customer, through the bucket")
        self.console.print(_CODE, style="cyan")
        by_customer = self.headgate.repartition(orders, _SUBPARTITIONS, "customer")
        ours = _totals(by_customer).collect()
        same = self._compare(orders, by_customer, ours)
        self._title("What it cost (headgate report)")
        *_, total = views.report_tables(self.headgate.report())
        self.console.print(" ", total)
        clean = self._fsck("Log against bucket, checksums included (headgate fsck --deep)")
        self.headgate.close()
        records = list(read(self.log, _JOB))
        self._timeline(records)
        audited = self._audit(records)
        empty = self._fsck("Log against bucket, after close")
        return same and clean and audited and empty

    def _title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/]")

    def _compare(self, orders: DataFrame, by_customer: DataFrame, ours: list[Row]) -> bool:
        self._title("Spark's plan: no Exchange above what Headgate has placed, and the same rows")
        plan = Text(_plan(_totals(by_customer)), "cyan")
        self.console.print(plan, overflow="ellipsis", no_wrap=True)
        exchanges = [_plan(_totals(df)).count("Exchange") for df in (by_customer, orders)]
        with self.console.status("asking Spark for the same without Headgate …"):
            same = sorted(_totals(orders).collect()) == sorted(ours)
            native = orders.repartition(_SUBPARTITIONS, "customer")
            placed = _placement(by_customer) == _placement(native)
        self._say(exchanges == [0, 1], "Exchanges in the plan: 0, where Spark's own has 1")
        self._say(same, f"the totals of {len(ours):,} customers are Spark's own")
        self._say(placed, f"each of the {_ROWS:,} rows is in the partition where Spark puts it")
        return same and placed and exchanges == [0, 1]

    def _fsck(self, title: str) -> bool:
        store, root = open_store(
            f"s3://{self.stack.bucket}/{_PREFIX}",
            {"endpoint": self.stack.endpoint, "dummy_credentials": "true"},
        )
        with closing(store):
            findings = check(store, root, lambda: fold(read(self.log, _JOB)), whole=True)
        self._title(title)
        for line in views.findings(findings):
            self.console.print(Text("  ") + line)
        return findings.clean

    def _timeline(self, records: list[Recorded]) -> None:
        self._title("The life of every partition, from the log")
        self.console.print(lives.timeline(records), lives.legend(), sep="\n")
        half = [r.offset for r in records if isinstance(r.event.body, Consumable)][_PARTITIONS // 2]
        self._title(f"What was true at offset {half} (headgate state --job {_JOB} --at {half})")
        for state in fold(record for record in records if record.offset <= half):
            self.console.print(views.state_table(state))

    def _audit(self, records: list[Recorded]) -> bool:
        audits = audit(records)
        self._title("Every decision derived again from the facts (headgate audit verify)")
        for line in views.audit_rows(audits):
            self.console.print(Text("  ") + line)
        return all(log.whole and not log.violation and not log.due for log in audits)

    def _say(self, true: bool, text: str) -> None:
        self.console.print("  [green]✓[/]" if true else "  [bold red]✗ not so:[/]", text)


_CODE = f"""
  hg = headgate.attach(spark)
  by_customer = hg.repartition(orders, {_SUBPARTITIONS}, "customer")
  by_customer.groupBy("customer").agg(count("*"), sum("amount")).collect()
"""
_NEXT = """
The embedded stack forgets everything now. To keep a log and look into it: `headgate stack up`, put
what it prints into Spark's configuration, run a job, then

  headgate events --job <job> --follow        headgate state --job <job> --at <offset>
  headgate audit verify                       headgate fsck --deep
"""


def _orders(spark: SparkSession) -> DataFrame:
    number = F.xxhash64("id")
    amount = F.pmod(F.shiftright(number, 7), F.lit(50_000)) / 100
    return spark.range(0, _ROWS, 1, _PARTITIONS).select(
        F.col("id").alias("order"),
        F.pmod(number, F.lit(_CUSTOMERS)).alias("customer"),
        amount.cast("decimal(10,2)").alias("amount"),
    )


def _totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("spent")
    )


def _placement(df: DataFrame) -> list[Row]:
    """Return each partition's number of rows, and a hash over all of their columns."""
    row = F.xxhash64(*df.columns)
    placed = df.select(F.spark_partition_id().alias("partition"), row.alias("row"))
    return (
        placed.groupBy("partition")
        .agg(F.count("*").alias("rows"), F.bit_xor("row").alias("sum"))
        .orderBy("partition")
        .collect()
    )


def _plan(df: DataFrame) -> str:
    """Return the physical plan as `explain` prints it."""
    with redirect_stdout(StringIO()) as printed:
        df.explain()
    return "\n".join(f"  {line}" for line in printed.getvalue().splitlines()[1:] if line.strip())

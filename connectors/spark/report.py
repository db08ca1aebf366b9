"""Reports on exchanges: rows, bytes, requests and their price, as the log has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rich.filesize import decimal

from ...control.ids import ResultId
from ...control.model.state import Forgotten, JobState, ResultState
from ...storage.reading.ways import puts
from ...storage.stores.costs import COSTS
from ...storage.stores.request_meter import RequestCounts
from .tables import Shown, ShownTuple, Table, counted, numbered

_COSTS = COSTS["s3-standard"]
_NONE: Mapping[str, int] = MappingProxyType({})
_NO_REQUESTS = RequestCounts()


@dataclass(frozen=True, slots=True)
class Hold:
    """Data in executors that keeps Spark from releasing them."""

    what: str
    number: int
    setting: str
    """The setting that bounds the wait, which begins with the end of an executor's last task."""
    after_s: float | None
    """The value of the setting; None if Spark waits for ever."""


@dataclass(frozen=True, slots=True)
class ResultReport:
    """One exchange, as the log has it."""

    result: ResultId
    label: str
    partitions: int
    subpartitions: int
    consumable: int
    """Partitions that can be read now, or could when the result was released."""
    consumed: int
    """Subpartitions that were read at least once."""
    rows: int
    """Rows of these partitions."""
    stored_bytes: int
    """Bytes of all partitions that became consumable, also of those that were lost."""
    superseded: int
    """Attempts that were superseded."""
    puts: int
    """Requests that store the segments of consumable attempts, if these have the same size."""
    gets: int
    """Requests that readers have announced."""
    predicted_gets: int
    """Requests that readers were expected to send; -1 if the log does not say so."""
    read_bytes: int
    released: str | None
    """Reason of the release; None while the result is not released."""
    throttled_puts: int = 0
    """Answers by which the store asked the writers of consumable attempts for fewer requests."""
    throttled_gets: int = 0
    """Answers by which the store asked readers for fewer requests."""
    way: str = ""
    """The way of the rows to their readers, such as `direct`; empty before it is chosen."""
    predicted_ms: int = -1
    """The time that its readers were expected to take; -1 if the log does not say so."""

    @property
    def price_usd(self) -> float:
        """Return the price of these puts and gets, by the list prices of S3 Standard in us-east-1.
        Retries and superseded attempts are left out."""
        return _COSTS.usd(self.puts, self.gets)


class Results(ShownTuple[ResultReport]):
    """Reports in the order of registration."""

    __slots__ = ()
    kind = ResultReport

    def table_of(self, shown: Sequence[ResultReport], hint: tuple[str, ...]) -> Table:
        words = ("result", "what", "state")
        numbers = ("size", "rows", "stored", "PUT", "GET", "predicted", "read")
        rare = ("superseded", "throttled")
        return Table(words, numbers + rare, [_row(each) for each in shown], feet=hint)


@dataclass(frozen=True, slots=True, repr=False)
class JobReport(Shown):
    """The exchanges of a job. The sums cover all exchanges, forgotten results included."""

    job: str
    results: Results
    native: Mapping[str, int]
    """Shuffles that this driver left to Spark: their number by reason."""
    forgotten: Forgotten
    """Sums of results that were released so long ago that nothing else is remembered."""
    driver: RequestCounts
    """All requests of this driver: manifests, small results, deletions and listings."""
    holds: tuple[Hold, ...] = ()
    """The things that keep Spark from releasing executors now. There are none without dynamic
    allocation, and with `spark.headgate.catalyst=off`."""

    @property
    def puts(self) -> int:
        before = self.forgotten.written
        return puts(before.segments, before.stored_bytes) + sum(each.puts for each in self.results)

    @property
    def gets(self) -> int:
        return self.forgotten.reads.requests + sum(result.gets for result in self.results)

    @property
    def throttled_puts(self) -> int:
        return self.forgotten.written.throttled + sum(r.throttled_puts for r in self.results)

    @property
    def throttled_gets(self) -> int:
        return self.forgotten.reads.throttled + sum(r.throttled_gets for r in self.results)

    @property
    def stored_bytes(self) -> int:
        before = self.forgotten.written.stored_bytes
        return before + sum(result.stored_bytes for result in self.results)

    @property
    def read_bytes(self) -> int:
        before = self.forgotten.reads.read_bytes
        return before + sum(result.read_bytes for result in self.results)

    @property
    def price_usd(self) -> float:
        return _COSTS.usd(self.puts, self.gets)

    def summary(self) -> str:
        """Return the sums in one line."""
        forgotten, throttled = self.forgotten.results, self.throttled_puts + self.throttled_gets
        totals = (
            numbered(len(self.results) + forgotten, "exchange"),
            f"{forgotten:,} of them forgotten" * (forgotten > 0),
            f"{self.puts:,} PUT, {self.gets:,} GET",
            f"{throttled:,} throttled" * (throttled > 0),
            f"{decimal(self.stored_bytes)} stored, {decimal(self.read_bytes)} read",
            f"${self.price_usd:,.4f}",
        )
        return ", ".join(filter(None, totals))

    def table(self) -> Table:
        native = (
            f"{numbered(count, 'shuffle')} ran in Spark: {reason}"
            for reason, count in self.native.items()
        )
        heads = (
            f"job {self.job}: {self.summary()}",
            *native,
            *map(_held, self.holds),
        )
        table = self.results.table()
        return replace(table, heads=heads, feet=self.results.hint("this.results"))


def job_report(
    state: JobState,
    native: Mapping[str, int] = _NONE,
    driver: RequestCounts = _NO_REQUESTS,
    holds: tuple[Hold, ...] = (),
) -> JobReport:
    results = Results(_report(name, state.results[name]) for name in state.results)
    return JobReport(state.job, results, native, state.forgotten, driver, holds)


def _held(hold: Hold) -> str:
    stay = "for ever" if hold.after_s is None else f"{hold.after_s:,.0f} s after their last task"
    return f"executors with {numbered(hold.number, hold.what)} stay {stay}: {hold.setting}"


def _report(name: ResultId, result: ResultState) -> ResultReport:
    totals, chosen = result.totals, result.chosen
    written, reads = totals.written, totals.reads
    return ResultReport(
        result=name,
        label=result.registered.label,
        partitions=result.registered.partitions,
        subpartitions=result.registered.subpartitions,
        consumable=totals.partitions,
        consumed=reads.subpartitions,
        rows=totals.rows,
        stored_bytes=written.stored_bytes,
        superseded=written.superseded,
        puts=puts(written.segments, written.stored_bytes),
        gets=reads.requests,
        predicted_gets=chosen.gets if chosen else -1,
        read_bytes=reads.read_bytes,
        released=result.fate.released,
        throttled_puts=written.throttled,
        throttled_gets=reads.throttled,
        way=chosen.way if chosen else "",
        predicted_ms=chosen.ms if chosen else -1,
    )


def _row(report: ResultReport) -> tuple[str, ...]:
    state = f"{report.consumable} of {report.partitions}"
    if report.released is not None:
        state = f"released: {report.released}"
    elif report.consumable == report.partitions:
        state = "complete"
    return (
        report.result,
        report.label,
        state,
        f"{report.partitions} x {report.subpartitions}",
        f"{report.rows:,}",
        decimal(report.stored_bytes),
        f"{report.puts:,}",
        f"{report.gets:,}",
        f"{report.predicted_gets:,}" if report.predicted_gets >= 0 else "",
        decimal(report.read_bytes),
        counted(report.superseded),
        counted(report.throttled_puts + report.throttled_gets),
    )

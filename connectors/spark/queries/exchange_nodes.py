"""The exchanges of a plan, and how they depend on each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from ..jvm.scheduler import is_over
from ..tasks.exchange_tasks import Part
from ..tasks.grouped.function import Call

HASH, RANGE, ROUND_ROBIN, SINGLE = (
    "HashPartitioning",
    "RangePartitioning",
    "RoundRobinPartitioning",
    "SinglePartition",
)
KINDS = (HASH, RANGE, ROUND_ROBIN, SINGLE)


@dataclass(eq=False, slots=True)
class Group:
    """The exchanges that one stage reads side by side. Each task reads the same subpartitions of
    all of them."""

    shuffles: list[Shuffle] = field(default_factory=list)
    others: bool = False
    """True when the stage reads something else too."""
    filters: int = 0
    """The number of filters in the stage, without those that only drop nulls."""
    broadcasts: list[Broadcast] = field(default_factory=list)
    """The rows that are broadcast to the stage, also to its subqueries."""


@dataclass(frozen=True, eq=False, slots=True)
class PlanNode:
    """A node of Spark's plan with its name: to ask for that again would call the JVM."""

    node: Any
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class ExchangeNode:
    """An exchange as Spark's plan has it."""

    physical: Any
    """Spark's own node, or the leaf in its place once the exchange has begun."""
    logical: Any
    """The logical node whose rows go through it, None for such a leaf."""
    given: StructType
    """The schema of its rows in Spark's plan."""
    above: tuple[PlanNode, ...]
    """The nodes from the root of the stage that reads it down to its parent."""
    columns: tuple[int, ...]
    """For each column of the node the place of the stored column: repeated columns share one."""
    partitioning: Any
    kind: str
    """The class of the partitioning, or of the exchange where it is another engine's."""
    label: str
    """The partitioning as Spark writes it."""
    count: int
    """The number of its partitions in Spark's plan: subpartitions in Headgate."""
    wanted: bool
    """True when the query requires this number of partitions, as a repartition by number does."""
    spreads_evenly: bool
    """True if it is there to make partitions of about the same size: a rebalance."""

    @property
    def rows(self) -> StructType:
        """Return the schema of its rows as they are stored: each column once."""
        return StructType([self.given[at] for at in self.firsts])

    @property
    def firsts(self) -> list[int]:
        """Return for each stored column its first place among the node's columns."""
        return [self.columns.index(at) for at in range(max(self.columns, default=-1) + 1)]

    @property
    def public_label(self) -> str:
        """Return the label for the log and Spark's pages. It names columns and shows no values:
        these may be keys."""
        if self.kind not in (HASH, RANGE):
            return self.label
        return f"{self.kind}({self.partitioning.references().mkString(', ')}) into {self.count}"


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which tasks read the rows of an exchange."""

    parts: tuple[Part, ...] = ()
    """The parts that tasks read, empty where each task reads one subpartition."""
    caller: Caller | None = None
    """The node whose function the tasks call with the rows, if any."""

    @property
    def is_cut(self) -> bool:
        """Return True if some subpartition is read in pieces, or once for each piece of the
        opposite exchange's subpartition."""
        spans = {part.subpartitions for part in self.parts}
        pieces = any(part.partitions is not None for part in self.parts)
        return pieces or len(spans) < len(self.parts)


@dataclass(eq=False, slots=True)
class Shuffle:
    """One exchange of a plan."""

    node: ExchangeNode
    """The exchange in Spark's plan."""
    inputs: list[Shuffle]
    """The exchanges that its map stage reads."""
    stage: Group
    """The exchanges that its map stage reads directly, side by side."""
    group: Group
    """The exchanges that are read beside it, with itself. Exchanges that must be read alike get a
    common group before they are read."""
    mark: Mark | None = None
    """The mark in its place, None until it has begun."""
    opposite: list[Shuffle] = field(default_factory=list)
    """The exchanges on the other side of the nearest join, known when the join is reached."""
    refusal: str = ""
    """The reason why it is left to Spark, empty when it is not. Decided before it begins."""
    reading: Reading = Reading()
    """Planned with the query, and replaced before the exchange is read."""
    form: int = -1
    """The number that exchanges with the same rows in the same partitions share, -1 until it is
    asked for."""
    guess_bytes: float = -1
    """The size that Spark and the filters below let expect, -1 until it is asked for."""

    @property
    def filters(self) -> int:
        """Return the number of filters below it, in all stages."""
        first = self.mark.first if self.mark else self  # a later plan has only a leaf in its place
        return first.stage.filters + sum(shuffle.filters for shuffle in first.inputs)

    @property
    def place(self) -> Any:
        """Return the node whose place the scan takes."""
        return self.reading.caller.node if self.reading.caller else self.node.physical

    @property
    def is_done(self) -> bool:
        return self.mark is not None and self.mark.rows >= 0


@dataclass(eq=False, slots=True)
class Broadcast:
    """Rows that are broadcast to one stage of a plan."""

    node: Any
    """Spark's own node, or the leaf in its place once the broadcast has begun."""
    logical: Any
    """The logical node whose rows it sends, None for such a leaf."""
    inputs: list[Shuffle]
    """The exchanges that it reads."""
    stage: Group
    """The exchanges that it reads directly, side by side, and the broadcasts to it."""
    sent: BroadcastMark | None = None
    """The broadcast that has begun; equal ones share it."""
    form: int = -1
    """The number that broadcasts of the same rows share, -1 until it is asked for."""

    @property
    def is_done(self) -> bool:
        return self.sent is not None and self.sent.rows >= 0


@dataclass(eq=False, slots=True)
class BroadcastMark:
    """A broadcast that has begun."""

    stage: Any
    """Spark's node for it in plans, whose number tells it from others."""
    exchange: Any
    """Spark's own node that makes it."""
    begun_s: float
    rows: int = -1
    """The number of its rows, -1 until it has ended."""
    joins_nothing: bool = False
    """True if no row of the other side can be joined with it."""

    @property
    def tag(self) -> str:
        """Return the tag of its jobs."""
        return str(self.exchange.jobTag())

    def is_over(self) -> bool:
        """Return True if it has ended, or failed."""
        return is_over(self.exchange.relationFuture)


@dataclass(frozen=True, eq=False, slots=True)
class Caller:
    """A node whose work is done by the tasks that read its exchanges."""

    node: Any
    call: Call
    """The function that the tasks call."""
    shuffles: tuple[Shuffle, ...]


@dataclass(eq=False, slots=True)
class Mark:
    """An exchange that has begun."""

    stage: Any
    """Spark's node for it in plans, whose number tells this mark from others."""
    first: Shuffle
    """The exchange as it began; equal exchanges of all plans share its mark."""
    tag: str = field(default_factory=lambda: f"headgate-{os.urandom(8).hex()}")
    """The tag of the jobs that only this exchange needs."""
    is_needless: bool = False
    """True if nobody will read its rows."""
    rows: int = -1
    """The number of its rows, -1 until it is done."""
    plain_bytes: int = 0
    """The size of its rows without compression, known when it is done."""

    @property
    def size_bytes(self) -> int:
        """Return the size of its rows, if it is done, as Spark counts its own rows: in memory,
        where each column takes at least eight bytes."""
        columns = len(self.first.node.given)
        return 8 * self.rows + max(8 * self.rows * columns, self.plain_bytes)


@dataclass(frozen=True, slots=True)
class Plan:
    """A query's plan, taken apart at its exchanges."""

    logical: Any
    top: Any
    """The limit that was taken off the root, None if there was none. The driver applies it."""
    root: Any
    """The root of the physical plan, below `top`."""
    shuffles: tuple[Shuffle, ...]
    """All exchanges, each after the exchanges that it reads."""
    inputs: tuple[Shuffle, ...]
    """The exchanges that the last stage reads."""
    last: Group
    """The last stage."""
    refusal: str
    """The reason why all exchanges are left to Spark, empty when they are not."""
    few: int = 0
    """The number of rows that may make parts of the plan needless."""
    is_shortened: bool = False
    """True if an exchange was left out whose rows only `top` would read."""

    @property
    def broadcasts(self) -> Iterator[Broadcast]:
        """Yield all broadcasts, each after those to its own stage."""
        for stage in (*(shuffle.stage for shuffle in self.shuffles), self.last):
            yield from _all_broadcasts(stage)

    @property
    def running(self) -> list[Mark]:
        """Return the exchanges that run, each once."""
        marks = dict.fromkeys(shuffle.mark for shuffle in self.shuffles)
        return [mark for mark in marks if mark is not None and mark.rows < 0]

    @property
    def sending(self) -> list[BroadcastMark]:
        """Return the broadcasts that run, each once."""
        marks = dict.fromkeys(broadcast.sent for broadcast in self.broadcasts)
        return [mark for mark in marks if mark is not None and mark.rows < 0]

    @property
    def waiting(self) -> int:
        """Return the number of exchanges that have not begun."""
        return sum(shuffle.mark is None for shuffle in self.shuffles)


def _all_broadcasts(stage: Group) -> Iterator[Broadcast]:
    for broadcast in stage.broadcasts:
        yield from _all_broadcasts(broadcast.stage)
        yield broadcast


def all_sent(stage: Group, inputs: Iterable[Shuffle]) -> Iterator[Broadcast]:
    """Yield the broadcasts to a stage, and to the exchanges below that are left to Spark."""
    for each in (stage, *(shuffle.stage for shuffle in refused(inputs))):
        yield from each.broadcasts


def are_there(inputs: Sequence[Shuffle], stage: Group) -> bool:
    """Return True if all inputs of a stage are done, and all broadcasts to it."""
    return all(shuffle.is_done for shuffle in through(inputs)) and all(
        broadcast.is_done for broadcast in all_sent(stage, inputs)
    )


def refused(shuffles: Iterable[Shuffle]) -> Iterator[Shuffle]:
    """Yield the exchanges that are left to Spark, among these and below them, down to the first
    exchange on each path that runs in Headgate."""
    for shuffle in shuffles:
        if shuffle.refusal:
            yield shuffle
            yield from refused(shuffle.inputs)


def through(shuffles: Iterable[Shuffle]) -> Iterator[Shuffle]:
    """Yield the exchanges that run in Headgate. The inputs of an exchange that is left to Spark
    take its place."""
    for shuffle in shuffles:
        if shuffle.refusal:
            yield from through(shuffle.inputs)
        else:
            yield shuffle

"""The exchanges of a plan, as they hang together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from ..tasks.grouped.function import Call
from ..tasks.partial_aggregates import Merging
from ..tasks.worker import Part

HASH, RANGE, ROUND_ROBIN, SINGLE = (
    "HashPartitioning",
    "RangePartitioning",
    "RoundRobinPartitioning",
    "SinglePartition$",
)
KINDS = (HASH, RANGE, ROUND_ROBIN, SINGLE)


@dataclass(eq=False, slots=True)
class Group:
    """Exchanges that one stage reads side by side: whatever a task reads of one, it reads of the
    others too. `others`: beside them it reads something else."""

    shuffles: list[Shuffle] = field(default_factory=list)
    others: bool = False
    filters: int = 0


@dataclass(eq=False, slots=True)
class Shuffle:
    """One exchange of a plan, as Spark has it, or the mark that stands in its place once it has
    begun. `wanted`: the user asked for so many partitions. `above` are the nodes from its stage's
    root down to it, `origin` is the logical node whose rows go through it; `opposite` is what the
    nearest join brings together with it, `stage` what is read below it; `parts` are what the tasks
    that read it take, when it is not one subpartition each; `caller` says what they call with its
    rows, and `merging` how they make fewer of them, when they do not just hand them out. `columns`
    says for each column of the node which one that is stored: what repeats is stored once."""

    node: Any
    columns: tuple[int, ...]
    partitioning: Any
    kind: str
    count: int
    wanted: bool
    group: Group
    inputs: list[Shuffle]
    above: tuple[Any, ...]
    origin: Any
    stage: Group
    opposite: list[Shuffle] = field(default_factory=list)
    mark: Mark | None = None
    refusal: str = ""
    parts: tuple[Part, ...] = ()
    caller: Caller | None = None
    merging: Merging | None = None

    @property
    def given(self) -> StructType:
        """Its rows under their own names."""
        found: StructType = StructType.fromJson(json.loads(self.node.schema().json()))
        return found

    @property
    def rows(self) -> StructType:
        """The same as they are stored."""
        given = self.given
        return StructType([given[at] for at in self.firsts])

    @property
    def firsts(self) -> list[int]:
        """For each column that is stored the first of the node that it is."""
        return [self.columns.index(at) for at in range(max(self.columns, default=-1) + 1)]

    @property
    def filters(self) -> int:
        """How often its rows were sifted."""
        return self.stage.filters + sum(one.filters for one in self.inputs)

    @property
    def place(self) -> Any:
        """The node that reading it takes the place of."""
        return self.caller.node if self.caller else self.node

    @property
    def is_cut(self) -> bool:
        """Whether some of its subpartitions are read in pieces, or once for each piece of another
        exchange."""
        held = {part.subpartitions for part in self.parts}
        pieces = any(part.partitions is not None for part in self.parts)
        return pieces or len(held) < len(self.parts)

    @property
    def is_done(self) -> bool:
        return self.mark is not None and self.mark.rows >= 0

    @property
    def label(self) -> str:
        return str(self.partitioning.toString())

    @property
    def public_label(self) -> str:
        """What the log and Spark's pages say of it: columns, and no values, which may be keys."""
        if self.kind not in (HASH, RANGE):
            return self.label
        return f"{self.kind}({self.partitioning.references().mkString(', ')}) into {self.count}"


@dataclass(frozen=True, eq=False, slots=True)
class Caller:
    """A node that is done by the tasks that read its exchanges, and what they call for it."""

    node: Any
    call: Call
    shuffles: tuple[Shuffle, ...]


@dataclass(eq=False, slots=True)
class Mark:
    """An exchange that has begun: an RDD without rows that only tells it from others, and its size
    once it is known."""

    rdd: Any
    first: Shuffle
    rows: int = -1
    size_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """`shuffles` are all exchanges of a plan, each behind those that it reads; `inputs` those that
    the last stage reads. `top` is a limit that only the driver's reading obeys. `refusal` says why
    all of it is left to Spark, empty when it is not."""

    logical: Any
    top: Any
    root: Any
    shuffles: tuple[Shuffle, ...]
    inputs: tuple[Shuffle, ...]
    refusal: str


def refused(shuffles: Iterable[Shuffle]) -> Iterator[Shuffle]:
    """Those that are left to Spark before one is reached that runs here."""
    for one in shuffles:
        if one.refusal:
            yield one
            yield from refused(one.inputs)


def through(shuffles: Iterable[Shuffle]) -> Iterator[Shuffle]:
    """Those that run here: through one that is left to Spark its own inputs are read."""
    for one in shuffles:
        if one.refusal:
            yield from through(one.inputs)
        else:
            yield one

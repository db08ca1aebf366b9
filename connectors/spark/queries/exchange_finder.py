"""The exchanges of a physical plan, and how they hang together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..jvm.bridge import Jvm, name_of
from .exchange_nodes import Group, Mark, Shuffle

_SHUFFLE, _BROADCAST = "ShuffleExchangeExec", "BroadcastExchangeExec"
_LEAF, _JOINS = "RDDScanExec", ("SortMergeJoinExec", "ShuffledHashJoinExec")
_SORT = "SortExec"
TOP = "TakeOrderedAndProjectExec"
_UNION, _UNKNOWN = "UnionExec", "UnknownPartitioning"
_FILTER = "FilterExec"
_NO_NULLS = re.compile(r"isnotnull\([^()]*\)| AND |[()]")
_WANTED = ("REPARTITION_BY_NUM$", "REQUIRED_BY_STATEFUL_OPERATOR$")


class ExchangeFinder:
    """`shuffles` are all exchanges under a root, each behind those that it reads; `inputs` those
    that the root's own stage reads; `tops` are the top rows that come together without one."""

    def __init__(self, jvm: Jvm, marks: Mapping[int, Mark], root: Any) -> None:
        self._jvm = jvm
        self._marks = marks
        self._nested = not root.subqueriesAll().isEmpty()
        self.shuffles: list[Shuffle] = []
        self.tops: list[Any] = []
        self.inputs = self._walk(root, Group(), ())

    def _walk(self, node: Any, group: Group, above: tuple[Any, ...]) -> list[Shuffle]:
        """The exchanges that the stage of this node reads; all of the plan go to `shuffles`."""
        inputs: list[Shuffle] = []
        for subquery in self._jvm.items(node.subqueries()) if self._nested else ():
            inputs += self._walk(subquery, Group(), ())
        name = name_of(node)
        if name == _SHUFFLE:
            below = self._walk(node.child(), inner := Group(), ())
            return [*inputs, self._found(node, group, below, above, inner)]
        if name == _FILTER and _NO_NULLS.sub("", node.condition().toString()):
            group.filters += 1
        if name == _LEAF and (mark := self._marks.get(node.rdd().id())):
            shuffle = self._found(node, group, [], above, Group())
            shuffle.mark, shuffle.wanted = mark, mark.first.wanted
            return [*inputs, shuffle]
        if name == TOP and partitions(node.child()) != 1:
            self.tops.append(node)
        children = self._jvm.items(node.children())
        if not children:
            group.others = True
        sent = name == _BROADCAST
        apart = name == _UNION and name_of(node.outputPartitioning()) == _UNKNOWN
        sides = []
        for child in children:
            own = Group() if apart or sent else group
            sides.append(self._walk(child, own, () if sent else (*above, node)))
            if apart:
                group.others |= own.others
                group.filters += own.filters
        if name in _JOINS:
            for side, opposite in zip(sides, reversed(sides), strict=True):
                for one in side:
                    one.opposite = one.opposite or opposite
        return inputs + [one for side in sides for one in side]

    def _found(
        self,
        node: Any,
        group: Group,
        below: list[Shuffle],
        above: tuple[Any, ...],
        stage: Group,
    ) -> Shuffle:
        columns, partitioning = self._columns(node), node.outputPartitioning()
        kind, count = name_of(partitioning), partitions(node)
        begun = name_of(node) != _SHUFFLE
        wanted = not begun and name_of(node.shuffleOrigin()) in _WANTED
        origin = None if begun else _origin(node)
        shuffle = Shuffle(
            node, columns, partitioning, kind, count, wanted, group, below, above, origin, stage
        )
        group.shuffles.append(shuffle)
        self.shuffles.append(shuffle)
        return shuffle

    def _columns(self, node: Any) -> tuple[int, ...]:
        """For each column of a node its place, when those that repeat are left out."""
        output = node.output()
        if node.outputSet().size() == output.size():
            return tuple(range(output.size()))
        numbers = [one.exprId().id() for one in self._jvm.items(output)]
        places = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
        return tuple(places[number] for number in numbers)


def joined(above: tuple[Any, ...]) -> tuple[Any, ...]:
    """The nodes from a stage's root to a join of an exchange, which is at most sorted for it."""
    if above and name_of(above[-1]) == _SORT:
        above = above[:-1]
    return above if above and name_of(above[-1]) in _JOINS else ()


def link(node: Any) -> Any:
    """The logical node that a physical one was made of, None for what Spark has put between."""
    found = node.logicalLink()
    return found.get() if found.isDefined() else None


def _origin(node: Any) -> Any:
    """What is asked here, for what a stage is planned from takes its place when the stage runs."""
    while (found := link(node)) is None:
        node = node.child()
    return found


def is_grouped(logical: Any) -> bool:
    return name_of(logical) == "Aggregate" and logical.groupingExpressions().nonEmpty()


def partitions(node: Any) -> int:
    return int(node.outputPartitioning().numPartitions())

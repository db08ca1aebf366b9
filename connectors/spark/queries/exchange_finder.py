"""Find the exchanges of a physical plan, and how they depend on each other."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..jvm.bridge import Jvm, name_of, schema_of
from .exchange_nodes import RANGE, ExchangeNode, Group, Mark, PlanNode, Shuffle

_SHUFFLE, _BROADCAST = "ShuffleExchangeExec", "BroadcastExchangeExec"
_LEAF, JOINS = "RDDScanExec", ("SortMergeJoinExec", "ShuffledHashJoinExec")
_SORT = "SortExec"
TOP = "TakeOrderedAndProjectExec"
_UNION, _UNKNOWN = "UnionExec", "UnknownPartitioning"
_FILTER, _PROJECT = "FilterExec", "ProjectExec"
# The nodes of most plans: their children are found by one call for each, not two more.
_UNARY = (
    _FILTER,
    _SORT,
    TOP,
    _BROADCAST,
    _PROJECT,
    "HashAggregateExec",
    "ObjectHashAggregateExec",
    "SortAggregateExec",
    "WindowExec",
    "ExpandExec",
    "ColumnarToRowExec",
)
_BINARY = (*JOINS, "BroadcastHashJoinExec")
_LEAVES = (_LEAF, "FileSourceScanExec", "LocalTableScanExec", "RangeExec")
_NO_NULLS = re.compile(r"isnotnull\([^()]*\)| AND |[()]")
_WANTED = ("REPARTITION_BY_NUM", "REQUIRED_BY_STATEFUL_OPERATOR")
_SPREADS = (  # as the user has asked
    "REPARTITION_BY_NUM",
    "REPARTITION_BY_COL",
    "REBALANCE_PARTITIONS_BY_NONE",
    "REBALANCE_PARTITIONS_BY_COL",
)
_ENSURED = "ENSURE_REQUIREMENTS"  # by Spark: no logical node stands for such an exchange


class ExchangeFinder:
    """Finds the exchanges under a root. `shuffles` are all exchanges, each after the exchanges
    that it reads. `inputs` are the exchanges that the root's stage reads. `tops` are the nodes
    that take the top rows of several partitions: Spark shows no exchange for these."""

    def __init__(self, jvm: Jvm, marks: Mapping[int, Mark], root: Any) -> None:
        self._jvm = jvm
        self._marks = marks
        self.shuffles: list[Shuffle] = []
        self.tops: list[Any] = []
        self.inputs = self._walk(root, Group(), (), _has_subqueries(root))

    def _walk(
        self, node: Any, group: Group, above: tuple[PlanNode, ...], nested: bool
    ) -> list[Shuffle]:
        """Return the exchanges that the stage of this node reads, from this node down. Add every
        exchange on the way to `shuffles`. `nested` is False if there is no subquery from here
        down."""
        inputs: list[Shuffle] = []
        for subquery in self._jvm.items(node.subqueries()) if nested else ():
            inputs += self._walk(subquery, Group(), (), _has_subqueries(subquery))
        name = name_of(node)
        mark = self._marks.get(node.rdd().id()) if name == _LEAF else None
        sent = name == _BROADCAST
        if nested and (sent or name == _SHUFFLE):
            nested = _has_subqueries(node)
        if name == _SHUFFLE or mark:
            stage = Group()
            below = [] if mark else self._walk(node.child(), stage, (), nested)
            shuffle = Shuffle(self._exchange(node, above, mark), below, stage, group, mark)
            group.shuffles.append(shuffle)
            self.shuffles.append(shuffle)
            return [*inputs, shuffle]
        if name == _FILTER and _NO_NULLS.sub("", node.condition().toString()):
            group.filters += 1
        if name == TOP and partitions(node.child()) != 1:
            self.tops.append(node)
        children = self._children(node, name)
        if not children:
            group.others = True
        apart = name == _UNION and name_of(node.outputPartitioning()) == _UNKNOWN
        sides, here = [], PlanNode(node, name)
        for child in children:
            child_group = Group() if apart or sent else group
            sides.append(self._walk(child, child_group, () if sent else (*above, here), nested))
            if apart:
                group.others |= child_group.others
                group.filters += child_group.filters
        if name in JOINS:
            for side, opposite in zip(sides, reversed(sides), strict=True):
                for exchange in side:
                    exchange.opposite = exchange.opposite or opposite
        return inputs + [exchange for side in sides for exchange in side]

    def _children(self, node: Any, name: str) -> list[Any]:
        if name in _UNARY:
            return [node.child()]
        if name in _LEAVES:
            return []
        return [node.left(), node.right()] if name in _BINARY else self._jvm.items(node.children())

    def _exchange(self, node: Any, above: tuple[PlanNode, ...], mark: Mark | None) -> ExchangeNode:
        partitioning, given = node.outputPartitioning(), schema_of(node)
        cause = "" if mark else name_of(node.shuffleOrigin())
        return ExchangeNode(
            node,
            None if mark else _origin(self._jvm, node.child() if cause == _ENSURED else node),
            given,
            above,
            self._columns(node, given.names),
            partitioning,
            name_of(partitioning),
            int(partitioning.numPartitions()),
            mark.first.node.wanted if mark else cause in _WANTED,
        )

    def _columns(self, node: Any, names: Sequence[str]) -> tuple[int, ...]:
        """Return for each of a node's columns its place among the distinct columns."""
        if len(set(names)) == len(names) or node.outputSet().size() == len(names):
            return tuple(range(len(names)))
        numbers = [column.exprId().id() for column in self._jvm.items(node.output())]
        places = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
        return tuple(places[number] for number in numbers)


def without_spreads(jvm: Jvm, root: Any) -> Any:
    """Return the plan of rows of which a limit takes any, without exchanges that spread them just
    below it: all of them would go through these for the few that are shown."""
    node = root
    projections, spreads = [], 0
    while True:
        name = name_of(node)
        if name == _SHUFFLE and name_of(node.shuffleOrigin()) in _SPREADS:
            if name_of(node.outputPartitioning()) == RANGE:
                break  # its first rows are the smallest
            spreads += 1
        elif name == _PROJECT and all(
            column.deterministic() for column in jvm.items(node.projectList())
        ):
            projections.append(node)
        else:
            break
        node = node.child()
    if not spreads:
        return root
    for projection in reversed(projections):
        node = projection.withNewChildren(jvm.seq([node]))
    return node


def _has_subqueries(plan: Any) -> bool:
    return not plan.subqueriesAll().isEmpty()


def over(shuffle: Shuffle, names: Container[str]) -> tuple[Any, ...]:
    """Return the nodes from a stage's root down to the node right above an exchange, or above its
    sort. Return an empty tuple if that node has none of these names."""
    above = shuffle.node.above
    if above and above[-1].name == _SORT:
        above = above[:-1]
    return tuple(each.node for each in above) if above and above[-1].name in names else ()


def link(node: Any) -> Any:
    """Return the logical node of a physical node, None for a node that Spark has added."""
    logical = node.logicalLink()
    return logical.get() if logical.isDefined() else None


def _origin(jvm: Jvm, node: Any) -> Any:
    """Return the logical node of a physical node, or of the nearest node below that has one. Call
    this before the stage runs: Spark then plans its nodes again, from another logical leaf."""
    while (logical := node.logicalLink().orNull(jvm.null)) is None:
        node = node.child()
    return logical


def is_grouped(logical: Any) -> bool:
    return name_of(logical) == "Aggregate" and logical.groupingExpressions().nonEmpty()


def partitions(node: Any) -> int:
    return int(node.outputPartitioning().numPartitions())

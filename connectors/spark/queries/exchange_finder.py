"""Find the exchanges of a physical plan, and how they depend on each other."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..jvm.bridge import Jvm, link, name_of, schema_of
from .exchange_nodes import (
    RANGE,
    Broadcast,
    BroadcastMark,
    ExchangeNode,
    Group,
    Mark,
    PlanNode,
    Shuffle,
)

_SHUFFLE, BROADCAST = "ShuffleExchangeExec", "BroadcastExchangeExec"
_BEGUN, _SENT = "ShuffleQueryStageExec", "BroadcastQueryStageExec"
JOINS = ("SortMergeJoinExec", "ShuffledHashJoinExec")
_SORT = "SortExec"
TOP = "TakeOrderedAndProjectExec"
_UNION, _UNKNOWN = "UnionExec", "UnknownPartitioning"
_FILTER, _PROJECT = "FilterExec", "ProjectExec"
_NO_MORE_ROWS = (
    _FILTER,
    _SORT,
    _PROJECT,
    "HashAggregateExec",
    "ObjectHashAggregateExec",
    "SortAggregateExec",
    "WindowExec",
)
# The nodes of most plans, whose methods for their children are known.
_UNARY = (*_NO_MORE_ROWS, _SHUFFLE, TOP, BROADCAST, "ExpandExec", "ColumnarToRowExec")
_BINARY = (*JOINS, "BroadcastHashJoinExec")
_SIDES = {name: ("child",) for name in _UNARY} | {name: ("left", "right") for name in _BINARY}
_LIMITS = ("LocalLimitExec", "GlobalLimitExec")
_LEAVES = ("RDDScanExec", "FileSourceScanExec", "LocalTableScanExec", "RangeExec")
_ANYWHERE = {"UnspecifiedDistribution", "BroadcastDistribution"}
_LEFT_CUT = ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti")
_RIGHT_CUT = ("Inner", "Cross", "RightOuter")
_NO_NULLS = re.compile(r"isnotnull\([^()]*\)| AND |[()]")
_WANTED = ("REPARTITION_BY_NUM", "REQUIRED_BY_STATEFUL_OPERATOR")
_SPREADS = (  # as the user has asked
    "REPARTITION_BY_NUM",
    "REPARTITION_BY_COL",
    "REBALANCE_PARTITIONS_BY_NONE",
    "REBALANCE_PARTITIONS_BY_COL",
)
_REBALANCES = "REBALANCE_PARTITIONS_"
_ENSURED = "ENSURE_REQUIREMENTS"  # by Spark: no logical node stands for such an exchange


class ExchangeFinder:
    """Finds the exchanges under a root. `shuffles` are all exchanges, each after the exchanges that
    it reads. `inputs` are the exchanges that the root's stage reads, `last` is that stage. `tops`
    are the nodes that take the top rows of several partitions: Spark shows no exchange for these.
    `few` is the number of rows for which a limit or a sort would have no effect."""

    def __init__(
        self, jvm: Jvm, marks: Mapping[int, Mark], sent: Mapping[int, BroadcastMark], root: Any
    ) -> None:
        self._jvm = jvm
        self._marks = marks
        self._sent = sent
        self.shuffles: list[Shuffle] = []
        self.tops: list[Any] = []
        self.few = 0
        self.last = Group()
        self.inputs = self._walk_from(root, self.last)

    def _walk_from(self, root: Any, group: Group) -> list[Shuffle]:
        return self._walk(PlanNode(root, name_of(root)), group, (), _has_subqueries(root))

    def _walk(
        self, here: PlanNode, group: Group, above: tuple[PlanNode, ...], nested: bool
    ) -> list[Shuffle]:
        """Return the exchanges that the stage of this node reads, from this node down, without
        those behind a broadcast. Add every exchange on the way to `shuffles`. `nested` is False if
        there is no subquery from here down."""
        node, name = here.node, here.name
        inputs: list[Shuffle] = []
        for subquery in self._jvm.items(node.subqueries()) if nested else ():
            inside = Group()
            inputs += self._walk_from(subquery, inside)
            group.broadcasts += inside.broadcasts
        if name == _SENT:
            sent = self._sent[node.id()]
            group.broadcasts.append(Broadcast(node, None, [], Group(), sent))
            return inputs
        shuffles = is_exchange(name)
        if nested and (name == BROADCAST or shuffles):
            nested = _has_subqueries(node)
        if name == BROADCAST:
            stage = Group()
            (child,) = self._children(here)
            below = self._walk(child, stage, (), nested)
            group.broadcasts.append(Broadcast(node, _origin(node), below, stage))
            return inputs
        mark = self._marks[node.id()] if name == _BEGUN else None
        if shuffles or mark:
            stage = Group()
            below = []
            if not mark:
                (child,) = self._children(here)
                below = self._walk(child, stage, (), nested)
            shuffle = Shuffle(self._exchange(here, above, mark), below, stage, group, mark)
            if shuffle.node.kind == RANGE and not mark:
                self.few = max(self.few, 1)
            group.shuffles.append(shuffle)
            self.shuffles.append(shuffle)
            return [*inputs, shuffle]
        if name == _FILTER and _NO_NULLS.sub("", node.condition().toString()):
            group.filters += 1
        if name in _LIMITS:
            self.few = max(self.few, node.limit())
        if name == TOP and partitions(node.child()) != 1:
            self.tops.append(node)
        return inputs + self._below(here, group, above, nested)

    def _below(
        self, here: PlanNode, group: Group, above: tuple[PlanNode, ...], nested: bool
    ) -> list[Shuffle]:
        """Return the exchanges that the stage of a node reads below the node."""
        children = self._children(here)
        if not children:
            group.others = True
        apart = here.name == _UNION and name_of(here.node.outputPartitioning()) == _UNKNOWN
        sides = []
        for child in children:
            child_group = Group() if apart else group
            sides.append(self._walk(child, child_group, (*above, here), nested))
            if apart:
                group.others |= child_group.others
                group.filters += child_group.filters
                group.broadcasts += child_group.broadcasts
        if here.name in JOINS:
            for side, opposite in zip(sides, reversed(sides), strict=True):
                for exchange in side:
                    exchange.opposite = exchange.opposite or opposite
        return [exchange for side in sides for exchange in side]

    def _children(self, above: PlanNode) -> list[PlanNode]:
        if above.name in _LEAVES:
            return []
        if (sides := _SIDES.get(above.name)) is None:
            named = self._jvm.named_items(above.node.children())
            return [PlanNode(node, name) for name, node in named]
        nodes = [getattr(above.node, side)() for side in sides]
        return [PlanNode(node, name_of(node)) for node in nodes]

    def _exchange(
        self, here: PlanNode, above: tuple[PlanNode, ...], mark: Mark | None
    ) -> ExchangeNode:
        node = here.node
        cause = "" if mark else name_of(node.shuffleOrigin())
        partitioning, given = node.outputPartitioning(), schema_of(node)
        return ExchangeNode(
            node,
            None if mark else _origin(node.child() if cause == _ENSURED else node),
            given,
            above,
            self._columns(node, given.names),
            partitioning,
            name_of(partitioning) if mark or here.name == _SHUFFLE else here.name,
            str(partitioning.toString()),
            int(partitioning.numPartitions()),
            mark.first.node.wanted if mark else cause in _WANTED,
            mark.first.node.spreads_evenly if mark else cause.startswith(_REBALANCES),
        )

    def _columns(self, node: Any, names: Sequence[str]) -> tuple[int, ...]:
        """Return for each of a node's columns its place among the distinct columns."""
        if len(set(names)) == len(names) or node.outputSet().size() == len(names):
            return tuple(range(len(names)))
        numbers = [column.exprId().id() for column in self._jvm.items(node.output())]
        places = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
        return tuple(places[number] for number in numbers)


def is_exchange(name: str) -> bool:
    """Return True for the name of Spark's exchange, or of the one that Comet, Gluten or RAPIDS puts
    in its place."""
    return name.endswith(_SHUFFLE)


def without_spreads(jvm: Jvm, root: Any) -> Any:
    """Return the plan of the rows below a limit that takes any of them, without the exchanges just
    below it that only spread them: all rows would go through these for the few that are shown."""
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


def may_cut(jvm: Jvm, group: Group) -> list[bool]:
    """Return for each exchange of a stage whether its large subpartitions may be cut. The stage
    must read one rebalance, or two exchanges and join them as the type of the join allows, and no
    node above may rely on where rows are."""
    nothing, first = [False] * len(group.shuffles), group.shuffles[0].node
    if len(group.shuffles) == 1 and first.spreads_evenly:
        return [_is_free(jvm, [each.node for each in first.above])]
    joins = [over(shuffle, JOINS) for shuffle in group.shuffles]
    if len(joins) != 2 or not all(joins) or joins[0][-1] is not joins[1][-1]:
        return nothing
    left, right = (shuffle.node.physical for shuffle in group.shuffles)
    if left == right:  # one exchange at both places cannot be read in two ways
        return nothing
    *above, join = joins[0]
    if not _is_free(jvm, above):
        return nothing
    kind = join.joinType().toString()
    return [kind in _LEFT_CUT, kind in _RIGHT_CUT]


def _is_free(jvm: Jvm, above: Sequence[Any]) -> bool:
    """Return True if no node relies on where its rows are."""
    wanted = [each for node in above for each in jvm.items(node.requiredChildDistribution())]
    return {name_of(distribution) for distribution in wanted} <= _ANYWHERE


def made_of_one(shuffle: Shuffle) -> Shuffle | None:
    """Return the exchange from which another one gets all its rows, through nodes of Spark's that
    add no rows; None where there is no such exchange."""
    if len(shuffle.inputs) != 1:
        return None
    (read,) = shuffle.inputs
    return read if all(node.name in _NO_MORE_ROWS for node in read.node.above) else None


def made_of(exchange: ExchangeNode) -> Any:
    """Return the highest physical node over an exchange that was made of the same logical node, or
    the exchange itself. Return None where its columns are not those of the logical node: the
    exchange then has to be found again."""
    physical = exchange.physical
    for above in reversed(exchange.above):
        logical = link(above.node)
        if logical == exchange.logical:
            physical = above.node
        elif logical is not None:
            break
    same = physical.outputSet().equals(exchange.logical.outputSet())
    return physical if same else None


def _origin(node: Any) -> Any:
    """Return the logical node of a physical node, or of the nearest node below that has one. Call
    this before the stage runs: Spark then plans its nodes again, from another logical leaf."""
    while (logical := link(node)) is None:
        node = node.child()
    return logical


def partitions(node: Any) -> int:
    return int(node.outputPartitioning().numPartitions())

"""Find the exchanges of a physical plan, and how they depend on each other."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from ..jvm.bridge import Jvm, name_of
from .exchange_nodes import RANGE, ExchangeNode, Group, Mark, PlanNode, Shuffle

_SHUFFLE, BROADCAST = "ShuffleExchangeExec", "BroadcastExchangeExec"
_LEAF, JOINS = "RDDScanExec", ("SortMergeJoinExec", "ShuffledHashJoinExec")
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
_LEAVES = (_LEAF, "FileSourceScanExec", "LocalTableScanExec", "RangeExec")
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
_ENSURED = "ENSURE_REQUIREMENTS"  # by Spark: no logical node stands for such an exchange


class ExchangeFinder:
    """Finds the exchanges under a root. `shuffles` are all exchanges, each after the exchanges
    that it reads. `inputs` are the exchanges that the root's stage reads, `last` is that stage.
    `tops` are the nodes that take the top rows of several partitions: Spark shows no exchange for
    these."""

    def __init__(self, jvm: Jvm, marks: Mapping[int, Mark], root: Any) -> None:
        self._jvm = jvm
        self._marks = marks
        self.shuffles: list[Shuffle] = []
        self.tops: list[Any] = []
        self.last = Group()
        self.inputs = self._walk_from(root, self.last)

    def _walk_from(self, root: Any, group: Group) -> list[Shuffle]:
        return self._walk(PlanNode(root, name_of(root)), group, (), _has_subqueries(root))

    def _walk(
        self, here: PlanNode, group: Group, above: tuple[PlanNode, ...], nested: bool
    ) -> list[Shuffle]:
        """Return the exchanges that the stage of this node reads, from this node down. Add every
        exchange on the way to `shuffles`. `nested` is False if there is no subquery from here
        down."""
        node, name = here.node, here.name
        inputs: list[Shuffle] = []
        for subquery in self._jvm.items(node.subqueries()) if nested else ():
            inputs += self._walk_from(subquery, Group())
        mark = self._marks.get(node.rdd().id()) if name == _LEAF else None
        sent = name == BROADCAST
        shuffles = is_exchange(name)
        if nested and (sent or shuffles):
            nested = _has_subqueries(node)
        if shuffles or mark:
            stage = Group()
            below = []
            if not mark:
                (child,) = self._children(here)
                below = self._walk(child, stage, (), nested)
            shuffle = Shuffle(self._exchange(here, above, mark), below, stage, group, mark)
            group.shuffles.append(shuffle)
            self.shuffles.append(shuffle)
            return [*inputs, shuffle]
        if name == _FILTER and _NO_NULLS.sub("", node.condition().toString()):
            group.filters += 1
        if name == TOP and partitions(node.child()) != 1:
            self.tops.append(node)
        children = self._children(here)
        if not children:
            group.others = True
        apart = name == _UNION and name_of(node.outputPartitioning()) == _UNKNOWN
        sides = []
        for child in children:
            child_group = Group() if apart or sent else group
            sides.append(self._walk(child, child_group, () if sent else (*above, here), nested))
            if apart:
                group.others |= child_group.others
                group.filters += child_group.filters
                group.sent += child_group.sent
        if sent:
            group.sent += child_group.sent or ([] if nested or any(sides) else [node])
        if name in JOINS:
            for side, opposite in zip(sides, reversed(sides), strict=True):
                for exchange in side:
                    exchange.opposite = exchange.opposite or opposite
        return inputs + [exchange for side in sides for exchange in side]

    def _children(self, above: PlanNode) -> list[PlanNode]:
        if above.name in _LEAVES:
            return []
        if (sides := _SIDES.get(above.name)) is None:
            named = self._jvm.named_items(above.node.children())
            return [PlanNode(node, name) for name, node in named]
        with self._jvm.together() as calls:
            nodes = [getattr(calls.on(above.node), side)() for side in sides]
            given = calls.now(*nodes, *[node.productPrefix() for node in nodes])
        return list(map(PlanNode, given[: len(sides)], given[len(sides) :]))

    def _exchange(
        self, here: PlanNode, above: tuple[PlanNode, ...], mark: Mark | None
    ) -> ExchangeNode:
        node = here.node
        with self._jvm.together() as calls:
            it = calls.on(node)
            cause = "" if mark else it.shuffleOrigin().productPrefix()
            partitioning = it.outputPartitioning()
            named = partitioning.productPrefix(), partitioning.toString()
            cause, partitioning, kind, label, count, schema = calls.now(
                cause, partitioning, *named, partitioning.numPartitions(), it.schema().json()
            )
        given = StructType.fromJson(json.loads(schema))
        return ExchangeNode(
            node,
            None if mark else _origin(self._jvm, node.child() if cause == _ENSURED else node),
            given,
            above,
            self._columns(node, given.names),
            partitioning,
            kind if mark or here.name == _SHUFFLE else here.name,
            label,
            count,
            mark.first.node.wanted if mark else cause in _WANTED,
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


def may_cut(jvm: Jvm, group: Group) -> list[bool]:
    """Return for each exchange of a stage whether its skewed subpartitions may be cut. The stage
    must read two exchanges and join them, the type of the join must allow it, and no node above the
    join may rely on where rows are."""
    joins = [over(shuffle, JOINS) for shuffle in group.shuffles]
    if len(joins) != 2 or not all(joins) or joins[0][-1] is not joins[1][-1]:
        return [False] * len(joins)
    left, right = (shuffle.node.physical for shuffle in group.shuffles)
    if left == right:  # one exchange at both places cannot be read in two ways
        return [False, False]
    *above, join = joins[0]
    wanted = [each for node in above for each in jvm.items(node.requiredChildDistribution())]
    if not {name_of(distribution) for distribution in wanted} <= _ANYWHERE:
        return [False, False]
    kind = join.joinType().toString()
    return [kind in _LEFT_CUT, kind in _RIGHT_CUT]


def made_of_one(shuffle: Shuffle) -> Shuffle | None:
    """Return the exchange that another one has all its rows from, by nodes of Spark's that make no
    more rows of them; None where there is no such exchange."""
    if len(shuffle.inputs) != 1:
        return None
    (read,) = shuffle.inputs
    return read if all(node.name in _NO_MORE_ROWS for node in read.node.above) else None


def link(node: Any) -> Any:
    """Return the logical node of a physical node, None for a node that Spark has added."""
    logical = node.logicalLink()
    return logical.get() if logical.isDefined() else None


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


def _origin(jvm: Jvm, node: Any) -> Any:
    """Return the logical node of a physical node, or of the nearest node below that has one. Call
    this before the stage runs: Spark then plans its nodes again, from another logical leaf."""
    null = jvm.null
    while True:
        with jvm.together() as calls:
            (logical,) = calls.now(calls.on(node).logicalLink().orNull(null))
        if logical is not None:
            return logical
        node = node.child()


def is_grouped(logical: Any) -> bool:
    return name_of(logical) == "Aggregate" and logical.groupingExpressions().nonEmpty()


def partitions(node: Any) -> int:
    return int(node.outputPartitioning().numPartitions())

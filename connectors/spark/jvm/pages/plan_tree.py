"""The plan of a query as Spark's SQL page shows it, with a node for each exchange.

Nodes are dictionaries, as in Spark's event log.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from .....control.ids import ResultId, exchange_name
from .....control.model.state import ResultState

_SCANS = "Scan Headgate "  # the names of results follow
_COMBINED = "-combined"
_BOX = "WholeStageCodegen"  # Spark's page draws its first child only
_APART = "InputAdapter"  # what is below it is drawn outside of the box of its parent
_PARTITIONS_MAX = 1_000  # for more, Spark's page would add them up too slowly
_METRICS = (
    ("shuffle records written", "sum"),
    ("shuffle bytes written", "size"),
    ("remote bytes read", "size"),
)
_numbers = count(1 << 50)  # Spark's accumulators have small numbers

Node = dict[str, Any]
States = Mapping[ResultId, ResultState]


class PlanTree:
    """The plan of a query as Spark's page shows it: each map stage below the first scan of its
    result."""

    def __init__(self) -> None:
        self._root: Node | None = None
        self._stages: dict[str, tuple[str, Node]] = {}
        self._metrics: dict[str, list[Node]] = {}

    def last(self, plan: Node) -> None:
        """Add the last stage of the query."""
        self._root = plan

    def stage(self, result: str, label: str, plan: Node) -> None:
        """Add the map stage that writes a result."""
        self._stages[result] = label, plan

    def tree(self) -> Node:
        """Return the plan as far as it is known."""
        left = dict(self._stages)
        root = self._grown(self._root, left) if self._root else None
        others = []
        while left:
            others.append(self._exchange(next(reversed(left)), left))
        if root is None and len(others) == 1:
            return others[0]
        root = root or _node("Headgate", "the last stage is planned when its exchanges are done")
        top = root
        while top["nodeName"].startswith(_BOX):
            (top,) = top["children"]
        top["children"] += [_node(_APART, "", each) for each in others]
        return root

    def values(self, results: States) -> list[tuple[int, int]]:
        """Return the values of all metrics, each with the number of the metric."""
        known = [(self._metrics[name], results.get(ResultId(name))) for name in self._metrics]
        return [
            (metric["accumulatorId"], value)
            for metrics, state in known
            if state is not None
            for metric, values in zip(metrics, _volumes(state), strict=True)
            for value in values
        ]

    def is_read(self, results: States) -> bool:
        """Return True if every subpartition of all exchanges was read."""
        states = [results.get(ResultId(name)) for name in self._metrics]
        return all(
            state is None or state.totals.reads.subpartitions == state.registered.subpartitions
            for state in states
        )

    def _grown(self, node: Node, left: dict[str, tuple[str, Node]]) -> Node:
        """Return a node with the exchanges that it scans. Take their stages out of `left`."""
        children = [self._grown(child, left) for child in node["children"]]
        if node["nodeName"].startswith(_SCANS):
            for result in node["nodeName"].removeprefix(_SCANS).split():
                if result.removesuffix(_COMBINED) in left:
                    children.append(_node(_APART, "", self._exchange(result, left)))
        return {**node, "children": children}

    def _exchange(self, result: str, left: dict[str, tuple[str, Node]]) -> Node:
        source = result.removesuffix(_COMBINED)
        if source != result:
            label, below = "combines the objects of its map stage", self._exchange(source, left)
        else:
            label, plan = left.pop(result)
            below = self._grown(plan, left)
        metrics = self._metrics.setdefault(result, [_metric(*each) for each in _METRICS])
        exchange = _node(f"Headgate exchange {result}", "", below)
        exchange["simpleString"] = f"Headgate exchange {exchange_name(ResultId(result), label)}"
        return {**exchange, "metrics": metrics}


def _volumes(state: ResultState) -> tuple[list[int], list[int], list[int]]:
    """Return the rows and bytes that were written, each partition apart if there are not too many,
    and the bytes that were read, if any were."""
    totals, partitions = state.totals, state.registered.partitions
    rows, sizes = [totals.rows], [totals.written.stored_bytes]
    if totals.partitions == len(state.production.winners) == partitions <= _PARTITIONS_MAX:
        produced = [state.produced(number) for number in range(partitions)]
        rows = [each.rows for each in produced]
        sizes = [each.size_bytes for each in produced]
    reads = totals.reads
    return rows, sizes, [reads.read_bytes] if reads.subpartitions else []


def _node(name: str, text: str, *children: Node) -> Node:
    return {
        "nodeName": name,
        "simpleString": f"{name}: {text}",
        "children": [*children],
        "metadata": {},
        "metrics": [],
    }


def _metric(name: str, kind: str) -> Node:
    return {"name": name, "accumulatorId": next(_numbers), "metricType": kind}


def metrics_of(node: Node) -> list[Node]:
    """Return the metrics of a node and of all below it."""
    return [*node["metrics"], *(each for child in node["children"] for each in metrics_of(child))]


def lines(node: Node, depth: int = 0) -> list[str]:
    """Return a plan as text."""
    if node["nodeName"] == _APART:
        return [line for child in node["children"] for line in lines(child, depth)]
    below = [line for child in node["children"] for line in lines(child, depth + 1)]
    return [f"{'   ' * depth}{node['simpleString']}", *below]

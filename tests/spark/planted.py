"""Bugs of planning again, put into the product's own functions: random queries have to see them.

Each patches one function. `python -m tests.spark.queries --planted NAME` tells the first query that
shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from headgate.connectors.spark import adaptive, offload, physical
from headgate.connectors.spark.jvm import name_of
from headgate.connectors.spark.physical import PlanDoor
from headgate.connectors.spark.shuffles import Mark, Plan, Shuffle
from headgate.connectors.spark.walk import nodes
from headgate.connectors.spark.worker import Part

Plant = Callable[[pytest.MonkeyPatch], None]
_FEW = 4
_FILTER = re.compile(r"^.*\bFilter .*$", re.MULTILINE)
_RIGHT_OUTER = "org.apache.spark.sql.catalyst.plans.RightOuter"


def scan_equal_nodes_alike(patch: pytest.MonkeyPatch) -> None:
    """Where one exchange stands at several places of a stage, the scan of the last stands at all:
    the first bug of this kind, which other suites have found."""
    fill = PlanDoor._fill

    def by_equal_nodes(self: PlanDoor, plan: Any, scans: Mapping[Shuffle, Any]) -> Any:
        last = {one: scan for one in scans for each, scan in scans.items() if each.node == one.node}
        return fill(self, plan, last)

    patch.setattr(PlanDoor, "_fill", by_equal_nodes)


def swap_parts(patch: pytest.MonkeyPatch) -> None:
    """Of two exchanges that are read side by side, the first two parts of one are swapped."""
    parts_of = adaptive.parts_of

    def swapped(*given: Any) -> Sequence[tuple[Part, ...]]:
        first, *others = parts_of(*given)
        if others and len(first) > 1:
            first = (first[1], first[0], *first[2:])
        return [first, *others]

    patch.setattr(offload, "parts_of", swapped)


def reuse_for_another_filter(patch: pytest.MonkeyPatch) -> None:
    """An exchange takes the rows of one that differs in nothing but its filters."""
    begin = PlanDoor.begin
    known: WeakKeyDictionary[PlanDoor, dict[str, Mark]] = WeakKeyDictionary()

    def blind(self: PlanDoor, shuffle: Shuffle) -> bool:
        text = str(shuffle.node.canonicalized().toString())
        is_first = begin(self, shuffle)
        assert shuffle.mark is not None
        if "Filter" not in text:
            return is_first
        alike = known.setdefault(self, {}).setdefault(_FILTER.sub("Filter", text), shuffle.mark)
        if alike is shuffle.mark or not is_first:
            return is_first
        shuffle.mark = alike
        return False

    patch.setattr(PlanDoor, "begin", blind)


def take_few_rows_for_none(patch: pytest.MonkeyPatch) -> None:
    """An exchange of few rows is planned again as an empty relation."""
    place = PlanDoor._place

    def hasty(self: PlanDoor, shuffle: Shuffle, physical: Any) -> tuple[Any, Any]:
        mark = shuffle.mark
        assert mark is not None
        if not 0 < mark.rows <= _FEW:
            return place(self, shuffle, physical)
        return shuffle.origin, self._door.relation(shuffle.origin.output())

    patch.setattr(PlanDoor, "_place", hasty)


def take_no_groups_for_no_rows(patch: pytest.MonkeyPatch) -> None:
    """A count over an exchange without rows is planned again as an empty relation."""
    patch.setattr(physical, "is_grouped", lambda logical: True)


def lose_a_piece(patch: pytest.MonkeyPatch) -> None:
    """The last piece of a skewed subpartition is read by nobody."""
    parts_of = adaptive.parts_of

    def without_last(*given: Any) -> Sequence[tuple[Part, ...]]:
        found = parts_of(*given)
        cut = [at for at, one in enumerate(zip(*found, strict=True)) if any(map(_is_piece, one))]
        end = cut[-1] if cut else max(map(len, found), default=0)
        return [(*parts[:end], *parts[end + 1 :]) for parts in found]

    patch.setattr(offload, "parts_of", without_last)


def broadcast_the_wrong_side(patch: pytest.MonkeyPatch) -> None:
    """Planned again, a left join keeps all rows of the side that turned out small enough to be
    broadcast."""
    plan = PlanDoor._plan

    def turned(self: PlanDoor, logical: Any) -> Plan:
        if not any(mark.rows >= 0 for mark in self._marks.values()):
            return plan(self, logical)
        kind = self._jvm.only(_RIGHT_OUTER)
        joins = [
            (node, node.copy(node.left(), node.right(), kind, node.condition(), node.hint()))
            for node in nodes(self._jvm, logical)
            if name_of(node) == "Join"
            and node.joinType().toString() == "LeftOuter"
            and float(node.right().stats().sizeInBytes()) <= self.adapting.broadcast_bytes
        ]
        return plan(self, self._replace(logical, joins))

    patch.setattr(PlanDoor, "_plan", turned)


def _is_piece(part: Part) -> bool:
    return part.partitions is not None


PLANTED: tuple[Plant, ...] = (
    scan_equal_nodes_alike,
    swap_parts,
    reuse_for_another_filter,
    take_few_rows_for_none,
    take_no_groups_for_no_rows,
    lose_a_piece,
    broadcast_the_wrong_side,
)

"""Bugs of planning again, planted in the product's own functions: random queries must find them.

Each bug patches one function. `python -m tests.spark.queries --planted NAME` prints the first query
that shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from headgate.connectors.spark.jvm import bridge
from headgate.connectors.spark.jvm.bridge import Jvm, name_of
from headgate.connectors.spark.queries import adaptive, runner, scan_places
from headgate.connectors.spark.queries.exchange_nodes import Group, Mark, Plan, Shuffle
from headgate.connectors.spark.queries.planner import Planner
from headgate.connectors.spark.queries.query_stages import StageMarks
from headgate.connectors.spark.queries.scan_places import Scan, ScanPlaces
from headgate.connectors.spark.tasks.exchange_tasks import Part

Plant = Callable[[pytest.MonkeyPatch], None]
_FEW = 4
_FILTER = re.compile(r"^.*\bFilter .*$", re.MULTILINE)
_NUMBER = re.compile(r"plan_id=\d+")
_RIGHT_OUTER = "org.apache.spark.sql.catalyst.plans.RightOuter"


def check_nothing(patch: pytest.MonkeyPatch) -> None:
    """The product's own checks of its plans are left out, so that a bug gives wrong rows."""

    def fill(
        self: ScanPlaces, plan: Any, scans: Sequence[tuple[Any, Scan]], cut: Sequence[Any] = ()
    ) -> Any:
        planned = self.replace(plan, [(join, scan_places._skewed(join)) for join in cut])
        return self.replace(planned, [(node, scan.reads) for node, scan in scans])

    def first_of_each(self: Jvm, items: Iterable[tuple[Any, Any]]) -> Any:
        return mapping(self, self.first_of_each(items))

    mapping = Jvm.mapping
    patch.setattr(ScanPlaces, "fill", fill)
    patch.setattr(Jvm, "mapping", first_of_each)
    patch.setattr(runner, "check_parts", lambda *_: None)


def read_each_place_by_itself(patch: pytest.MonkeyPatch) -> None:
    """Each group of places of one exchange in a stage is cut by its own sizes, and each place has
    its own scan: a bug that other suites have found. Spark is told that each place is hashed into
    so many partitions, and prepares the stage once more."""

    def apart(alike: Iterable[Sequence[Shuffle]]) -> list[Group]:
        return list(dict.fromkeys(shuffle.group for same in alike for shuffle in same))

    def hashed(self: Planner, shuffle: Shuffle) -> Any:
        stated = partitioning(self, shuffle)
        if not shuffle.reading.parts or name_of(stated) != "CoalescedHashPartitioning":
            return stated
        expressions = shuffle.node.partitioning.expressions()
        return shuffle.node.partitioning.copy(expressions, len(shuffle.reading.parts))

    def prepared(self: Planner, plan: Any) -> Any:
        return self._query(self._door.stage(plan)).executedPlan()

    partitioning = Planner._partitioning
    patch.setattr(runner, "_cut_as_one", apart)
    patch.setattr(Planner, "_partitioning", hashed)
    patch.setattr(Planner, "_executed", prepared)


def swap_parts(patch: pytest.MonkeyPatch) -> None:
    """The first two parts of one of two exchanges that are read side by side are swapped."""
    parts_of = adaptive.parts_of

    def swapped(*given: Any) -> Sequence[tuple[Part, ...]]:
        first, *others = parts_of(*given)
        if others and len(first) > 1:
            first = (first[1], first[0], *first[2:])
        return [first, *others]

    patch.setattr(runner, "parts_of", swapped)


def reuse_for_another_filter(patch: pytest.MonkeyPatch) -> None:
    """An exchange takes the rows of another one that differs only in its filters."""
    begin = StageMarks.begin
    known: WeakKeyDictionary[StageMarks, dict[str, Mark]] = WeakKeyDictionary()

    def blind(self: StageMarks, shuffle: Shuffle) -> bool:
        text = _NUMBER.sub("", str(shuffle.node.physical.canonicalized().toString()))
        is_first = begin(self, shuffle)
        assert shuffle.mark is not None
        if "Filter" not in text:
            return is_first
        alike = known.setdefault(self, {}).setdefault(_FILTER.sub("Filter", text), shuffle.mark)
        if alike is shuffle.mark or not is_first:
            return is_first
        shuffle.mark = alike
        return False

    patch.setattr(StageMarks, "begin", blind)


def take_few_rows_for_none(patch: pytest.MonkeyPatch) -> None:
    """An exchange of few rows is planned again as an empty relation."""
    place = Planner._place

    def hasty(self: Planner, logical: Any, shuffle: Shuffle, physical: Any) -> tuple[Any, Any]:
        mark = shuffle.mark
        assert mark is not None
        if not 0 < mark.rows <= _FEW:
            return place(self, logical, shuffle, physical)
        return logical, self._door.relation(shuffle.node.logical.output())

    patch.setattr(Planner, "_place", hasty)


def take_no_groups_for_no_rows(patch: pytest.MonkeyPatch) -> None:
    """A count over an exchange without rows is planned again as an empty relation."""
    place = Planner._place

    def hasty(self: Planner, logical: Any, shuffle: Shuffle, physical: Any) -> tuple[Any, Any]:
        if shuffle.mark is None or shuffle.mark.rows:
            return place(self, logical, shuffle, physical)
        return logical, self._door.relation(logical.output())

    patch.setattr(Planner, "_place", hasty)


def lose_a_piece(patch: pytest.MonkeyPatch) -> None:
    """No task reads the last piece of a skewed subpartition."""
    parts_of = adaptive.parts_of

    def without_last(*given: Any) -> Sequence[tuple[Part, ...]]:
        sides = parts_of(*given)
        cut = [at for at, task in enumerate(zip(*sides, strict=True)) if any(map(_is_piece, task))]
        end = cut[-1] if cut else max(map(len, sides), default=0)
        return [(*parts[:end], *parts[end + 1 :]) for parts in sides]

    patch.setattr(runner, "parts_of", without_last)


def broadcast_the_wrong_side(patch: pytest.MonkeyPatch) -> None:
    """When it is planned again, a left join keeps all rows of the side that became small enough to
    be broadcast."""
    plan = Planner._plan

    def turned(self: Planner, logical: Any) -> Plan:
        if not any(mark.rows >= 0 for mark in self.begun.marks.values()):
            return plan(self, logical)
        kind = bridge._module(self._jvm._jvm, _RIGHT_OUTER)
        joins = [
            (node, node.copy(node.left(), node.right(), kind, node.condition(), node.hint()))
            for node in _nodes(self._jvm, logical)
            if name_of(node) == "Join"
            and node.joinType().toString() == "LeftOuter"
            and float(node.right().stats().sizeInBytes()) <= self.adapting.broadcast_bytes
        ]
        return plan(self, self._places.replace(logical, joins))

    patch.setattr(Planner, "_plan", turned)


def _nodes(jvm: Jvm, plan: Any) -> Iterator[Any]:
    yield plan
    for child in jvm.items(plan.children()):
        yield from _nodes(jvm, child)


def _is_piece(part: Part) -> bool:
    return part.partitions is not None


# Each bug with the part, named as in `watched.py`, that a query must reach to show it; empty: any.
PLANTED: Mapping[Plant, str] = MappingProxyType(
    {
        read_each_place_by_itself: "had one exchange beside different others",
        swap_parts: "read neighbours together",
        reuse_for_another_filter: "",
        take_few_rows_for_none: "planned again",
        take_no_groups_for_no_rows: "dropped what turned out empty",
        lose_a_piece: "cut a skewed subpartition",
        broadcast_the_wrong_side: "planned again",
    }
)

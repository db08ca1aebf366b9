"""Count the random queries that reach each watched part of the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from headgate.connectors.spark.queries import planner, query_stages, runner
from headgate.connectors.spark.queries.exchange_nodes import Plan, Shuffle
from headgate.connectors.spark.tasks import partial_aggregates
from headgate.connectors.spark.tasks.exchange_tasks import Part
from headgate.connectors.spark.tasks.partial_aggregates import Merging

# The share of queries that must reach each part, in percent.
LEAST_PERCENT: Mapping[str, float] = MappingProxyType(
    {
        "read neighbours together": 20,
        "cut a skewed subpartition": 0.5,
        "planned again": 4,
        "broadcast what turned out small": 1,
        "dropped what turned out empty": 1,
        "used an exchange again": 5,
        "had one exchange at several places": 5,
        "had one exchange beside different others": 3,
        "merged partial aggregates": 10,
    }
)


def lacks(reached: Counter[str], queries: int) -> Iterator[str]:
    """Yield a complaint for each part that too few of the queries have reached."""
    for kind, least in LEAST_PERCENT.items():
        if reached[kind] * 100 < least * queries:
            yield f"{reached[kind]} of {queries} queries {kind}"


class Watched:
    """Records which parts a query reaches while the product's own functions run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._seen: set[str] = set()
        self.reached: Counter[str] = Counter()
        self._watch(patch, runner, "parts_of", self._parts)
        self._watch(patch, planner.Planner, "alike", self._alike)
        self._watch(patch, planner.Planner, "plan_again", self._again)
        self._watch(patch, query_stages.StageMarks, "begin", self._begun)
        self._watch(patch, planner.Planner, "merging", self._merging)
        patch.setattr(partial_aggregates, "_LEAST_ROWS", 0)  # the tables are small

    def end(self) -> frozenset[str]:
        """Count the query that was just asked, and return the parts that it reached."""
        seen = frozenset(self._seen)
        self.reached.update(seen)
        self.forget()
        return seen

    def forget(self) -> None:
        """Discard what was reached since the last counted query."""
        self._seen.clear()

    def _watch(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., None]
    ) -> None:
        original = getattr(owner, name)

        def watched(*given: Any) -> Any:
            result = original(*given)
            note(result, *given)
            return result

        patch.setattr(owner, name, watched)

    def _parts(self, sides: Sequence[Sequence[Part]], *_: object) -> None:
        parts = [part for each in sides for part in each]
        if any(len(part.subpartitions) > 1 for part in parts):
            self._seen.add("read neighbours together")
        if any(part.partitions is not None for part in parts):
            self._seen.add("cut a skewed subpartition")

    def _alike(self, alike: Sequence[Sequence[Shuffle]], *_: object) -> None:
        if any(len(same) > 1 for same in alike):
            self._seen.add("had one exchange at several places")
        if any(len({shuffle.group for shuffle in same}) > 1 for same in alike):
            self._seen.add("had one exchange beside different others")

    def _again(self, after: Plan, _: object, before: Plan) -> None:
        self._seen.add("planned again")
        if _broadcasts(after) > _broadcasts(before):
            self._seen.add("broadcast what turned out small")
        if any(shuffle.is_done and not _rows(shuffle) for shuffle in before.shuffles):
            self._seen.add("dropped what turned out empty")

    def _merging(self, way: Merging | None, *_: object) -> None:
        if way is not None:
            self._seen.add("merged partial aggregates")

    def _begun(self, is_first: bool, *_: object) -> None:
        if not is_first:
            self._seen.add("used an exchange again")


def _broadcasts(plan: Plan) -> int:
    return int(str(plan.root.toString()).count("BroadcastExchange"))


def _rows(shuffle: Shuffle) -> int:
    assert shuffle.mark is not None
    return shuffle.mark.rows

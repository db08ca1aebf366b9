"""The stages of a query as Spark executes them, and the rules by which it prepares its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from ....control.errors import Invalid
from ..jvm.catalyst import CatalystDoor
from .exchange_finder import BROADCAST

_QUERY = "org.apache.spark.sql.execution.QueryExecution"
_LAST_RULES = ["CollapseCodegenStages", "ReuseExchangeAndSubquery"]


class QueryStages:
    """Executes the stages of one query. What is equal in several of them runs once: the rule that
    merges equal exchanges and subqueries sees the earlier stages too."""

    def __init__(self, session: Any, door: CatalystDoor) -> None:
        self._session = session
        self._door = door
        self._jvm = door.jvm
        self._stages = door.jvm.seq()
        self._sent: list[Any] = []
        self._lock = Lock()

    @cached_property
    def _rules(self) -> tuple[Any, list[Any]]:
        """Return the rules by which Spark prepares a physical plan, and apart the last two: they
        fuse operators and merge equal exchanges, which would hide them.

        Raises:
            Invalid: this Spark has other rules at the end.
        """
        rules = self._jvm.only(_QUERY).preparations(self._session, self._jvm.nothing(), False)
        first, last = rules.dropRight(2), self._jvm.items(rules.takeRight(2))
        names = [rule.ruleName().rpartition(".")[2] for rule in last]
        if names != _LAST_RULES:
            raise Invalid(f"this Spark prepares plans by other rules: {', '.join(names)} come last")
        return first, last

    def prepare(self, planned: Any) -> Any:
        """Return a physical plan as Spark prepares it, with all exchanges still to be seen."""
        return self._jvm.only(_QUERY).prepareForExecution(self._rules[0], planned)

    def add(self, plan: Any) -> tuple[Any, Any]:
        """Return a stage as Spark executes it, and as Spark's SQL page shows it. Only the last two
        rules run again: the others could add exchanges. The first of them passes by subqueries."""
        rules = self._rules[1]
        if plan.containsPattern(self._jvm.subquery):
            subqueries = self._jvm.items(plan.subqueriesAll())
            fused = [(subquery, rules[0].apply(subquery)) for subquery in subqueries]
            plan = plan.transformDownWithSubqueries(self._jvm.mapping(fused))
        with self._lock, self._jvm.together() as calls:
            executed = self._merged(calls, rules, [plan]).head()
            shown, stages = self._door.shown(executed), calls.on(self._stages).appended(executed)
            executed, shown, self._stages = calls.now(executed, shown, stages)
        return executed, shown

    def send(self, broadcasts: Sequence[Any], show: Callable[[Any], None]) -> None:
        """Begin to broadcast rows that later stages need, and do not wait for them. `show` takes
        what Spark's SQL page has to know before. Do nothing if Spark would not find the rows again
        in those stages."""
        if not self._session.sessionState().conf().exchangeReuseEnabled():
            return
        rules = self._rules[1]
        with self._lock, self._jvm.together() as calls:
            executed = self._merged(calls, rules, broadcasts)
            shown = self._door.shown(self._jvm["union"](executed))
            stages = calls.on(self._stages).appendedAll(executed)
            executed, shown, self._stages = calls.now(executed, shown, stages)
        show(shown)
        for name, node in self._jvm.named_items(executed):
            if name == BROADCAST:  # else it is merged with an equal one
                with self._door.executing():
                    node.prepare()
                self._sent.append(node)

    @property
    def is_sending(self) -> bool:
        return any(not node.relationFuture().isDone() for node in self._sent)

    def _merged(self, calls: Any, rules: Sequence[Any], plans: Sequence[Any]) -> Any:
        fuse, merge = (calls.on(rule) for rule in rules)
        stages = calls.on(self._stages)
        for plan in plans:
            stages = stages.appended(fuse.apply(plan))
        return merge.apply(self._jvm["union"](stages)).children().takeRight(len(plans))

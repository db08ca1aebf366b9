"""The stages of a query as Spark executes them, and the rules by which it prepares its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from ....control.clock import SYSTEM_CLOCK
from ....control.errors import Invalid
from ..jvm.bridge import name_of
from ..jvm.catalyst import CatalystDoor
from .exchange_nodes import BroadcastMark

_QUERY = "org.apache.spark.sql.execution.QueryExecution"
_ERRORS = "org.apache.spark.sql.errors.QueryExecutionErrors"
_HASHED = "HashedRelationBroadcastMode"
_ONLY_NULLS = "org.apache.spark.sql.execution.joins.HashedRelationWithAllNullKeys"
_LAST_RULES = ["CollapseCodegenStages", "ReuseExchangeAndSubquery"]


class QueryStages:
    """Executes the stages of one query. Equal parts of several stages run once: the rule that
    merges equal exchanges and subqueries sees the earlier stages too."""

    def __init__(self, session: Any, door: CatalystDoor) -> None:
        self._session = session
        self._door = door
        self._jvm = door.jvm
        self._stages = door.jvm.seq()
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
            executed = self._merged(calls, rules, plan)
            shown, stages = self._door.shown(executed), calls.on(self._stages).appended(executed)
            executed, shown, self._stages = calls.now(executed, shown, stages)
        return executed, shown

    def send(self, number: int, plan: Any, same: Any, show: Callable[[Any], None]) -> BroadcastMark:
        """Begin to broadcast rows, and do not wait for them. `same` is the form by which Spark
        tells equal ones, `show` takes what Spark's SQL page has to know before."""
        executed, shown = self.add(plan)
        show(shown)
        stage = self._jvm["broadcast stage"](number, executed, same)
        sent = BroadcastMark(stage, stage.broadcast(), SYSTEM_CLOCK.monotonic_s())
        with self._door.executing():
            sent.exchange.prepare()
        return sent

    def forget(self, sent: BroadcastMark) -> bool:
        """Let no later stage use a broadcast that is to be ended. The rows that it reads may be
        used. Return False if the broadcast is part of another stage."""
        with self._lock:
            if (at := self._stages.indexOf(sent.exchange)) < 0:
                return False
            self._stages = self._stages.updated(at, sent.exchange.child())
            return True

    def ended(self, running: Sequence[BroadcastMark], limit_s: float) -> list[BroadcastMark]:
        """Return those of the broadcasts that have ended, with their rows noted.

        Raises:
            PySparkException, Py4JError: a broadcast has failed, or takes longer than the limit, as
                Spark raises it.
        """
        with self._jvm.together() as calls:
            states = calls.now(
                *[calls.on(sent.exchange).relationFuture().isDone() for sent in running]
            )
        ended = [sent for sent, is_done in zip(running, states, strict=True) if is_done]
        for sent in ended:
            self._note(sent)
        waiting = [sent for sent in running if sent not in ended]
        if any(SYSTEM_CLOCK.monotonic_s() - sent.begun_s > limit_s for sent in waiting):
            errors, cause = self._jvm.only(_ERRORS), self._jvm.nothing()
            error = errors.executeBroadcastTimeoutError(int(limit_s), cause)
            with self._door.executing():
                self._jvm.static("scala.util.Failure")(error).get()
        return ended

    def _note(self, sent: BroadcastMark) -> None:
        with self._door.executing():
            value = self._jvm["option"].apply(sent.exchange.relationFuture().get())
        sent.stage.resultOption().set(value)
        sent.rows = int(sent.exchange.metrics().apply("numOutputRows").value())
        mode = sent.exchange.mode()
        if name_of(mode) == _HASHED and mode.isNullAware():
            only_nulls = self._jvm.only(_ONLY_NULLS)
            sent.joins_nothing = bool(value.get().value().equals(only_nulls))

    def _merged(self, calls: Any, rules: Sequence[Any], plan: Any) -> Any:
        fuse, merge = (calls.on(rule) for rule in rules)
        stages = calls.on(self._stages).appended(fuse.apply(plan))
        return merge.apply(self._jvm["union"](stages)).children().last()

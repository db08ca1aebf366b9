"""The stages of a query: those that have begun, and how Spark prepares and executes them.

In plans Spark's own nodes for stages stand for exchanges and broadcasts that have begun, so that
Spark's rules know what they turned out to be. What has the same rows begins once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from itertools import count
from threading import Lock
from typing import Any

from ....control.clock import SYSTEM_CLOCK
from ....control.errors import Invalid
from ....storage.format.segment import Longs
from ..jvm.bridge import Jvm, name_of
from ..jvm.catalyst import CatalystDoor
from .exchange_nodes import Broadcast, BroadcastMark, Mark, Shuffle, through
from .scan_places import ScanPlaces

_HASHED = "HashedRelationBroadcastMode"
_LAST_RULES = ["CollapseCodegenStages", "ReuseExchangeAndSubquery"]


class StageMarks:
    """Knows the stages of one query that have begun. Its methods are called in one thread."""

    def __init__(self, jvm: Jvm, places: ScanPlaces) -> None:
        self._jvm = jvm
        self._places = places
        self._alike = jvm["alike"]()
        self._forms = count()
        self._canonical: dict[int, Any] = {}
        self._begun: dict[int, Mark | BroadcastMark] = {}
        self.marks: dict[int, Mark] = {}
        self.sent: dict[int, BroadcastMark] = {}

    def begin(self, shuffle: Shuffle) -> bool:
        """Mark an exchange as begun. Return False if an exchange with the same rows in the same
        partitions has begun before: they share its mark."""
        form = self._form(shuffle)
        if (begun := self._begun.get(form)) is not None:
            assert isinstance(begun, Mark)
            shuffle.mark = begun
            return False
        stage = self._jvm["shuffle stage"](form, shuffle.node.physical, self._canonical[form])
        shuffle.mark = self._begun[form] = self.marks[form] = Mark(stage, shuffle)
        return True

    def end(self, mark: Mark, rows: int, plain_bytes: int, sizes: Longs) -> None:
        """Note the sizes of an exchange that is done, also where Spark's own rules find them."""
        mark.plain_bytes, mark.rows = plain_bytes, rows
        metrics = mark.stage.shuffle().metrics()
        metrics.apply("dataSize").set(mark.size_bytes)
        metrics.apply("shuffleRecordsWritten").set(rows)
        stated = self._jvm["map sizes"](0, self._jvm.longs(sizes))
        mark.stage.resultOption().set(self._jvm["option"].apply(stated))

    def send(self, broadcast: Broadcast, begin: Callable[[int, Any], BroadcastMark]) -> None:
        """Begin a broadcast, if no equal one has begun. `begin` takes its number, and the form by
        which Spark tells equal ones."""
        form = self._form(broadcast)
        if form not in self._begun:
            self._begun[form] = self.sent[form] = begin(form, self._canonical[form])
        broadcast.sent = self.earlier(broadcast)

    def forget(self, mark: Mark | BroadcastMark) -> None:
        """Forget a stage that nobody waits for: an equal exchange or broadcast begins anew."""
        self._begun = {form: begun for form, begun in self._begun.items() if begun is not mark}
        self.sent = {form: sent for form, sent in self.sent.items() if sent is not mark}

    def earlier(self, place: Any) -> Any:
        """Return the stage that has begun and has the same rows as an exchange or a broadcast, if
        any."""
        return self._begun.get(self._form(place))

    def wanted_again(self, shuffles: Collection[Shuffle]) -> list[Shuffle]:
        """Return the exchanges that have the same rows in the same partitions as another one of
        these, or as one that has begun."""
        forms = Counter(map(self._form, shuffles))
        return [each for each in shuffles if forms[each.form] > 1 or each.form in self._begun]

    def _form(self, place: Shuffle | Broadcast) -> int:
        """Return the number that exchanges with the same rows in the same partitions share, or
        broadcasts with the same rows. All that they read has begun."""
        if place.form < 0:
            node = place.node.physical if isinstance(place, Shuffle) else place.node
            if place.inputs:
                child = self.marked(node.child(), place.inputs)
                node = node.withNewChildren(self._jvm.seq([child]))
            same, number = node.canonicalized(), next(self._forms)
            earlier = self._alike.putIfAbsent(same, number)
            place.form = number if earlier is None else earlier
            self._canonical.setdefault(place.form, same)
        return place.form

    def marked(self, plan: Any, shuffles: Iterable[Shuffle]) -> Any:
        """Return a plan with Spark's own nodes for stages in the places of its exchanges."""
        places = [(each.node.physical, self.leaf_of(each)) for each in through(shuffles)]
        return self._places.replace(plan, places)

    def leaf_of(self, place: Shuffle | Broadcast) -> Any:
        """Return Spark's node for a stage that has begun, with the columns of one of its places."""
        if isinstance(place, Shuffle):
            assert place.mark is not None
            node, stage, first = (
                place.node.physical,
                place.mark.stage,
                place.mark.first.node.physical,
            )
        else:
            assert place.sent is not None
            node, stage, first = place.node, place.sent.stage, place.sent.stage
        output = node.output()
        return (
            stage if output.equals(first.output()) else stage.newReuseInstance(stage.id(), output)
        )


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
        rules = self._jvm.only("preparation").preparations(
            self._session, self._jvm.nothing(), False
        )
        first, last = rules.dropRight(2), self._jvm.items(rules.takeRight(2))
        names = [rule.ruleName().rpartition(".")[2] for rule in last]
        if names != _LAST_RULES:
            raise Invalid(f"this Spark prepares plans by other rules: {', '.join(names)} come last")
        return first, last

    def prepare(self, planned: Any) -> Any:
        """Return a physical plan as Spark prepares it, with all exchanges still to be seen."""
        return self._jvm.only("preparation").prepareForExecution(self._rules[0], planned)

    def add(self, plan: Any) -> tuple[Any, Any]:
        """Return a stage as Spark executes it, and as Spark's SQL page shows it. Only the last two
        rules run again: the others could add exchanges. The first of them passes by subqueries."""
        rules = self._rules[1]
        if plan.containsPattern(self._jvm.subquery):
            subqueries = self._jvm.items(plan.subqueriesAll())
            fused = [(subquery, rules[0].apply(subquery)) for subquery in subqueries]
            plan = plan.transformDownWithSubqueries(self._jvm.mapping(fused))
        with self._lock:
            stages = self._stages.appended(rules[0].apply(plan))
            executed = rules[1].apply(self._jvm["union"](stages)).children().last()
            self._stages = self._stages.appended(executed)
        return executed, self._door.shown(executed)

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
        ended = [sent for sent in running if sent.exchange.relationFuture().isDone()]
        for sent in ended:
            self._note(sent)
        waiting = [sent for sent in running if sent not in ended]
        if any(SYSTEM_CLOCK.monotonic_s() - sent.begun_s > limit_s for sent in waiting):
            errors, cause = self._jvm.only("query errors"), self._jvm.nothing()
            error = errors.executeBroadcastTimeoutError(int(limit_s), cause)
            with self._door.executing():
                self._jvm["failure"](error).get()
        return ended

    def _note(self, sent: BroadcastMark) -> None:
        with self._door.executing():
            value = self._jvm["option"].apply(sent.exchange.relationFuture().get())
        sent.stage.resultOption().set(value)
        sent.rows = int(sent.exchange.metrics().apply("numOutputRows").value())
        mode = sent.exchange.mode()
        if name_of(mode) == _HASHED and mode.isNullAware():
            only_nulls = self._jvm.only("only nulls")
            sent.joins_nothing = bool(value.get().value().equals(only_nulls))

"""The exchanges and broadcasts of a query that have begun.

In plans Spark's own nodes for stages stand for them, so that Spark's rules know their sizes.
Exchanges and broadcasts with the same rows begin once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any

from ....storage.format.segment import Longs
from ..jvm.bridge import Jvm
from .exchange_nodes import Broadcast, BroadcastMark, Mark, Shuffle, through
from .scan_places import ScanPlaces


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
            with self._jvm.together() as calls:
                same = calls.on(node).canonicalized()
                number = next(self._forms)
                same, earlier = calls.now(same, calls.on(self._alike).putIfAbsent(same, number))
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

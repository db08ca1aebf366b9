"""A driver that combines the objects of some exchanges, as the connector does.

The rows of a result are copied into a second one with fewer partitions, and the first result is
released once that is complete. If combining fails, readers read the first result. If a combined
object is lost later, the map stage runs again under another name, and the lost partitions are
combined from its rows.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from headgate.connectors.spark.exchanges.combining import (
    check_combined,
    combined_parts,
    exchange_size,
)
from headgate.connectors.spark.tasks.combine_task import Share, share
from headgate.connectors.spark.tasks.exchange_tasks import Part
from headgate.control.contract import ShuffleDescriptor
from headgate.control.errors import Corrupt, Lost, Unavailable
from headgate.control.ids import AttemptId, PartitionId, ResultId, again_name, combined_name
from headgate.control.model.state import ResultState
from headgate.storage.reading.ways import Readers, Way

from .application import TRIES_MAX, Application, NotWhole
from .bucket import flipped, lost
from .cluster import Cluster, Run, Task
from .machines import LIMITS, Exchange, Executor, World
from .scheduler import Process

COMBINED_SHARE = 0.6  # of the exchanges, in a world whose drivers combine
WAY_MAX = 3
KEPT_SHARE = 0.5  # of the results that are made again, when a reader has failed meanwhile


@dataclass
class Copy:
    """A combined result: its parts, the result that it was made from, and the one that its lost
    partitions are made from, with the shares of each."""

    first: Exchange
    parts: tuple[Part, ...]
    shares: tuple[Share, ...]
    again: Exchange | None = None
    shares_again: tuple[Share, ...] | None = None  # once that is complete


class CombiningApplication(Application):
    def __init__(self, world: World, cluster: Cluster, process: Process) -> None:
        super().__init__(world, cluster, process)
        self._choices = world.scheduler.dice(f"combining of {process.name}")
        self._copies: dict[ResultId, Copy] = {}
        self._agains = count(1)

    def _rewritten(self, first: Exchange) -> Exchange:
        """Return the exchange that readers read instead: the combined one, unless this one is not
        to be combined, or that fails."""
        drawn = self.world.combines and not first.pipelined
        if not drawn or self._choices.random() > COMBINED_SHARE:
            return first
        state = self._completed(first)
        self._harm(first, "original harmed")
        parts = self._parts(first, state)
        combined = replace(
            first,
            name=combined_name(first.name),
            partitions=len(parts),
            position=self._voice.position,
            original=first.name,
        )
        shares = tuple(share(part, state) for part in self._cut_short(parts, combined.name))
        self._copies[combined.name] = Copy(first, parts, shares)
        self._register_copy(combined)
        self.world.oracle.combines(combined.name, first.name, first.partitions)
        self._live.append(combined)
        if not self._is_combined(combined, state):
            self.world.oracle.falls_back(combined.name)
            self._live.remove(combined)
            with suppress(Unavailable):
                self._ask_release(combined)
            return first
        self._release(first)
        self._harm(combined, "combined object harmed")
        return combined

    def _harm(self, exchange: Exchange, fault: str) -> None:
        """Lose or damage an object of a result at times."""
        if self.world.chaos.strikes(fault):
            self.world.bucket.harm(f"/{exchange.name}/", self._choices.choice((lost, flipped)))

    def _is_combined(self, combined: Exchange, state: ResultState) -> bool:
        """Combine the rows of a result in this state; return False if that fails."""
        oracle, scheduler = self.world.oracle, self.world.scheduler
        try:
            self._make_whole([combined])
            copies = self._whole(combined)
        except (NotWhole, Unavailable) as exc:
            scheduler.note(f"not combined: {exc}")
            return False
        except (Lost, Corrupt) as exc:
            scheduler.note(f"not combined: {exc}")
            if not self.world.chaos.bad_answers():
                oracle.missed([live.name for live in self._live], exc)
            return False
        try:
            check_combined(state, copies)
        except Corrupt as exc:
            scheduler.note(f"not combined: {exc}")
            oracle.differs(combined.name, exc)
            return False
        return True

    def _completed(self, first: Exchange) -> ResultState:
        """Return the state of a result once it is complete."""
        for _ in range(TRIES_MAX):
            with suppress(NotWhole, Lost, Corrupt):
                self._make_whole(self._live)
                return self._whole(first)
            self._state_losses()
        raise Unavailable(f"{first.name} never was complete")

    def _whole(self, exchange: Exchange) -> ResultState:
        result = self._result(exchange)
        if not result.complete:
            raise NotWhole(exchange.name)
        return result

    def _parts(self, first: Exchange, state: ResultState) -> tuple[Part, ...]:
        dice = self._choices
        way = Way(
            dice.randint(1, min(WAY_MAX, first.partitions)),
            dice.randint(1, min(WAY_MAX, first.subpartitions)),
        )
        size = exchange_size(state, lambda sizes: Readers(np.arange(len(sizes))))
        return combined_parts(state, size, way, LIMITS)

    def _cut_short(self, parts: tuple[Part, ...], combined: ResultId) -> tuple[Part, ...]:
        """Return the parts, but sometimes one without its first partition: its rows are missing
        then, and the first result must be read."""
        if not self.world.chaos.strikes("share cut short"):
            return parts
        self.world.oracle.leaves_out(combined)
        part, *others = parts
        assert part.partitions is not None, "the parts of combined results name them"
        return replace(part, partitions=part.partitions[1:]), *others

    def _register_copy(self, exchange: Exchange) -> None:
        """Register a result whose inputs are those of the map stage."""
        registered = self._tell_result(exchange)
        if self._choices.random() < 0.5:
            self._voice.ask(registered)
        else:
            self._voice.tell(registered)
            self._voice.wait(
                lambda state: state.results.get(exchange.name), "the registration to be read"
            )

    def _needed(self, wanted: list[Exchange]) -> list[Exchange]:
        """Return the wanted results, each combined one that has lost partitions after the result
        that they are made from."""
        self._keep_agains()
        needed: list[Exchange] = []
        for exchange in wanted:
            copy = self._copies.get(exchange.name)
            needed += [copy.again] if copy and copy.again else []
            needed.append(exchange)
        return list(dict.fromkeys(needed))

    def _repair(self, repairs: dict[PartitionId, Task]) -> None:
        self._check_failed()
        self._keep_agains()
        super()._repair(repairs)

    def _keep_agains(self) -> None:
        """Run the map stage again for each combined result with lost partitions, and release what
        was made again for one that is whole."""
        for exchange in [live for live in self._live if live.name in self._copies]:
            copy = self._copies[exchange.name]
            if copy.again and self._result(exchange).complete:
                self._drop_again(copy)
            is_lost = copy.first not in self._live and not self._result(exchange).complete
            if is_lost and not copy.again:
                self._run_again(exchange, copy)
        for name, copy in self._copies.items():
            if copy.again and all(live.name != name for live in self._live):
                self._drop_again(copy)

    def _run_again(self, exchange: Exchange, copy: Copy) -> None:
        name = again_name(copy.first.name, next(self._agains))
        again = replace(
            copy.first,
            name=name,
            position=self._voice.position,
            original=copy.first.name,
            again=True,
        )
        self._register_copy(again)
        self.world.oracle.makes_again(name, copy.first.name)
        copy.again = again
        self._live.insert(self._live.index(exchange), again)

    def _drop_again(self, copy: Copy) -> None:
        again, copy.again, copy.shares_again = copy.again, None, None
        assert again is not None, "there is something to drop"
        if again in self._live:
            self._release(again)

    def _has_failed(self) -> None:
        """Give up what is made again after a failure, in some cases: the next try has another
        name."""
        for copy in self._copies.values():
            if copy.again and self._choices.random() > KEPT_SHARE:
                self._drop_again(copy)

    def _maps(self, exchange: Exchange) -> dict[int, Run]:
        copy = self._copies.get(exchange.name)
        if copy is None:
            return super()._maps(exchange)
        source, shares = copy.first, copy.shares
        if source not in self._live:
            if copy.again is None or (shares_again := self._shares_again(copy)) is None:
                return {}
            source, shares = copy.again, shares_again
        won = self._result(exchange).production.winners
        return {
            index: partial(self._combine, exchange, self._descriptor(source), index, shares[index])
            for index in range(exchange.partitions)
            if index not in won
        }

    def _shares_again(self, copy: Copy) -> tuple[Share, ...] | None:
        assert copy.again is not None, "it was made again"
        state = self._result(copy.again)
        if copy.shares_again is None and state.complete:
            copy.shares_again = tuple(share(part, state) for part in copy.parts)
            self._harm(copy.again, "original harmed")
        return copy.shares_again

    def _combine(
        self,
        exchange: Exchange,
        source: ShuffleDescriptor,
        index: int,
        share: Share,
        executor: Executor,
        number: int,
    ) -> None:
        partition = PartitionId(exchange.name, index)
        attempt = AttemptId(partition, self._voice.epoch, number)
        executor.combine(exchange, attempt, source, share)
        self._ended[partition] = attempt

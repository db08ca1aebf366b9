"""A driver: it registers, runs map tasks and reader tasks, retries failed tasks, and closes.

It uses the product's ledger, manifest and release as a driver in Spark does. As in Spark, a failed
or silent task is run again elsewhere under another number.
"""

from __future__ import annotations

from functools import partial

from headgate.control.contract import ShuffleDescriptor
from headgate.control.errors import Corrupt, Fenced, Lost, Unavailable
from headgate.control.events.types import Lost as Gone
from headgate.control.events.types import (
    PartitionRegistered,
    PromoteRequested,
    ReleaseRequested,
    ResultRegistered,
)
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.model.state import JobState, ResultState
from headgate.storage.format.layout import Layout
from headgate.storage.format.manifest import Manifest, build
from headgate.storage.format.segment import checksum
from headgate.storage.stores.port import BlobStore
from headgate.storage.stores.rooted import Root, RootedStore
from headgate.storage.streaming.partition_updates import KnownPartitions, known
from headgate.storage.upkeep.object_deletion import ObjectDeleter

from .cluster import Cluster, Run, Task
from .machines import FOLDER, LOG, Exchange, Executor, World
from .oracle import JOB, ROOT
from .scheduler import Process, SimClock
from .streams import Streams
from .voice import Voice

TRIES_MAX = 12
SILENT_MS = 20_000.0  # a task that is silent for that long is run elsewhere
STAGE_S = 0.2
READERS_WAIT_MS = 150.0  # before late readers begin, while writers write
LIVE_MAX = 12  # results of one job that nobody has released
REASON = "x" * 524_195  # fits a record, and a decision that repeats all of it does not
LIVES_MS = (5_000, 30_000, 10**9)  # of a promoted result


class NotWhole(Exception):
    """A result that was complete is no longer complete."""


class JobHasFailed(Exception):
    """The master has given the job up, for the reason in the error."""


class Application:
    def __init__(self, world: World, cluster: Cluster, process: Process) -> None:
        self.world = world
        self.cluster = cluster
        self.process = process
        self.finished = False
        self._dice = world.scheduler.random
        self._voice = Voice(world, process, JOB, lease_ms=world.lease_ms)
        self._store: BlobStore = world.bucket.client(SimClock(world.scheduler, process))
        self._root: Root | None = None
        self._live: list[Exchange] = []
        self._ended: dict[PartitionId, AttemptId] = {}
        self._streams = Streams(self._voice, SILENT_MS)
        self._wide = 5 if world.combines else 3

    def run(self) -> None:
        """Run a job from attach to close.

        Raises:
            Fenced, Unavailable: the job did not come to its end.
        """
        try:
            self._work()
            self._close()
            self.finished = True
        finally:
            self._voice.leaving = True

    def _work(self) -> None:
        self._voice.register()
        self._mark()
        try:
            for number in range(self.world.exchanges or self._dice.randint(1, 3)):
                self._exchange(number)
                self._think()
        except JobHasFailed:
            self.world.scheduler.note("the job has failed")

    def _mark(self) -> None:
        """Mark a folder as this driver's root."""
        if self.world.mounts:
            markers = Root.marker_names(Layout(ROOT, JOB).markers(self._voice.epoch), 1)
            name = self.process.name
            content = Root.content_of(f"driver {name}", LOG)
            self._root = Root(FOLDER, Layout(ROOT, JOB).prefix, markers, content)
            self._store.put(markers[0], content.encode(), name)
            self._store = RootedStore(self._store, self._root)

    def _think(self) -> None:
        """Do other work, without a fact of the job; heartbeats go on."""
        self.world.scheduler.pause("thought", self.world.lease_ms * self._dice.random())

    def _exchange(self, number: int) -> None:
        """Produce a result, from another one or from nothing, and read it once or twice."""
        dice = self._dice
        pipelined = number == self.world.stream_at
        sources = [None, *(live for live in self._live if not (live.pipelined or live.again))]
        source = sources[-1] if self.world.chained else dice.choice(sources)
        exchange = Exchange(
            ResultId(f"r{self._voice.epoch}-{number}"),
            source.subpartitions if source else dice.randint(1, self._wide),
            dice.randint(1, self._wide),
            dice.random() < (0.3 if pipelined else 0.7),
            source,
            self._voice.position,
            pipelined,
        )
        self._register(exchange)
        self._live.append(exchange)
        early = exchange.pipelined or (source is None and dice.random() < 0.4)
        if (rewritten := self._rewritten(exchange)) is not exchange:
            exchange, early = rewritten, False
        for _ in range(dice.choice((1, 1, 2))):
            self._until_read(exchange, early)
            early = False
        if self.world.chained:
            return
        if dice.random() < 0.5:
            self._release(exchange)
        elif dice.random() < 0.4:
            expires_ms = self.world.broker.now_ms() + dice.choice(LIVES_MS)
            self._voice.ask(PromoteRequested(exchange.name, expires_ms, self._voice.epoch))
            self._live.remove(exchange)

        if len(self._live) > LIVE_MAX:
            inputs = [live.source for live in self._live]
            whole = [live for live in self._live if not live.again]
            self._release(next(live for live in whole if live not in inputs))

    def _rewritten(self, exchange: Exchange) -> Exchange:
        """Return the exchange whose objects readers read."""
        return exchange

    def _release(self, exchange: Exchange) -> None:
        self._ask_release(exchange)
        self._live.remove(exchange)

    def _ask_release(self, exchange: Exchange) -> None:
        self._voice.ask(ReleaseRequested(exchange.name, REASON, self._voice.epoch))

    def _register(self, exchange: Exchange) -> None:
        """Register a result, and wait until that is decided; or run its tasks at once, when the log
        has the registration, as the connector does."""
        registered = self._tell_result(exchange)
        if exchange.source or exchange.pipelined or self._dice.random() < 0.5:
            self._voice.ask(registered)
            return
        self._voice.tell(registered)
        partitions = [PartitionId(exchange.name, at) for at in range(exchange.partitions)]
        self._stage([partial(self._map, exchange, each, None) for each in partitions])
        self._voice.wait(lambda state: state.results.get(exchange.name), "what tasks made to count")

    def _tell_result(self, exchange: Exchange) -> PartitionRegistered:
        """State a result, and return the fact about its partitions that has to follow."""
        inputs = (exchange.source.name,) if exchange.source else ()
        self._voice.tell(
            ResultRegistered(
                exchange.name,
                exchange.partitions,
                exchange.subpartitions,
                "",
                "",
                inputs,
                exchange.deterministic,
                exchange.pipelined,
            )
        )
        return PartitionRegistered(exchange.name, 0, exchange.partitions)

    def _until_read(self, exchange: Exchange, early: bool) -> None:
        for _ in range(TRIES_MAX):
            try:
                before = self._completions(exchange)
                if early:
                    self._make_whole([live for live in self._live if live is not exchange])
                    maps = self._maps(exchange).values()
                    readers = self._stage([*maps, *self._readers(exchange)])[len(maps) :]
                else:
                    self._make_whole(self._live)
                    readers = self._stage(self._readers(exchange))
                if not exchange.pipelined or self._read_together(exchange, before, readers):
                    return
            except NotWhole:
                pass
            except (Lost, Corrupt) as exc:
                self.world.scheduler.note(f"missed: {exc}")
                if not self.world.chaos.bad_answers():
                    self.world.oracle.missed([live.name for live in self._live], exc)
                self._state_losses()
                self._has_failed()
            early = exchange.pipelined and self._dice.random() < 0.5
        raise Unavailable(f"{exchange.name} never came to an end")

    def _has_failed(self) -> None:
        """Do nothing more after a failure of readers."""

    def _completions(self, exchange: Exchange) -> int:
        """Return how often the result will have been complete once it is complete again."""
        result = self._result(exchange)
        return result.totals.completions + (not result.complete)

    def _read_together(self, exchange: Exchange, before: int, readers: list[object]) -> bool:
        """Return True if the result was completed only once while it was read.

        Otherwise one reader may have read rows from before a restart of the region and another rows
        from after it: all readers have to begin again.
        """
        self._voice.catch_up()
        together = self._result(exchange).totals.completions == before
        if together:
            self.world.oracle.read_together(exchange.name, readers)
        return together

    def _make_whole(self, wanted: list[Exchange]) -> None:
        """Run map tasks until every wanted result is complete, sources first."""
        for _ in range(TRIES_MAX):
            for exchange in self._needed(wanted):
                if not self._result(exchange).complete:
                    self._bury(exchange)
                    self._stage([*self._maps(exchange).values()])
                    self._voice.wait(
                        partial(self._all_settled, exchange), f"the maps of {exchange.name}"
                    )
            if all(self._result(exchange).complete for exchange in wanted):
                return
        raise Unavailable("results are lost faster than they are made")

    def _needed(self, wanted: list[Exchange]) -> list[Exchange]:
        """Return the wanted results, each after the results that it is made from."""
        return wanted

    def _all_settled(self, exchange: Exchange, state: JobState) -> bool | None:
        return (
            True if all(map(partial(self._settled, exchange), range(exchange.partitions))) else None
        )

    def _settled(self, exchange: Exchange, index: int) -> bool:
        """Return True if it is decided what became of the attempt that ended last."""
        result = self._voice.state.results[exchange.name]
        if index in result.production.winners:
            winner = result.production.winners[index]
            return not exchange.pipelined or self._streams.is_over(result, winner)
        attempt = self._ended.get(PartitionId(exchange.name, index))
        return attempt is None or attempt in result.production.superseded

    def _bury(self, exchange: Exchange) -> None:
        if exchange.pipelined:
            self._streams.state_failures(self._result(exchange))

    def _result(self, exchange: Exchange) -> ResultState:
        self._check_failed()
        result = self._voice.state.results[exchange.name]
        if result.fate.released is not None:
            raise Fenced(f"somebody else has released {exchange.name}")
        return result

    def _manifest(self, exchange: Exchange) -> Manifest:
        result = self._result(exchange)
        if not result.complete:
            raise NotWhole(exchange.name)
        return build(self._descriptor(exchange), result, Layout(ROOT, JOB), self._store)

    def _descriptor(self, exchange: Exchange) -> ShuffleDescriptor:
        return ShuffleDescriptor(
            JOB, exchange.name, exchange.partitions, exchange.subpartitions, self._voice.epoch
        )

    def _maps(self, exchange: Exchange) -> dict[int, Run]:
        """Return a map task for each partition without a winner."""
        won = self._result(exchange).production.winners
        source = exchange.source
        manifest = self._manifest(source) if source in self._live else None
        return {
            index: partial(self._map, exchange, PartitionId(exchange.name, index), manifest)
            for index in range(exchange.partitions)
            if index not in won
        }

    def _map(
        self,
        exchange: Exchange,
        partition: PartitionId,
        manifest: Manifest | None,
        executor: Executor,
        number: int,
    ) -> None:
        attempt = AttemptId(partition, self._voice.epoch, number)
        self._streams.begins(attempt, executor)
        try:
            executor.write(exchange, attempt, manifest)
        except BaseException:
            self._streams.fails(attempt)
            raise
        self._ended[partition] = attempt

    def _readers(self, exchange: Exchange) -> list[Run]:
        """Return tasks that read all subpartitions; they learn from the log about partitions not
        yet known."""
        partitions, position = self._known(exchange)
        width = self._dice.choice((1, 1, 2))
        firsts = range(0, exchange.subpartitions, width)
        parts = [range(at, min(at + width, exchange.subpartitions)) for at in firsts]
        if exchange.pipelined and self._dice.random() < 0.5:
            return [partial(self._late_reader, exchange, part) for part in parts]
        return [partial(self._reader, exchange, partitions, position, part) for part in parts]

    def _known(self, exchange: Exchange) -> tuple[KnownPartitions, int]:
        """Return the known partitions of a result, and the log position from which later facts
        follow."""
        result = self._result(exchange)
        partitions = known(self._descriptor(exchange), result, Layout(ROOT, JOB), self._store)
        return partitions, self._voice.settled if exchange.pipelined else exchange.position

    def _reader(
        self,
        exchange: Exchange,
        partitions: KnownPartitions,
        position: int,
        part: range,
        executor: Executor,
        number: int,
    ) -> int:
        executor.read(exchange, partitions.manifest, part, number, partitions, position)
        return number

    def _late_reader(self, exchange: Exchange, part: range, executor: Executor, number: int) -> int:
        """Read with the knowledge of the task's own start, perhaps while others write."""
        scheduler = self.world.scheduler
        scheduler.pause("launch", READERS_WAIT_MS * scheduler.random.random())
        return self._reader(exchange, *self._known(exchange), part, executor, number)

    def _state_losses(self) -> None:
        """Look at every object that readers need, and state missing and damaged ones as lost."""
        for exchange in self._live:
            result = self._result(exchange)
            for index in sorted(result.production.winners):
                attempt = result.production.winners[index]
                produced = result.production.attempts[attempt]
                segments = (
                    produced.segments if produced else result.production.streams.get(attempt, ())
                )
                for segment in segments:
                    name = Layout(ROOT, JOB).segment(attempt, segment.number)
                    if evidence := self._evidence(name, segment.checksum):
                        self._voice.ask(Gone(attempt, name, evidence))

    def _evidence(self, name: str, expected: int) -> str:
        """Return why an object counts as lost: it is missing, or its bytes are wrong twice."""
        for _ in range(2):
            try:
                actual = checksum(self._store.get(name))
            except Lost:
                return "404"
            if actual == expected:
                return ""
        return f"checksum {actual}"

    def _stage(self, runs: list[Run]) -> list[object]:
        """Run every task until one try of each has succeeded, and return their answers. Lost
        partitions that readers wait for are made again meanwhile."""
        tasks, repairs = [Task(run) for run in runs], dict[PartitionId, Task]()
        while not all(task.done for task in tasks):
            for task in (*tasks, *repairs.values()):
                self._see_to(task)
            if not all(task.done for task in tasks):
                self._voice.take(STAGE_S)
                self._repair(repairs)
        return [task.answer for task in tasks]

    def _repair(self, repairs: dict[PartitionId, Task]) -> None:
        """Add a task for each partition that was lost and has no task yet."""
        self._check_failed()
        for exchange in self._live:
            self._bury(exchange)
            result = self._voice.state.results[exchange.name]
            begun = exchange.again or result.totals.completions or result.reproduction.reproducing
            if begun and not result.complete:
                for index, run in self._maps(exchange).items():
                    partition = PartitionId(exchange.name, index)
                    known = repairs.get(partition)
                    if known is None or (known.done and self._settled(exchange, index)):
                        repairs[partition] = Task(run)

    def _see_to(self, task: Task) -> None:
        now_ms = self.world.scheduler.now_ms
        for actor, _ in task.actors:
            if actor.over and not task.done:
                if actor.error is None:
                    task.done, task.answer = True, actor.answer
                elif isinstance(actor.error, (Lost, Corrupt)):
                    raise actor.error
        alive = [a for a, since in task.actors if not a.over and now_ms - since < SILENT_MS]
        if task.done or (alive and not task.doubled):
            return
        task.doubled = not task.actors and self.world.chaos.strikes("second attempt")
        if len(task.actors) >= TRIES_MAX:
            raise Unavailable("a task has failed too often")
        self._voice.check_fence()
        executor, number = self._executor(), next(self.cluster.numbers)
        actor = self.world.scheduler.spawn(
            f"task-{number} on {executor.process.name}",
            executor.process,
            lambda: executor.work(task.run, number),
        )
        task.actors.append((actor, now_ms))

    def _executor(self) -> Executor:
        return self.cluster.executor(self._root, self.process.is_next)

    def _close(self) -> None:
        self._voice.leave()
        closed = self._voice.wait(_all_deleted, "every object to be deleted")
        if closed.closed is not None:
            ObjectDeleter(self._store, ROOT).sweep(closed)

    def _check_failed(self) -> None:
        if self._voice.state.failed is not None:
            raise JobHasFailed(self._voice.state.failed)


def _all_deleted(state: JobState) -> JobState | None:
    return None if any(result.doomed for result in state.results.values()) else state

"""Time and turns of a simulated world: one thread, one order, one seed.

Guarantees: the order of everything follows from the seed alone. A killed process does nothing more
from its next wait on, and a frozen process goes on later as if nothing had happened. An actor is a
greenlet: production code that waits (for a put, a confirmation, a sleep) is suspended in the
middle, and others take their turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from headgate.control.errors import Unavailable

T = TypeVar("T")

STEP_MS = 4.0  # the most that a wait without a stated length takes
STEPS_MAX = 150_000
NEXT_SHARE = 0.7  # of the processes that begin while an upgrade is rolled back


class Killed(BaseException):
    """The process of this code is dead, and nothing may be done on the way out."""


class Stuck(Exception):
    """The world does not come to an end."""


@dataclass(eq=False)
class Process:
    """A simulated process: a driver, an executor or a master, whose actors die together."""

    name: str
    dead: bool = False
    thaws_ms: float = 0.0
    back_ms: float = 0.0  # the end of the time in which it does not reach the log
    skew_ms: float = 0.0
    mounted_ms: float = 0.0  # the end of the time in which its folder is not mounted
    mortal: bool = True
    is_next: bool = True  # of the next version, in a world with two


@dataclass(frozen=True)
class Versions:
    """A deployment that is upgraded while its job runs, and rolled back for some of the time."""

    dice: Random
    begins_ms: float
    ends_ms: float

    def is_next(self, now_ms: float) -> bool:
        """Return the version of a process that begins now."""
        if now_ms < self.begins_ms:
            return False
        return now_ms >= self.ends_ms or self.dice.random() < NEXT_SHARE


@dataclass(eq=False)
class Actor:
    """A thread of execution in a process."""

    name: str
    process: Process
    run: Callable[[], object]
    turn: int = 0  # the wake-up that counts; earlier ones are void
    body: greenlet | None = None
    over: bool = False
    answer: object = None
    error: BaseException | None = None
    ended: Callable[[], None] = lambda: None

    def end(self, answer: object, error: BaseException | None) -> None:
        self.over, self.answer, self.error = True, answer, error
        self.ended()


class Scheduler:
    def __init__(self, seed: int, steps_max: int = STEPS_MAX) -> None:
        self._seed = seed
        self._steps_max = steps_max
        self.random = Random(seed)
        self.now_ms = 0.0
        self.steps = 0
        self.told: list[str] | None = None
        self._trace = blake2b(digest_size=16)
        self._due: list[tuple[float, int, Actor | Callable[[], None], int]] = []
        self._numbers = 0
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self.failures: list[tuple[str, Exception]] = []
        self._hub = getcurrent()
        self.hazard: Callable[[Process], None] = lambda process: None
        self.speaking: Callable[[Process], AbstractContextManager[None]] = lambda _: nullcontext()

    def dice(self, name: str) -> Random:
        """Return random numbers that depend on the seed and this name alone."""
        return Random(f"{self._seed} {name}")

    @property
    def trace(self) -> str:
        """Return a hash of everything that has happened so far."""
        return self._trace.hexdigest()

    @property
    def process(self) -> Process:
        assert self._current is not None, "asked outside of every actor"
        return self._current.process

    def note(self, what: str) -> None:
        """Add an entry to the trace."""
        line = f"{self.now_ms:.3f} {self._current.name if self._current else '-'}: {what}"
        self._trace.update(line.encode())
        if self.told is not None:
            self.told.append(line)

    def spawn(self, name: str, process: Process, run: Callable[[], object]) -> Actor:
        """Start an actor in a process."""
        actor = Actor(name, process, run)
        self._actors.append(actor)
        self._push(self.random.random(), actor)
        return actor

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Schedule an act that happens outside of every process."""
        self._push(delay_ms, act)

    def pause(self, what: str, ms: float | None = None) -> None:
        """Let other actors take turns, and return at this actor's next turn."""
        actor = self._current
        assert actor is not None, "only an actor can wait"
        if not actor.process.dead:
            self._push(STEP_MS * self.random.random() if ms is None else ms, actor)
            self._hub.switch()
            self.hazard(actor.process)
        if actor.process.dead:
            raise Killed(actor.process.name)
        self.note(what)

    def kill(self, process: Process) -> None:
        """End a process at once; its actors run out without any effect."""
        self.note(f"kill {process.name}")
        process.dead = True
        for actor in [a for a in self._actors if a.process is process and a is not self._current]:
            actor.turn += 1
            if actor.body is None:
                self._actors.remove(actor)
                actor.end(None, Killed(process.name))
            else:
                self._push(0.0, actor)

    def run(self, until: Callable[[], bool]) -> None:
        """Give turns until a condition holds.

        Raises:
            Stuck: the condition does not hold within the limit, or no actor has a turn left.
        """
        while not until():
            if not self._due:
                raise Stuck("nobody has anything left to do")
            self._give_turn()
            self.steps += 1
            if self.steps > self._steps_max:
                raise Stuck(f"no end after {self.steps} steps, at {self.now_ms / 1000:.0f} s")

    def end(self) -> None:
        """End every actor that still runs."""
        for actor in self._actors:
            actor.process.dead = True
        for actor in list(self._actors):
            if actor.body is not None and not actor.over:
                self._switch(actor)
        self._actors.clear()
        self._due.clear()

    def _push(self, delay_ms: float, what: Actor | Callable[[], None]) -> None:
        self._numbers += 1
        turn = what.turn if isinstance(what, Actor) else 0
        heapq.heappush(self._due, (self.now_ms + delay_ms, self._numbers, what, turn))

    def _give_turn(self) -> None:
        at_ms, _, what, turn = heapq.heappop(self._due)
        if not isinstance(what, Actor):
            self.now_ms = max(self.now_ms, at_ms)
            what()
        elif turn == what.turn and not what.over:
            thaws_ms = what.process.thaws_ms
            if at_ms < thaws_ms and not what.process.dead:
                self._push(thaws_ms - self.now_ms + self.random.random(), what)
                return
            self.now_ms = max(self.now_ms, at_ms)
            what.turn += 1
            self._switch(what)

    def _switch(self, actor: Actor) -> None:
        if actor.body is None:
            actor.body = greenlet(lambda: self._play(actor), self._hub)
        before, self._current = self._current, actor
        with self.speaking(actor.process):
            actor.body.switch()
        self._current = before
        if actor.over:
            actor.body = None
            self._actors.remove(actor)

    def _play(self, actor: Actor) -> None:
        try:
            answer = actor.run()
        except Exception as exc:
            self.failures.append((actor.name, exc))
            actor.end(None, exc)
        except Killed as exc:
            actor.end(None, exc)
        else:
            actor.end(answer, None)

    def park(self, signal: Signal, timeout_ms: float, what: str) -> None:
        """Wait for a signal, at most until the time is over."""
        actor = self._current
        assert actor is not None, "only an actor can wait"
        if not actor.process.dead:
            signal.waiting.append((actor, actor.turn))
            self._push(timeout_ms, actor)
            self._hub.switch()
        if actor.process.dead:
            raise Killed(actor.process.name)
        self.note(what)

    def wake(self, actor: Actor, turn: int) -> None:
        if actor.turn == turn and not actor.over:
            actor.turn += 1
            self._push(self.random.random(), actor)


@dataclass(eq=False)
class Signal:
    """An event that wakes each waiting actor once."""

    scheduler: Scheduler
    waiting: list[tuple[Actor, int]] = field(default_factory=list)

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, []
        for actor, turn in waiting:
            self.scheduler.wake(actor, turn)

    def wait(self, timeout_ms: float, what: str) -> None:
        self.scheduler.park(self, timeout_ms, what)


class SimClock:
    """One process's clock. Its wall time may jump; its monotonic time never runs backwards."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler = scheduler
        self._process = process

    def now_ms(self) -> int:
        return max(0, int(1_700_000_000_000 + self._scheduler.now_ms + self._process.skew_ms))

    def monotonic_s(self) -> float:
        return self._scheduler.now_ms / 1000

    def sleep_s(self, seconds: float) -> None:
        self._scheduler.pause("slept", 1000 * seconds)


class SimFuture(Future[T]):
    """A future whose waiter lets other actors take turns."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._signal = Signal(scheduler)
        self.add_done_callback(lambda _: self._signal.fire())

    def result(self, timeout: float | None = None) -> T:
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        if not self.done():
            self._signal.wait(1e9 if timeout is None else 1000 * timeout, "future")
        if not self.done():
            raise Unavailable("nothing in time")


class SimExecutor(Executor):
    """An executor that runs each piece of work as an actor of its process."""

    def __init__(self, scheduler: Scheduler, process: Process, name: str) -> None:
        self._scheduler = scheduler
        self._process = process
        self._name = name
        self._running: list[SimFuture[Any]] = []
        self._count = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> SimFuture[T]:
        future: SimFuture[T] = SimFuture(self._scheduler)
        self._count += 1
        name = f"{self._process.name} {self._name} {self._count}"
        self._scheduler.spawn(
            name, self._process, lambda: _settle(future, lambda: fn(*args, **kwargs))
        )
        self._running = [running for running in self._running if not running.done()] + [future]
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if wait:
            for future in self._running:
                future.exception()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        answer = work()
    except Killed:
        raise
    except BaseException as exc:
        future.set_exception(exc)
    else:
        future.set_result(answer)

"""A store that fails as planned, for tests and the simulator.

It wraps any store at its steps, so that a planned fault meets the same retries and the same look
before a repeated put as a fault of the network. Calls are counted per operation from 1, and each
retry counts: a test can fail the n-th call for every n.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from ..control.clock import SYSTEM_CLOCK, Clock, Deadline
from ..control.errors import HeadgateError
from ..storage.stores.conditional_put import PutAnswer, SteppedBlobStore, Stored, put
from ..storage.stores.port import BlobStat, ByteRange, Bytes, PendingUpload, exact
from ..storage.stores.request_meter import RequestCounts, RequestMeter
from ..storage.stores.retries import Retrier, RetrySettings

T = TypeVar("T")


class Operation(Enum):
    CHECK = "check"
    CREATE = "create"
    LOOK = "look"
    GET = "get"
    DELETE = "delete"
    LIST = "list"
    UPLOADS = "uploads"
    ABORT = "abort"

    @property
    def kind(self) -> str:
        """Return the kind of its requests, as `RequestCounts` names them."""
        kinds = {"create": "puts", "look": "heads", "get": "gets"}
        deletes = self in (Operation.DELETE, Operation.ABORT)
        return kinds.get(self.value, "deletes" if deletes else "lists")


class Effect(Enum):
    FAIL = "fail"  # the fault's error is raised, nothing is done
    LOSE_REQUEST = "lose request"  # a create writes nothing and gets no answer
    LOSE_ANSWER = "lose answer"  # a create writes, and its answer is lost
    TRUNCATE = "truncate"  # a get misses the last byte
    FLIP = "flip"  # a get differs in one bit of the middle byte


@dataclass(frozen=True, slots=True)
class PlannedFault:
    operation: Operation
    nth: int
    """The call that fails; the first one is 1."""
    effect: Effect = Effect.FAIL
    error: HeadgateError | None = None
    """The error to raise; only `Effect.FAIL` needs one."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    faults: tuple[PlannedFault, ...] = ()
    lose_first_answer_of_every_put: bool = False
    latency_ms: int = 0

    def at(self, operation: Operation, nth: int) -> PlannedFault | None:
        for fault in self.faults:
            if fault.operation is operation and fault.nth == nth:
                return fault
        return None


class FaultyBlobStore:
    def __init__(
        self,
        inner: SteppedBlobStore,
        plan: FaultPlan,
        retries: RetrySettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._clock = clock
        self._retrier = Retrier(retries or RetrySettings(), clock)
        self._lock = threading.Lock()
        self._calls: Counter[Operation] = Counter()
        self._lost: set[str] = set()
        self._meter = RequestMeter()

    @property
    def requests(self) -> RequestCounts:
        return self._inner.requests + self._meter.read()

    def calls(self, operation: Operation) -> int:
        """Return how often the operation was tried so far."""
        with self._lock:
            return self._calls[operation]

    def check(self, deadline: Deadline, prefix: str = "") -> None:
        self._act(Operation.CHECK, lambda: self._inner.check(deadline, prefix))

    def put(self, name: str, body: Bytes, write_id: str) -> None:
        put(self, self._retrier, name, body, write_id)

    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        fault = self._meet(Operation.CREATE)
        if fault is not None and fault.effect is Effect.LOSE_REQUEST:
            return PutAnswer.SILENT
        answer = self._inner.create(name, body, write_id)
        lost = fault is not None and fault.effect is Effect.LOSE_ANSWER
        return PutAnswer.SILENT if lost or self._loses_first(name) else answer

    def look(self, name: str) -> Stored | None:
        self._meet(Operation.LOOK)
        return self._inner.look(name)

    def get(self, name: str, span: ByteRange | None = None) -> memoryview:
        return self._retrier.run(name, lambda: self._get(name, span))

    def size_bytes(self, name: str) -> int | None:
        stored = self._retrier.run(name, lambda: self.look(name))
        return None if stored is None else stored.size_bytes

    def delete(self, names: Collection[str]) -> None:
        self._act(Operation.DELETE, lambda: self._inner.delete(names))

    def list(self, prefix: str) -> Iterator[BlobStat]:
        return self._act(Operation.LIST, lambda: self._inner.list(prefix))

    def uploads(self, prefix: str) -> Iterator[PendingUpload]:
        return self._act(Operation.UPLOADS, lambda: self._inner.uploads(prefix))

    def abort(self, upload: PendingUpload) -> None:
        self._act(Operation.ABORT, lambda: self._inner.abort(upload))

    def close(self) -> None:
        self._inner.close()

    def _get(self, name: str, span: ByteRange | None) -> memoryview:
        fault = self._meet(Operation.GET)
        content = self._inner.get(name, span)
        if fault is None or not content:
            return content
        if fault.effect is Effect.FLIP:
            return _flipped(content)
        return exact(content[:-1], name, span or ByteRange(0, len(content)))

    def _act(self, operation: Operation, request: Callable[[], T]) -> T:
        def met() -> T:
            self._meet(operation)
            return request()

        return self._retrier.run(operation.value, met)

    def _meet(self, operation: Operation) -> PlannedFault | None:
        with self._lock:
            self._calls[operation] += 1
            nth = self._calls[operation]
        if self._plan.latency_ms:
            self._clock.sleep_s(self._plan.latency_ms / 1000)
        fault = self._plan.at(operation, nth)
        if fault is not None and fault.effect is Effect.FAIL:
            assert fault.error is not None, f"{fault} needs an error"
            with self._meter.answering(operation.kind):
                raise fault.error
        return fault

    def _loses_first(self, name: str) -> bool:
        with self._lock:
            first = self._plan.lose_first_answer_of_every_put and name not in self._lost
            self._lost.add(name)
            return first


def _flipped(content: memoryview) -> memoryview:
    body = bytearray(content)
    body[len(body) // 2] ^= 1
    return memoryview(body).toreadonly()

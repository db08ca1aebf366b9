"""Conditional puts: settle a put whose create did not get a plain yes.

A store offers two steps, `create` and `look`. Every implementation puts through `put` below, the
twins and the S3 door alike. A put succeeds only if the store confirmed it, either in its answer or
through the write id that a look found afterwards. After a lost answer, a put that cannot be
confirmed raises `OutcomeUnknown` and no retryable error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ...control.errors import Conflict, HeadgateError, OutcomeUnknown, Retryable, Unavailable
from .port import BlobStore, Bytes, byte_view, checked_name, checked_write_id
from .retries import Retrier, Tries


class PutAnswer(Enum):
    """The answer to one create."""

    CREATED = "created"
    EXISTS = "exists"  # 412: the name is taken, perhaps by an earlier try of this very put
    BUSY = "busy"  # 409: another write to the same name is under way
    SILENT = "silent"  # the answer was lost; the object may or may not be there


@dataclass(frozen=True, slots=True)
class Stored:
    """The write that made an object, and the object's size."""

    write_id: str
    size_bytes: int


class PutSteps(Protocol):
    def create(self, name: str, body: memoryview, write_id: str) -> PutAnswer:
        """Try once to create the object.

        Raises:
            Unavailable, Throttled: nothing was written.
        """

    def look(self, name: str) -> Stored | None:
        """Ask once for the object that holds the name now; return None if there is none.

        Raises:
            Unavailable, Throttled: no answer.
        """


class SteppedBlobStore(BlobStore, PutSteps, Protocol):
    """A store whose steps can be wrapped."""


def put(steps: PutSteps, retrier: Retrier, name: str, body: Bytes, write_id: str) -> None:
    """Create one object, or raise as `BlobStore.put` says."""
    view = byte_view(body)
    mine = Stored(checked_write_id(write_id), len(view))
    checked_name(name)
    tries, doubt = Tries(retrier, name), False
    retrier.wait()
    while True:
        failure: Retryable | None = None
        try:
            answer = steps.create(name, view, write_id)
        except Retryable as error:
            failure = error
        else:
            if answer is PutAnswer.CREATED:
                retrier.refund(tries.took_token)
                return
            doubt = doubt or answer is PutAnswer.SILENT
            if answer is not PutAnswer.BUSY and _is_there(steps, retrier, name, answer, mine):
                return
        if not tries.again(failure):
            raise _given_up(name, tries.count, doubt, failure) from failure


def _is_there(
    steps: PutSteps, retrier: Retrier, name: str, answer: PutAnswer, mine: Stored
) -> bool:
    """Look at the object that has the name. Return True if this put made it, False if there is
    none.

    Raises:
        Conflict: another put made it.
        OutcomeUnknown: the look failed.
    """
    try:
        stored = retrier.run(name, lambda: steps.look(name))
    except Retryable as error:
        raise OutcomeUnknown(
            f"put of {name} was answered '{answer.value}', and a look at the object failed: {error}"
        ) from error
    if stored not in (None, mine):
        raise Conflict(f"object {name} exists already: {stored} wrote it, and not {mine}")
    return stored is not None


def _given_up(name: str, tries: int, doubt: bool, failure: Retryable | None) -> HeadgateError:
    if doubt:
        return OutcomeUnknown(
            f"put of {name}: answers were lost in {tries} tries; it was not there at the last look "
            "but may still appear"
        )
    if failure is not None:
        return failure
    return Unavailable(f"put of {name}: still refused as busy or taken after {tries} tries")

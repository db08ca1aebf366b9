"""Names of things. All but `JobId` are unique within one job, which an event's envelope names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NewType

from .errors import Invalid

JobId = NewType("JobId", str)
ResultId = NewType("ResultId", str)

_NAMED_MAX = 4_000
NAME_CHARS_MAX = 100
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARS_MAX - 1}}}")


def job_id(text: str) -> JobId:
    """Check a job's name: it becomes part of object names, keys and transactional ids.

    Raises:
        Invalid: the name has other characters or is too long.
    """
    if not is_name(text):
        raise Invalid(
            f"job id {text!r}: use 1 to 100 letters, digits, '_', '.' or '-', "
            "the first a letter or digit"
        )
    return JobId(text)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """What one map task produces for a result."""

    result: ResultId
    index: int

    def __str__(self) -> str:
        return f"{self.result}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One try at producing a partition; `task` is Spark's taskAttemptId, which never repeats."""

    partition: PartitionId
    epoch: int
    task: int

    def __hash__(self) -> int:
        """Of what all but never repeats: quick, and the same in every process."""
        return hash(self.task)

    def __str__(self) -> str:
        return f"{self.partition}/{self.epoch}-{self.task}"


def in_parts(attempts: Sequence[AttemptId]) -> Iterator[tuple[AttemptId, ...]]:
    """As many attempts at a time as one record can name."""
    for at in range(0, len(attempts), _NAMED_MAX):
        yield tuple(attempts[at : at + _NAMED_MAX])


def partition_id(text: str) -> PartitionId:
    """The partition that `result/index` names.

    Raises:
        Invalid: the text is of another form.
    """
    result, _, index = text.rpartition("/")
    if not result or not index.isdecimal():
        raise Invalid(f"partition {text!r}: write result/index, for example 1-0001/3")
    return PartitionId(ResultId(result), int(index))

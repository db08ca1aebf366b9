"""The ids of jobs, results, partitions and attempts.

A `JobId` is unique in the log; the other ids are unique within one job. The envelope of an event
names the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NewType

from .errors import Invalid

JobId = NewType("JobId", str)
ResultId = NewType("ResultId", str)

_NAMED_MAX = 4_000
_DIGITS_MAX = 9
NAME_CHARS_MAX = 100
_COPY = re.compile(r"-(combined|again-\d+)$")
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARS_MAX - 1}}}")


def job_id(text: str) -> JobId:
    """Check a job's name, which becomes part of object names, keys and transactional ids.

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


def combined_name(result: ResultId) -> ResultId:
    """Return the name of the result that holds the combined rows of another one."""
    return ResultId(f"{result}-combined")


def again_name(result: ResultId, number: int) -> ResultId:
    """Return the name of the result that holds the rows of a combined one's source, made again for
    that number of times."""
    return ResultId(f"{result}-again-{number}")


def exchange_name(result: ResultId, label: str) -> str:
    """Return the name by which people know an exchange wherever it is shown in one text."""
    return f"{result} {label}"


def original(result: ResultId) -> ResultId:
    """Return the result whose rows another one holds, combined or made again; else itself."""
    return ResultId(_COPY.sub("", result))


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """The output of one map task for a result."""

    result: ResultId
    index: int

    def __str__(self) -> str:
        return f"{self.result}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One try at producing a partition."""

    partition: PartitionId
    epoch: int
    task: int
    """Spark's `taskAttemptId`, which never repeats in an application."""

    def __hash__(self) -> int:
        """Hash the task id alone: it almost never repeats, and hashes alike in every process."""
        return hash(self.task)

    def __str__(self) -> str:
        return f"{self.partition}/{self.epoch}-{self.task}"


def in_parts(attempts: Sequence[AttemptId]) -> Iterator[tuple[AttemptId, ...]]:
    """Split attempts into groups that are small enough for one record to name."""
    for at in range(0, len(attempts), _NAMED_MAX):
        yield tuple(attempts[at : at + _NAMED_MAX])


def is_index(text: str) -> bool:
    """Return True if a text is the index of a partition, or could be."""
    return text.isdecimal() and len(text) <= _DIGITS_MAX


def partition_id(text: str) -> PartitionId:
    """Parse a partition id of the form `result/index`.

    Raises:
        Invalid: the text has another form.
    """
    result, _, index = text.rpartition("/")
    if not result or not is_index(index):
        raise Invalid(f"partition {text!r}: write result/index, for example 1-0001/3")
    return PartitionId(ResultId(result), int(index))

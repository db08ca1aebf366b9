"""The report on a job counts the requests that its objects took."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headgate.connectors.spark.queries.session_queries import tally
from headgate.connectors.spark.report import job_report
from headgate.control.events.types import (
    Deleted,
    Fact,
    JobRegistered,
    Lost,
    PartitionRegistered,
    Produced,
    ReleaseRequested,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import JobId
from headgate.control.model.decide import step
from headgate.control.model.state import JobState

from ..doubles.segments import RESULT, attempt_of


@pytest.mark.parametrize(("mib", "puts"), [(64, 1), (127, 1), (128, 4), (700, 13)])
def test_an_object_in_parts_takes_several_puts(mib: int, puts: int) -> None:
    state = JobState(JobId("job"))
    facts: list[Fact] = [
        JobRegistered("", "", ""),
        ResultRegistered(RESULT, 1, 4, "", ""),
        PartitionRegistered(RESULT, 0, 1),
        Produced(attempt_of(0), (SegmentSummary(0, mib << 20, 1, 7, b""),)),
    ]
    for fact in facts:
        state, _ = step(state, fact)
    report = job_report(state)
    assert (report.puts, report.results[0].puts) == (puts, puts)


def test_a_partition_that_is_made_again_counts_once() -> None:
    """The rows and partitions of a result are those that can be read, before and after a loss is
    repaired, and those that could be read when the result was released. Bytes and requests that
    were spent stay counted."""
    state = step(JobState(JobId("job")), JobRegistered("", "", ""))[0]

    def made(index: int, task: int) -> Produced:
        attempt = replace(attempt_of(index), task=task)
        return Produced(attempt, (SegmentSummary(0, 9, 10, 7, b""),), fingerprint=1)

    def row(*facts: Fact) -> tuple[str, int, int]:
        nonlocal state
        for fact in facts:
            state, _ = step(state, fact)
        (report,) = job_report(state).results
        assert report.stored_bytes == 9 * report.puts
        return job_report(state).results.table().rows[0][2], report.rows, report.puts

    opening = ResultRegistered(RESULT, 4, 4, "", ""), PartitionRegistered(RESULT, 0, 4)
    assert ("complete", 40, 4) == row(*opening, *(made(index, 1) for index in range(4)))
    lost = [Lost(made(index, 1).attempt, "object", "404") for index in range(3)]
    assert ("1 of 4", 10, 4) == row(*lost)
    assert ("complete", 40, 7) == row(*(made(index, 2) for index in range(3)))
    assert ("released: asked", 40, 7) == row(ReleaseRequested(RESULT, "asked"))
    gone = tuple(state.results[RESULT].production.attempts)
    assert ("released: asked", 40, 7) == row(Deleted(RESULT, gone, 7))


def test_reasons_with_figures_stay_few() -> None:
    """A long session may leave any number of queries to Spark, each with figures of its own."""
    counts = Counter[str]()
    tally(counts, (f"Invalid: {number} requests" for number in range(1_000)))
    tally(counts, ["Invalid: 1 requests", "Invalid: 1000 requests"])
    assert (101, 1_002) == (len(counts), counts.total())
    assert (2, 901) == (counts["Invalid: 1 requests"], counts["other reasons"])

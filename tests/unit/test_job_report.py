"""The report on a job counts the requests that its objects took."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.connectors.spark.queries.session_queries import tally
from headgate.connectors.spark.report import job_report
from headgate.control.events.types import (
    Fact,
    JobRegistered,
    PartitionRegistered,
    Produced,
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


def test_reasons_with_figures_stay_few() -> None:
    """A long session may leave any number of queries to Spark, each with figures of its own."""
    counts = Counter[str]()
    tally(counts, (f"Invalid: {number} requests" for number in range(1_000)))
    tally(counts, ["Invalid: 1 requests", "Invalid: 1000 requests"])
    assert (101, 1_002) == (len(counts), counts.total())
    assert (2, 901) == (counts["Invalid: 1 requests"], counts["other reasons"])

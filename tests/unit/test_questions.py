"""The questions of operators about a job, answered from states that facts led to."""

from __future__ import annotations

from headgate.control.events.types import (
    AttemptStarted,
    Fact,
    JobRegistered,
    JobUnregistered,
    Lost,
    PartitionRegistered,
    Produced,
    PromoteRequested,
    ReleaseRequested,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
)
from headgate.control.ids import (
    AttemptId,
    JobId,
    PartitionId,
    ResultId,
    again_name,
    combined_name,
)
from headgate.control.inquiry.questions import (
    cluster_partitions,
    is_available,
    running_on,
    unused,
)
from headgate.control.model.decide import step
from headgate.control.model.state import JobState

JOB = JobId("j")
A, B, C = ResultId("a"), ResultId("b"), ResultId("c")
SEGMENT = SegmentSummary(0, 3, 1, 7, b"")


def attempt(result: ResultId, partition: int = 0, task: int = 1, epoch: int = 1) -> AttemptId:
    return AttemptId(PartitionId(result, partition), epoch, task)


def registered(
    result: ResultId, inputs: tuple[ResultId, ...] = (), pipelined: bool = False
) -> list[Fact]:
    return [
        ResultRegistered(result, 1, 1, "", "", inputs, pipelined=pipelined),
        PartitionRegistered(result, 0, 1),
    ]


def complete(result: ResultId, inputs: tuple[ResultId, ...] = ()) -> list[Fact]:
    it = attempt(result)
    return [*registered(result, inputs), AttemptStarted(it, "h"), Produced(it, (SEGMENT,))]


def after(*facts: Fact) -> JobState:
    state = JobState(JOB)
    for fact in (JobRegistered("", "", ""), *facts):
        state, _ = step(state, fact)
    return state


def test_only_what_runs_holds_an_executor() -> None:
    """An attempt keeps its host only while it runs and can still win."""
    running = [*registered(A), AttemptStarted(attempt(A, task=1), "h")]
    assert running_on(after(*running), "h") == (attempt(A),)
    assert not running_on(after(*running), "another")
    ends: list[Fact] = [
        Produced(attempt(A), (SEGMENT,)),
        ReleaseRequested(A, ""),
        JobRegistered("", "", ""),
        JobUnregistered(""),
    ]
    for end in ends:
        assert not running_on(after(*running, end), "h"), end
    other = attempt(A, task=2)
    beaten = after(*running, AttemptStarted(other, "g"), Produced(other, (SEGMENT,)))
    assert running_on(beaten, "h") == (attempt(A),)  # it may win if the other attempt is lost
    assert not running_on(beaten, "g")


def test_available_is_whole() -> None:
    """A partition that is not whole, lost, released or unknown is not available, and a stream is
    not available before it has ended."""
    assert not is_available(after(), A)
    assert not is_available(after(*registered(A)), A)
    assert is_available(after(*complete(A)), A)
    assert is_available(after(*complete(A)), A, 0)
    assert not is_available(after(*complete(A)), A, 1)
    lost = Lost(attempt(A), "object", "404")
    assert not is_available(after(*complete(A), lost), A)
    assert not is_available(after(*complete(A), lost), A, 0)
    assert not is_available(after(*complete(A), ReleaseRequested(A, "")), A, 0)
    stream = [*registered(A, pipelined=True), SegmentProduced(attempt(A), SEGMENT)]
    assert not is_available(after(*stream), A, 0)
    assert is_available(after(*stream, Produced(attempt(A), (SEGMENT,))), A, 0)


def test_inputs_of_what_is_used_are_used() -> None:
    """A result is in use while a result made from it is in use or still being written."""
    chain = [*complete(A), *complete(B, (A,))]
    assert unused(after(*chain), {B}) == ()
    assert unused(after(*chain), {A}) == (B,)
    assert unused(after(*chain), ()) == (A, B)
    assert unused(after(*chain, *registered(C, (B,))), ()) == ()
    assert unused(after(*chain, ReleaseRequested(A, "")), ()) == (B,)


def test_the_source_of_a_combined_result_is_used_while_that_is_written() -> None:
    """The rows of a map stage, first written or made again, are in use until they are combined.
    Nothing in the log names them as inputs."""
    first, combined = ResultId("1-0001"), combined_name(ResultId("1-0001"))
    assert unused(after(*complete(first), *registered(combined)), ()) == ()
    again = again_name(first, 1)
    once, twice = (Produced(attempt(combined, task=task), (SEGMENT,), 7) for task in (1, 2))
    lost = Lost(once.attempt, "object", "404")
    made = [*registered(combined), once, lost, *complete(again)]
    assert unused(after(*made), ()) == ()
    assert unused(after(*made, twice), {combined}) == (again,)
    other = [*complete(ResultId("1-0002")), *complete(ResultId("1-00011-again-1"))]
    assert len(unused(after(*made, *other), ())) == 2


def test_what_outlives_its_job_is_not_unused() -> None:
    """A promoted result is a cluster partition, until it is released."""
    kept = after(*complete(A), PromoteRequested(A, 0))
    assert cluster_partitions(kept) == (A,)
    assert unused(kept, ()) == ()
    assert unused(after(*complete(A), *complete(B, (A,)), PromoteRequested(B, 0)), ()) == ()
    released = after(*complete(A), PromoteRequested(A, 0), ReleaseRequested(A, ""))
    assert cluster_partitions(released) == ()

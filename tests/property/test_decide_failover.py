"""The partitions that are reproduced when something is lost, over random graphs of results."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Consumable,
    Decision,
    Fact,
    JobFailed,
    JobRegistered,
    JobUnregistered,
    Lost,
    PartitionRegistered,
    Produced,
    PromoteRequested,
    ReleaseRequested,
    Reproduce,
    ResultComplete,
    ResultRegistered,
    SegmentProduced,
    SegmentSummary,
    StopTrackingRequested,
    Superseded,
    TrackingStopped,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.model.decide import step
from headgate.control.model.state import JobState

JOB = JobId("job")
SEGMENT = SegmentSummary(0, 10, 1, 0, b"")
NEXT = SegmentSummary(1, 10, 1, 0, b"")
NAMES = tuple(ResultId(name) for name in "abcde")


@dataclass(frozen=True, slots=True)
class Node:
    """One result of a graph. Its inputs come before it."""

    name: ResultId
    inputs: tuple[ResultId, ...]
    partitions: int
    deterministic: bool = True
    pipelined: bool = False


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for name in NAMES[: draw(st.integers(1, 5))]:
        known = [node.name for node in nodes]
        inputs = draw(st.lists(st.sampled_from(known), max_size=2, unique=True)) if known else []
        kinds = draw(st.booleans()), draw(st.sampled_from((False, False, True)))
        nodes.append(Node(name, tuple(inputs), draw(st.integers(1, 3)), *kinds))
    return nodes


class Job:
    """A job that feeds facts to the core and keeps its decisions."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.state = JobState(JOB)
        self.tasks = 0
        self.take(JobRegistered("per-job", "0", "app"))
        for node in nodes:
            self.take(
                ResultRegistered(
                    node.name,
                    node.partitions,
                    1,
                    "",
                    "",
                    node.inputs,
                    node.deterministic,
                    node.pipelined,
                )
            )
            self.take(PartitionRegistered(node.name, 0, node.partitions))

    def take(self, fact: Fact) -> tuple[Decision, ...]:
        self.state, decisions = step(self.state, fact)
        return decisions

    def start(self, name: ResultId, index: int) -> AttemptId:
        self.tasks += 1
        attempt = AttemptId(PartitionId(name, index), 1, self.tasks)
        self.take(AttemptStarted(attempt, "host"))
        return attempt

    def run(self, name: ResultId, index: int) -> tuple[Decision, ...]:
        attempt = self.start(name, index)
        decisions: tuple[Decision, ...] = ()
        if self.nodes[name].pipelined:
            decisions = self.take(SegmentProduced(attempt, SEGMENT))
        return decisions + self.take(Produced(attempt, (SEGMENT,), 7))

    def run_all(self) -> None:
        for node in self.nodes.values():
            for index in range(node.partitions):
                self.run(node.name, index)
        assert all(result.complete for result in self.state.results.values())

    def winner(self, name: ResultId, index: int) -> AttemptId:
        return self.state.results[name].production.winners[index]


def again(decisions: tuple[Decision, ...]) -> dict[ResultId, set[int]]:
    """Return the partitions ordered to be reproduced; assert that each result is named once."""
    orders = [decision for decision in decisions if isinstance(decision, Reproduce)]
    assert len(orders) == len({order.result for order in orders})
    return {order.result: set(order.partitions) for order in orders}


def expected(job: Job, name: ResultId, index: int) -> dict[ResultId, set[int]]:
    """Return the partitions to be reproduced, by the rule of regions applied until nothing
    changes."""
    reproduced = {(name, index)}
    while True:
        more = set(reproduced)
        for known, _ in reproduced:
            node = job.nodes[known]
            sources = [job.nodes[source] for source in node.inputs]
            whole = [source for source in sources if source.pipelined]
            whole += [node] if node.pipelined else []
            if node.pipelined or not node.deterministic:
                whole += [other for other in job.nodes.values() if known in other.inputs]
            more |= {(other.name, at) for other in whole for at in range(other.partitions)}
        if more == reproduced:
            break
        reproduced = more
    return {known: {at for result, at in reproduced if result == known} for known, _ in reproduced}


@given(graphs(), st.data())
def test_the_smallest_set_is_made_again(nodes: list[Node], data: st.DataObject) -> None:
    """A loss orders the lost partition, and beyond a blocking edge only partitions that may differ
    now; inputs come first."""
    job = Job(nodes)
    job.run_all()
    node = data.draw(st.sampled_from(nodes))
    index = data.draw(st.integers(0, node.partitions - 1))
    decisions = job.take(Lost(job.winner(node.name, index), "object", "404"))
    orders = again(decisions)
    assert expected(job, node.name, index) == orders
    order = list(orders)
    assert order == sorted(order, key=list(job.nodes).index)


@given(graphs(), st.data())
def test_what_was_ordered_makes_all_complete(nodes: list[Node], data: st.DataObject) -> None:
    """Running exactly the ordered partitions completes every result, whatever is lost, in any
    number."""
    job = Job(nodes)
    job.run_all()
    missing: dict[ResultId, set[int]] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(nodes))
        won = job.state.results[node.name].production.winners
        if not won:
            continue
        lost = data.draw(st.sampled_from(sorted(won.values())))
        for name, partitions in again(job.take(Lost(lost, "object", "404"))).items():
            assert not partitions & missing.get(name, set()), "nothing is ordered twice"
            missing.setdefault(name, set()).update(partitions)
    for name, result in job.state.results.items():
        assert missing.get(name, set()) == set(result.reproduction.reproducing)
    completed: list[ResultId] = []
    for name in [name for name in job.nodes if name in missing]:
        for index in sorted(missing[name]):
            decisions = job.run(name, index)
            assert any(isinstance(decision, Consumable) for decision in decisions)
            completed += [d.result for d in decisions if isinstance(d, ResultComplete)]
    assert sorted(missing) == sorted(completed)
    assert all(result.complete for result in job.state.results.values())
    assert job.state.failed is None


@given(graphs(), st.data())
def test_nobody_at_work_in_a_region_counts_after_its_restart(
    nodes: list[Node], data: st.DataObject
) -> None:
    """An attempt that may have read a lost partition never becomes consumable."""
    job = Job(nodes)
    job.run_all()
    node = data.draw(st.sampled_from(nodes))
    index = data.draw(st.integers(0, node.partitions - 1))
    at_work = [job.start(other.name, 0) for other in nodes]
    restarted = expected(job, node.name, index)
    job.take(Lost(job.winner(node.name, index), "object", "404"))
    for attempt in at_work:
        name = attempt.partition.result
        whole = name in restarted and (name != node.name or node.pipelined)
        decisions = job.take(Produced(attempt, (SEGMENT,), 7))
        assert not (whole and any(isinstance(d, Consumable) for d in decisions))


def test_a_lost_input_is_made_before_what_reads_it() -> None:
    """Two losses, of an input and of a partition that reads it, each order just the lost
    partition."""
    job = Job([Node(NAMES[0], (), 2), Node(NAMES[1], (NAMES[0],), 2)])
    job.run_all()
    first = job.take(Lost(job.winner(NAMES[0], 1), "object", "404"))
    second = job.take(Lost(job.winner(NAMES[1], 0), "object", "404"))
    assert {NAMES[0]: {1}} == again(first)
    assert {NAMES[1]: {0}} == again(second)


def test_what_cannot_be_made_again_fails_the_job() -> None:
    """A lost partition whose input was released fails the job, and the reason names both."""
    job = Job([Node(NAMES[0], (), 1), Node(NAMES[1], (NAMES[0],), 1)])
    job.run_all()
    job.take(ReleaseRequested(NAMES[0], "asked"))
    decisions = job.take(Lost(job.winner(NAMES[1], 0), "object", "404"))
    assert decisions[-1] == JobFailed("b cannot be made again: its input a is released")
    assert job.state.failed is not None


def test_other_content_fails_the_job() -> None:
    """Other content in a partition that was consumable fails the job, even before the result is
    complete."""
    for complete in (False, True):
        job = Job([Node(NAMES[0], (), 2, deterministic=False)])
        job.run(NAMES[0], 0)
        if complete:
            job.run(NAMES[0], 1)
        job.take(Lost(job.winner(NAMES[0], 0), "object", "404"))
        other = job.start(NAMES[0], 0)
        decisions = job.take(Produced(other, (SEGMENT,), 8))
        assert isinstance(decisions[-1], JobFailed)
        assert job.state.failed is not None


def test_a_replaced_driver_ends_nothing() -> None:
    """The requests of a replaced driver change nothing; those of an operator always count."""
    job = Job([Node(NAMES[0], (), 1)])
    job.run_all()
    job.take(JobRegistered("per-job", "0", "app"))
    before = job.state
    for asked in (
        JobUnregistered("closed", 1),
        ReleaseRequested(NAMES[0], "asked", 1),
        PromoteRequested(NAMES[0], 0, 1),
        StopTrackingRequested(NAMES[0], "mine", 1),
    ):
        assert job.take(asked) == ()
        assert job.state is before
    assert job.take(ReleaseRequested(NAMES[0], "asked", 0)) != ()


def test_an_attempt_that_was_slow_takes_the_place_of_the_lost_one() -> None:
    """A slow attempt of the current epoch takes the place of a lost one, and the rerun's is
    superseded."""
    job = Job([Node(NAMES[0], (), 1)])
    slow = job.start(NAMES[0], 0)
    job.run_all()
    job.take(Lost(job.winner(NAMES[0], 0), "object", "404"))
    assert Consumable(slow) in job.take(Produced(slow, (SEGMENT,), 7))
    repaired = job.start(NAMES[0], 0)
    assert [Superseded(repaired, "attempt 1 was first")] == list(
        job.take(Produced(repaired, (SEGMENT,), 7))
    )


# Pipelined results


def test_the_first_to_announce_a_segment_is_read() -> None:
    """The first attempt to announce a segment is read; another attempt is superseded, even if it
    ends first."""
    job = Job([Node(NAMES[0], (), 1, pipelined=True)])
    first, second = job.start(NAMES[0], 0), job.start(NAMES[0], 0)
    assert (Consumable(first),) == job.take(SegmentProduced(first, SEGMENT))
    assert job.take(SegmentProduced(first, NEXT)) == ()
    assert isinstance(job.take(SegmentProduced(second, SEGMENT))[0], Superseded)
    assert job.take(Produced(second, (SEGMENT,), 7)) == ()
    assert (SEGMENT, NEXT) == job.state.results[NAMES[0]].production.streams[first]
    assert (ResultComplete(NAMES[0]),) == job.take(Produced(first, (SEGMENT, NEXT), 7))
    assert job.take(Produced(first, (SEGMENT, NEXT), 7)) == ()


def test_an_end_that_contradicts_the_stream_is_a_loss() -> None:
    """An attempt that ends with other segments than it announced is lost, because readers have
    those."""
    job = Job([Node(NAMES[0], (), 1, pipelined=True)])
    attempt = job.start(NAMES[0], 0)
    job.take(SegmentProduced(attempt, SEGMENT))
    changed = SegmentSummary(0, 11, 1, 0, b"")
    decisions = job.take(Produced(attempt, (changed,), 7))
    assert {NAMES[0]: {0}} == again(decisions)
    assert job.state.results[NAMES[0]].production.winners == {}


def test_a_stream_that_fails_restarts_its_readers() -> None:
    """A whole region starts again when the attempt that its readers follow fails."""
    job = Job([Node(NAMES[0], (), 1, pipelined=True), Node(NAMES[1], (NAMES[0],), 2)])
    attempt = job.start(NAMES[0], 0)
    job.take(SegmentProduced(attempt, SEGMENT))
    at_work = job.start(NAMES[1], 1)
    decisions = job.take(AttemptFailed(attempt, "oom"))
    assert {NAMES[0]: {0}, NAMES[1]: {0, 1}} == again(decisions)
    assert TrackingStopped in map(type, decisions)
    assert at_work in [d.attempt for d in decisions if isinstance(d, Superseded)]

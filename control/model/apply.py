"""Apply events to the state of a job."""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from ..events.types import (
    AttemptFailed,
    AttemptStarted,
    Body,
    Consumable,
    Consumed,
    Deleted,
    ExecutorLost,
    JobAccepted,
    JobFailed,
    JobRegistered,
    JobUnregistered,
    LeaseExpired,
    Lost,
    PartitionAccepted,
    PartitionRegistered,
    Produced,
    Promoted,
    PromoteRequested,
    Released,
    ReleaseRequested,
    Reproduce,
    ResultComplete,
    ResultRegistered,
    SegmentProduced,
    StopTrackingRequested,
    Superseded,
    Tick,
    TrackingStopped,
)
from ..events.values import changed
from ..ids import AttemptId, ResultId
from .persistent import PersistentMap, PersistentSet
from .state import Forgotten, JobState, Reads, ResultState, Written, is_fenced, total

# The number of released results that a job remembers. Decisions depend on it, so that all versions
# must have the same.
_GONE_MAX = 200


def apply(state: JobState, body: Body) -> JobState:
    """Return the state after an event."""
    if is_fenced(state, body):
        return state
    match body:
        case JobAccepted():
            return _accept(state, body.epoch)
        case JobUnregistered() | LeaseExpired():
            ends = state.epoch > 0 and state.closed is None
            return changed(state, closed=body.reason) if ends else state
        case JobFailed():
            return changed(state, failed=body.reason)
        case ExecutorLost():
            return _lose_host(state, body.host)
        case ResultRegistered():
            existing = state.results.get(body.result)
            refused = existing is not None or not state.registered
            return state if refused else _put(state, body.result, ResultState(body))
        case JobRegistered() | PartitionRegistered() | Tick():
            return state
        case ReleaseRequested() | PromoteRequested() | StopTrackingRequested():
            return state
        case AttemptStarted() | AttemptFailed() | SegmentProduced() | Produced():
            return _change(state, body.attempt.partition.result, body)
        case Lost() | Consumable() | Superseded():
            return _change(state, body.attempt.partition.result, body)
        case PartitionAccepted() | ResultComplete() | Reproduce() | TrackingStopped():
            return _change(state, body.result, body)
        case Promoted() | Consumed():
            return _change(state, body.result, body)
        case Released() | Deleted():
            return _retire(_change(state, body.result, body), body.result)
        case _:
            assert_never(body)


def _accept(state: JobState, epoch: int) -> JobState:
    """Accept another driver: the job is open again, and no reader of the former driver waits any
    more."""
    results = {n: changed(r, waiting=PersistentSet()) for n, r in state.results.items()}
    fresh = JobState(state.job, epoch, PersistentMap(results))
    return changed(fresh, gone=state.gone, forgotten=state.forgotten)


def _put(state: JobState, name: ResultId, result: ResultState) -> JobState:
    return changed(state, results=PersistentMap.of(state.results).having(name, result))


def _retire(state: JobState, name: ResultId) -> JobState:
    """Reduce a released result without objects to its sums, and old ones to a single sum: a job of
    any length remembers only its last results."""
    result = state.results.get(name)
    if result is None or result.released is None or result.attempts:
        return state
    left = ResultState(
        changed(result.registered, schema=""),
        written=result.written,
        reads=result.reads,
        completions=result.completions,
        complete=result.complete,
        released=result.released,
        deleted=result.deleted,
    )
    gone = (*(other for other in state.gone if other != name), name)
    state = changed(_put(state, name, left), gone=gone[-_GONE_MAX:])
    for oldest in gone[:-_GONE_MAX]:
        state = _forget_result(state, oldest)
    return state


def _forget_result(state: JobState, name: ResultId) -> JobState:
    """Add a result to the single sum, unless a late attempt at it has begun: its objects must be
    deleted first."""
    result, before = state.results[name], state.forgotten
    if result.attempts:
        return state
    forgotten = Forgotten(
        before.results + 1,
        before.written + result.written,
        before.reads + result.reads,
        total(before.deleted, result.deleted),
    )
    results = PersistentMap.of(state.results).without((name,))
    return changed(state, results=results, forgotten=forgotten)


def _change(state: JobState, name: ResultId, body: Body) -> JobState:
    """Apply an event to one result. Return the same object if nothing changed: callers test with
    `is`."""
    result = state.results.get(name)
    changed = None if result is None else _apply_result(result, body)
    return state if changed is None or changed is result else _put(state, name, changed)


def _apply_result(result: ResultState, body: Body) -> ResultState:
    match body:
        case PartitionAccepted():
            new = range(body.first, body.first + body.count)
            return changed(result, accepted=PersistentSet.of(result.accepted).having(new))
        case AttemptStarted():
            return _start(result, body)
        case AttemptFailed():
            return _end(_note(result, body.attempt), (body.attempt,))
        case SegmentProduced():
            return _stream(_note(result, body.attempt), body)
        case Produced():
            return _produce(result, body)
        case Lost():
            return _wait(result, body)
        case Consumable():
            return _win(result, body.attempt)
        case Superseded():
            written = changed(result.written, superseded=result.written.superseded + 1)
            superseded = PersistentSet.of(result.superseded).having((body.attempt,))
            return changed(result, superseded=superseded, written=written)
        case ResultComplete():
            count = result.completions + 1
            return changed(result, complete=True, completions=count, waiting=PersistentSet())
        case TrackingStopped():
            return _stop_tracking(result, body)
        case Reproduce():
            again = PersistentSet.of(result.reproducing).having(body.partitions)
            return changed(result, reproducing=again, complete=False)
        case Promoted():
            return changed(result, expires_ms=body.expires_ms)
        case Consumed():
            return _consume(result, body)
        case Released():
            return changed(result, released=body.reason)
        case Deleted():
            return _forget(result, body)
        case _:
            return result


def _note(result: ResultState, attempt: AttemptId) -> ResultState:
    """Remember an attempt. An attempt that is there already keeps what it said first."""
    if attempt in result.attempts:
        return result
    return changed(result, attempts=PersistentMap.of(result.attempts).having(attempt, None))


def _wait(result: ResultState, lost: Lost) -> ResultState:
    """Add the reader that states the loss, if it waits for a partition that is, or will be, made
    again."""
    index = lost.attempt.partition.index
    again = index in result.reproducing or result.winners.get(index) == lost.attempt
    if lost.task == 0 or not lost.evidence or result.released is not None or not again:
        return result
    return changed(result, waiting=PersistentSet.of(result.waiting).having((lost.task,)))


def _start(result: ResultState, started: AttemptStarted) -> ResultState:
    attempt = started.attempt
    if result.attempts.get(attempt) is not None:
        return result
    attempts = PersistentMap.of(result.attempts).having(attempt, None)
    running = PersistentMap.of(result.running).having(attempt, started.host)
    return changed(result, attempts=attempts, running=running)


def _end(result: ResultState, attempts: Collection[AttemptId]) -> ResultState:
    if not any(attempt in result.running for attempt in attempts):
        return result
    return changed(result, running=PersistentMap.of(result.running).without(attempts))


def _stream(result: ResultState, fact: SegmentProduced) -> ResultState:
    """Add the next segment of a stream. A repeated segment, or one after a gap, changes nothing."""
    announced = result.streams.get(fact.attempt, ())
    if not result.registered.pipelined or fact.segment.number != len(announced):
        return result
    streams = PersistentMap.of(result.streams).having(fact.attempt, (*announced, fact.segment))
    return changed(result, streams=streams)


def _produce(result: ResultState, body: Produced) -> ResultState:
    attempt = body.attempt
    if result.attempts.get(attempt) is not None:
        return _end(result, (attempt,))
    streamed = result.winners.get(attempt.partition.index) == attempt
    return changed(
        result,
        attempts=PersistentMap.of(result.attempts).having(attempt, body),
        running=PersistentMap.of(result.running).without((attempt,)),
        written=_sum(result.written, body) if streamed else result.written,
    )


def _win(result: ResultState, attempt: AttemptId) -> ResultState:
    index = attempt.partition.index
    produced = result.attempts[attempt]
    return changed(
        result,
        winners=PersistentMap.of(result.winners).having(index, attempt),
        reproducing=PersistentSet.of(result.reproducing).without(index),
        written=result.written if produced is None else _sum(result.written, produced),
    )


def _sum(before: Written, produced: Produced) -> Written:
    return before + Written(1, len(produced.segments), produced.rows, produced.size_bytes)


def _stop_tracking(result: ResultState, body: TrackingStopped) -> ResultState:
    if not body.attempts:
        return changed(result, tracked=False)
    before = PersistentMap.of(result.before)
    for attempt in body.attempts:
        produced = result.attempts.get(attempt)
        if not result.registered.pipelined and produced is not None:
            first = before.get(attempt.partition.index, produced.fingerprint)
            before = before.having(attempt.partition.index, first)
    winners = _winners_without(result, body.attempts)
    return changed(result, winners=winners, before=before, complete=False)


def _lose_host(state: JobState, host: str) -> JobState:
    """End every attempt that ran on the host."""
    for name, result in state.results.items():
        ended = {attempt for attempt, where in result.running.items() if where == host}
        if ended:
            state = _put(state, name, _end(result, ended))
    return state


def _consume(result: ResultState, body: Consumed) -> ResultState:
    last = min(body.first + body.count, result.registered.subpartitions)
    read = range(max(0, body.first), last if result.released is None else 0)
    consumed = PersistentSet.of(result.consumed).having(read)
    more = Reads(body.rows, body.read_bytes, body.requests, len(consumed) - len(result.consumed))
    return changed(result, consumed=consumed, reads=result.reads + more)


def _forget(result: ResultState, deleted: Deleted) -> ResultState:
    """Remove attempts whose objects are deleted. Only attempts that were ordered to go count."""
    gone = set(deleted.attempts) & set(result.doomed)
    if not gone:
        return result
    return changed(
        result,
        attempts=PersistentMap.of(result.attempts).without(gone),
        running=PersistentMap.of(result.running).without(gone),
        streams=PersistentMap.of(result.streams).without(gone),
        winners=_winners_without(result, gone),
        deleted=total(result.deleted, deleted.objects),
    )


def _winners_without(
    result: ResultState, gone: Collection[AttemptId]
) -> PersistentMap[int, AttemptId]:
    lost = [a.partition.index for a in gone if result.winners.get(a.partition.index) == a]
    return PersistentMap.of(result.winners).without(lost)

"""Apply events to the state of a job."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias, assert_never

from ..events import types as ev
from ..events.values import changed
from ..ids import AttemptId, ResultId
from .persistent import PersistentMap, PersistentSet
from .state import JobState, Production, Reads, ResultFate, ResultState, Written, is_fenced, total

# The number of released results that a job remembers. Decisions depend on it, so that all versions
# must have the same.
_GONE_MAX = 200

_OfResult: TypeAlias = (
    ev.PartitionAccepted
    | ev.AttemptStarted
    | ev.AttemptFailed
    | ev.SegmentProduced
    | ev.Produced
    | ev.Lost
    | ev.Consumable
    | ev.Superseded
    | ev.ResultComplete
    | ev.TrackingStopped
    | ev.Reproduce
    | ev.Promoted
    | ev.Consumed
    | ev.WayChosen
    | ev.Released
    | ev.Deleted
)


def apply(state: JobState, body: ev.Body) -> JobState:
    """Return the state after an event."""
    if is_fenced(state, body):
        return state
    match body:  # the most frequent events first
        case ev.AttemptStarted() | ev.AttemptFailed() | ev.SegmentProduced() | ev.Produced():
            return _change(state, body.attempt.partition.result, body)
        case ev.Lost() | ev.Consumable() | ev.Superseded():
            return _change(state, body.attempt.partition.result, body)
        case ev.Promoted() | ev.Consumed() | ev.WayChosen():
            return _change(state, body.result, body)
        case ev.PartitionAccepted() | ev.ResultComplete() | ev.Reproduce() | ev.TrackingStopped():
            return _change(state, body.result, body)
        case ev.Released() | ev.Deleted():
            return _retire(_change(state, body.result, body), body.result)
        case ev.JobAccepted():
            return _accept(state, body.epoch)
        case ev.JobUnregistered() | ev.LeaseExpired():
            ends = state.epoch > 0 and state.closed is None
            return changed(state, closed=body.reason) if ends else state
        case ev.JobFailed():
            return changed(state, failed=body.reason)
        case ev.ResultRegistered():
            existing = state.results.get(body.result)
            refused = existing is not None or not state.registered
            return state if refused else _put(state, body.result, ResultState(body))
        case ev.JobRegistered() | ev.PartitionRegistered() | ev.Tick():
            return state
        case ev.ReleaseRequested() | ev.PromoteRequested() | ev.StopTrackingRequested():
            return state
        case _:
            assert_never(body)


def _accept(state: JobState, epoch: int) -> JobState:
    """Accept another driver: the job is open again, and no reader of the former driver waits any
    more."""
    results = {name: _nobody_waits(result) for name, result in state.results.items()}
    fresh = JobState(state.job, epoch, PersistentMap(results))
    return changed(fresh, gone=state.gone, forgotten=state.forgotten)


def _nobody_waits(result: ResultState) -> ResultState:
    if not result.reproduction.waiting:  # the snapshot of the same object need not be written again
        return result
    return changed(result, reproduction=changed(result.reproduction, waiting=PersistentSet()))


def _put(state: JobState, name: ResultId, result: ResultState) -> JobState:
    return changed(state, results=state.results.having(name, result))


def _retire(state: JobState, name: ResultId) -> JobState:
    """Reduce a released result without objects to its sums, and old ones to a single sum: a job of
    any length remembers only its last results."""
    result = state.results.get(name)
    if result is None or result.fate.released is None or result.production.attempts:
        return state
    left = ResultState(
        changed(result.registered, schema=""),
        totals=changed(result.totals, consumed=PersistentSet()),
        complete=result.complete,
        fate=ResultFate(released=result.fate.released, deleted=result.fate.deleted),
        chosen=result.chosen,
    )
    gone = (*(other for other in state.gone if other != name), name)
    state = changed(_put(state, name, left), gone=gone[-_GONE_MAX:])
    for oldest in gone[:-_GONE_MAX]:
        state = _forget_result(state, oldest)
    return state


def _forget_result(state: JobState, name: ResultId) -> JobState:
    """Add a result to the single sum, unless a late attempt at it has begun: its objects must be
    deleted first."""
    result = state.results[name]
    if result.production.attempts:
        return state
    forgotten = state.forgotten.having(result)
    return changed(state, results=state.results.without((name,)), forgotten=forgotten)


def _change(state: JobState, name: ResultId, body: _OfResult) -> JobState:
    """Apply an event to one result. Return the same object if nothing changed: callers test with
    `is`."""
    before = state.results.get(name)
    after = None if before is None else _apply_result(before, body)
    return state if after is None or after is before else _put(state, name, after)


def _apply_result(result: ResultState, body: _OfResult) -> ResultState:
    production = result.production
    match body:
        case ev.PartitionAccepted():
            new = range(body.first, body.first + body.count)
            accepted = production.accepted.having(new)
            return changed(result, production=changed(production, accepted=accepted))
        case ev.AttemptStarted():
            return _producing(result, _start(production, body))
        case ev.AttemptFailed():
            return _producing(result, _end(_note(production, body.attempt), body.attempt))
        case ev.SegmentProduced():
            noted = _note(production, body.attempt)
            streams = result.registered.pipelined
            return _producing(result, _stream(noted, body) if streams else noted)
        case ev.Produced():
            return _produce(result, body)
        case ev.Lost():
            return _wait(result, body)
        case ev.Consumable():
            return _win(result, body.attempt)
        case ev.Superseded():
            superseded = production.superseded.having((body.attempt,))
            production = changed(production, superseded=superseded)
            written = result.totals.written + Written(superseded=1)
            totals = changed(result.totals, written=written)
            return changed(result, production=production, totals=totals)
        case ev.ResultComplete():
            totals = changed(result.totals, completions=result.totals.completions + 1)
            return changed(_nobody_waits(result), complete=True, totals=totals)
        case ev.TrackingStopped():
            return _stop_tracking(result, body)
        case ev.Reproduce():
            again = result.reproduction.reproducing.having(body.partitions)
            reproduction = changed(result.reproduction, reproducing=again)
            return changed(result, reproduction=reproduction, complete=False)
        case ev.Promoted():
            return changed(result, fate=changed(result.fate, expires_ms=body.expires_ms))
        case ev.Consumed():
            return _consume(result, body)
        case ev.WayChosen():
            return changed(result, chosen=body)
        case ev.Released():
            return changed(result, fate=changed(result.fate, released=body.reason))
        case ev.Deleted():
            return _forget(result, body)
        case _:
            assert_never(body)


def _producing(result: ResultState, production: Production) -> ResultState:
    return result if production is result.production else changed(result, production=production)


def _note(production: Production, attempt: AttemptId) -> Production:
    """Remember an attempt. An attempt that is there already keeps what it said first."""
    if attempt in production.attempts:
        return production
    return changed(production, attempts=production.attempts.having(attempt, None))


def _wait(result: ResultState, lost: ev.Lost) -> ResultState:
    """Add the reader that reports the loss, if it waits for a partition that is, or will be, made
    again."""
    index, reproduction = lost.attempt.partition.index, result.reproduction
    is_winner = result.production.winners.get(index) == lost.attempt
    again = is_winner or index in reproduction.reproducing
    if lost.task == 0 or not lost.evidence or result.fate.released is not None or not again:
        return result
    waiting = reproduction.waiting.having((lost.task,))
    return changed(result, reproduction=changed(reproduction, waiting=waiting))


def _start(production: Production, started: ev.AttemptStarted) -> Production:
    attempt = started.attempt
    if production.attempts.get(attempt) is not None:
        return production
    attempts = production.attempts.having(attempt, None)
    running = production.running.having(attempt, started.host)
    return changed(production, attempts=attempts, running=running)


def _end(production: Production, attempt: AttemptId) -> Production:
    if attempt not in production.running:
        return production
    return changed(production, running=production.running.without((attempt,)))


def _stream(production: Production, fact: ev.SegmentProduced) -> Production:
    """Add the next segment of a stream. A repeated segment, or one after a gap, changes nothing."""
    announced = production.streams.get(fact.attempt, ())
    if fact.segment.number != len(announced):
        return production
    streams = production.streams.having(fact.attempt, (*announced, fact.segment))
    return changed(production, streams=streams)


def _produce(result: ResultState, body: ev.Produced) -> ResultState:
    attempt, production, totals = body.attempt, result.production, result.totals
    if production.attempts.get(attempt) is not None:
        return _producing(result, _end(production, attempt))
    if production.winners.get(attempt.partition.index) == attempt:  # a stream has ended
        totals = totals.having(body)
    after = changed(
        production,
        attempts=production.attempts.having(attempt, body),
        running=production.running.without((attempt,)),
    )
    return changed(result, production=after, totals=totals)


def _win(result: ResultState, attempt: AttemptId) -> ResultState:
    production, reproduction = result.production, result.reproduction
    index, produced = attempt.partition.index, production.attempts[attempt]
    if index in reproduction.reproducing:
        reproducing = reproduction.reproducing.without(index)
        reproduction = changed(reproduction, reproducing=reproducing)
    return changed(
        result,
        production=changed(production, winners=production.winners.having(index, attempt)),
        reproduction=reproduction,
        totals=result.totals if produced is None else result.totals.having(produced),
    )


def _stop_tracking(result: ResultState, body: ev.TrackingStopped) -> ResultState:
    if not body.attempts:
        return changed(result, fate=changed(result.fate, tracked=False))
    before, totals = result.reproduction.before, result.totals
    for attempt in body.attempts:
        index, produced = attempt.partition.index, result.production.attempts.get(attempt)
        if produced is None:
            continue
        if result.production.winners.get(index) == attempt:
            totals = totals.without(produced)
        if not result.registered.pipelined:
            before = before.having(index, before.get(index, produced.fingerprint))
    winners = _winners_without(result.production, body.attempts)
    return changed(
        result,
        production=changed(result.production, winners=winners),
        reproduction=changed(result.reproduction, before=before),
        totals=totals,
        complete=False,
    )


def _consume(result: ResultState, body: ev.Consumed) -> ResultState:
    totals, last = result.totals, min(body.first + body.count, result.registered.subpartitions)
    read = range(max(0, body.first), last if result.fate.released is None else 0)
    consumed = totals.consumed.having(read)
    new = len(consumed) - len(totals.consumed)
    more = Reads(body.rows, body.read_bytes, body.requests, new, body.throttled)
    return changed(result, totals=changed(totals, consumed=consumed, reads=totals.reads + more))


def _forget(result: ResultState, deleted: ev.Deleted) -> ResultState:
    """Remove attempts whose objects are deleted. Only attempts that were ordered to go count."""
    gone = set(deleted.attempts) & set(result.doomed)
    if not gone:
        return result
    production, fate = result.production, result.fate
    left = changed(
        production,
        attempts=production.attempts.without(gone),
        running=production.running.without(gone),
        streams=production.streams.without(gone),
        winners=_winners_without(production, gone),
    )
    fate = changed(fate, deleted=total(fate.deleted, deleted.objects))
    return changed(result, production=left, fate=fate)


def _winners_without(
    production: Production, gone: Collection[AttemptId]
) -> PersistentMap[int, AttemptId]:
    winners = production.winners
    return winners.without([at for a in gone if winners.get(at := a.partition.index) == a])

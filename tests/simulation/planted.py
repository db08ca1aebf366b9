"""Bugs of each class, planted in the product's own functions: the simulation must notice them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Corrupt, Invalid, Lost
from headgate.control.events import codec
from headgate.control.events.types import Newer, Produced, Recorded, SegmentSummary
from headgate.control.ids import AttemptId, JobId
from headgate.control.inquiry.neglected import Neglected
from headgate.control.kafka.settings import KafkaSettings
from headgate.control.log import EventLog
from headgate.control.master import job_steps
from headgate.control.master.announcer import Announcer
from headgate.control.master.deletions import Deletion, DeletionRetrier
from headgate.control.master.silence import SilenceTimer, lease_expired
from headgate.control.master.term import Term
from headgate.control.memory.group import MemoryMembership
from headgate.control.memory.log import MemoryEventLog
from headgate.control.memory.partitions import MemoryTransactions
from headgate.control.model import attempts, decide_stream, replay
from headgate.control.model import decide as lifecycle
from headgate.control.model.apply import apply
from headgate.control.model.decide import decide
from headgate.control.model.replay import Replay, Snapshot
from headgate.control.model.state import JobState, ResultState
from headgate.control.snapshots import records, resume
from headgate.control.snapshots.records import Standing
from headgate.control.snapshots.resume import Start
from headgate.control.snapshots.schedule import SnapshotSchedule
from headgate.infra import sweep
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format import messages
from headgate.storage.reading import gate
from headgate.storage.reading.gate import SegmentGate
from headgate.storage.reading.read_plan import Slice
from headgate.storage.stores import conditional_put
from headgate.storage.stores.conditional_put import PutAnswer, PutSteps, Stored
from headgate.storage.stores.retries import Retrier
from headgate.storage.stores.rooted import Root, RootedStore
from headgate.storage.streaming import partition_updates
from headgate.storage.streaming.channels import Channels, _Announced, _Channel
from headgate.storage.writing import writer
from tests.doubles import next_version

from .group import SimMembership
from .oracle import JOB
from .planted_combining import (
    combine_another_range_again,
    compare_no_rows,
    cut_a_share_elsewhere,
    make_again_from_what_is_released,
    release_what_could_not_be_combined,
    release_what_is_being_combined,
    skip_a_stretch_that_is_lost,
    skip_the_checksums_of_a_stretch,
    take_each_object_for_a_stretch,
)

Plant = Callable[[pytest.MonkeyPatch], None]


def drop_a_segment(patch: pytest.MonkeyPatch) -> None:
    """A partition of several segments is announced without the last one."""

    def without_last(
        attempt: AttemptId, segments: tuple[SegmentSummary, ...], content: int
    ) -> Produced:
        return Produced(attempt, segments[:-1] if len(segments) > 1 else segments, content)

    patch.setattr(writer, "Produced", without_last)


def skip_the_fence_of_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """The attempts of a replaced driver's tasks count."""
    refusal = attempts.refusal

    def lenient(state: JobState, result: ResultState, attempt: AttemptId) -> str | None:
        reason = refusal(state, result, attempt)
        return None if reason is not None and reason.startswith("epoch ") else reason

    patch.setattr(lifecycle, "refusal", lenient)
    patch.setattr(decide_stream, "refusal", lenient)


def skip_the_fence_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """The steps of a replaced master are committed."""
    patch.setattr(MemoryTransactions, "_check_fence", lambda self: None)


def delete_too_early(patch: pytest.MonkeyPatch) -> None:
    """A result is deleted as soon as every subpartition has been read once."""
    doomed = ResultState.doomed

    def and_consumed(self: ResultState) -> tuple[AttemptId, ...]:
        everybody = len(self.totals.consumed) == self.registered.subpartitions
        return tuple(sorted(self.production.attempts)) if everybody else doomed.__get__(self)

    patch.setattr(ResultState, "doomed", property(and_consumed))


def mix_attempts(patch: pytest.MonkeyPatch) -> None:
    """A half-read partition is made again with other content, and its readers read on there."""
    patch.setattr(lifecycle, "_changed", lambda result, fact: None)


def take_unknown_for_empty(patch: pytest.MonkeyPatch) -> None:
    """A gate does not wait for partitions that were not announced."""
    patch.setattr(Channels, "ended", property(lambda self: True))


def take_missing_for_empty(patch: pytest.MonkeyPatch) -> None:
    """A missing object counts as one without rows."""
    sound, decode = SegmentGate._sound, messages.decode

    def forgiving(self: SegmentGate, piece: Slice, window: Future[memoryview]) -> memoryview:
        try:
            return sound(self, piece, window)
        except Lost:
            return memoryview(b"")

    def of_nothing(body: memoryview, schema: bytes, rows: int) -> object:
        return decode(body, schema, rows) if len(body) else iter(())

    patch.setattr(SegmentGate, "_sound", forgiving)
    patch.setattr(gate, "decode", of_nothing)


def ignore_the_basis(patch: pytest.MonkeyPatch) -> None:
    """A decision takes effect at its record, not at its basis."""
    match = Replay._match

    def at_its_record(self: Replay, recorded: Recorded) -> None:
        match(self, recorded)
        assert not isinstance(recorded.event.body, Newer), "there is one version"
        self.state = apply(self.state, recorded.event.body)

    patch.setattr(Replay, "_match", at_its_record)
    patch.setattr(replay, "step", lambda state, fact, at: (apply(state, fact), decide(state, fact)))


def believe_a_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """A put without an answer counts as done."""
    is_there = conditional_put._is_there

    def trusting(
        steps: PutSteps, retrier: Retrier, name: str, answer: PutAnswer, mine: Stored
    ) -> bool:
        return answer is PutAnswer.SILENT or is_there(steps, retrier, name, answer, mine)

    patch.setattr(conditional_put, "_is_there", trusting)


def skip_the_fence_of_the_group(patch: pytest.MonkeyPatch) -> None:
    """A session master commits after the group has given it up."""
    patch.setattr(MemoryMembership, "check_place", lambda self: None)


def wait_for_no_step(patch: pytest.MonkeyPatch) -> None:
    """A session master decides before the step of the former holder has ended."""
    patch.setattr(SimMembership, "may_end", lambda self, partition: False)


def open_without_looking(patch: pytest.MonkeyPatch) -> None:
    """A master that was cut off takes the job back from its successor."""
    patch.setattr(Term, "check", lambda self, log, job, limit, deadline: None)
    patch.setattr(Term, "observe", lambda self, recorded, recovered: None)


def share_ids_with_neighbours(patch: pytest.MonkeyPatch) -> None:
    """A job has the same transactional id as a job of another prefix."""
    patch.setattr(KafkaSettings, "group", lambda self, job: f"{self.topic_prefix}-{job}")


def hear_no_beat(patch: pytest.MonkeyPatch) -> None:
    """The sweeper takes a driver that states no facts for dead, although it sends heartbeats."""
    read_beats = MemoryEventLog.read_beats

    def deaf(self: MemoryEventLog, job: JobId | None, deadline: Deadline) -> dict[JobId, int]:
        return {name: at for name, at in read_beats(self, job, deadline).items() if name != JOB}

    patch.setattr(MemoryEventLog, "read_beats", deaf)


def end_leases_by_a_list(patch: pytest.MonkeyPatch) -> None:
    """The sweeper does not look again if a driver is silent when the job's turn comes."""

    def at_once(
        log: EventLog, announcer: Announcer, neglected: Neglected, deadline: Deadline
    ) -> bool:
        fact = lease_expired(neglected.state, neglected.silent_ms)
        log.append(announcer.fact(fact)).offset(deadline)
        return True

    patch.setattr(sweep, "end_lease", at_once)


def begin_over_what_stands(patch: pytest.MonkeyPatch) -> None:
    """A driver stores the empty state of its job's start although another driver has begun the
    job."""

    def over(log: EventLog, job: JobId, deadline: Deadline) -> None:
        with closing(log.open_decisions(job)) as decisions:
            position = log.written(job)
            decisions.begin()
            nothing = Snapshot(JobState(job), (), position, position)
            for record in records.write(nothing, Standing())[0]:
                decisions.keep(record)
            decisions.commit(position)

    patch.setattr(resume, "_begin", over)


def begin_at_what_is_left(patch: pytest.MonkeyPatch) -> None:
    """A job's master takes the oldest remaining event for the job's first."""

    def oldest(log: EventLog, job: JobId, deadline: Deadline, whole: bool = False) -> Start:
        standing = Standing(frozenset(log.read_state(job, deadline)))
        return Start(log.follow(job, None), None, standing, "")

    patch.setattr(job_steps, "take_up", oldest)


def end_promoted_results_too(patch: pytest.MonkeyPatch) -> None:
    """Promoted results are deleted with their job."""
    patch.setattr(ResultState, "kept", property(lambda self: False))


def forget_the_time(patch: pytest.MonkeyPatch) -> None:
    """A promoted result is released at any statement of the time."""
    expired = lifecycle._decide_expired
    patch.setattr(lifecycle, "_decide_expired", lambda state, _: expired(state, 2**62))


def forget_who_was_heard(patch: pytest.MonkeyPatch) -> None:
    """A session master takes a driver for silent although it was heard."""
    patch.setattr(SilenceTimer, "hear", lambda self, at_ms: None)


def read_on_from_another_attempt(patch: pytest.MonkeyPatch) -> None:
    """A reader of an attempt that fails continues with the segments of the next attempt."""

    def alive(self: _Channel) -> AttemptId | None:
        return next(
            (name for name, announced in self.attempts.items() if not announced.failed), None
        )

    patch.setattr(_Channel, "chosen", property(alive))


def take_the_last_segment_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """A stream counts as ended when every announced segment is read."""
    ended = property(lambda self: 0 < len(self.segments) == len(self.taken))
    patch.setattr(_Announced, "ended", ended)


def take_each_stream_for_whole(patch: pytest.MonkeyPatch) -> None:
    """A partition of a pipelined result counts as whole before all the others are."""
    begin = partition_updates.Fold.__init__

    def alone(self: partition_updates.Fold, deployment: InputGateDeployment) -> None:
        begin(self, deployment)
        self._pipelined = False

    patch.setattr(partition_updates.Fold, "__init__", alone)


def write_over_the_former_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A snapshot of several steps replaces the records that the former one still needs."""
    patch.setattr(records, "_key", lambda job, entry: f"{job}/{entry.result}")


def leave_out_large_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that does not fit one step is never written."""

    def is_large(schedule: SnapshotSchedule, snapshot: Snapshot) -> bool:
        return schedule._settings.snapshot_step_bytes == 1 and len(snapshot.state.results) > 1

    for name in ("is_due", "is_last_due", "is_parting_due"):
        asked = getattr(SnapshotSchedule, name)

        def unless_large(
            self: SnapshotSchedule, snapshot: Snapshot, *now_ms: int, asked: Any = asked
        ) -> bool:
            return not is_large(self, snapshot) and bool(asked(self, snapshot, *now_ms))

        patch.setattr(SnapshotSchedule, name, unless_large)


def forget_what_came_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """A snapshot counts as having the events that came while it was written."""
    kept = SnapshotSchedule.kept

    def with_all(self: SnapshotSchedule) -> None:
        kept(self)
        if not self.is_writing:
            self._since = None

    patch.setattr(SnapshotSchedule, "kept", with_all)


def pass_over_what_is_being_written(patch: pytest.MonkeyPatch) -> None:
    """A snapshot counts as kept for those of other jobs although it has steps left."""
    patch.setattr(SnapshotSchedule, "unsaved_then", lambda self: None)


def believe_any_root(patch: pytest.MonkeyPatch) -> None:
    """A worker takes its own empty folder for the root of its driver."""
    look = RootedStore._look

    def of_many(self: RootedStore, bucket: int, job: str) -> None:
        if not self._root.markers:
            look(self, bucket, job)

    patch.setattr(RootedStore, "_look", of_many)


def delete_in_any_root(patch: pytest.MonkeyPatch) -> None:
    """A master or a sweep takes its own empty folder for the root, and reports that all is gone."""
    look = RootedStore._look

    def of_a_driver(self: RootedStore, bucket: int, job: str) -> None:
        if self._root.markers:
            look(self, bucket, job)

    patch.setattr(RootedStore, "_look", of_a_driver)


def delete_for_another_log(patch: pytest.MonkeyPatch) -> None:
    """A master or a sweep deletes the objects of another log's job of the same name."""
    is_of = Root.is_of
    patch.setattr(Root, "is_of", lambda self, content: not self.markers or is_of(self, content))


def skip_what_is_newer(patch: pytest.MonkeyPatch) -> None:
    """An older version takes events and snapshots of a newer one for somebody else's."""
    check = records._check_notes

    def foreign(notes: Mapping[str, str]) -> None:
        try:
            check(notes)
        except Invalid as exc:
            raise Corrupt("somebody else's") from exc

    patch.setattr(codec, "_newer", lambda record: None)
    patch.setattr(records, "_check_notes", foreign)
    patch.setattr(next_version, "parts", cache(next_version.parts.__wrapped__))


def leave_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    """A deletion that the store has refused is left to the next master."""
    add = DeletionRetrier.add

    def once(self: DeletionRetrier, deletion: Deletion, refusal: Exception | None = None) -> None:
        if refusal is None:
            add(self, deletion)

    patch.setattr(DeletionRetrier, "add", once)


def keep_texts_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """A reason of any length is written into the log, and repeated in decisions."""
    patch.setattr(codec, "_brief", lambda event: event)


# Each bug with a seed that shows it today, which is tried first.
PLANTED: Mapping[Plant, int] = MappingProxyType(
    {
        drop_a_segment: 1,
        skip_the_fence_of_an_epoch: 3,
        skip_the_fence_of_the_log: 2,
        delete_too_early: 1,
        mix_attempts: 1,
        take_unknown_for_empty: 3,
        take_missing_for_empty: 2,
        ignore_the_basis: 1,
        believe_a_lost_answer: 52,
        skip_the_fence_of_the_group: 80,
        wait_for_no_step: 50,
        open_without_looking: 25,
        share_ids_with_neighbours: 4,
        hear_no_beat: 7,
        end_leases_by_a_list: 238,
        begin_over_what_stands: 14,
        begin_at_what_is_left: 3,
        end_promoted_results_too: 0,
        forget_the_time: 4,
        forget_who_was_heard: 17,
        read_on_from_another_attempt: 6,
        take_the_last_segment_for_the_end: 34,
        take_each_stream_for_whole: 52,
        take_each_object_for_a_stretch: 146,
        skip_a_stretch_that_is_lost: 9,
        skip_the_checksums_of_a_stretch: 80,
        cut_a_share_elsewhere: 14,
        combine_another_range_again: 40,
        compare_no_rows: 408,
        release_what_is_being_combined: 1,
        release_what_could_not_be_combined: 36,
        make_again_from_what_is_released: 54,
        # snapshots over the limit, in several steps
        write_over_the_former_snapshot: 2,
        leave_out_large_snapshots: 4,
        forget_what_came_meanwhile: 28,
        pass_over_what_is_being_written: 146,
        # two versions side by side
        skip_what_is_newer: 6,
        # refusals that pass, texts that are too long
        leave_what_was_refused: 10,
        keep_texts_as_they_are: 6,
        # a mount that is missing, or another store
        believe_any_root: 11,
        delete_in_any_root: 10,
        delete_for_another_log: 24,
    }
)

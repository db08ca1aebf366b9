"""One event of every kind, and stored records of every version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from headgate.control.errors import Corrupt, Invalid
from headgate.control.events import codec, traits
from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Body,
    Consumable,
    Consumed,
    Deleted,
    Event,
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
    SegmentSummary,
    StopTrackingRequested,
    Superseded,
    Tick,
    TrackingStopped,
    WayChosen,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
JOB, RESULT = JobId("job-1"), ResultId("result-1")
ATTEMPT = AttemptId(PartitionId(RESULT, 3), 2, 2**40)
SEGMENT = SegmentSummary(1, 2**33, 1_000, 2**62, b"\x00\xffindex")
BODIES: tuple[Body, ...] = (
    JobRegistered("per-job", "0.1.0", "app-1"),
    ResultRegistered(RESULT, 8, 16, "schema", "repartition"),
    PartitionRegistered(RESULT, 0, 8),
    AttemptStarted(ATTEMPT, "host-1"),
    AttemptFailed(ATTEMPT, "out of mémoire"),
    Produced(ATTEMPT, (SEGMENT, SEGMENT)),
    SegmentProduced(ATTEMPT, SEGMENT),
    Lost(ATTEMPT, "root/job-1/00/result-1/3/2-1/0", "404 read twice", 2**41),
    PromoteRequested(RESULT, 2**41),
    StopTrackingRequested(RESULT, "handed over"),
    LeaseExpired("silent for 60 s"),
    Tick(2**41),
    Reproduce(RESULT, (3, 5), "lost"),
    TrackingStopped(RESULT, (ATTEMPT,), "lost"),
    Promoted(RESULT, 2**41),
    JobFailed("other content"),
    WayChosen(RESULT, "combined 3 x 10", 1_000, 2**33),
    Consumed(RESULT, 0, 4, 2**41, 1_000, 2**33, 12),
    ReleaseRequested(RESULT, "not used any more"),
    Deleted(RESULT, (ATTEMPT,), 2),
    JobUnregistered("done"),
    JobAccepted(2),
    PartitionAccepted(RESULT, 0, 8, 2),
    Consumable(ATTEMPT),
    Superseded(ATTEMPT, "another attempt won"),
    ResultComplete(RESULT),
    Released(RESULT, (ATTEMPT, ATTEMPT), "ttl"),
)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", fullmatch=True)
PARTS = st.integers(0, traits.PARTS_MAX)
COUNTS = st.integers(0, traits.COUNT_MAX)
BOUNDED: Mapping[type, Mapping[str, st.SearchStrategy[Any]]] = {
    JobRegistered: {"lease_ms": st.integers(0, traits.LEASE_MS_MAX)},
    ResultRegistered: {"result": NAMES, "partitions": PARTS, "subpartitions": PARTS},
    SegmentSummary: {"rows": COUNTS, "size_bytes": COUNTS},
    Produced: {"throttled": COUNTS, "plain_bytes": COUNTS},
    Consumed: {"rows": COUNTS, "read_bytes": COUNTS, "requests": COUNTS, "throttled": COUNTS},
    WayChosen: {"gets": COUNTS, "ms": COUNTS},
    Deleted: {"objects": COUNTS},
}
BUILT = [st.builds(kind, **BOUNDED.get(kind, {})) for kind in get_args(Body)]


def event(body: Body) -> Event:
    return Event("id-1", JOB, "cause-1", 1_700_000_000_000, "driver", 7, body)


def assert_no_event(wrong: Event) -> None:
    """Assert that a writer refuses the event, and that a reader takes its bytes for garbage."""
    with pytest.raises(Invalid):
        codec.encode(wrong)
    out = bytearray(codec._PREFIX)
    codec._write(out, wrong)
    with pytest.raises(Corrupt):
        codec.decode(bytes(out))

"""Stored results that are to be damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from headgate.control.events.types import SegmentSummary
from headgate.control.model.persistent import PersistentMap
from headgate.control.model.state import ResultState
from headgate.storage.limits import Limits
from headgate.storage.stores.memory import Objects

from .segments import CODECS, Part, exchange, packed_from

PARTITIONS, SUBPARTITIONS = 3, 6
KINDS = (*CODECS, "packed")  # of segments
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))])
LIMITS = Limits(segment_bytes=600, join_bytes=0)


def part(partition: int, salt: int = 0) -> Part:
    """Return rows of one partition, in several batches; the last subpartition is empty."""
    numbers = np.arange(40) + partition * 100 + salt
    rows = pa.record_batch(
        [
            pa.array(numbers),
            pa.array([f"row {number}" for number in numbers]),
            pa.array([[number, None] if number % 3 else None for number in numbers.tolist()]),
        ],
        schema=pa.schema(
            [("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))]
        ),
    )
    return Part(rows, numbers * 7 % (SUBPARTITIONS - 1), (15, 30))


PARTS = [part(partition) for partition in range(PARTITIONS)]


class Sound:
    """A sound result: its objects, its manifest, and the rows of each subpartition."""

    def __init__(self, kind: str) -> None:
        codec, nth = ("lz4", 0) if kind == "packed" else (kind, 1_000)
        with packed_from(nth), exchange(SCHEMA, PARTS, SUBPARTITIONS, codec, LIMITS) as written:
            self.descriptor, self.state = written.descriptor, written.state
            self.objects = dict(written.objects)
            self.manifest = written.manifest()
            self.rows = [written.read(at, 1) for at in range(SUBPARTITIONS)]
        self.names = sorted(self.objects)
        assert len(self.names) > PARTITIONS

    def damaged(self, name: str, body: bytes) -> Objects:
        return {**self.objects, name: (body, "w")}

    def touched(self, name: str, hit: range) -> set[int]:
        """Return the subpartitions whose bytes in an object overlap a range."""
        (source,) = [s for s in self.manifest.sources if s.name == name]
        spans = [source.range_of(at, 1) for at in range(SUBPARTITIONS)]
        return {at for at, s in enumerate(spans) if max(s.start, hit.start) < min(s.end, hit.stop)}


sound = cache(Sound)


def without_indexes(state: ResultState) -> ResultState:
    """Return the same result without the indexes in its events, as if they had been too large."""
    return with_segments(state, lambda summary: replace(summary, index=b""))


def with_segments(
    state: ResultState, change: Callable[[SegmentSummary], SegmentSummary]
) -> ResultState:
    """Return the same result with other statements about its segments."""
    attempts = {
        attempt: produced and replace(produced, segments=tuple(map(change, produced.segments)))
        for attempt, produced in state.production.attempts.items()
    }
    production = replace(state.production, attempts=PersistentMap(attempts))
    return replace(state, production=production)

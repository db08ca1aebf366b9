"""The ways to carry an exchange, and the costs of each, computed before they arise.

Pure: the numbers follow from the size of the exchange, the limits of its readers and the costs of
the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, exp, inf, sqrt

from ..format.manifest_shards import firsts
from ..format.segment import INLINE_BYTES_MAX, INLINE_TOTAL_BYTES
from ..limits import Limits
from ..stores.costs import StoreCosts
from ..stores.s3.settings import MultipartSettings
from .read_plan import group_bytes

_SLICE_S = 1e-4  # to check a slice, decode it and give it to the JVM
_READ_BYTE_S = 6e-9  # to decode a byte and give it to the JVM
_COPIED_BYTE_S = 1e-8  # to read, decode, sort, encode and store a byte once more
_STAGE_S = 0.3  # of another stage of tasks
_READ_S = 0.4  # of the stage of tasks that read
_TASK_S = 0.007
_INDEX_ENTRY_BYTES = 11  # compressed
_SLOT_SECOND_USD = 1.4e-5  # of a processor that costs 5 cents an hour
_FULL = 0.9  # of the largest share, because shares are uneven
_SPILLED_BYTES = 1 << 30  # of a share whose task writes files
_WIDE = 500
_FEW = 4  # neighbours: of so few of uneven sizes, half a one less fits into a window
_PARTS = MultipartSettings()


@dataclass(frozen=True, slots=True)
class ExchangeSize:
    """The size of an exchange whose rows are stored."""

    partitions: int
    objects: int
    """The objects that hold the partitions, each with rows of all subpartitions."""
    subpartitions: int
    rows: int
    stored_bytes: int
    tasks: int
    """The tasks that read it, each of them neighbouring subpartitions."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way to carry the rows of an exchange to its readers."""

    bundles: int = 0
    """The sets of partitions that are combined, each by tasks of its own; 0 if readers read the
    objects of the map tasks."""
    ranges: int = 0
    """The ranges of neighbouring subpartitions into which each set is cut, one for each task."""

    def __str__(self) -> str:
        return f"combined {self.bundles} x {self.ranges}" if self.bundles else "direct"


@dataclass(frozen=True, slots=True)
class Requests:
    puts: int = 0
    gets: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.puts + other.puts, self.gets + other.gets)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The costs of one way, from the end of the map stage to the end of the last reader."""

    way: Way
    combining: Requests
    """The requests of the tasks that combine."""
    reading: Requests
    combining_s: float
    reading_s: float
    """The time that passes. Tasks share the work evenly."""
    usd: float
    """The price of the requests, and of storing the rows for an hour."""

    @property
    def seconds(self) -> float:
        return self.combining_s + self.reading_s

    @property
    def requests(self) -> int:
        sent = self.combining + self.reading
        return sent.puts + sent.gets


DIRECT = Way()


def combined_bytes(limits: Limits) -> int:
    """Return the stored bytes that a task combines at a time, and puts into one segment if it can
    write no files. In memory, rows take about twice as much."""
    return limits.segment_bytes // 2


def _pieces(size: ExchangeSize, way: Way, parts: int, bytes_max: int) -> int:
    """Return the pieces of at most so many bytes, of neighbouring subpartitions, into which a task
    that combines cuts one of so many parts of the rows."""
    row_bytes = max(1, size.stored_bytes // max(1, parts * size.subpartitions))
    together = max(1, bytes_max // row_bytes)
    return ceil(size.subpartitions / way.ranges / together)


def _combining(size: ExchangeSize, way: Way, limits: Limits) -> tuple[Requests, int]:
    """Return the requests of the tasks that combine, and the ranges of subpartitions that their
    objects have. Tasks that write files read one object after the other. Others read the same
    subpartitions of all objects, and store them before the next ones."""
    groups, parts = way.ranges, size.objects
    if not limits.merges:
        groups *= _pieces(size, way, way.bundles, combined_bytes(limits))
        parts = way.bundles
    blocks = way.ranges * _pieces(size, way, parts, limits.fetch_bytes)
    objects = _filled(way.bundles * groups, size.rows)
    gets = _filled(size.objects * blocks, size.rows) + way.ranges * _without_index(size)
    return Requests(puts(objects, size.stored_bytes), gets), groups


def _reads(size: ExchangeSize, overlapping: int, limits: Limits, pieces: int = 1) -> Requests:
    """Return the requests of reader tasks if `overlapping` of the objects have rows of the same
    subpartition, each with one of so many pieces of all rows, and those of the manifest."""
    count, stored_bytes, tasks = size.subpartitions, size.stored_bytes, size.tasks
    shards = firsts(overlapping * pieces, count) or range(0, count, count)
    shard_gets = 0
    if len(shards) > 1:
        shard_gets = len(shards) * min(limits.readers, ceil(tasks / len(shards)))
    most_bytes = group_bytes(overlapping, count, stored_bytes, limits)
    shared = stored_bytes // tasks < min(most_bytes, stored_bytes // len(shards))
    if not shared:
        most_bytes = group_bytes(overlapping, count, stored_bytes, replace(limits, executors=1))
    room = most_bytes * count / max(1, stored_bytes)
    together = min(shards.step, max(1.0, room - 0.5 if room < _FEW else room // 1))
    cuts = set(shards) if shared else {*shards, *(count * at // tasks for at in range(tasks))}
    groups = sum(ceil((end - at) / together) for at, end in pairwise(sorted({*cuts, count})))
    windows = overlapping * (groups + pieces - 1)  # no window goes on beyond the end of an object
    wide = min(together, count / pieces)
    # each executor requests a window once, for all of its tasks, if any of them has rows there
    readers = ceil(round(wide * tasks / count, 6))
    sharing = min(limits.executors, readers) if together > 1 and shared else 1
    gets = _filled(windows * sharing, size.rows)
    gets = min(gets, _filled(overlapping * count, size.rows))  # nobody requests an empty slice
    return Requests(len(shards) if shard_gets else 0, gets + shard_gets)


def _filled(windows: int, rows: int) -> int:
    """Return how many of the windows have a row, if rows are spread at random."""
    return round(windows * (1 - exp(-rows / windows))) if windows else 0


def _without_index(size: ExchangeSize) -> int:
    """Return the number of objects whose index is not in an event."""
    slices = _filled(size.objects * size.subpartitions, size.rows)
    index_bytes = max(1, _INDEX_ENTRY_BYTES * slices // size.partitions)
    fit = INLINE_TOTAL_BYTES // index_bytes if index_bytes <= INLINE_BYTES_MAX else 0
    return size.objects - min(fit, size.partitions) * size.objects // size.partitions


def predict(size: ExchangeSize, way: Way, limits: Limits, costs: StoreCosts) -> Prediction:
    stored_bytes, overlapping, combining = size.stored_bytes, size.objects, Requests()
    combining_s, shares = 0.0, way.bundles * way.ranges
    reading = _reads(size, overlapping, limits)
    if way != DIRECT:
        overlapping = way.bundles
        combining, groups = _combining(size, way, limits)
        reading = _reads(size, overlapping, limits, groups)
        copying_s = shares * _TASK_S + stored_bytes * _COPIED_BYTE_S
        copying_s += (combining.puts + combining.gets) * costs.request_s
        combining_s = _STAGE_S + copying_s / min(limits.readers, shares)
    slices = _filled(overlapping * size.subpartitions, size.rows)
    reading_s = (reading.puts + reading.gets) * costs.request_s + slices * _SLICE_S
    reading_s += size.tasks * _TASK_S + stored_bytes * _READ_BYTE_S
    sent = combining + reading
    put_bytes = stored_bytes if shares else 0
    usd = costs.usd(sent.puts, sent.gets, put_bytes, stored_bytes + put_bytes)
    usd += costs.storage_usd(stored_bytes + put_bytes)
    reading_s = _READ_S + reading_s / min(limits.readers, size.tasks)
    return Prediction(way, combining, reading, combining_s, reading_s, usd)


def puts(objects: int, stored_bytes: int) -> int:
    """Return the requests that store so many bytes in objects of the same size."""
    return objects * _PARTS.puts(stored_bytes // max(1, objects))


def most_requests(size: ExchangeSize) -> float:
    """Return the number of requests that a wide exchange should not exceed, whatever it costs: it
    grows with the square root of the number of slices. The limit is infinite for a narrow one."""
    wide = max(size.partitions, size.subpartitions)
    return 2 * wide * sqrt(wide) if wide >= _WIDE else inf


def choose(size: ExchangeSize, limits: Limits, costs: StoreCosts) -> Prediction:
    """Return the cheapest way, with the price of the processors, among those that do not send too
    many requests. If all do, return the one that sends the fewest."""
    most, slots = most_requests(size), min(limits.readers, size.tasks)
    for steps in (4, 32):  # look closer where no way of the first look is within the limit
        predictions = [predict(size, way, limits, costs) for way in _ways(size, limits, steps)]
        if bounded := [each for each in predictions if each.requests <= most]:
            return min(bounded, key=lambda each: each.usd + each.seconds * slots * _SLOT_SECOND_USD)
    return min(predictions, key=lambda each: each.requests)


def _ways(size: ExchangeSize, limits: Limits, steps: int) -> Iterator[Way]:
    """Yield ways with more and more bundles, each time by one part of `steps`."""
    yield DIRECT
    bundles = 1
    while bundles < size.objects and bundles <= size.partitions:
        for share_bytes in (_FULL * limits.fetch_bytes, _SPILLED_BYTES)[: 1 + limits.merges]:
            shares = ceil(size.stored_bytes / bundles / share_bytes)
            shares = min(shares, ceil(size.partitions / bundles), size.subpartitions)
            yield Way(bundles, max(1, shares))
        bundles = max(bundles + 1, bundles * (steps + 1) // steps)

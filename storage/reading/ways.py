"""The ways to carry an exchange, and the costs of each, computed before they arise.

Pure: the numbers follow from the sizes of the exchange, the limits of its readers and the costs of
the store. Sizes are those of every subpartition, because the largest ones may hold most rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

import numpy as np

from ..format.manifest_shards import firsts
from ..format.segment import Longs, beyond_events
from ..limits import Limits
from ..stores.costs import StoreCosts
from ..stores.s3.settings import MultipartSettings
from .read_plan import group_bytes, shared_slice_bytes
from .slices import Bools, Floats, Slices

_SLICE_S = 1e-4  # to check a slice, decode it and give it to the JVM
_READ_BYTE_S = 6e-9  # to decode a byte and give it to the JVM
_COPIED_BYTE_S = 1e-8  # to read, decode, sort, encode and store a byte once more
_STAGE_S = 0.3  # of another stage of tasks
_READ_S = 0.4  # of the stage of tasks that read
_TASK_S = 0.007
_SLOT_SECOND_USD = 1.4e-5  # of a processor that costs 5 cents an hour
_FULL = 0.9  # of the largest share, because shares are uneven
_SPILLED_BYTES = 1 << 30  # of a share whose task writes files
_WIDE = 500
_PARTS = MultipartSettings()


@dataclass(frozen=True, slots=True)
class Readers:
    """The tasks that read an exchange, and the places where they run."""

    firsts: Longs
    """The first subpartition of each task. It reads neighbours up to the next one's."""
    slots: int = 1
    """The number of tasks that run side by side."""
    executors: int = 1
    """The number of executors that run them, or of slots if these share nothing."""

    @property
    def tasks(self) -> int:
        return len(self.firsts)


@dataclass(frozen=True, slots=True)
class ExchangeSize:
    """The size of an exchange whose rows are stored."""

    partitions: int
    objects: int
    """The objects that hold the partitions."""
    unindexed: int
    """The objects whose index is not in an event."""
    stored_bytes: int
    slices: Slices
    readers: Readers

    @property
    def subpartitions(self) -> int:
        return len(self.slices.sizes)


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
    placing: Requests
    """The requests of the driver, for indexes that are in no event."""
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
        sent = self.combining + self.reading + self.placing
        return sent.puts + sent.gets


DIRECT = Way()


def combined_bytes(limits: Limits) -> int:
    """Return the stored bytes that a task combines at a time, and puts into one segment if it can
    write no files. In memory, rows take about twice as much."""
    return limits.segment_bytes // 2


def shares_of(sizes: Longs, partitions: int, way: Way, limits: Limits) -> tuple[Longs, Longs]:
    """Return the first subpartition of each range that is combined, and the number of tasks that
    combine it, each some of the partitions. A range has about the bytes of the others. A larger
    subpartition is a range of its own, and has more tasks, so that no task copies more than its
    share, and adaptive execution finds as many pieces of it as before."""
    ends = np.cumsum(sizes)
    total = max(1, int(ends[-1]))
    hot = sizes > total / way.ranges
    of_each = np.minimum((ends - sizes / 2) * way.ranges // total, way.ranges - 1)
    begins = np.diff(of_each, prepend=-1) > 0
    begins[hot] = True
    begins[1:] |= hot[:-1]
    begins[0] = True
    first = np.flatnonzero(begins)
    fair_bytes = total / way.bundles / way.ranges
    whole_bytes = limits.segment_bytes if limits.merges else combined_bytes(limits)
    range_bytes = np.add.reduceat(sizes, first)
    tasks = np.where(
        hot[first],
        np.ceil(range_bytes / min(fair_bytes, whole_bytes)),
        np.round(range_bytes / fair_bytes),
    )
    return first, np.clip(tasks, 1, partitions).astype(np.int64)


def _combining(
    size: ExchangeSize, first: Longs, tasks: Longs, limits: Limits
) -> tuple[Requests, Slices, int]:
    """Return the requests of the tasks that combine, the slices that they write, and the number
    of its objects. Tasks that write files read one partition after the other. Others read the same
    subpartitions of all objects, and store them before the next ones."""
    slices, indexes = size.slices, len(first) * size.unindexed
    of_each, ends = np.repeat(tasks, np.diff(first, append=size.subpartitions)), first[1:]
    # beside its hot subpartitions, a partition has one object
    apart = np.maximum(1, slices.near) if limits.merges else of_each
    read, stored = (
        _group_starts(slices.sizes // counts, np.full(len(counts), bytes_max), ends)
        for counts, bytes_max in ((apart, limits.fetch_bytes), (of_each, combined_bytes(limits)))
    )
    gets = slices.requests(read)
    if not limits.merges:
        first, tasks = stored, of_each[stored]
    written = slices.combined(first, tasks)
    objects = round(float(written.requests(first).sum()))
    sent = Requests(puts(objects, size.stored_bytes), round(float(gets.sum())) + indexes)
    return sent, written, objects


def _group_starts(sizes: Longs, bytes_max: Longs, borders: Longs) -> Longs:
    """Return the first subpartition of each group of neighbours. A group has at most the
    `bytes_max` of its first one, or a single subpartition, and ends at the next of `borders`."""
    sums, numbers = np.cumsum(sizes), np.arange(len(sizes))
    last = np.searchsorted(sums, sums - sizes + bytes_max, "right")
    ends = np.append(borders, len(sizes))
    until = ends[np.searchsorted(ends, numbers, "right")]
    followed_by = np.minimum(np.maximum(last, numbers + 1), until)
    if (followed_by == numbers + 1).all():  # usual for a wide exchange
        return numbers
    following = followed_by.tolist()
    at, groups = 0, list[int]()
    while at < len(sizes):
        groups.append(at)
        at = following[at]
    return np.array(groups, np.int64)


def _reads(size: ExchangeSize, slices: Slices, objects: int, limits: Limits) -> Requests:
    """Return the requests of reader tasks, and those of the manifest. The tasks plan theirs by the
    same rules (`read_plan.py`)."""
    count, readers = size.subpartitions, size.readers
    shards = firsts(objects, count) or range(0, count, count)
    shard_of, first = np.arange(count) // shards.step, np.array(shards, np.int64)
    near = np.ceil(slices.near_each(first))
    objects_near, of_shard = np.unique(near, return_inverse=True)
    room = np.array([group_bytes(int(each), limits) for each in objects_near])[of_shard]
    parts = _united(count, readers.firsts, first)  # each is read by one task
    of_part = shard_of[parts]
    part_bytes = np.add.reduceat(slices.sizes, parts)
    slice_bytes = part_bytes / np.maximum(near[of_part] * np.diff(parts, append=count), 1)
    alone = part_bytes >= np.minimum(room, np.add.reduceat(slices.sizes, first))[of_part]
    alone |= slice_bytes > shared_slice_bytes(readers.executors)
    windows = _group_starts(slices.sizes, room[shard_of], parts[1:])
    windows = _united(count, windows, slices.borders)
    requests = slices.requests(windows) + slices.narrowed(windows, limits.window_bytes)
    gets = requests[alone[_group_of(windows, parts)]].sum()
    if not alone.all():
        groups = _group_starts(slices.sizes, room[shard_of], first[1:])
        parts_alone = _Parts(parts, alone)
        gets += _shared(slices, groups, near[shard_of[groups]], parts_alone, limits, readers)
    gets = min(gets, slices.filled.sum())  # nobody requests an empty slice
    if len(shards) == 1:
        return Requests(0, round(float(gets)))
    fetches = np.minimum(np.bincount(of_part, minlength=len(shards)), readers.slots)
    return Requests(len(shards), round(float(gets)) + int(fetches.sum()))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The subpartitions that tasks read in one go."""

    first: Longs
    alone: Bools
    """True for each part whose task shares nothing with others."""


def _shared(
    slices: Slices, groups: Longs, near: Floats, parts: _Parts, limits: Limits, readers: Readers
) -> float:
    """Return the requests for groups of neighbours by tasks that do not read alone. `near` are the
    objects near a subpartition of each group. Where sharing gains nothing, each task requests the
    neighbours that it wants itself."""
    count, executors = len(slices.sizes), readers.executors
    slice_bytes = np.add.reduceat(slices.sizes, groups)
    slice_bytes = slice_bytes / np.maximum(near * np.diff(groups, append=count), 1)
    gains = slice_bytes <= shared_slice_bytes(executors)
    within = _united(count, groups, slices.borders)  # an object is on one side of a border
    gains, groups = gains[_group_of(within, groups)], within
    pieces = _united(count, groups, parts.first)
    of_piece = _group_of(pieces, groups)
    wanted = ~parts.alone[_group_of(pieces, parts.first)]
    others = np.repeat(~parts.alone, np.diff(parts.first, append=count))
    slices = replace(slices, filled=slices.filled * others)
    of_piece, requests = of_piece[wanted], slices.requests(pieces)[wanted]
    tasks = np.bincount(of_piece, minlength=len(groups))
    by_tasks = np.bincount(of_piece, requests, minlength=len(groups))
    # an object has rows for the tasks near it with some chance, and these are on some executors
    objects = np.maximum(slices.near_any(groups), 1e-9)
    tasks_near = np.maximum(1.0, tasks * slices.near_each(groups) / objects)
    chance = np.minimum(1.0, by_tasks / objects / tasks_near)
    on = np.minimum(executors, tasks_near)
    by_executors = objects * on * (1 - (1 - chance) ** (tasks_near / on))
    by_executors = np.maximum(by_executors, slices.requests(groups))
    by_executors = by_executors + slices.narrowed(groups, limits.window_bytes) * on
    by_executors = np.minimum(by_executors, by_tasks)
    return float(np.where(gains, by_executors, by_tasks).sum())


def _united(count: int, *firsts: Longs) -> Longs:
    """Return the first subpartitions of the groups of `count` neighbours that begin where those of
    any of `firsts` begin."""
    begins = np.zeros(count, np.bool_)
    for first in firsts:
        begins[first] = True
    return np.flatnonzero(begins)


def _group_of(subpartitions: Longs, groups: Longs) -> Longs:
    """Return the number of the group of each subpartition."""
    return np.searchsorted(groups, subpartitions, "right") - 1


def predict(size: ExchangeSize, way: Way, limits: Limits, costs: StoreCosts) -> Prediction:
    stored_bytes, readers = size.stored_bytes, size.readers
    slices, objects, combining, combining_s = size.slices, size.objects, Requests(), 0.0
    unindexed = size.unindexed
    if way != DIRECT:
        first, tasks = shares_of(slices.sizes, size.partitions, way, limits)
        combining, slices, objects = _combining(size, first, tasks, limits)
        copying_s = int(tasks.sum()) * _TASK_S + stored_bytes * _COPIED_BYTE_S
        copying_s += (combining.puts + combining.gets) * costs.request_s
        combining_s = _STAGE_S + copying_s / min(readers.slots, int(tasks.sum()))
        unindexed = beyond_events(objects, float(slices.filled.sum()) / max(1, objects))
    reading = _reads(size, slices, objects, limits)
    reading_s = (reading.puts + reading.gets) * costs.request_s
    reading_s += float(slices.filled.sum()) * _SLICE_S
    reading_s += readers.tasks * _TASK_S + stored_bytes * _READ_BYTE_S
    placing = Requests(0, unindexed)
    sent = combining + reading + placing
    put_bytes = 0 if way == DIRECT else stored_bytes
    usd = costs.usd(sent.puts, sent.gets, put_bytes, stored_bytes + put_bytes)
    usd += costs.storage_usd(stored_bytes + put_bytes)
    reading_s = _READ_S + reading_s / min(readers.slots, readers.tasks)
    return Prediction(way, combining, reading, placing, combining_s, reading_s, usd)


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
    many requests. If all do, return the one that sends about the fewest."""
    most, slots = most_requests(size), min(size.readers.slots, size.readers.tasks)

    def price_usd(prediction: Prediction) -> float:
        return prediction.usd + prediction.seconds * slots * _SLOT_SECOND_USD

    direct = predict(size, DIRECT, limits, costs)
    least = costs.storage_usd(size.stored_bytes) + (_STAGE_S + _READ_S) * slots * _SLOT_SECOND_USD
    if direct.requests <= most and price_usd(direct) <= least:  # another stage alone costs more
        return direct
    predictions = [direct, *(predict(size, way, limits, costs) for way in _ways(size, limits, 4))]
    if all(each.requests > most for each in predictions):
        fewest = sorted(predictions[1:], key=lambda each: each.requests)[:2]
        predictions += [  # look closer where the fewest requests are
            predict(size, way, limits, costs)
            for way in _ways(size, limits, 32)
            if any(3 / 4 <= way.bundles / each.way.bundles <= 4 / 3 for each in fewest)
        ]
    bounded = [each for each in predictions if each.requests <= most]
    return min(bounded, key=price_usd) if bounded else min(predictions, key=lambda it: it.requests)


def _ways(size: ExchangeSize, limits: Limits, steps: int) -> Iterator[Way]:
    """Yield ways with more and more bundles, each time by one part of `steps`."""
    bundles = 1
    while bundles < size.objects and bundles <= size.partitions:
        for share_bytes in (_FULL * limits.fetch_bytes, _SPILLED_BYTES)[: 1 + limits.merges]:
            shares = ceil(size.stored_bytes / bundles / share_bytes)
            shares = min(shares, ceil(size.partitions / bundles), size.subpartitions)
            yield Way(bundles, max(1, shares))
        bundles = max(bundles + 1, bundles * (steps + 1) // steps)

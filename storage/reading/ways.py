"""The requests of an exchange, computed before they are sent.

Pure: the numbers follow from the size of the exchange and from the limits of its readers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

from ..limits import Limits
from .read_plan import neighbours

_REQUEST_S = 2e-3  # of a store and its client, for a small range
_COPIED_BYTE_S = 7e-9  # to read, decode, encode and store a byte once more
_STAGE_S = 0.3  # of another stage of tasks
_WIDE = 500


@dataclass(frozen=True, slots=True)
class ExchangeSize:
    """The size of an exchange whose rows are stored."""

    partitions: int
    objects: int
    """The objects that hold the partitions, each with rows of all subpartitions."""
    subpartitions: int
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


DIRECT = Way()


def reads(size: ExchangeSize, limits: Limits) -> int:
    """Return the requests of the tasks that read the objects of an exchange."""
    objects, subpartitions = size.objects, size.subpartitions
    row_bytes = size.stored_bytes // subpartitions
    alone = replace(limits, readers=1)
    together = neighbours(objects, subpartitions, row_bytes, alone)
    if together * size.tasks <= subpartitions:
        limits = alone  # no two processes want the same group
    together = neighbours(objects, subpartitions, row_bytes, limits)
    if together == 1:
        return objects * subpartitions
    # each process requests a window once, for all of its tasks
    sharing = min(limits.readers, ceil(together * size.tasks / subpartitions))
    return objects * ceil(subpartitions / together) * max(1, sharing)


def requests(size: ExchangeSize, way: Way, limits: Limits) -> int:
    """Return the requests between the end of the map stage and the end of the last reader."""
    if way == DIRECT:
        return reads(size, limits)
    bundles, ranges = way.bundles, way.ranges
    part_bytes = size.stored_bytes // bundles
    part = replace(
        size, objects=ceil(size.objects / bundles), stored_bytes=part_bytes, tasks=ranges
    )
    segments = max(1, ceil(part_bytes / ranges / limits.segment_bytes))
    combined = replace(size, objects=bundles)
    return bundles * (reads(part, limits) + ranges * segments) + reads(combined, limits)


def seconds(size: ExchangeSize, way: Way, limits: Limits) -> float:
    """Return the work of these requests and of the tasks that combine, in seconds of one core."""
    sent_s = requests(size, way, limits) * _REQUEST_S
    return sent_s if way == DIRECT else sent_s + size.stored_bytes * _COPIED_BYTE_S + _STAGE_S


def most_requests(size: ExchangeSize) -> float:
    """Return the number of requests that a wide exchange should not exceed, whatever it costs: it
    grows with the square root of the number of slices. The limit is infinite for a narrow one."""
    wide = max(size.partitions, size.subpartitions)
    return 2 * wide * sqrt(wide) if wide >= _WIDE else inf


def choose(size: ExchangeSize, limits: Limits) -> Way:
    """Return the way with the least work, among those that do not send too many requests."""
    ways = [DIRECT]
    bundles = 1
    while bundles < size.objects and bundles <= size.partitions:
        segments = round(size.stored_bytes / bundles / limits.segment_bytes)
        ways.append(Way(bundles, min(size.subpartitions, max(1, segments))))
        bundles *= 2
    most = most_requests(size)
    bounded = [way for way in ways if requests(size, way, limits) <= most]
    return min(bounded or ways, key=lambda way: seconds(size, way, limits))

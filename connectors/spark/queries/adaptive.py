"""Decide which parts of stored exchanges each task reads, by their sizes and Spark's settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from pyspark.sql import SparkSession

from ....control.errors import Corrupt
from ....storage.format.segment import Longs
from ..settings import is_true
from ..tasks.exchange_tasks import Part

_SLACK = 1.2  # a part may exceed the target by this factor, as in Spark
_COALESCE = "spark.sql.adaptive.coalescePartitions."
_SKEW = "spark.sql.adaptive.skewJoin."
_STEPS = 8  # halvings: the limit is exact to less than a hundredth


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """The settings `spark.sql.adaptive.*` of a session."""

    coalesce: bool
    """Read small neighbouring subpartitions together."""
    target_bytes: int
    """The size to aim for in a part. It is lowered to have `least_parts` parts."""
    least_bytes: int
    """The size to aim for is not lowered below this."""
    least_parts: int
    """The number of parts to aim for, so that all task slots have work."""
    skewed_bytes: float
    """A skewed subpartition is larger than this; infinite for none."""
    skewed_times: float
    """A skewed subpartition is larger than the median times this."""
    broadcast_bytes: int
    """One side of a join is broadcast up to this size; -1 for never."""
    sends_of_two: bool = False
    """Broadcast a side also where the other one has turned out small, too."""
    together_max: float = math.inf
    """The number of subpartitions that a part may have."""
    plans_again: bool = False
    """Plan the rest of a query again as the sizes of its exchanges and broadcasts become known."""
    evens_out: bool = False
    """Read a large subpartition of a rebalance in pieces."""


def adaptive_settings(
    spark: SparkSession, bytes_of: Callable[[str | None], int]
) -> AdaptiveSettings:
    """Return the settings of a session; `bytes_of` understands a size as Spark does."""
    conf = spark.conf
    on = is_true(conf.get("spark.sql.adaptive.enabled"))
    slots = spark.sparkContext.defaultParallelism
    spread = is_true(conf.get(f"{_COALESCE}parallelismFirst"))
    least = conf.get(f"{_COALESCE}minPartitionNum", None) or (slots if spread else 1)
    target = conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    smallest = conf.get(f"{_COALESCE}minPartitionSize")
    cuts = on and is_true(conf.get(f"{_SKEW}enabled"))
    skewed = bytes_of(conf.get(f"{_SKEW}skewedPartitionThresholdInBytes"))
    times = (conf.get(f"{_SKEW}skewedPartitionFactor") or "0").strip().rstrip("dDfF")  # Java's
    adaptive_limit = conf.get("spark.sql.adaptive.autoBroadcastJoinThreshold", None)
    planned = bytes_of(conf.get("spark.sql.autoBroadcastJoinThreshold"))
    sent = planned if adaptive_limit is None else bytes_of(adaptive_limit)
    return AdaptiveSettings(
        on and is_true(conf.get(f"{_COALESCE}enabled")),
        bytes_of(target),
        bytes_of(smallest),
        int(least),
        skewed if cuts else math.inf,
        float(times),
        sent if on else -1,
        on and sent > planned,
        float(conf.get(f"{_COALESCE}maxReducerPartitionsPerTask", None) or math.inf),
        on,
        on and is_true(conf.get("spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled")),
    )


def initial_partitions(spark: SparkSession) -> str | None:
    """Return the number of subpartitions where a query names none, None for the number that holds
    without adaptive execution."""
    conf = spark.conf
    if (initial := conf.get(f"{_COALESCE}initialPartitionNum", None)) is None:
        return None
    on = conf.get("spark.sql.adaptive.enabled"), conf.get(f"{_COALESCE}enabled")
    return initial if all(map(is_true, on)) else None


def parts_of(
    sizes: Sequence[Longs],
    adapting: AdaptiveSettings,
    cuts: Sequence[Mapping[int, Sequence[range]]],
) -> Sequence[tuple[Part, ...]]:
    """Return for each exchange the parts that its tasks read, one for each task. All exchanges are
    read alike: neighbouring subpartitions together, and each piece of a cut subpartition beside
    each piece of it in the other exchanges. There are no parts if each task reads one whole
    subpartition."""
    total: Longs = np.sum(sizes, axis=0)
    cut = {at for exchange_cuts in cuts for at in exchange_cuts}
    spread = int(total.sum()) // adapting.least_parts
    target = min(adapting.target_bytes, max(spread, adapting.least_bytes))
    alone = cut if adapting.coalesce else range(len(total))
    tasks: list[tuple[Part, ...]] = []
    spans = partial(_together, total.tolist(), alone=alone, together_max=adapting.together_max)
    for span in _evenly(spans, int(total.sum()), target * _SLACK, adapting.least_parts):
        pieces = [exchange_cuts.get(span.start, (None,)) for exchange_cuts in cuts]
        tasks += [
            tuple(Part(span, piece) for piece in combination) for combination in product(*pieces)
        ]
    if not cut and len(tasks) == len(total):
        return [()] * len(sizes)
    return list(zip(*tasks, strict=True))


def task_firsts(adapting: AdaptiveSettings, sizes: Longs) -> Longs:
    """Return the first subpartition of each task, for an exchange that is read alone. Skewed
    subpartitions are not cut."""
    (parts,) = parts_of([sizes], adapting, [{}])
    return np.array([part.subpartitions.start for part in parts] or range(len(sizes)), np.int64)


def check_parts(
    parts: Sequence[Sequence[Part]], subpartitions: int, partitions: Sequence[int]
) -> None:
    """Check that these parts bring each row of an exchange beside each row of its opposite once.
    They must hold every subpartition, in order, and pair every piece of it with every piece of the
    opposite exchange's.

    Raises:
        Corrupt: they do not.
    """
    tasks: dict[range, list[tuple[Part, ...]]] = {}
    for task in zip(*parts, strict=True):
        tasks.setdefault(task[0].subpartitions, []).append(task)
    end = 0
    for span, span_tasks in tasks.items():
        sides = [list(dict.fromkeys(side)) for side in zip(*span_tasks, strict=True)]
        alike = all(part.subpartitions == span for side in sides for part in side)
        complete = alike and span.start == end and all(map(_is_whole, sides, partitions))
        if not complete or sorted(span_tasks, key=repr) != sorted(product(*sides), key=repr):
            raise Corrupt(f"tasks do not read each row of subpartitions {span} once: {span_tasks}")
        end = span.stop
    if tasks and end != subpartitions:
        raise Corrupt(f"tasks read {end} of {subpartitions} subpartitions")


def _is_whole(side: Sequence[Part], partitions: int) -> bool:
    """Return True if the pieces of one exchange hold each of its partitions once."""
    if side[0].partitions is None:
        return len(side) == 1
    read = [at for part in side for at in part.partitions or ()]
    return sorted(read) == list(range(partitions))


def skewed(sizes: Longs, adapting: AdaptiveSettings) -> list[int]:
    """Return the subpartitions that are much larger than the median."""
    limit = max(adapting.skewed_bytes, adapting.skewed_times * float(np.median(sizes)))
    return [int(at) for at in np.flatnonzero(sizes > limit)]


def pieces(by_partition: Longs, sizes: Longs, adapting: AdaptiveSettings) -> list[range]:
    """Cut a skewed subpartition into ranges of partitions, each about as large as a subpartition
    that is not skewed. `by_partition` are its bytes in each partition."""
    others = np.delete(sizes, skewed(sizes, adapting))
    usual = float(others.mean()) if len(others) else 0.0
    return list(_together(by_partition.tolist(), max(adapting.target_bytes, usual)))


def skew_cuts(
    largest: Mapping[int, Longs], sizes: Longs, adapting: AdaptiveSettings
) -> dict[int, list[range]]:
    """Return the pieces of the skewed subpartitions that are to be cut. `largest` has the
    bytes by partition of the largest subpartitions."""
    at_skewed = (at for at in skewed(sizes, adapting) if at in largest)
    cuts = {at: pieces(largest[at], sizes, adapting) for at in at_skewed}
    return {at: cut for at, cut in cuts.items() if len(cut) > 1}


def even_cuts(
    largest: Mapping[int, Longs], sizes: Longs, adapting: AdaptiveSettings
) -> dict[int, list[range]]:
    """Return the pieces of the subpartitions of a rebalance that are larger than a part should be.
    `largest` has the bytes by partition of the largest subpartitions."""
    large = np.flatnonzero(sizes > adapting.target_bytes).tolist() if adapting.evens_out else ()
    cuts = {
        at: list(_together(largest[at].tolist(), adapting.target_bytes))
        for at in large
        if at in largest
    }
    return {at: cut for at, cut in cuts.items() if len(cut) > 1}


def _evenly(
    ranges: Callable[[float], Iterable[range]], total: int, most: float, slots: int
) -> Sequence[range]:
    """Return ranges of neighbours up to a size, as `ranges` gives them for a size: as few as
    possible, or as many more as keep all slots at work to the end. The largest range is about as
    small as their number allows."""
    spans = list(ranges(most))
    count = -(-len(spans) // slots) * slots if len(spans) > slots else len(spans)
    low = min(most, total / count)
    for _ in range(_STEPS):
        limit = (low + most) / 2
        tried = list(ranges(limit))
        if len(tried) <= count:
            spans, most = tried, limit
        else:
            low = limit
    return spans


def _together(
    sizes: Iterable[int],
    target: float,
    alone: Container[int] = frozenset(),
    together_max: float = math.inf,
) -> Iterator[range]:
    """Yield ranges of neighbours up to a size and a number; each place in `alone` is a range of its
    own."""
    start = span_size = end = 0
    for at, size in enumerate(sizes):
        full = (span_size > 0 and span_size + size > target) or at - start >= together_max
        if at > start and (full or at in alone or start in alone):
            yield range(start, at)
            start, span_size = at, 0
        span_size += size
        end = at + 1
    yield range(start, end)

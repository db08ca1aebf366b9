"""How a stage reads what exchanges have stored, by what is there and by Spark's own settings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ....control.errors import Corrupt
from ....storage.format.segment import Longs
from ..tasks.worker import Part

_SLACK = 1.2  # so much larger a part may be before there are more of them; Spark's own figure
_STEPS = 8  # halvings, to less than a hundredth


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """What `spark.sql.adaptive.*` says: whether neighbours are read together, and how much at once;
    from how many bytes and times the median on a subpartition is skewed, infinite for never; up to
    which size one side of a join is sent to everybody, -1 for never."""

    coalesce: bool
    target_bytes: int
    least_bytes: int
    least_parts: int
    skewed_bytes: float
    skewed_times: float
    broadcast_bytes: int


def parts_of(
    sizes: Sequence[Longs],
    adapting: AdaptiveSettings,
    cuts: Sequence[Mapping[int, Sequence[range]]],
) -> Sequence[tuple[Part, ...]]:
    """What each task reads of each exchange, where all are read alike: neighbours together, and
    each piece of what is cut beside each piece of its opposite. Nothing where each subpartition is
    read by itself."""
    total: Longs = np.sum(sizes, axis=0)
    cut = {at for each in cuts for at in each}
    spread = int(total.sum()) // adapting.least_parts
    target = min(adapting.target_bytes, max(spread, adapting.least_bytes))
    alone = cut if adapting.coalesce else range(len(total))
    tasks: list[tuple[Part, ...]] = []
    for held in _evenly(total.tolist(), target * _SLACK, alone, adapting.least_parts):
        pieces = [each.get(held.start, (None,)) for each in cuts]
        tasks += [tuple(Part(held, piece) for piece in one) for one in product(*pieces)]
    if not cut and len(tasks) == len(total):
        return [()] * len(sizes)
    return list(zip(*tasks, strict=True))


def check_parts(
    parts: Sequence[Sequence[Part]], subpartitions: int, partitions: Sequence[int]
) -> None:
    """Check that tasks which read so bring each row of an exchange beside each of its opposite's
    once: every subpartition, in order, and of it every piece beside every other.

    Raises:
        Corrupt: they do not.
    """
    tasks: dict[range, list[tuple[Part, ...]]] = {}
    for task in zip(*parts, strict=True):
        tasks.setdefault(task[0].subpartitions, []).append(task)
    end = 0
    for held, own in tasks.items():
        sides = [list(dict.fromkeys(side)) for side in zip(*own, strict=True)]
        alike = all(part.subpartitions == held for side in sides for part in side)
        whole = alike and held.start == end and all(map(_is_whole, sides, partitions))
        if not whole or sorted(own, key=repr) != sorted(product(*sides), key=repr):
            raise Corrupt(f"tasks do not read each row of subpartitions {held} once: {own}")
        end = held.stop
    if tasks and end != subpartitions:
        raise Corrupt(f"tasks read {end} of {subpartitions} subpartitions")


def _is_whole(side: Sequence[Part], partitions: int) -> bool:
    """Return whether pieces of one exchange hold each of its partitions once."""
    if side[0].partitions is None:
        return len(side) == 1
    read = [at for part in side for at in part.partitions or ()]
    return sorted(read) == list(range(partitions))


def skewed(sizes: Longs, adapting: AdaptiveSettings) -> list[int]:
    """The subpartitions that are much larger than the others."""
    limit = max(adapting.skewed_bytes, adapting.skewed_times * float(np.median(sizes)))
    return [int(at) for at in np.flatnonzero(sizes > limit)]


def pieces(held: Longs, sizes: Longs, adapting: AdaptiveSettings) -> list[range]:
    """A skewed subpartition, of which each partition holds so much, cut at partitions into pieces
    of about the size that the others have."""
    others = np.delete(sizes, skewed(sizes, adapting))
    usual = float(others.mean()) if len(others) else 0.0
    return list(_together(held.tolist(), max(adapting.target_bytes, usual)))


def _evenly(
    sizes: Sequence[int], most: float, alone: Container[int], slots: int
) -> Sequence[range]:
    """Neighbours up to a size in as few parts as that takes, or in as many more as keep all slots
    at work to the end; the largest part as small as with so many it can be."""
    found = list(_together(sizes, most, alone))
    count = -(-len(found) // slots) * slots if len(found) > slots else len(found)
    low = min(most, sum(sizes) / count)
    for _ in range(_STEPS):
        limit = (low + most) / 2
        tried = list(_together(sizes, limit, alone))
        if len(tried) <= count:
            found, most = tried, limit
        else:
            low = limit
    return found


def _together(
    sizes: Iterable[int], target: float, alone: Container[int] = frozenset()
) -> Iterator[range]:
    """Neighbours up to a size, and each of those `alone` by itself."""
    start = held = end = 0
    for at, size in enumerate(sizes):
        full = held > 0 and held + size > target
        if at > start and (full or at in alone or start in alone):
            yield range(start, at)
            start, held = at, 0
        held += size
        end = at + 1
    yield range(start, end)

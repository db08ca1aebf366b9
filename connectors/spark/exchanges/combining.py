"""Combine the rows of many small objects into few, so that readers send fewer requests.

The combined rows are a result of their own, with map tasks that read the first result. So they are
written, decided, lost and made again as any other result. The first result is released as soon as
the combined one may be read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pyspark import RDD

from ....control.contract import ShuffleDescriptor
from ....control.ids import ResultId
from ....storage.format.segment import Longs
from ....storage.limits import Limits
from ....storage.reading.ways import ExchangeSize, choose
from ..tasks.exchange_tasks import Part
from .transport import PublicMapStage


def combined_name(result: ResultId) -> ResultId:
    """Return the name of the result that holds the combined rows of another one."""
    return ResultId(f"{result}-combined")


def combined_parts(
    descriptor: ShuffleDescriptor, sizes: Longs, objects: int, tasks: int, limits: Limits
) -> tuple[Part, ...]:
    """Return the part of an exchange that each task combines; none if so many reader tasks should
    read it as it is. `sizes` are the bytes of each subpartition."""
    partitions, stored_bytes = descriptor.partitions, int(sizes.sum())
    size = ExchangeSize(partitions, objects, descriptor.subpartitions, stored_bytes, tasks)
    way = choose(size, limits)
    ends = [partitions * at // max(1, way.bundles) for at in range(way.bundles + 1)]
    return tuple(
        Part(neighbours, range(first, last))
        for first, last in pairwise(ends)
        for neighbours in _ranges(sizes, way.ranges)
    )


def _ranges(sizes: Longs, count: int) -> list[range]:
    """Cut all subpartitions into at most `count` ranges of about as many bytes."""
    ends = np.cumsum(sizes)
    wanted = [int(ends[-1]) * at // count for at in range(1, count)]
    cuts = [0, *(int(cut) for cut in np.searchsorted(ends, wanted)), len(sizes)]
    return [range(first, last) for first, last in pairwise(cuts) if first < last]


@dataclass(frozen=True, slots=True)
class CombineStage(PublicMapStage):
    """A map stage that combines the rows of a result."""

    again: Callable[[], AbstractContextManager[RDD[int]]]
    """Makes the result again that is combined, and drops it at the end."""

    def run_again(self, partitions: list[int]) -> None:
        with self.again() as rows:
            PublicMapStage(rows).run_again(partitions)

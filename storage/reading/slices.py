"""The slices of an exchange, as numbers of each subpartition, however many objects there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..format.segment import Longs

_LARGE = 0.05  # of all bytes
_SURE = 1 - 1e-9

Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of an exchange. All arrays but two have a number for each subpartition."""

    sizes: Longs
    """The stored bytes."""
    filled: Floats
    """The objects that have rows of it."""
    near: Floats
    """The objects whose first row is of it or an earlier one, and their last of it or a later."""
    begun: Floats
    """The objects whose first row is of it."""
    large: Floats = field(default_factory=lambda: np.zeros(0))
    """The parts of all bytes that large objects have."""
    borders: Longs = field(default_factory=lambda: np.zeros(1, np.int64))
    """The subpartitions before which all objects end."""
    joined: tuple[Slices, ...] = ()
    """The slices that pairs of objects would have as one object each, then fours, then eights, up
    to all in one. They show which objects have the same subpartitions."""

    @classmethod
    def of(cls, indexes: Iterable[tuple[Longs, Longs]], subpartitions: int) -> Slices:
        """Return the slices of objects with these rows and bytes of each subpartition."""
        sizes, each_bytes = np.zeros(subpartitions, np.int64), list[int]()
        levels = [_Level.of(subpartitions)]
        for object_rows, object_sizes in indexes:
            sizes += object_sizes
            each_bytes.append(int(object_sizes.sum()))
            joined, at = object_rows > 0, 0
            while (pair := levels[at].add(joined)) is not None:
                joined, at = pair, at + 1
                if at == len(levels):
                    levels.append(_Level.of(subpartitions))
        if levels[-1].begun.sum() > 1 or any(level.waiting is not None for level in levels[:-1]):
            levels.append(_Level.of(subpartitions))
        for below, above in pairwise(levels):
            if below.waiting is not None and (pair := above.add(below.waiting)) is not None:
                above.waiting = pair
        shares = np.array(each_bytes) / max(1, sum(each_bytes))
        large = shares[shares > _LARGE]
        first, *others = (cls(sizes, *level.counted()) for level in levels)
        return replace(first, large=large, joined=tuple(others))

    @classmethod
    def even(cls, objects: int, subpartitions: int, rows: int, stored_bytes: int) -> Slices:
        """Return the slices of objects with as many rows of each subpartition, at random."""
        each_bytes, rest_bytes = divmod(stored_bytes, subpartitions)
        sizes = each_bytes + (np.arange(subpartitions) < rest_bytes)

        def slices(count: int) -> Slices:
            near = np.full(subpartitions, float(count))
            filled = near * -np.expm1(-rows / max(1, count * subpartitions))
            return cls(sizes, filled, near, np.eye(1, subpartitions)[0] * count)

        counts = (
            ceil(objects / (1 << at)) for at in range(1, max(1, objects - 1).bit_length() + 1)
        )
        return replace(slices(objects), joined=tuple(map(slices, counts)))

    def extended(self, objects: int, stored_bytes: int) -> Slices:
        """Return the slices of more objects of this kind, with so many bytes in all."""
        times = objects / max(1.0, float(self.begun.sum()))
        sizes = self.sizes * (stored_bytes / max(1, int(self.sizes.sum())))
        first, *others = (
            Slices(
                sizes.astype(np.int64), each.filled * times, each.near * times, each.begun * times
            )
            for each in (self, *self.joined)
        )
        return replace(first, joined=tuple(others))

    def near_any(self, first: Longs) -> Floats:
        """Return the objects near each group of neighbours, which begin with those of `first`."""
        last, begun = np.append(first[1:], len(self.sizes)) - 1, np.cumsum(self.begun)
        near: Floats = self.near[first] + begun[last] - begun[first]
        return near

    def near_each(self, first: Longs) -> Floats:
        """Return the objects near a subpartition of each group, on average."""
        lengths = np.diff(first, append=len(self.sizes))
        near: Floats = np.add.reduceat(self.near, first) / lengths
        return near

    def requests(self, first: Longs) -> Floats:
        """Return the objects that have rows of each group of neighbours: so many requests."""
        objects = np.maximum(self.near_any(first), 1e-9)
        absent = np.add.reduceat(_absent(self.filled, self.near) * self.near, first) / objects
        return objects * -np.expm1(absent)

    def narrowed(self, first: Longs, bytes_max: int) -> Floats:
        """Return the requests more that groups of neighbours take in large objects, where readers
        cut them into windows of about so many bytes."""
        windows = np.add.reduceat(self.sizes, first)[:, None] * self.large / bytes_max
        most = np.diff(first, append=len(self.sizes))[:, None] - 1
        more: Floats = np.where(windows > 2, np.minimum(np.ceil(windows) - 1, most), 0).sum(axis=1)
        return more

    def combined(self, first: Longs, tasks: Longs) -> Slices:
        """Return the slices of one object for each task. The subpartitions of `first` begin with
        objects of their own, and have so many of them. A task has neighbouring objects: as many as
        are joined where the joined ones that have rows of its subpartitions are as many as the
        tasks."""
        levels = (self, *self.joined)
        least = float((self.requests(first) / tasks).min())  # objects of a task
        most = float(self.begun.sum() / tasks.min())
        levels = levels[min(_halvings(least), len(levels) - 1) : _halvings(most) + 2]
        objects = np.array([each.requests(first) for each in levels])
        lower = np.maximum((objects > tasks).sum(axis=0) - 1, 0)
        upper = np.minimum(lower + 1, len(levels) - 1)
        columns = np.arange(len(first))
        more, fewer = objects[lower, columns], objects[upper, columns]
        part = (more - tasks) / np.maximum(more - fewer, 1e-9)
        lengths = np.diff(first, append=len(self.sizes))
        places = np.arange(len(self.sizes))
        low, high = np.repeat(lower, lengths), np.repeat(upper, lengths)
        share = np.repeat(np.clip(part, 0, 1), lengths)

        def between(of_levels: list[Floats]) -> Floats:
            numbers: Floats = np.array(of_levels)
            mixed: Floats = numbers[low, places] * (1 - share) + numbers[high, places] * share
            return mixed

        near = between([each.near for each in levels])
        begun = between([each.begun for each in levels])
        begun[first] = near[first]
        filled = between([each.filled for each in levels])
        return Slices(self.sizes, filled, near, begun, borders=first)


def _halvings(number: float) -> int:
    return max(0, int(np.log2(max(1.0, number))))


@dataclass(slots=True)
class _Level:
    """Counts objects of which each has the rows of some neighbours."""

    filled: Longs
    begun: Longs
    ended: Longs
    waiting: Bools | None = None
    """The subpartitions of an object whose neighbour did not come yet."""

    @classmethod
    def of(cls, subpartitions: int) -> _Level:
        return cls(*np.zeros((3, subpartitions), np.int64))

    def add(self, has_rows: Bools) -> Bools | None:
        """Count an object. Return the subpartitions of a pair if it is the second one."""
        self.filled += has_rows
        there = np.flatnonzero(has_rows)
        self.begun[there[:1]] += 1
        self.ended[there[-1:]] += 1
        if self.waiting is None:
            self.waiting = has_rows
            return None
        pair, self.waiting = self.waiting | has_rows, None
        return pair

    def counted(self) -> tuple[Floats, Floats, Floats]:
        near = np.cumsum(self.begun) - np.cumsum(self.ended) + self.ended
        return self.filled.astype(float), near.astype(float), self.begun.astype(float)


def _absent(filled: Floats, near: Floats) -> Floats:
    """Return the logarithm of the chance that an object near a subpartition has no row of it."""
    return np.log1p(-np.minimum(filled / np.maximum(near, 1e-9), _SURE))

"""The parts that tasks read of exchanges side by side: all rows that belong together meet once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.connectors.spark.exchanges.combining import parts_over
from headgate.connectors.spark.queries.adaptive import (
    AdaptiveSettings,
    check_parts,
    parts_of,
    pieces,
    skewed,
)
from headgate.connectors.spark.tasks.exchange_tasks import Part
from headgate.control.errors import Corrupt
from headgate.storage.limits import Limits
from headgate.storage.reading.ways import Way, shares_of

ADAPTING = AdaptiveSettings(True, 100, 10, 2, math.inf, 5.0, -1)
SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=8)
PARTITIONS = 4


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[list[int]], list[dict[int, list[range]]]]:
    """Draw the sizes of two exchanges, and cuts of some of their subpartitions."""
    first = draw(SIZES)
    sizes = [first, [draw(st.integers(0, 300)) for _ in first]]
    cuts: list[dict[int, list[range]]] = [{}, {}]
    for each in cuts:
        for at in draw(st.sets(st.integers(0, len(first) - 1))):
            places = sorted(draw(st.sets(st.integers(1, PARTITIONS - 1), min_size=1)))
            ends = [0, *places, PARTITIONS]
            each[at] = [range(a, b) for a, b in pairwise(ends)]
    return sizes, cuts


@given(pairs(), st.booleans(), st.sampled_from([math.inf, 1, 2]))
def test_rows_meet_once(
    given_pairs: tuple[list[list[int]], list[dict[int, list[range]]]],
    coalesce: bool,
    together_max: float,
) -> None:
    """Rows of a subpartition meet each partition of the other side in exactly one task, a cut
    subpartition is not read together with its neighbours, and no more are read together than may
    be."""
    sizes, cuts = given_pairs
    adapting = replace(ADAPTING, coalesce=coalesce, together_max=together_max)
    parts = parts_of([np.array(each) for each in sizes], adapting, cuts)
    met: Counter[tuple[int, int, int]] = Counter()
    for first, second in zip(*parts, strict=True):
        assert first.subpartitions == second.subpartitions
        assert len(first.subpartitions) <= together_max
        everything = range(PARTITIONS)
        left, right = first.partitions or everything, second.partitions or everything
        met.update(product(first.subpartitions, left, right))
        cut = {at for at in first.subpartitions if at in cuts[0] or at in cuts[1]}
        assert not cut or len(first.subpartitions) == 1
        assert coalesce or len(first.subpartitions) == 1
    whole = product(range(len(sizes[0])), range(PARTITIONS), range(PARTITIONS))
    assert not any(parts) or met == Counter(whole)


@given(pairs(), st.data())
def test_parts_that_do_not_meet_once_are_found(
    given_pairs: tuple[list[list[int]], list[dict[int, list[range]]]], data: st.DataObject
) -> None:
    """Correct parts pass the check; a task that is lost, doubled, swapped or widened does not."""
    sizes, cuts = given_pairs
    count, partitions = len(sizes[0]), [PARTITIONS, PARTITIONS]
    parts = parts_of([np.array(each) for each in sizes], ADAPTING, cuts)
    check_parts(parts, count, partitions)
    tasks = list(zip(*parts, strict=True))
    assume(len(tasks) > 1)
    at = data.draw(st.integers(0, len(tasks) - 1))
    left, right = tasks[at]
    more = replace(left, subpartitions=range(left.subpartitions.start, count + 1))
    for wrong in (
        [*tasks[:at], *tasks[at + 1 :]],
        [*tasks, tasks[at]],
        [*tasks[:at], (more, right), *tasks[at + 1 :]],
        [*tasks[:at], (left, more), *tasks[at + 1 :]],
        [*tasks[:at], (Part(left.subpartitions, range(0)), right), *tasks[at + 1 :]],
    ):
        with pytest.raises(Corrupt):
            check_parts(list(zip(*wrong, strict=True)), count, partitions)


@given(SIZES)
def test_neighbours_stay_under_the_target(sizes: list[int]) -> None:
    """Parts cover all subpartitions in order, and a part with several filled ones hardly exceeds
    the target."""
    (parts,) = parts_of([np.array(sizes)], ADAPTING, [{}])
    read = [part.subpartitions for part in parts]
    assert not read or [at for part in read for at in part] == list(range(len(sizes)))
    for part in read:
        filled = [sizes[at] for at in part if sizes[at]]
        assert len(filled) < 2 or sum(filled) <= 1.2 * ADAPTING.target_bytes


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 4))
def test_parts_are_even(sizes: list[int], slots: int) -> None:
    """There are hardly more parts than fill all slots, and no other cuts into as many parts make
    the largest one smaller."""
    adapting = replace(ADAPTING, least_parts=slots)
    (parts,) = parts_of([np.array(sizes)], adapting, [{}])
    read = [part.subpartitions for part in parts] or [range(at, at + 1) for at in range(len(sizes))]
    totals = [sum(sizes[at] for at in part) for part in read]
    needed = math.ceil(sum(sizes) / max(1, min(100, max(sum(sizes) // slots, 10))))
    assert len(totals) <= 2 * needed + slots
    count = -(-len(totals) // slots) * slots if len(totals) > slots else len(totals)
    cuts = [cut for n in range(count) for cut in combinations(range(1, len(sizes)), n)]
    least = min(max(sum(sizes[a:b]) for a, b in pairwise([0, *cut, len(sizes)])) for cut in cuts)
    assert max(totals) <= least + 1


def test_a_skewed_one_is_cut() -> None:
    """Only a subpartition that is large and many times the median is cut, into pieces of the usual
    size."""
    adapting = replace(ADAPTING, skewed_bytes=1_000)
    sizes = np.array([200, 9_000, 300, 1_100, 250])
    assert skewed(sizes, adapting) == [1]
    assert skewed(sizes, ADAPTING) == []
    by_partition = np.array([300, 100, 400, 0, 60, 8_000])
    assert pieces(by_partition, sizes, adapting) == [range(2), range(2, 5), range(5, 6)]


def test_tasks_combine_equal_partitions_evenly() -> None:
    sizes = np.full((12, 6), 7)
    first, tasks = shares_of(sizes.sum(axis=0), 12, Way(4, 2), Limits())
    cuts = parts_over(first, tasks, np.add.reduceat(sizes, first, axis=1).T, 6)
    assert [(3, 3)] * 8 == [(len(part.partitions or ()), len(part.subpartitions)) for part in cuts]

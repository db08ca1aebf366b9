"""Releasing what a session has stored: what failed once can be done again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate import Headgate, Invalid, Unavailable
from headgate.connectors.spark.kept import Gone, Kept
from headgate.connectors.spark.repairs import Repairs
from headgate.connectors.spark.settings import Settings
from headgate.control.contract import ShuffleDescriptor
from headgate.control.ids import ResultId, job_id

FIRST, SECOND = (ShuffleDescriptor(job_id("job"), ResultId(one), 1, 1, 1) for one in "ab")


class Frame:
    """A DataFrame, as far as a session tells one from another."""


class Master:
    """Releases what it is asked to, but for the calls that are to fail."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.calls = 0
        self.released: list[ShuffleDescriptor] = []

    def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise Unavailable("no decision")
        self.released.append(descriptor)


def session(master: Master) -> Headgate:
    repairs = Repairs(SimpleNamespace(), lambda _: None)  # type: ignore[arg-type]
    means = SimpleNamespace(epoch=1, settings=Settings(), master=master, repairs=repairs)
    exchanger: Any = SimpleNamespace(means=means)
    return Headgate(exchanger, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_release_that_failed_can_be_called_again(failing: int) -> None:
    """Whichever of a query's results could not be released, it is known until all are."""
    master, frame = Master(failing), Frame()
    hg: Any = session(master)
    hg._offloaded[frame] = SimpleNamespace(results=(FIRST, SECOND))
    with pytest.raises(Unavailable):
        hg.release(frame)
    hg.release(frame)
    assert [FIRST, SECOND] == list(dict.fromkeys(master.released))
    with pytest.raises(Invalid):
        hg.release(frame)


def test_an_exchange_whose_release_failed_is_known() -> None:
    """What `repartition` returned can be released again too."""
    master, frame = Master(1), Frame()
    hg: Any = session(master)
    hg._written[frame] = SimpleNamespace(descriptor=FIRST)
    with pytest.raises(Unavailable):
        hg.release(frame)
    hg.release(frame)
    assert [FIRST] == master.released


def test_what_nobody_reads_is_released_by_a_later_sweep() -> None:
    """A sweep that fails has not forgotten what it was to release, nor what was behind it."""
    master = Master(1)
    kept = Kept(lambda results: master.release_partition_externally(results[0]))
    kept.add(Gone(), (FIRST,))
    kept.add(Gone(), (SECOND,))
    kept.sweep()
    assert [] == master.released
    assert {FIRST.result, SECOND.result} == kept.results
    kept.sweep()
    kept.sweep()
    assert [FIRST, SECOND] == master.released


def test_what_an_action_could_not_release_is_kept() -> None:
    """An action's rows are nobody's when it has ended: a later query's sweep releases them."""
    master, frame = Master(1), Frame()
    hg: Any = session(master)
    hg._offloaded[frame] = SimpleNamespace(results=(FIRST,))
    hg._forget(frame)
    hg._kept.sweep()
    assert [FIRST] == master.released

"""The plan of chaos: what a seed promises."""

from __future__ import annotations

from itertools import islice

from headgate.control.contract import SESSION

from .plan import FAULTS, plan


def test_a_seed_is_a_plan() -> None:
    """The same seed gives the same rounds, another seed others."""
    assert list(islice(plan(7), 40)) == list(islice(plan(7), 40))
    assert list(islice(plan(7), 40)) != list(islice(plan(8), 40))


def test_every_fault_comes_once_before_any_comes_again() -> None:
    """As many rounds as there are faults have each of them."""
    rounds = list(islice(plan(7), 2 * len(FAULTS)))
    for part in (rounds[: len(FAULTS)], rounds[len(FAULTS) :]):
        assert sorted(FAULTS) == sorted((one.victim, one.how) for one in part)


def test_a_victim_is_there() -> None:
    """Masters are struck in mode `session`, executors and workers while tasks run."""
    for one in islice(plan(7), 200):
        assert one.mode == SESSION or one.victim != "master"
        if one.victim in ("executor", "worker"):
            assert one.phase in ("writing", "rewriting", "reading")

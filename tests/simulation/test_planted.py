"""Each planted bug breaks a guarantee, and the simulation notices that."""

from __future__ import annotations

import warnings

import pytest

from .planted import PLANTED, Plant
from .world import simulate

SEEDS_MAX = 1_000


@pytest.mark.slow
@pytest.mark.filterwarnings("always:name seed")
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_seen(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of each class breaks a guarantee within a thousand seeds. The one that is named for it
    is tried first, and a warning says which to name instead."""
    plant(monkeypatch)
    seeds = (PLANTED[plant], *range(SEEDS_MAX))
    seen = next((seed for seed in seeds if simulate(seed).violations), None)
    assert seen is not None, f"{plant.__doc__} Nobody noticed."
    if seen != PLANTED[plant]:
        warnings.warn(f"name seed {seen} for {plant.__name__}", stacklevel=1)

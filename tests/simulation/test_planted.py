"""Each planted bug breaks a guarantee, and the simulation notices that."""

from __future__ import annotations

import pytest

from .planted import PLANTED, Plant
from .world import simulate

SEEDS_MAX = 1_000


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_seen(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of each class breaks a guarantee within a thousand seeds."""
    plant(monkeypatch)
    seeds = (PLANTED[plant], *range(SEEDS_MAX))
    assert any(simulate(seed).violations for seed in seeds), f"{plant.__doc__} Nobody noticed."

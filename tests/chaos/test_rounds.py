"""The shortest chaos: one round for each of what no other test kills, on services of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.control.contract import SESSION

from .plan import KILLED, Round
from .rounds import Place, open_place, run, undisturbed

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

MASTER = Round(1, SESSION, "master", KILLED, "writing", after_s=1.0, lasts_s=2.0, choice=0.0)
NODE = Round(2, SESSION, "coordinator", KILLED, "rewriting", after_s=1.0, lasts_s=4.0, choice=0.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("chaos")) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(place: Place) -> Any:
    return undisturbed(place)


@pytest.mark.parametrize("one", [MASTER, NODE], ids=lambda one: one.what)
def test_nothing_is_lost(place: Place, expected: Any, one: Round) -> None:
    """The rows are those of Spark alone, the log explains itself, and nothing stays."""
    outcome = run(place, one, expected, f"chaos-{one.number}")
    assert not outcome.wrong, str(outcome)
    assert ["", ""] == [place.ask("fsck"), place.ask("audit", "verify")]

"""The shortest chaos: one round for each fault that no other test covers, on services of its
own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.control.contract import SESSION

from .place import Place, open_place
from .plan import EXCHANGES, KILLED, Round, Strike, Work
from .rounds import run, undisturbed

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

WORK = Work(EXCHANGES, SESSION)
MASTER = Round(1, WORK, "master", KILLED, (Strike("writing", 1.0, 2.0, 0.0),))
WORKER = Round(3, WORK, "worker", KILLED, (Strike("writing", 0.0, 0.0, 0.0),))
NODE = Round(2, WORK, "coordinator", KILLED, (Strike("rewriting", 1.0, 4.0, 0.0),))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("chaos")) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(place: Place) -> Any:
    return undisturbed(place, EXCHANGES)


@pytest.mark.parametrize("planned", [MASTER, NODE, WORKER], ids=lambda planned: planned.what)
def test_nothing_is_lost(place: Place, expected: Any, planned: Round) -> None:
    """A round gives the rows of Spark alone, its log explains itself, and nothing stays stored."""
    outcome = run(place, planned, expected, f"chaos-{planned.number}")
    assert not outcome.wrong, str(outcome)
    assert ["", ""] == [place.ask("fsck"), place.ask("audit", "verify")]

"""The traits of each kind of event."""

from __future__ import annotations

from typing import get_args

import pytest

from headgate.control.events import traits
from headgate.control.events.types import Body, Fact, Newer

from ..doubles.events import BODIES


def test_every_event_has_a_row() -> None:
    """No event is without traits, and no row is of an event that is gone."""
    assert {*get_args(Body), Newer} == set(traits.TRAITS)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_row_fits_its_event(body: Body) -> None:
    """Only facts can be stated by masters and change nothing, only decisions can keep results or
    order deletions, and these are about a result. The limits let an ordinary event pass."""
    row, is_fact = traits.traits_of(body), isinstance(body, Fact)
    assert is_fact or not (row.by_masters or row.may_change_nothing)
    assert not (is_fact and (row.keeps_result or row.orders_deletion))
    assert traits.result_of(body) is not None or not (row.keeps_result or row.orders_deletion)
    assert "" == row.beyond(body)


def test_a_trouble_and_its_repair_are_listed() -> None:
    """The live page and the log name every event of a loss, a failure, a repair or an end, and none
    of a single task that goes well."""
    events = {kind.__name__: row.importance for kind, row in traits.TRAITS.items()}
    listed = {name for name, importance in events.items() if importance is traits.Importance.JOB}
    troubles = {"AttemptFailed", "Superseded", "Lost", "Reproduce", "JobFailed", "LeaseExpired"}
    assert troubles | {"JobRegistered", "JobAccepted", "JobUnregistered", "Promoted"} == listed

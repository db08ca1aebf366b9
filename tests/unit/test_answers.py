"""The rows that a session's actions have stored for DataFrames that may be asked for again."""

from __future__ import annotations

from typing import Any

from headgate.connectors.spark.exchanges.answers import Answers


class Frame:
    """A DataFrame, as far as one is told from another."""


def test_an_answer_is_kept_for_each_way_of_reading() -> None:
    """Those who collect a limited query and those who do not take turns, and each is stored once;
    both are released when nobody can ask any more."""
    released: list[Any] = []
    answers: Any = Answers(released.append)
    asked, collected, others = Frame(), Frame(), Frame()
    answers.add(asked, collected, True)
    assert answers.get(asked, False) is None
    answers.add(asked, others, False)
    assert answers.get(asked, True) is collected
    assert answers.get(asked, False) is others
    del asked
    answers.close()
    assert {collected, others} == set(released)


def test_an_answer_may_serve_both() -> None:
    """Rows of which none are left out are the same for all."""
    answers: Any = Answers(lambda _: None)
    asked, rows = Frame(), Frame()
    answers.add(asked, rows, None)
    assert answers.get(asked, True) is answers.get(asked, False) is rows
    answers.close()

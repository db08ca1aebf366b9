"""Stored rows of a session's actions, kept for DataFrames that may be asked for again."""

from __future__ import annotations

from typing import Any

from headgate.connectors.spark.exchanges.answers import Answers


class Frame:
    """A stand-in for a DataFrame that can only be told from others."""


def test_an_answer_is_kept_for_each_way_of_reading() -> None:
    """A limited query that is collected and one that is not each keep rows of their own. Both are
    released when no DataFrame can ask for them any more."""
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
    """Rows that are complete serve both ways of reading."""
    answers: Any = Answers(lambda _: None)
    asked, rows = Frame(), Frame()
    answers.add(asked, rows, None)
    assert answers.get(asked, True) is answers.get(asked, False) is rows
    answers.close()

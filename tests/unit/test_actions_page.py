"""Check the published table of entry points against the code and the tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.connectors.spark.patches import actions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "queries.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.split("\n\n")[2].splitlines()[2:]
]
TESTS = {
    name
    for path in (ROOT / "tests" / "spark").glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
}


def test_there_is_a_table() -> None:
    """The table is found and every row has three columns."""
    assert len(ROWS) > 15
    assert {3} == {len(row) for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_has_a_test(row: list[str]) -> None:
    """Every row names tests that exist."""
    named = set(re.findall("`(test_[a-z_]+)`", row[2]))
    assert named
    assert named <= TESTS


def test_each_method_has_a_row() -> None:
    """Every PySpark method that Headgate replaces is in the table."""
    names = {name for row in ROWS for name in re.findall("`([a-zA-Z]+)`", row[0])}
    assert {name for _, name in actions._methods()} <= names

"""Check that the pages under docs/ agree with the code, as far as a test can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.connectors.spark.settings import OPTIONS, PREFIX
from headgate.control.options import Option
from headgate.infra.reference import configuration_page, options_table
from headgate.storage.stores.s3.settings import OPTIONS as S3_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
KEYS_MAX = 33


def test_the_configuration_page_is_current() -> None:
    """The configuration page is what `python -m headgate.infra.reference` writes."""
    assert configuration_page() == (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("options", [OPTIONS, S3_OPTIONS], ids=["spark", "s3"])
def test_every_key_is_explained(options: tuple[Option, ...]) -> None:
    """Every key has a row in the table, with its meaning."""
    rows = options_table(PREFIX, options).splitlines()[2:]
    assert [f"`{PREFIX}{option.name}`" for option in options] == [
        row.split("|")[1].strip() for row in rows
    ]
    assert all(row.split("|")[4].strip() for row in rows)


def test_there_are_few_keys() -> None:
    """There are few enough keys for a user to read all of them."""
    assert len(OPTIONS) < KEYS_MAX


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every link between pages leads to a file that exists, and to a heading in it."""
    targets = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text())
    paths = {(page.parent / path if path else page, heading) for path, heading in targets}
    assert [] == [path for path, _ in paths if not path.exists()]
    assert [] == [heading for path, heading in paths if heading and heading not in anchors(path)]


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["protocol.md", "life.md", "contract.md"])
def test_pages_name_tests_that_exist(page: str) -> None:
    """Every test that a page names as evidence exists."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))
    sources = "".join(path.read_text() for path in ROOT.glob("test*/**/*.py"))
    assert named
    assert named - set(re.findall(r"def (test_\w+)", sources)) == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/adr/*.md")), ids=lambda page: page.stem[:4])
def test_every_decision_has_a_date_and_a_status(page: Path) -> None:
    """The line below the title of a decision on record says when it was accepted."""
    assert re.match(r"# \d+\. .*\n\nAccepted on \d{4}-\d\d-\d\d[.;]", page.read_text())

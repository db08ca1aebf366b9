"""The supported versions of Spark: the table, pip's limits, the tests and the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headgate
from headgate import Invalid
from headgate.connectors.spark.versions import NEWEST, OLDEST, VERSIONS, version_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", ["2.4.8", "3.5.9", "3.5.1-amzn-0"])
def test_too_old_is_refused(version: str) -> None:
    """A Spark version that is too old is refused by name, before anything is imported that it
    lacks."""
    old = type("SparkSession", (), {"version": version})()
    with pytest.raises(Invalid, match=f"Spark {version} is too old: .* {OLDEST} and newer"):
        headgate.attach(old)


def test_patches_of_a_version_are_alike() -> None:
    """All patches of a known minor version get its settings, and no other version does."""
    for minor, known in VERSIONS.items():
        assert version_of(f"{minor}.7") is version_of(f"{minor}.0-vendor-1") is known
        assert version_of(f"{minor}0.1") is None


def test_kinds_of_functions_that_are_new_are_not_asked_for() -> None:
    """The package can be imported on a PySpark without functions that take a group batch by
    batch."""
    program = (
        "from pyspark.util import PythonEvalType as kinds\n"
        "for name in [kind for kind in vars(kinds) if kind.endswith('ITER_UDF')]:\n"
        "    delattr(kinds, name)\n"
        "from headgate import Headgate"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_pip_allows_what_is_known_and_newer() -> None:
    """pip allows Spark from the oldest known version up to the next major version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (asked,) = (
        dependency
        for dependency in project["optional-dependencies"]["spark"]
        if "pyspark" in dependency
    )
    assert f"pyspark>={OLDEST},<{int(NEWEST.split('.')[0]) + 1}" == asked


def test_the_newest_is_developed_on() -> None:
    """The lock file pins the newest known version of Spark."""
    lock = (ROOT / "requirements.lock").read_text()
    assert re.findall(r"^pyspark==(\d+\.\d+)\.", lock, re.MULTILINE) == [NEWEST]


def test_each_is_tried() -> None:
    """`make test-matrix` runs on every known version, and on a version that is refused."""
    (tried,) = re.findall(r"^VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    refused, *taken = (version.rsplit(".", 1)[0] for version in tried.split())
    assert list(VERSIONS) == taken
    with pytest.raises(Invalid):
        version_of(refused)


def test_each_is_documented() -> None:
    """The users' table has a line for each known version, newest first, and one for refused
    versions."""
    text = (ROOT / "docs/queries.md").read_text()
    *taken, (refused, how) = re.findall(r"^\| (\d\.\d+)[^|]* \|(.*)\|$", text, re.MULTILINE)
    assert [minor for minor, _ in taken] == list(VERSIONS)[::-1]
    assert {cell.strip() for _, cells in taken for cell in cells.split("|")} == {"yes"}
    assert "refuses" in how
    with pytest.raises(Invalid):
        version_of(refused)

"""The wheel and the sdist hold all of the package, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import headgate

from .conftest import README, ROOT, TREE

pytestmark = pytest.mark.package

ROOMS = ("control", "storage", "connectors", "infra", "testing")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")
NAME = f"pyspark_headgate-{headgate.__version__}"
LICENCE = f"{NAME}.dist-info/licenses/LICENSE"
METADATA = f"{NAME}.dist-info/METADATA"
OF_ITSELF = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")


@pytest.fixture(scope="module")
def shipped(wheel: Path) -> dict[str, bytes]:
    """Return the files of the wheel, which was built from the sdist."""
    return content(wheel)


@pytest.fixture(scope="module")
def source() -> set[str]:
    """Return the names of the files of the sdist."""
    (only,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(only) as archive:
        return {m.name.removeprefix(f"{NAME}/") for m in archive.getmembers() if not m.isdir()}


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def package() -> set[str]:
    """Return the names of all files that the package should have."""
    on_disk = {f"headgate/{p.name}" for p in (ROOT / "src/headgate").iterdir() if p.is_file()}
    for room in ROOMS:
        on_disk |= {
            f"headgate/{path.relative_to(ROOT)}"
            for path in ROOT.glob(f"{room}/**/*")
            if path.suffix in (".py", ".java", ".avsc", ".yml", ".html", ".css", ".js", ".svg")
        }
    return on_disk


def test_the_wheel_holds_the_package(shipped: dict[str, bytes]) -> None:
    """The wheel holds every module, text, schema and marker, the licence, and its own records."""
    expected = package() | {LICENCE} | {f"{NAME}.dist-info/{name}" for name in OF_ITSELF}
    assert {"headgate/py.typed", "headgate/infra/devstack/compose.yml"} < expected
    assert expected == set(shipped)


def test_the_sdist_holds_the_package(source: set[str]) -> None:
    """The sdist holds the package, what its build reads, and the pages."""
    of_setuptools = {name for name in source if name.startswith("src/pyspark_headgate.egg-info/")}
    pages = {name for name in source if name.startswith("docs/")}
    of_the_build = {"LICENSE", "MANIFEST.in", "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"}
    read = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    expected = {f"src/{name}" for name in package()} | of_the_build | read
    assert expected == source - of_setuptools - pages
    assert pages == {p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.*")}


def test_both_builds_give_the_same_wheel(shipped: dict[str, bytes], tmp_path: Path) -> None:
    """A wheel that is built from the repository has the bytes of that from the sdist."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(TREE)], check=True, capture_output=True)
    (direct,) = tmp_path.glob("*.whl")
    assert content(direct) == shipped


def test_the_links_of_the_sdist_lead_to_its_files(source: set[str]) -> None:
    """Every link and picture of README is in the sdist."""
    folders = {Path(name).parent.as_posix() for name in source}
    assert set(LINK.findall(README)) - source - folders == set()


def test_the_metadata_stand_alone(shipped: dict[str, bytes]) -> None:
    """The long description is README without links into the repository. The licence, the extras and
    the versions of Python are there."""
    metadata = message_from_string(shipped[METADATA].decode())
    text = str(metadata.get_payload())
    assert [] == LINK.findall(text)
    assert README.splitlines()[0] == text.splitlines()[0]
    assert "API and commands · Running" in text
    assert (metadata["Version"], metadata["License-Expression"], metadata["Requires-Python"]) == (
        headgate.__version__,
        "Apache-2.0",
        ">=3.11",
    )
    assert {"spark", "embedded", "metrics", "stack", "testing"} == set(
        metadata.get_all("Provides-Extra", [])
    )

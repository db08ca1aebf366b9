"""The lock file, the version and the links to the rooms; `make package` checks the wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import headgate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/headgate"
ROOMS = ("control", "storage", "connectors", "infra", "testing")
LOCK = (ROOT / "requirements.lock").read_text()
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[0-9][0-9a-z.]*)( ; [a-z0-9_ =!<'.A-Z]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
NAME = re.compile(r"[A-Za-z0-9._-]+")
# moto and PySpark pin these to their own versions, and `make test-ui` brings Playwright
IMPLIED = {"boto3", "playwright", "py4j"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    matches = (PIN.fullmatch(line) for line in LOCK.splitlines())
    return {pin["name"]: pin["version"] for pin in matches if pin}


def test_the_lock_holds_pins_and_hashes_only() -> None:
    """Every line of the lock file is a pin or a hash, so that no index address, path or option can
    hide."""
    lines = LOCK.splitlines()
    strange = [line for line in lines if not PIN.fullmatch(line) and not HASH.fullmatch(line)]
    assert strange == []


def test_every_pin_has_a_hash() -> None:
    """Every pin in the lock file has a hash; pip refuses a lock in which a hash is missing."""
    lines = LOCK.splitlines()
    bare = [
        line
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if PIN.fullmatch(line) and not HASH.fullmatch(after)
    ]
    assert bare == []


def test_the_lock_holds_what_the_project_asks_for(
    project: dict[str, Any], pins: dict[str, str]
) -> None:
    """The lock file holds every dependency of pyproject.toml."""
    assert declared(project) - pins.keys() == set()


def test_the_lock_keeps_to_the_versions_that_were_tried(pins: dict[str, str]) -> None:
    """The lock file has the Spark version on which the private door was tried, and pandas 2,
    because pandas 3 changes the values that Python functions are given."""
    assert pins["pyspark"] == "4.3.0"
    assert pins["pandas"].startswith("2.")


def test_every_import_is_declared(project: dict[str, Any]) -> None:
    """Every imported package is a declared dependency, and not just installed as a part of another
    one."""
    modules = [
        module for folder in ("src", *ROOMS, "tests") for module in ROOT.glob(f"{folder}/**/*.py")
    ]
    imported = {name for module in modules for name in imports(module)} - sys.stdlib_module_names
    homes = metadata.packages_distributions()
    foreign = {
        name: {home.lower().replace("_", "-") for home in homes.get(name, ())}
        for name in imported - {"headgate", "tests"}
    }
    undeclared = {name for name, packages in foreign.items() if not packages & declared(project)}
    assert undeclared - IMPLIED == set()


def test_the_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    """The package, its metadata and pyproject.toml have one version: workers and drivers compare
    it."""
    assert "version" in project["project"]["dynamic"]
    source = project["tool"]["setuptools"]["dynamic"]["version"]
    assert source == {"attr": "headgate.control.__version__"}
    assert metadata.version("pyspark-headgate") == headgate.__version__


def test_every_room_is_linked() -> None:
    """The package links to each top-level folder of code."""
    links = {link.name: link.resolve() for link in PACKAGE.iterdir() if link.is_symlink()}
    assert {room: ROOT / room for room in ROOMS} == links


def test_a_clone_beside_a_script_is_not_the_package(tmp_path: Path) -> None:
    """A script that runs beside a folder named `headgate` imports the installed package."""
    (tmp_path / "headgate" / "control").mkdir(parents=True)
    (tmp_path / "job.py").write_text("import headgate; print(headgate.attach.__name__)")
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("attach\n", "")


def test_every_folder_with_code_is_a_package() -> None:
    """Every folder with code has an `__init__.py`; without it, the wheel would lack the folder."""
    modules = [module for room in ROOMS for module in ROOT.glob(f"{room}/**/*.py")]
    assert [] == [m for m in modules if not m.with_name("__init__.py").exists()]


def declared(project: dict[str, Any]) -> set[str]:
    """Return the names of all dependencies in pyproject.toml."""
    asked = [
        *project["project"]["dependencies"],
        *(
            dependency
            for extra in project["project"]["optional-dependencies"].values()
            for dependency in extra
        ),
        *project["dependency-groups"]["dev"],
    ]
    return {matched[0].lower() for dependency in asked if (matched := NAME.match(dependency))}


def imports(module: Path) -> set[str]:
    """Return the top-level names of all absolute imports in a module."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names

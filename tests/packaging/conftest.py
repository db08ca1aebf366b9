"""Environments outside of the checkout that get the wheel which `make dist` has built.

They know no path, variable or package of the checkout, and install the versions of the lock file.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / ".venv" / "tree"
"""The copy from which `make dist` builds."""
PINS = re.findall(r"^[a-z0-9-]+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
README = (ROOT / "README.md").read_text()
OF_THE_CHECKOUT = ("AWS_", "HEADGATE_", "JAVA_TOOL", "PYSPARK_", "PYTHON", "SPARK_", "VIRTUAL_ENV")
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"


class CleanFolder:
    """A folder with the wheel in two environments: `users` has what README installs, `executors`
    has no extra."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "dist").symlink_to(ROOT / "dist")
        (path / "pins.txt").write_text("\n".join(PINS))

    def start(self, command: str, venv: str, **more: str) -> subprocess.Popen[str]:
        """Start a command of the shell with the programs of an environment first."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OF_THE_CHECKOUT)}
        ours = {
            "PATH": f"{self.path / venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(self.path / "pins.txt"),
            "PIP_NO_COMPILE": "1",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            "COLUMNS": "200",
        }
        return subprocess.Popen(
            ["bash", "-euc", command],
            cwd=self.path,
            env={**kept, **ours, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str, venv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the shell with the programs of an environment first."""
        with self.start(command, venv, **more) as running:
            try:
                out, err = running.communicate()
            except BaseException:  # a test that takes too long leaves no Spark behind
                os.killpg(running.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, running.returncode, out, err)


def blocks(page: str) -> list[str]:
    """Return the blocks of code of a page."""
    return re.findall(r"```\w*\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="session")
def wheel() -> Path:
    (only,) = (ROOT / "dist").glob("*.whl")
    return only


@pytest.fixture(scope="session")
def clean(wheel: Path) -> Iterator[CleanFolder]:
    """Install the wheel without extras, and by the first line of README."""
    by_readme = blocks(README)[0].replace('".[', f'"dist/{wheel.name}[')
    installs = {"executors": f"pip install dist/{wheel.name}", "users": by_readme}
    with TemporaryDirectory(prefix="headgate-package-") as path, ThreadPoolExecutor() as pool:
        folder = CleanFolder(Path(path))

        def install(venv: str) -> subprocess.CompletedProcess[str]:
            subprocess.run([sys.executable, "-m", "venv", folder.path / venv], check=True)
            return folder.run(installs[venv], venv)

        answers = list(pool.map(install, installs))
        assert [0, 0] == [answer.returncode for answer in answers], answers
        yield folder

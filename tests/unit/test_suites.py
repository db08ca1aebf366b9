"""The suites of `headgate.testing`, as a user outside of this repository runs them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

TOUR = Path(__file__).parents[2] / "docs/tour.md"
SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)
BROKEN = """
import pytest
from headgate.storage.stores.memory import MemoryBlobStore
from headgate.testing.blob_store_suite import BlobStoreSuite
from headgate.testing.faulty_store import *

class TestFlipping(BlobStoreSuite):
    @pytest.fixture
    def make(self):
        plan = FaultPlan((PlannedFault(Operation.GET, 1, Effect.FLIP),))
        objects = {}
        return lambda: FaultyBlobStore(MemoryBlobStore(objects), plan)
"""


def run(folder: Path, *modules: str) -> tuple[int, str]:
    """Run pytest on the modules; return its exit code and its output."""
    for number, module in enumerate(modules):
        (folder / f"test_{number}.py").write_text(module)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout


def test_the_tour_shows_what_a_user_writes(tmp_path: Path) -> None:
    """A store and a log pass their suites with the few lines that the tour shows."""
    snippets = [textwrap.dedent(found) for found in SNIPPET.findall(TOUR.read_text())]
    assert len(snippets) == 2
    code, output = run(tmp_path, *snippets)
    assert code == 0, output
    assert int(re.findall(r"(\d+) passed", output)[0]) > 80


def test_a_store_that_breaks_the_contract_is_told_how(tmp_path: Path) -> None:
    """A store that returns other bytes fails, and the failure shows the bytes."""
    code, output = run(tmp_path, BROKEN)
    assert code == 1
    assert "test_a_deleted_name_can_be_written_again" in output
    assert "assert b'23' == b'22'" in output

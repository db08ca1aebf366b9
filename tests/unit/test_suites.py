"""The suites of `headgate.testing`, as a user outside of this repository runs them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import OutcomeUnknown
from headgate.control.events.types import Event, JobUnregistered
from headgate.control.ids import JobId
from headgate.control.memory.log import MemoryEventLog
from headgate.testing.faulty_log import FaultyEventLog, LogFault

LIMIT = Deadline.after(600.0)
JOB = JobId("job")
FACT = Event("id", JOB, "", 0, "test", None, JobUnregistered("over"))
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


@pytest.mark.slow
def test_the_tour_shows_what_a_user_writes(tmp_path: Path) -> None:
    """A store and a log pass their suites with the few lines that the tour shows."""
    snippets = [textwrap.dedent(snippet) for snippet in SNIPPET.findall(TOUR.read_text())]
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


USES: dict[str, Callable[[FaultyEventLog], object]] = {
    "append": lambda log: log.append(FACT).offset(LIMIT),
    "beat": lambda log: log.beat(JOB).offset(LIMIT),
    "follow": lambda log: log.follow(JOB),
    "identity": lambda log: log.identity(LIMIT),
    "oldest": lambda log: log.oldest(JOB),
    "open_decisions": lambda log: log.open_decisions(JOB),
    "prepare": lambda log: log.prepare(LIMIT),
    "read_all": lambda log: log.read_all(LIMIT),
    "read_beats": lambda log: log.read_beats(None, LIMIT),
    "read_state": lambda log: log.read_state(None, LIMIT),
    "retention_ms": lambda log: log.retention_ms(LIMIT),
    "tail": lambda log: log.tail(),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operation", USES)
def test_a_planned_call_of_a_log_fails(operation: str, after: bool) -> None:
    """The first call of an operation fails as planned, and the second does not. Only a write whose
    answer is lost has taken effect."""
    inner = MemoryEventLog()
    log = FaultyEventLog(inner, LogFault(operation, 1, OutcomeUnknown("planned"), after))
    with pytest.raises(OutcomeUnknown, match="planned"):
        USES[operation](log)
    events, beats = list(inner.read_all(LIMIT)), inner.read_beats(None, LIMIT)
    assert len(events) == (after and operation == "append")
    assert len(beats) == (after and operation == "beat")
    USES[operation](log)

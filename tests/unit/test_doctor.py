"""`headgate doctor` tries everything that a job needs of a broker and a bucket."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.control.errors import Invalid
from headgate.control.log import EventLog
from headgate.control.memory.log import MemoryDecisions
from headgate.infra import doctor
from headgate.infra.target import Target
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.stores.port import Bytes, PendingUpload

from ..doubles.commands import (
    KeptLog,
    ran,
)


def test_doctor_proves_broker_and_bucket(log: KeptLog, objects: Objects) -> None:
    """A sound log and store pass every check of `doctor`, which leaves no object behind."""
    _, lines, _ = ran("doctor", "--broker", "b", "--store", "memory://b")
    verdicts = {line[10:26].strip(): line.split()[1] for line in lines[5:]}
    assert len(verdicts) == 11
    assert {"ok"} == set(verdicts.values())
    assert objects == {}
    assert ran("audit", "verify")[0] == 0


def test_doctor_proves_every_bucket(log: KeptLog) -> None:
    """Each bucket of a store that is spread is checked by itself."""
    code, lines, _ = ran("doctor", "--broker", "b", "--store", "memory://b,memory://c")
    verdicts = [line.split()[1] for line in lines[5:]]
    assert (0, ["ok"] * 17) == (code, verdicts)
    reached = [line.split()[-1] for line in lines if "reach bucket" in line]
    assert ["memory://b", "memory://c"] == reached


def test_doctor_looks_at_all_although_an_option_cannot_be_used(
    log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose options are refused, and a store that is none, are failed checks: the stores
    behind them are looked at."""

    def refused(target: Target, topic: object = None) -> None:
        raise Invalid("kafka option nonsense: there is none")

    bucket = Target.open_bucket

    def opened(target: Target, *log: EventLog, **options: str) -> object:
        if target.store == "gs://b/x":
            raise Invalid("it is no store")
        return bucket(target, *log, **options)

    monkeypatch.setattr(Target, "open_log", refused)
    monkeypatch.setattr(Target, "open_bucket", opened)
    code, lines, error = ran("doctor", "--broker", "b", "--store", "gs://b/x,memory://c")
    verdicts = [line.split()[1] for line in lines[5:]]
    expected = ["wrong", *4 * ["skipped"], "wrong", *5 * ["skipped"], *6 * ["ok"]]
    assert (1, expected, "") == (code, verdicts, error)
    of_broker, of_store = (line for line in lines if line.split()[1] == "wrong")
    assert ("nonsense" in of_broker, "no store" in of_store) == (True, True)


def test_doctor_looks_at_all_although_clearing_fails(
    log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that lists no uploads fails its own checks, and keeps no other from being looked
    at."""

    def refuse(*_: object) -> Iterator[PendingUpload]:
        raise Invalid("access denied")

    monkeypatch.setattr(MemoryBlobStore, "uploads", refuse)
    code, lines, error = ran("doctor", "--broker", "b", "--store", "memory://b,memory://c")
    wrong = [line for line in lines if line.split()[1:2] == ["wrong"]]
    assert (1, 2, "") == (code, len(wrong), error)


def test_doctor_proves_an_empty_folder(tmp_path: Path) -> None:
    """A folder in which no driver has stored anything passes, and is empty again."""
    outcomes = list(doctor.examine(Target("", f"file://{tmp_path}/root", "headgate")))
    assert ["ok"] * 6 == [outcome.verdict.value for outcome in outcomes[6:]]
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_doctor_takes_all_names_of_a_python_for_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers that run `python3` of the environment whose `python` runs the check get no hint;
    those of another environment of the same Python do."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        for name in ("python", "python3"):
            (tmp_path / folder / name).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "here/python"))
    verdicts = []
    for folder in ("here", "there"):
        monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / folder / "python3"))
        _, lines, _ = ran("doctor")
        verdicts += [line.split()[1] for line in lines if "worker python" in line]
    assert ["ok", "hint"] == verdicts


def test_doctor_finds_a_store_that_replaces(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that lets two writers create the same object fails its check, and later checks are
    skipped."""

    class Replacing(MemoryBlobStore):
        def put(self, name: str, body: Bytes, write_id: str) -> None:
            self._objects[name] = (bytes(body), write_id)

    monkeypatch.setattr(Target, "open_bucket", lambda *_, **options: (Replacing(), "root"))
    code, lines, _ = ran("doctor", "--store", "memory://b")
    verdicts = [line.split()[1] for line in lines[5:]]
    assert code == 1
    assert verdicts == ["skipped", "ok", "ok", "wrong", "skipped", "skipped", "skipped"]


@pytest.mark.parametrize(
    ("broken", "does", "wrong"),
    [
        ("abort", lambda decisions: decisions.commit(0), "abort a step"),
        ("commit", MemoryDecisions.abort, "commit a step"),
        ("fence", lambda decisions: None, "fence a master"),
    ],
)
def test_doctor_finds_a_broker_that_breaks_a_promise(
    log: KeptLog,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    does: Callable[[MemoryDecisions], None],
    wrong: str,
) -> None:
    """A log that shows aborted decisions, hides committed ones or does not fence fails its
    check."""
    monkeypatch.setattr(doctor, "ANSWER_S_MAX", 0.5)
    monkeypatch.setattr(MemoryDecisions, broken, lambda self, *position: does(self))
    code, lines, _ = ran("doctor", "--broker", "b")
    assert code == 1
    assert [wrong] == [line[10:26].strip() for line in lines[5:] if line.split()[1] == "wrong"]


def test_doctor_waits_for_a_committed_step(log: KeptLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may confirm the end of a step before readers see it, as Kafka does."""
    commit, first = MemoryDecisions.commit, iter([True])

    def late(decisions: MemoryDecisions, position: int) -> None:
        if next(first, False):
            threading.Timer(0.3, commit, (decisions, position)).start()
        else:
            commit(decisions, position)

    monkeypatch.setattr(MemoryDecisions, "commit", late)
    _, lines, _ = ran("doctor", "--broker", "b")
    assert ["ok"] * 5 == [line.split()[1] for line in lines[5:10]]


def test_doctor_without_broker_and_bucket_looks_at_the_machine(log: KeptLog) -> None:
    """`doctor` skips services that are not configured, and says that sessions use the embedded
    ones."""
    _, lines, _ = ran("doctor")
    assert [line.split()[1] for line in lines[5:]] == ["skipped", "skipped"]
    assert all("embedded" in line for line in lines[5:])

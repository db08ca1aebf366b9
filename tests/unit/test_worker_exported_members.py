"""The package's front stays small, and everything that it names exists."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

import headgate
from headgate.connectors.spark.tasks.worker import forget_zips

NAMES_MAX = 13


def test_the_front_door_is_small() -> None:
    """The package exports only a few public names, each once."""
    assert len(set(headgate.__all__)) == len(headgate.__all__)
    assert 0 < len(headgate.__all__) <= NAMES_MAX


@pytest.mark.parametrize("name", headgate.__all__)
def test_every_name_exists(name: str) -> None:
    """Every exported name can be imported."""
    assert getattr(headgate, name).__name__ == name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """A misspelt name is an `AttributeError`, although names are loaded late."""
    with pytest.raises(AttributeError, match="atach"):
        headgate.atach  # noqa: B018


def test_importing_headgate_does_not_import_spark() -> None:
    """Importing headgate does not import PySpark, boto3, pandas or moto."""
    program = (
        "import sys, headgate; print(*{'pyspark', 'boto3', 'pandas', 'moto'} & sys.modules.keys())"
    )
    assert [] == _said(program)


def test_planning_does_not_import_clients() -> None:
    """Planning and making tasks imports no client of Kafka or of an object store."""
    program = """
import importlib, pkgutil, sys
from headgate.connectors.spark import exchanges, jvm, queries
from headgate.connectors.spark.queries import planner
for folder in (exchanges, jvm, queries):
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        importlib.import_module(module.name)
assert f"{queries.__name__}.runner" in sys.modules
print(*{"confluent_kafka", "obstore", "boto3", "botocore"} & sys.modules.keys())
"""
    assert [] == _said(program)


def test_commands_look_at_no_process() -> None:
    """The command line imports the packages of the local stack only for the stack."""
    program = """
import sys
import headgate.infra.cli.app
from headgate.connectors.spark.tasks import worker
print(*{'psutil', 'filelock'} & sys.modules.keys())
"""
    assert [] == _said(program)


def test_writing_does_not_import_pandas() -> None:
    """Writing a segment does not import pandas.

    Arrow imports pandas with the first array that it converts from or to Python or numpy, which
    takes a new executor process a second.
    """
    program = """
import sys
from types import SimpleNamespace
import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from headgate.connectors.spark.tasks import worker
from headgate.connectors.spark.tasks.exchange_tasks import MapTask
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.storage.writing.fingerprint import Fingerprint
from headgate.storage.format.messages import decode
from headgate.storage.writing.encoding import encode, sort
numbers = pa.py_buffer(np.array([0, 1, 2], np.int32))
to = pa.Array.from_buffers(pa.int32(), 2, [None, numbers])
a = pa.Array.from_buffers(to.type, 2, [pa.py_buffer(bytes([1])), numbers])
b = pa.Array.from_buffers(pa.list_(to.type), 2, [None, numbers], children=[a])
schema = pa.schema([("a", a.type), ("b", b.type)])
carried = schema.append(pa.field("to", to.type))
parts = []
writer = SimpleNamespace(
    write=lambda *part: parts.append(part), finish=lambda: SimpleNamespace(rows=2, size_bytes=9)
)
shuffle = SimpleNamespace(create_result_partition_writer=lambda *_: writer)
worker.environment = lambda settings: shuffle
context = TaskContext._taskContext = TaskContext()
context._partitionId = context._taskAttemptId = 0
task = MapTask(None, ResultId("r"), 0, 2, schema, "lz4", False)
assert [(2, 9)] == list(task.write(0, [pa.RecordBatch.from_arrays([a, b, to], schema=carried)]))
[(rows, targets)] = parts
run = sort([rows], [targets], 2)
hashed = Fingerprint(2)
hashed.add(run)
attempt = AttemptId(PartitionId(ResultId("r"), 0), 0, 0)
segment = encode([run], "lz4", attempt)
body = segment.body[segment.index.starts[0] :][: segment.index.sizes.sum()]
assert 2 == len(list(decode(body, schema.serialize().to_pybytes(), 2)))
assert hashed.digest() is not None
print(*{"pandas"} & sys.modules.keys())
"""
    assert [] == _said(program)


def test_a_task_leaves_no_zip_to_look_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`forget_zips` drops every zip finder, which PySpark's worker would search again before each
    task; a later import still finds modules in the zip."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for name in ("zipped_once", "zipped_twice"):
            made.writestr(f"{name}.py", "")
    monkeypatch.syspath_prepend(archive)
    importlib.import_module("zipped_once")
    assert str(archive) in sys.path_importer_cache
    forget_zips()
    assert not any(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
    importlib.import_module("zipped_twice")


def _said(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.split()

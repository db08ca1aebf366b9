"""A writer whose start the log does not confirm stores nothing, and bytes are counted before they
are compressed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.control.clock import Deadline
from headgate.control.errors import Invalid, OutcomeUnknown
from headgate.control.events.types import AttemptStarted, Event
from headgate.control.memory.log import MemoryEventLog
from headgate.storage.contract import ResultPartitionDeployment
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.limits import Limits
from headgate.storage.runtime import Runtime
from headgate.storage.stores.memory import MemoryBlobStore

from ..doubles.segments import JOB, attempt_of

pytestmark = pytest.mark.usefixtures("no_thread_stays")

SCHEMA = pa.schema([("c", pa.int64())])
ROWS = 1000


class Unconfirmed:
    """The receipt of a fact that may or may not be in the log."""

    def offset(self, deadline: Deadline) -> int:
        raise OutcomeUnknown("no confirmation came in time")


class SilentLog(MemoryEventLog):
    """A log that confirms everything but the start of an attempt."""

    def append(self, fact: Event) -> Any:
        receipt = super().append(fact)
        return Unconfirmed() if isinstance(fact.body, AttemptStarted) else receipt


@pytest.mark.parametrize("segment_bytes", [1 << 20, 8 * ROWS], ids=["last", "each batch"])
@pytest.mark.parametrize(
    "folders", [lambda path: (), lambda path: (path,)], ids=["memory", "files"]
)
def test_nothing_is_put_before_the_start_is_confirmed(
    tmp_path: Path, segment_bytes: int, folders: Callable[[Path], tuple[Path, ...]]
) -> None:
    """No segment is put, in whatever thread, while the log may not have the start of its attempt:
    such an object would be found by no clean-up."""
    store, runtime = MemoryBlobStore({}), Runtime(folders=folders(tmp_path))
    limits = Limits(segment_bytes=segment_bytes)
    environment = ObjectStoreEnvironment(JOB, SilentLog(), store, "root", limits, runtime=runtime)
    deployment = ResultPartitionDeployment(attempt_of(0), 1, SCHEMA, "none")
    writer = environment.create_result_partition_writer(deployment)
    batch = pa.record_batch([pa.array(range(ROWS))], SCHEMA)

    def write() -> None:
        for _ in range(3):
            writer.write(batch, np.zeros(ROWS, np.int32))
        writer.finish()

    with pytest.raises(OutcomeUnknown):
        write()
    writer.abort("the log is silent")
    stored = list(store.list(""))
    environment.close()
    assert [] == stored


@pytest.mark.parametrize("segment_bytes", [1 << 20, 8 * ROWS], ids=["last", "each batch"])
@pytest.mark.parametrize(
    "folders", [lambda path: (), lambda path: (path,)], ids=["memory", "files"]
)
def test_bytes_are_stated_as_they_were_before_compression(
    tmp_path: Path, segment_bytes: int, folders: Callable[[Path], tuple[Path, ...]]
) -> None:
    """A partition announces the bytes of its rows without compression, in any number of
    segments."""
    store, runtime = MemoryBlobStore({}), Runtime(folders=folders(tmp_path))
    limits = Limits(segment_bytes=segment_bytes)
    environment = ObjectStoreEnvironment(
        JOB, MemoryEventLog(), store, "root", limits, runtime=runtime
    )
    deployment = ResultPartitionDeployment(attempt_of(0), 1, SCHEMA, "zstd")
    writer = environment.create_result_partition_writer(deployment)
    for _ in range(3):
        writer.write(pa.record_batch([pa.array([7] * ROWS)], SCHEMA), np.zeros(ROWS, np.int32))
    produced = writer.finish()
    environment.close()
    assert 3 * 8 * ROWS == produced.plain_bytes > 4 * produced.size_bytes


CODED = pa.opaque(pa.dictionary(pa.int8(), pa.string()), "coded", "tests")


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int32(), pa.string()),
        CODED,
        pa.struct([("inner", CODED)]),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.struct([("inner", pa.string_view())]),
        pa.map_(pa.string(), pa.binary_view()),
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int64()),
    ],
    ids=str,
)
def test_what_nobody_could_read_is_refused(kind: pa.DataType) -> None:
    """Columns of which a slice cannot be read by itself are refused before an attempt begins."""
    log = MemoryEventLog()
    environment = ObjectStoreEnvironment(JOB, log, MemoryBlobStore({}), "root", Limits())
    schema = pa.schema([("plain", pa.int64()), ("other", kind)])
    deployment = ResultPartitionDeployment(attempt_of(0), 1, schema, "none")
    with pytest.raises(Invalid, match="cast them to their plain type"):
        environment.create_result_partition_writer(deployment)
    environment.close()

"""Transports: frames come out of the JVM whole or not at all, and announced rows are checked."""

from __future__ import annotations

import io
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths

from headgate import Corrupt
from headgate.connectors.spark.exchanges.run import check_rows
from headgate.connectors.spark.jvm.task_settings import hiding
from headgate.connectors.spark.tasks import worker
from headgate.connectors.spark.tasks.exchange_tasks import ReaderTask
from headgate.connectors.spark.tasks.frames import Frames, RunFrames, Volume, Volumes
from headgate.control.events.types import Produced, ResultRegistered, SegmentSummary
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.model.persistent import PersistentMap
from headgate.control.model.state import Production, ResultState
from headgate.storage.services import StorageFactory

SCHEMA = pa.schema([("c", pa.string())])
BATCHES = [pa.record_batch([pa.array(texts)], SCHEMA) for texts in (["first"], [], ["a", "third"])]
END = struct.pack("!i", SpecialLengths.END_OF_DATA_SECTION)


def frame_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch as the JVM sends it: a length and a stream of one batch."""
    with pa.ipc.new_stream(sink := pa.BufferOutputStream(), SCHEMA) as stream:
        stream.write_batch(batch)
    frame: bytes = sink.getvalue().to_pybytes()
    return struct.pack("!i", len(frame)) + frame


SENT = b"".join(map(frame_of, BATCHES)) + END


def test_frames_end_with_their_mark() -> None:
    """The batches that were sent come out, up to the end mark and not beyond."""
    assert BATCHES == list(Frames(SCHEMA).load_stream(io.BytesIO(SENT + b"more")))


def test_frames_without_their_mark_are_an_error() -> None:
    """A stream that is cut off anywhere, even between two frames, is an error. The JVM cuts it off
    so when an upstream task fails."""
    for sent in range(len(SENT)):
        with pytest.raises((EOFError, struct.error)):
            list(Frames(SCHEMA).load_stream(io.BytesIO(SENT[:sent])))


def test_runs_of_another_size_are_an_error() -> None:
    """A run whose bytes are not those of its columns is an error, and never fewer rows."""
    schema = pa.schema([("c", pa.string()), ("to", pa.int32())])
    texts = pa.array(["a", None, "third"] * 3, pa.string())
    bitmap, ends, values = [content.to_pybytes() for content in texts.buffers()]
    parts = [bitmap[:2], ends[:40], values[:18] + bytes(8), bytes(36)]

    def run(rows: int, nulls: int) -> bytes:
        head = struct.pack("<5q", rows, nulls, 18, 0, 0)
        frame = head + b"".join(part + bytes(-len(part) % 8) for part in parts)
        return struct.pack("!i", len(frame)) + frame + END

    def read(sent: bytes) -> list[pa.RecordBatch]:
        return list(RunFrames(schema, "t4").load_stream(io.BytesIO(sent)))

    (batch,) = read(run(9, 3))
    assert texts.to_pylist() == batch.column(0).to_pylist()
    for sent in (run(7, 3), run(9, 0)):
        with pytest.raises((Corrupt, pa.ArrowException)):
            read(sent)


def test_messages_are_bounded_by_their_bytes() -> None:
    """Wide rows behind narrow ones in a batch go to the JVM in several messages."""
    texts = ["x"] * 100_000 + ["y" * (1 << 20)] * 10
    rows = pa.record_batch([pa.array(texts)], ["c"])
    tasks: Any = SimpleNamespace(batches_of=lambda number, meter: [rows])
    sent = [message for message, _ in ReaderTask.frames(tasks, 0, [])]
    batches = [pa.ipc.read_record_batch(message, rows.schema) for message in sent]
    assert rows == pa.concat_batches(batches)
    assert max(message.size for message in sent) < 5 << 20


def test_an_attempt_of_other_rows_is_found() -> None:
    """A winner with another number of rows than Spark's successful attempt is `Corrupt`."""
    result = ResultId("r")
    attempts = [AttemptId(PartitionId(result, index), 1, index) for index in range(2)]
    produced = {
        attempt: Produced(attempt, (SegmentSummary(0, 10, 7, 0, b""),)) for attempt in attempts
    }
    production = Production(
        attempts=PersistentMap(produced), winners=PersistentMap(enumerate(attempts))
    )
    state = ResultState(ResultRegistered(result, 2, 1, "", ""), production, complete=True)
    check_rows(state, [7, 7])
    with pytest.raises(Corrupt, match=r"r/1/1-1 has announced 7 rows.* wrote 8"):
        check_rows(state, [7, 8])


def test_the_environment_that_was_used_longest_ago_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that serves many jobs closes the environment that was used longest ago, and never
    the current job's."""
    closed: list[str] = []

    class Environment:
        def __init__(self, job: str) -> None:
            self.job = job

        def close(self) -> None:
            closed.append(self.job)

    def serve(job: str) -> None:
        given: Any = SimpleNamespace(
            key=job, job=job, store="", s3={}, kafka=None, limits=None, wait_s=1.0
        )
        worker.environment(given)

    monkeypatch.setattr(worker, "_ENVIRONMENTS", OrderedDict())
    monkeypatch.setattr(
        StorageFactory, "create_shuffle_environment", lambda _, context: Environment(context.job)
    )
    monkeypatch.setattr(worker, "keep_memory", lambda: None)
    for job in ("a", "b", "a", "c", "a", "d", "a", "e", "a", "f"):
        serve(job)
    assert ["b", "c"] == closed


def test_what_spark_hides_is_hidden() -> None:
    """Text that matches the session's redaction patterns is hidden; all text is hidden if Python
    would read a pattern in another way than Java."""

    def hide(text: str, **asked: str) -> str:
        return hiding(asked.values())(text)

    assert "repartition(2, k)" == hide("repartition(2, k)")
    assert "repartition(2, *********(redacted))" == hide("repartition(2, key42)", sql="key[0-9]+")
    assert "*********(redacted) *********(redacted)" == hide("a1 b2", redaction="a.", sql="b.")
    for java in ("[a-z&&[^a]]", "[[a]b]", "(?<x>a)"):
        assert "*********(redacted)" == hide("anything", sql=java)


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("leaves", ["before", "meanwhile", "afterwards"])
def test_a_jvm_that_has_left_makes_no_noise(leaves: str, tcp: bool) -> None:
    """PySpark's daemon flushes the stream of each task again at its end, and prints a traceback if
    that fails. It does not fail when the JVM has left."""
    ours, theirs = connected() if tcp else socket.socketpair()
    with ours, os.fdopen(os.dup(ours.fileno()), "wb", 1 << 16) as stream:

        def volumes() -> Iterator[Volume]:
            yield from [Volume(1, 2)] * (100 if leaves == "meanwhile" else 1)
            if leaves == "meanwhile":
                theirs.close()
                yield from [Volume(1, 2)] * 100_000

        if leaves == "before":
            theirs.close()
        with suppress(ConnectionError):
            Volumes().dump_stream(volumes(), stream)
        if leaves == "afterwards":
            assert theirs.recv(1 << 16)
            theirs.close()
            with suppress(ConnectionError):
                Volumes().dump_stream([], stream)
        for _ in range(3):
            stream.write(bytes(9))
            stream.flush()


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return server.accept()[0], theirs

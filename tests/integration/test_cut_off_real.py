"""A driver whose network is gone for a while, on real Kafka: what it finds when it is back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.control.author import Author
from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.contract import MasterSettings, PartitionDescriptor, ProducerDescriptor
from headgate.control.errors import Fenced
from headgate.control.events import Produced, SegmentSummary
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.kafka import KafkaEventLog
from headgate.control.master import DriverMaster, Speaker
from headgate.storage.files import FileBlobStore
from headgate.storage.release import StorageRelease

from .test_masters_real import LIMIT_S, Context, events_of, log, wait_for

__all__ = ["log"]

pytestmark = pytest.mark.real

THERE, HERE = b"127.0.0.1", b"127.0.0.2"  # of one length, so that no answer changes its size


class Link:
    """Kafka's nodes under another loopback address, which can be cut: then nothing passes, and no
    connection ends, as where a cable is drawn."""

    def __init__(self, nodes: list[int]) -> None:
        self._nodes = nodes
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._open = threading.Event()
        self._thread.start()
        assert self._open.wait(LIMIT_S)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._passes.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._passes.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        self._passes.set()
        servers = [
            self._loop.run_until_complete(asyncio.start_server(self._take, HERE.decode(), port))
            for port in self._nodes
        ]
        self._loop.call_soon(self._open.set)
        self._loop.run_forever()
        for server in servers:
            server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.1))
        self._loop.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        their_reader, their_writer = await asyncio.open_connection(THERE.decode(), port)
        self._writers += (writer, their_writer)
        asks = asyncio.create_task(self._pass(reader, their_writer))
        await self._pass(their_reader, writer)
        asks.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Whole requests and answers; those name nodes by the address that they have here."""
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                await self._passes.wait()
                writer.write(size + frame.replace(THERE, HERE))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


@pytest.fixture
def link(log: KafkaEventLog) -> Iterator[Link]:
    ports = [int(node.rpartition(":")[2]) for node in log._settings.bootstrap.split(",")]
    with closing(Link(ports)) as found:
        yield found


def driver(log: KafkaEventLog, folder: Path, name: str) -> DriverMaster:
    release = StorageRelease(FileBlobStore(folder), "")
    return DriverMaster(log, release, MasterSettings(60_000), Speaker(name, "0"))


@pytest.mark.timeout(180)
def test_a_driver_that_was_cut_off_leaves_its_successor_alone(
    log: KafkaEventLog, link: Link, tmp_path: Path
) -> None:
    """It loses Kafka while it decides, another driver takes the job over, and it comes back: it is
    told so, and the other one's work goes on."""
    job, result = JobId("job"), ResultId("r")
    bootstrap = log._settings.bootstrap.replace(THERE.decode(), HERE.decode())
    far = KafkaEventLog(replace(log._settings, bootstrap=bootstrap, request_timeout_s=2.0))
    first, second = driver(far, tmp_path, "first"), driver(log, tmp_path, "second")
    context, errors = Context(job), list[BaseException]()
    context.on_fatal_error = errors.append  # type: ignore[method-assign,assignment]
    first.register_job(context)
    asked = PartitionDescriptor(result, 500, 1, "", "")
    first.register_partition_with_producer(job, asked, ProducerDescriptor(0, 500)).result(LIMIT_S)

    tasks = Author(job, "tasks")
    for number in range(4_000):
        attempt = AttemptId(PartitionId(result, number % 500), 1, number)
        log.append(tasks.fact(Produced(attempt, (SegmentSummary(0, 4, 1, 0, b""),))))
        if number == 1_000:
            wait_for(lambda: bool(first.state(job).results[result].winners), "nothing is decided")
            link.cut()
    SYSTEM_CLOCK.sleep_s(5.0)  # the first one's step ends, and is tried again
    second.register_job(Context(job))
    assert 2 == second.state(job).epoch
    link.mend()
    wait_for(lambda: bool(errors), "the first driver does not hear of the second one")
    assert [Fenced] == [type(error) for error in errors]
    again = PartitionDescriptor(ResultId("again"), 1, 1, "", "")
    described = second.register_partition_with_producer(job, again, ProducerDescriptor(0, 1))
    assert 2 == described.result(LIMIT_S).epoch
    second.unregister_job(job)
    decided = [one.event.by for one in events_of(log, job) if one.event.basis is not None]
    assert sorted(decided) == decided, "the first driver has decided behind the second one"
    first.close()
    second.close()
    far.close()

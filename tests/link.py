"""Kafka's nodes under another loopback address, behind a proxy that can be cut."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing, suppress

THERE = "127.0.0.1"
_LIMIT_S = 30.0


class Link:
    """A proxy that passes nothing while it is cut, and ends no connection, as with a pulled cable.

    `here` is as long as the nodes' own address, so that no answer changes its size.
    """

    def __init__(self, nodes: str, here: str) -> None:
        assert len(here) == len(THERE)
        self.bootstrap = nodes.replace(THERE, here)
        self._ports = [int(node.rpartition(":")[2]) for node in nodes.split(",")]
        self._here = here
        self._loop = asyncio.new_event_loop()
        self._passes = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._open = threading.Event()
        self._thread.start()
        assert self._open.wait(_LIMIT_S)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._passes.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._passes.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)

    def _run(self) -> None:
        self._passes.set()
        servers = self._loop.run_until_complete(self._listen())
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

    async def _listen(self) -> list[asyncio.Server]:
        return [await asyncio.start_server(self._take, self._here, port) for port in self._ports]

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        self._writers.append(writer)
        try:
            their_reader, their_writer = await asyncio.open_connection(THERE, port)
        except OSError:  # the node is down
            return writer.close()
        self._writers.append(their_writer)
        asks = asyncio.create_task(self._pass(reader, their_writer))
        await self._pass(their_reader, writer)
        asks.cancel()
        self._writers = [other for other in self._writers if other not in (writer, their_writer)]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Whole requests and answers; those name nodes by the address that they have here."""
        with suppress(asyncio.IncompleteReadError, OSError), closing(writer):
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                await self._passes.wait()
                writer.write(size + frame.replace(THERE.encode(), self._here.encode()))
                await writer.drain()

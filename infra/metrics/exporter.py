"""`headgate exporter`: serve the numbers of all jobs at `/metrics`, for Prometheus."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread
from types import SimpleNamespace

from prometheus_client.exposition import choose_encoder

from ..master_command import log_to_stderr, spare_collector
from ..serving import PLAIN, GuardedHandler, GuardedServer, Query, ServerSettings
from ..target import Target
from .families import MetricValues
from .log_numbers import LogNumbersReader
from .regular_fsck import FsckNumbers, RegularFsck

_PATH = "/metrics"


class MetricsServer(GuardedServer):
    def __init__(
        self,
        reader: LogNumbersReader,
        checked: Callable[[], FsckNumbers | None],
        settings: ServerSettings,
    ) -> None:
        self.reader = reader
        self.checked = checked
        self.values = MetricValues()
        super().__init__(settings, _Handler)

    @property
    def url(self) -> str:
        """Return the address to scrape."""
        return super().url.rstrip("/") + _PATH


class _Handler(GuardedHandler):
    server: MetricsServer

    def respond(self, query: Query) -> None:
        if query.path != _PATH:
            self.answer(404, PLAIN, f"the metrics are at {_PATH}\n".encode())
        elif (numbers := self.server.reader.numbers()) is None:
            self.answer(503, PLAIN, b"the log is still being read\n")
        else:
            metrics = self.server.values.collect(numbers, self.server.checked())
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self.answer(200, kind, encode(SimpleNamespace(collect=lambda: metrics)))


def run(
    target: Target, settings: ServerSettings, fsck_s: float, say: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT, and log to stderr. With `fsck_s`, compare the log with the
    bucket at this interval.

    Raises:
        Invalid: the broker, the store or the address cannot be used.
        Unavailable: the log cannot be read at the start.
    """
    log_to_stderr()
    spare_collector()
    ending = Event()

    def end(*_: object) -> None:
        ending.set()
        raise SystemExit  # a wait for Kafka takes up to five minutes, and nothing needs its end

    with closing(target.open_log()) as log, closing(LogNumbersReader(log)) as reader:
        fsck = RegularFsck(log, *target.open_bucket(), fsck_s) if fsck_s > 0 else None
        server = MetricsServer(reader, lambda: fsck.last if fsck is not None else None, settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        say(f"serving at {server.url}")
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            reader.step(0.0)
            if fsck is not None:
                Thread(target=fsck.run, args=(ending,), daemon=True).start()
            reader.run(ending)
        finally:
            server.end()

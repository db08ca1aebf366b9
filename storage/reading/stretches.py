"""The rows of some partitions, read in few large requests: for tasks that combine objects.

A stretch is neighbouring slices of one partition. It is checked and decoded as a whole, which costs
less than doing so for each slice. A block is the stretches that are requested together. A stretch
that cannot be read, or held as a whole, is read through a gate, which waits until a partition that
was lost is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain, groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from ...control.errors import Corrupt, Lost
from ...control.events.types import Consumed
from ..contract import InputGate, InputGateDeployment
from ..format.manifest import Manifest, Source
from ..format.messages import decode_joined
from ..format.segment import Longs
from ..runtime import JobClients
from ..stores.port import ByteRange
from .range_cache import RangeCache
from .read_plan import bounded_ranges

_Rows: TypeAlias = tuple[pa.RecordBatch, Longs]
_Window: TypeAlias = tuple[ByteRange, Future[memoryview]]


class StretchReader:
    """Reads the same neighbouring subpartitions of one deployment after the other. The bytes that
    are requested or wait stay under `Limits.fetch_bytes`, except that one slice is always let
    through."""

    def __init__(
        self,
        deployments: Iterable[InputGateDeployment],
        clients: JobClients,
        range_cache: RangeCache,
        gate: Callable[[InputGateDeployment], InputGate],
    ) -> None:
        self._deployments = deployments
        self._clients = clients
        self._range_cache = range_cache
        self._gate = gate
        self._rows = self._gate_rows = self._bytes = 0

    def groups(self, group_bytes: int) -> Iterator[Iterator[_Rows]]:
        """Yield groups of neighbouring subpartitions, those of a deployment in their order. A group
        is an iterator of batches, each with the subpartition of every row. It has at most
        `group_bytes`, unless it is a single subpartition. Each group must be read to its end before
        the next one.

        Raises:
            Corrupt: fewer or more rows were read than the manifest has.
        """
        stated_rows = 0
        for it in self._deployments:
            stated_rows += int(it.manifest.part(it.first, it.count).rows.sum())
            for block in self._blocks(it):
                if int(block.sizes.sum()) > self._clients.limits.fetch_bytes:
                    yield self._from_gate(_of(it, block))
                    continue
                windows = {source.name: self._fetch(source) for source in block.sources}
                for group in _bounded_parts(block, group_bytes):
                    yield self._read_group(_of(it, group), windows)
                self._forget(windows)
        if self._rows != stated_rows:
            raise Corrupt(f"{self._rows} rows were read, {stated_rows} were announced")
        result, requests = it.manifest.result, self._range_cache.take_requests()
        rows = self._rows - self._gate_rows  # a gate announces its own
        throttled = self._clients.throttled.take("gets")
        consumed = Consumed(
            result, it.first, it.count, it.task, rows, self._bytes, requests, throttled
        )
        announcer = self._clients.announcer(f"combiner {result}/{it.task}")
        receipt = self._clients.log.append(announcer.fact(consumed))
        receipt.offset(self._clients.runtime.deadline())

    def _blocks(self, it: InputGateDeployment) -> Iterator[Manifest]:
        """Yield neighbouring subpartitions that fit into `Limits.fetch_bytes`, or some partitions
        of a single subpartition that does not. A partition is never cut, so that all its rows can
        be read from another attempt: one that does not fit is left to a gate."""
        bytes_max = self._clients.limits.fetch_bytes
        for block in _bounded_parts(it.manifest.part(it.first, it.count), bytes_max):
            partitions = [tuple(sources) for _, sources in groupby(block.sources, _partition)]
            ends = np.cumsum([sum(int(it.sizes.sum()) for it in each) for each in partitions])
            for some in bounded_ranges(ends, range(len(ends)), bytes_max):
                sources = chain.from_iterable(partitions[some.start : some.stop])
                yield replace(block, sources=tuple(sources))

    def _fetch(self, source: Source) -> _Window:
        window = source.range_of(0, len(source.sizes))
        return window, self._range_cache.fetch(source.name, window)

    def _forget(self, windows: dict[str, _Window]) -> None:
        for name, (window, _) in windows.items():
            self._range_cache.forget(name, window)

    def _read_group(self, it: InputGateDeployment, windows: dict[str, _Window]) -> Iterator[_Rows]:
        """Yield the rows of a group. Decode one object at a time, after all of a stretch are
        checked: a gate may read a stretch instead while none of its rows was handed out."""
        schema = it.schema.serialize().to_pybytes()
        numbers = np.arange(it.first, it.first + it.count)
        for _, sources in groupby(it.manifest.sources, _partition):
            stretch = replace(it.manifest, sources=tuple(sources))
            try:
                bodies = [_checked(source, *windows[source.name]) for source in stretch.sources]
            except (Lost, Corrupt):  # the gate requests them anew
                self._forget(windows)
                yield from self._from_gate(replace(it, manifest=stretch))
                continue
            for source, body in zip(stretch.sources, bodies, strict=True):
                targets = np.repeat(numbers, source.rows)
                for rows in decode_joined(body, schema, len(targets)):
                    yield rows, targets[: rows.num_rows]
                    targets = targets[rows.num_rows :]
                    self._rows += rows.num_rows
                self._bytes += int(source.sizes.sum())

    def _from_gate(self, it: InputGateDeployment) -> Iterator[_Rows]:
        for subpartition, rows in self._gate(it).numbered():
            yield rows, np.full(rows.num_rows, subpartition)
            self._rows += rows.num_rows
            self._gate_rows += rows.num_rows


def _checked(source: Source, window: ByteRange, fetched: Future[memoryview]) -> memoryview:
    """Return the bytes of neighbouring slices, cut out of their window and checked."""
    span = source.range_of(0, len(source.sizes))
    body = fetched.result()[span.start - window.start :][: span.length]
    end = 0
    for size, expected in zip(source.sizes.tolist(), source.checksums.tolist(), strict=True):
        start, end = end, end + size
        if size and xxhash.xxh3_64_intdigest(body[start:end]) != expected:
            raise Corrupt(f"{source.name}: a slice does not match its checksum")
    return body


def _of(it: InputGateDeployment, part: Manifest) -> InputGateDeployment:
    return replace(it, manifest=part, first=part.first, count=part.count)


def _partition(source: Source) -> int:
    return source.attempt.partition.index


def _bounded_parts(manifest: Manifest, bytes_max: int) -> Iterator[Manifest]:
    """Yield the manifests of neighbouring subpartitions of at most `bytes_max`, or of a single one,
    each with the objects that have rows of them. There are none of empty subpartitions."""
    for group in bounded_ranges(np.cumsum(manifest.sizes), range(manifest.count), bytes_max):
        part = manifest.part(manifest.first + group.start, len(group))
        if filled := tuple(source for source in part.sources if source.sizes.any()):
            yield replace(part, sources=filled)

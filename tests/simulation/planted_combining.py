"""Bugs planted in what combines objects: the simulation must notice them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.spark.tasks import combine_task
from headgate.connectors.spark.tasks.combine_task import Share
from headgate.connectors.spark.tasks.exchange_tasks import Part
from headgate.control.events.types import SegmentSummary
from headgate.control.model.state import ResultState
from headgate.storage.contract import InputGateDeployment
from headgate.storage.format.manifest import Source
from headgate.storage.format.segment import Longs
from headgate.storage.reading import stretches
from headgate.storage.reading.stretches import StretchReader
from headgate.storage.stores.port import ByteRange

from . import combining
from .combining import CombiningApplication
from .machines import Exchange


def take_each_object_for_a_stretch(patch: pytest.MonkeyPatch) -> None:
    """A combiner reads the other objects of a partition from their windows, when a gate has read
    the partition again because of one object."""
    read_group = StretchReader._read_group

    def apart(
        self: StretchReader, it: InputGateDeployment, windows: dict[str, Any]
    ) -> Iterator[tuple[pa.RecordBatch, Longs]]:
        for source in it.manifest.sources:
            alone = replace(it, manifest=replace(it.manifest, sources=(source,)))
            yield from read_group(self, alone, windows)

    patch.setattr(StretchReader, "_read_group", apart)


def skip_a_stretch_that_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A combiner leaves out the rows that it cannot read."""
    patch.setattr(StretchReader, "_from_gate", lambda self, it: iter(()))


def skip_the_checksums_of_a_stretch(patch: pytest.MonkeyPatch) -> None:
    """A combiner copies damaged bytes."""

    def unchecked(source: Source, window: ByteRange, fetched: Future[memoryview]) -> memoryview:
        span = source.range_of(0, len(source.sizes))
        return fetched.result()[span.start - window.start :][: span.length]

    patch.setattr(stretches, "_checked", unchecked)


def cut_a_share_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """A combiner gets an index from which its first subpartition is cut off."""
    whole = combine_task._part_of

    def elsewhere(
        segment: SegmentSummary, wanted: range, subpartitions: int
    ) -> tuple[SegmentSummary, int]:
        return whole(segment, wanted[1:] or wanted, subpartitions)

    patch.setattr(combine_task, "_part_of", elsewhere)


def combine_another_range_again(patch: pytest.MonkeyPatch) -> None:
    """A combined partition that was lost is made again from the subpartitions before its own."""

    def before(part: Part, state: ResultState) -> Share:
        start, again = part.subpartitions.start, "-again-" in state.registered.result
        if start and again:
            part = replace(part, subpartitions=range(start - 1, part.subpartitions.stop - 1))
        return combine_task.share(part, state)

    patch.setattr(combining, "share", before)


def compare_no_rows(patch: pytest.MonkeyPatch) -> None:
    """Combined rows are read although some were left out."""
    patch.setattr(combining, "check_combined", lambda state, copies: None)


def release_what_is_being_combined(patch: pytest.MonkeyPatch) -> None:
    """A result is released before the one that replaces it is complete."""
    is_combined = CombiningApplication._is_combined

    def early(self: CombiningApplication, combined: Exchange, state: ResultState) -> bool:
        self._ask_release(self._copies[combined.name].first)
        return is_combined(self, combined, state)

    patch.setattr(CombiningApplication, "_is_combined", early)


def release_what_could_not_be_combined(patch: pytest.MonkeyPatch) -> None:
    """A result is released, and then read because combining has failed."""
    is_combined = CombiningApplication._is_combined

    def anyway(self: CombiningApplication, combined: Exchange, state: ResultState) -> bool:
        done = is_combined(self, combined, state)
        if not done:
            self._ask_release(self._copies[combined.name].first)
        return done

    patch.setattr(CombiningApplication, "_is_combined", anyway)


def make_again_from_what_is_released(patch: pytest.MonkeyPatch) -> None:
    """The log names the first result as an input of the combined one."""
    register = CombiningApplication._register_copy

    def of_the_first(self: CombiningApplication, exchange: Exchange) -> None:
        copy = self._copies.get(exchange.name)
        register(self, replace(exchange, source=copy.first) if copy else exchange)

    patch.setattr(CombiningApplication, "_register_copy", of_the_first)

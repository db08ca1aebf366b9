"""Ways to make and change values: a plain frozen dataclass, ours, one that only mypy keeps frozen,
and `msgspec.Struct`.

Each way replaces the classes of events and states in the model, and then decodes and folds the same
records. The ways take turns within a round, so that other work on the machine touches all alike.
`msgspec` is measured where it is installed.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, make_dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any
from unittest.mock import patch

from rich.table import Table

from headgate.control import ids
from headgate.control.events import avro, codec, types, values
from headgate.control.ids import JobId, ResultId
from headgate.control.model import apply, attempts, decide, decide_stream, reproduce, state

from .core import MAPS, REDUCERS, facts, records_of

EXCHANGES, REPEATS = 9, 20_000
_MODULES = (ids, types, state, apply, attempts, decide, decide_stream, reproduce)
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to make and to change frozen values."""

    name: str
    kinds: Mapping[Any, Any]
    """The class that stands for each class of the model."""
    maker: Callable[[Any], Callable[..., Any]]
    changed: Callable[..., Any]


def ways() -> Iterator[Way]:
    own = {
        kind: kind
        for module in (ids, types, state)
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind)
    }
    yield Way("plain", own, lambda kind: kind, replace)
    yield Way("ours", own, values.maker, values.changed)
    yield Way("unfrozen", _twins(own, _unfrozen, dataclass_field), lambda kind: kind, replace)
    if find_spec("msgspec") is not None:
        msgspec = import_module("msgspec")
        structs = _twins(own, partial(msgspec.defstruct, frozen=True), msgspec.field)
        yield Way("msgspec", structs, lambda kind: kind, msgspec.structs.replace)


def _unfrozen(name: str, parts: Any, order: bool, namespace: dict[str, Any]) -> Any:
    return make_dataclass(
        name,
        parts,
        order=order,
        namespace=namespace,
        slots=True,
        unsafe_hash="__hash__" not in namespace,
    )


def _twins(kinds: Iterable[Any], make: Callable[..., Any], default: Any) -> dict[Any, Any]:
    """Return for each frozen dataclass a class with the same fields and methods."""
    twins: dict[Any, Any] = {}
    for kind in kinds:
        source = import_module(kind.__module__).__file__
        parts: list[Any] = []
        for field in fields(kind):
            if field.default_factory is not MISSING:
                parts.append((field.name, Any, default(default_factory=field.default_factory)))
            elif field.default is not MISSING:
                twin = twins.get(type(field.default))
                parts.append((field.name, Any, field.default if twin is None else twin()))
            else:
                parts.append((field.name, Any))
        methods = {
            name: member
            for name, member in vars(kind).items()
            if isinstance(member, property)
            or getattr(getattr(member, "__code__", None), "co_filename", "") == source
        }
        order = kind.__dataclass_params__.order
        twins[kind] = make(kind.__name__, parts, order=order, namespace=methods)
    return twins


@contextmanager
def _taken(way: Way) -> Iterator[None]:
    """Let the model and the codec make and change their values in this way."""
    originals = {stand_in: kind for kind, stand_in in way.kinds.items()}
    kinds = {name: way.kinds[kind] for name, kind in codec._CLASSES.items()}
    with (
        patch.object(avro, "maker", way.maker),
        patch.object(avro, "fields", lambda kind: fields(originals[kind])),
    ):
        readers = {codec._fingerprint(raw): avro.reader(raw, kinds) for raw in codec._RAW.values()}
    patches: list[Any] = [
        patch.object(codec, "_READERS", readers),
        patch.object(apply, "changed", way.changed),
    ]
    for module in _MODULES:
        for name, kind in list(vars(module).items()):
            if isinstance(kind, type) and kind in way.kinds:
                patches.append(patch.object(module, name, way.kinds[kind]))
    checks = {way.kinds[kind]: check for kind, check in codec._CHECKS.items()}
    patches.append(patch.object(codec, "_CHECKS", checks))
    for change in patches:
        change.start()
    try:
        yield
    finally:
        for change in reversed(patches):
            change.stop()


def _works(way: Way, records: list[bytes]) -> Iterator[tuple[str, int, Work]]:
    """Yield each piece of work with its name and the number of its repetitions."""
    events = [codec.decode(record) for record in records]
    make, place = way.maker(ids.AttemptId), ids.PartitionId(ResultId("1-0001"), 7)
    same, other = make(place, 1, 8), make(ids.PartitionId(ResultId("1-0001"), 7), 1, 8)
    last = _folded(events)
    result = next(iter(last.results.values()))
    produced = next(event for event in events if type(event.body).__name__ == "Produced")
    again = codec.decode(codec.encode(produced))
    yield "make an id", REPEATS, lambda: make(place, 1, 8)
    yield "compare two ids", REPEATS, lambda: same == other
    yield "hash an id", REPEATS, lambda: hash(place)
    yield "compare two events", REPEATS, lambda: produced == again
    yield "change one field of a job", REPEATS, lambda: way.changed(last, epoch=2)
    yield "change one field of a result", REPEATS, lambda: way.changed(result, complete=True)
    yield "decode all events", 1, lambda: [codec.decode(record) for record in records]
    yield "fold all events", 1, lambda: _folded(events)


def _folded(events: list[Any]) -> Any:
    now = state.JobState(JobId("job"))
    for event in events:
        now, _ = decide.step(now, event.body)
    return now


def run(rounds: int) -> Table:
    records = records_of(JobId("job"), list(facts(EXCHANGES, MAPS, REDUCERS)))
    chosen = list(ways())
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        for way in chosen:
            with _taken(way):
                for name, repeats, work in _works(way, records):
                    gc.collect()
                    began_s = time.process_time()
                    for _ in range(repeats):
                        work()
                    spent[name][way.name].append((time.process_time() - began_s) / repeats)
    table = Table("work", *[way.name for way in chosen], title=f"{len(records):,} records")
    for name, by_way in spent.items():
        plain_s = median(by_way["plain"])
        cells = [f"{median(s) / plain_s:.2f} ({median(s) * 1e6:,.2f} µs)" for s in by_way.values()]
        table.add_row(name, *cells)
    return table

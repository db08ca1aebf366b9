"""Groups are those that a plain loop over rows finds, in Spark's order."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.spark.tasks.grouped.key_order import groups

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.date32(): st.integers(-(10**6), 10**6),
    pa.timestamp("us"): st.integers(-(10**15), 10**15),
    pa.duration("us"): st.integers(-(10**15), 10**15),
    pa.decimal128(38, 2): st.decimals(-(10**35), 10**35, places=2, allow_nan=False),
    pa.list_(pa.float64()): st.lists(st.none() | st.floats(), max_size=3),
    pa.struct([("a", pa.string()), ("b", pa.list_(pa.list_(pa.int8())))]): st.fixed_dictionaries(
        {
            "a": st.none() | st.text(max_size=1),
            "b": st.none() | st.lists(st.none() | st.lists(st.integers(0, 3)), max_size=2),
        }
    ),
}


def place(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts a value where Spark sorts it."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, [place(value[name]) for name in sorted(value)])
    if isinstance(value, list):
        return (1, [place(inner) for inner in value])
    if isinstance(value, float):
        return (2, 0.0) if math.isnan(value) else (1, value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


@st.composite
def columns(draw: st.DrawFn) -> list[tuple[pa.DataType, list[Any]]]:
    rows = draw(st.integers(0, 30))
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    made = []
    for kind in kinds:
        some = draw(st.lists(st.none() | KINDS[kind], min_size=1, max_size=4))
        made.append((kind, [draw(st.sampled_from(some)) for _ in range(rows)]))
    return made


@given(columns(), st.integers(0, 2))
def test_groups(keys: list[tuple[pa.DataType, list[Any]]], offset: int) -> None:
    """The order of groups is stable, and holds for a slice as for a whole array."""
    arrays = [pa.array(values, kind)[offset:] for kind, values in keys]
    places = list(
        zip(*([place(value) for value in values[offset:]] for _, values in keys), strict=True)
    )
    expected = sorted(range(len(places)), key=lambda at: places[at])
    begins = [i for i, at in enumerate(expected) if not i or places[expected[i - 1]] != places[at]]
    order, starts = groups(arrays, len(places))
    assert expected == order.tolist()
    assert [*begins, len(places)] == starts.tolist() or not places


def test_many_values_in_lists() -> None:
    lists = pa.array([[at, 1] for at in reversed(range(600))])
    order, starts = groups([lists], len(lists))
    assert order.tolist() == list(reversed(range(600)))
    assert len(starts) == 601


def test_nothing_and_a_struct_of_nothing() -> None:
    """A null struct differs from a struct of nulls, whatever values lie under the null."""
    null = pa.array([True, False, True, False])
    structs = pa.StructArray.from_arrays([pa.array([2, None, 1, 0])], ["a"], mask=null)
    order, starts = groups([structs], len(structs))
    assert order.tolist() == [0, 2, 1, 3]
    assert starts.tolist() == [0, 2, 3, 4]

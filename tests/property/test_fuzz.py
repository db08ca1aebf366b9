"""Damaged inputs for everything that reads bytes; `make fuzz` tries many more."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from headgate.control.errors import Corrupt
from headgate.control.snapshots import container, records

from .fuzz import Reader, fuzz, readers

pytestmark = pytest.mark.usefixtures("no_thread_stays")

INPUTS = 1_500
READERS = tuple(readers())


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_bytes_give_a_value_or_an_error_of_ours(reader: Reader) -> None:
    assert "" == fuzz(reader, INPUTS, seed=7)[1]


NOTHING = {"type": "record", "name": "N", "fields": []}
NULLS = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize("item", ["null", NOTHING, NULLS], ids=["null", "nothing", "nulls"])
def test_a_few_bytes_never_say_much(item: object) -> None:
    """A list of half a billion items that take no bytes is refused before it is read."""
    listed = {"name": "l", "type": {"type": "array", "items": item}}
    schema = {"type": "record", "name": "Index", "fields": [listed]}
    out = io.BytesIO()
    fastavro.writer(out, schema, [{"l": []}])
    head, sync = out.getvalue()[: -16 - 3], out.getvalue()[-16:]
    number = b"\x80\x94\xeb\xdc\x03"  # 500,000,000
    body = number + b"\x00"
    with pytest.raises(Corrupt, match="not one of Headgate"):
        container.unpack(
            head + b"\x02" + bytes([2 * len(body)]) + body + sync,
            records.Index,
            lambda notes: None,
        )


FORMS = [("deflate", 1, "compressed"), ("null", 60, "nests values")]


@pytest.mark.parametrize(("codec", "depth", "why"), FORMS)
def test_foreign_forms_are_refused(codec: str, depth: int, why: str) -> None:
    """Compressed blocks and deeply nested records are refused: they may exhaust memory or stack."""
    kind: Any = "long"
    for level in range(depth):
        kind = {"type": "record", "name": f"N{level}", "fields": [{"name": "f", "type": kind}]}
    value: object = 1
    for _ in range(depth):
        value = {"f": value}
    out = io.BytesIO()
    fastavro.writer(out, kind, [value], codec=codec)
    with pytest.raises(Corrupt, match=why):
        container.unpack(out.getvalue(), records.Index, lambda notes: None)

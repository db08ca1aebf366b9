"""The types that Headgate carries."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    CharType,
    DataType,
    LongType,
    MapType,
    NullType,
    StructType,
)

from headgate import Invalid
from headgate.connectors.spark import types


@pytest.mark.parametrize("kind", [MapType(NullType(), LongType()), CharType(5)])
def test_types_that_arrow_does_not_carry_are_refused(kind: DataType) -> None:
    """Columns that Arrow does not carry are refused before a task runs, so Spark can run the
    exchange."""
    with pytest.raises(Invalid, match="cannot be carried"):
        types.check(StructType().add("id", LongType()).add("other", kind))


def test_null_structs_have_bytes() -> None:
    """A struct's fields take their bytes in every row, also in a null row; a list's items do
    not."""
    inner = pa.struct([("n", pa.int64()), ("is", pa.bool_()), ("d", pa.decimal128(38, 2))])
    kinds = [inner, pa.struct([("s", inner)]), pa.list_(inner), pa.string(), pa.null()]
    sizes = [types.least_bytes([pa.field("c", kind)]) for kind in kinds]
    assert [25, 25, 4, 4, 0] == sizes
    assert 58 == types.least_bytes(pa.schema([(str(at), kind) for at, kind in enumerate(kinds)]))

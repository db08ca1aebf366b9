"""The Arrow types that functions are given, in every version of PySpark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    LongType,
    MapType,
    NullType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headgate import Invalid
from headgate.connectors.spark import types
from headgate.connectors.spark.versions import VERSIONS

ZONE = "America/New_York"


@pytest.mark.parametrize("version", VERSIONS)
def test_timestamps_are_given_in_the_sessions_zone(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Timestamps have the session's zone, as the JVM writes them, even in a PySpark version that
    knows only UTC."""

    def of_version(schema: StructType, **zoned: Any) -> pa.Schema:
        return to_arrow_schema(schema, **(zoned or {"timezone": "UTC"}))

    moment = TimestampType()
    schema = StructType().add("t", moment, nullable=False).add("n", LongType())
    schema.add("plain", TimestampNTZType()).add("m", MapType(moment, moment, False))
    schema.add("nested", ArrayType(StructType().add("t", moment), containsNull=False))
    expected = to_arrow_schema(schema, timezone=ZONE)
    monkeypatch.setattr(types, "_VERSION", VERSIONS[version])
    monkeypatch.setattr(types, "to_arrow_schema", of_version)
    assert expected == types.given_schema(schema, ZONE)


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

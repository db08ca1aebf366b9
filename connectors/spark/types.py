"""Check which columns Headgate can carry, and map their types to Arrow's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from ...control.errors import Invalid
from .tasks.frames import LONG_DIGITS
from .versions import NEWEST, VERSIONS, version_of

_VERSION = version_of(pyspark.__version__) or VERSIONS[NEWEST]
TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_PLAIN = (*TIMES, T.DayTimeIntervalType, T.NumericType, T.BooleanType, T.BinaryType, T.NullType)
_SIMPLE_KEYS = (*TIMES, T.NumericType, T.BooleanType, T.BinaryType, T.StringType)
"""The types of keys that Spark neither refuses nor rewrites."""
_NAME = re.compile(r"\w+", re.ASCII)
_MONTHS = "int(extract(YEAR FROM {0}) * 12 + extract(MONTH FROM {0}))"


def carried_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema in which the JVM hands over rows of `schema`.

    Raises:
        Invalid: a column cannot be carried.
    """
    fields = [T.StructField(f.name, _carried(f.dataType), f.nullable) for f in schema]
    try:
        return to_arrow_schema(T.StructType(fields), **dict(_VERSION.to_arrow_schema))
    except (ValueError, TypeError, PySparkException) as exc:
        raise Invalid(f"columns of {schema.simpleString()} cannot be carried: {exc}") from exc


def least_bytes(fields: Iterable[pa.Field]) -> int:
    """Return the least bytes that a row takes in Arrow, whatever its values: the fields of a null
    struct count in full, a list or a text counts as one offset."""
    return sum(map(_least_bytes, (field.type for field in fields)))


def _least_bytes(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return least_bytes(kind)
    if pa.types.is_null(kind):
        return 0
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return -(-kind.bit_width // 8) if is_fixed else 4


def has_maps(schema: T.StructType) -> bool:
    """Return True if any column holds a map: a key of such rows may hold one too."""
    return any(isinstance(inner, T.MapType) for inner in _walk(schema))


def check(schema: T.StructType) -> None:
    """Refuse columns that cannot be carried, before any task runs.

    Raises:
        Invalid: a column cannot be carried, or there is no column.
    """
    if not schema.fields:
        raise Invalid("there are no columns to repartition")
    for field in schema:
        for inner in _walk(field.dataType):
            if isinstance(inner, T.CalendarIntervalType):
                raise Invalid(
                    f"column {field.name!r} holds a calendar interval, which cannot be carried; "
                    "make it a day-time or year-month interval"
                )
            if isinstance(inner, T.StructType) and len(set(inner.names)) < len(inner.names):
                raise Invalid(
                    f"column {field.name!r} holds {inner.simpleString()}, whose field "
                    "names repeat; rename them"
                )
    carried_schema(stored_schema(schema))


def check_public(schema: T.StructType) -> None:
    """Refuse columns that public PySpark cannot carry; `JvmRows` can.

    Raises:
        Invalid: there is such a column.
    """
    for field in schema:
        inside = list(_walk(field.dataType))[1:]
        if any(isinstance(inner, T.YearMonthIntervalType) for inner in inside):
            raise Invalid(
                f"column {field.name!r} holds a year-month interval inside "
                f"{field.dataType.simpleString()}, which public PySpark cannot carry"
            )


def check_public_keys(keys: T.StructType) -> None:
    """Refuse keys that SQL's `hash` hashes in another way than Spark's partitioning.

    Raises:
        Invalid: there is such a key.
    """
    for key in keys:
        for inner in _walk(key.dataType):
            collated = isinstance(inner, T.StringType) and not inner.isUTF8BinaryCollation()
            if collated or isinstance(inner, T.MapType):
                raise Invalid(
                    f"key {key.name!r} holds {inner.simpleString()}, which public PySpark "
                    "does not partition as Spark does"
                )


def may_be_given(kind: T.DataType) -> bool:
    """Return True if stored columns of a type can be passed to functions as PySpark does it."""
    given = (*_PLAIN, T.StringType, T.ArrayType, T.MapType, T.StructType)
    return all(isinstance(inner, given) for inner in _walk(kind))


def may_be_key(kind: T.DataType) -> bool:
    """Return True if keys of this type can be compared and ordered as Spark does."""
    if isinstance(kind, T.StringType):
        return kind.isUTF8BinaryCollation()
    if isinstance(kind, T.StructType):
        return all(may_be_key(field.dataType) for field in kind)
    if isinstance(kind, T.ArrayType):
        return may_be_key(kind.elementType)
    return isinstance(kind, _PLAIN)


def stored_schema(schema: T.StructType) -> T.StructType:
    """Return the schema in which rows are stored: columns are named by number, and types that only
    Spark knows are replaced."""
    stored = T.StructType()
    for at, field in enumerate(schema):
        stored.add(f"c{at}", _stored(field.dataType), field.nullable)
    return stored


def is_small(kind: T.DataType) -> bool:
    """Return True if decimals of a type are stored as whole numbers without their scale. In Arrow's
    own form each value would cost the JVM a big integer, when written and again when read."""
    return isinstance(kind, T.DecimalType) and kind.precision <= LONG_DIGITS


def to_carried(schema: T.StructType) -> list[Column]:
    """Return the renamed columns in the types in which they are stored."""
    return [_to(field.dataType, f"c{at}").alias(f"c{at}") for at, field in enumerate(schema)]


def back_from_carried(schema: T.StructType) -> list[Column]:
    """Return the stored columns under their original names and in their original types."""
    return [
        _back(field.dataType, f"c{at}").alias(field.name, metadata=field.metadata)
        for at, field in enumerate(schema)
    ]


def _stored(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.YearMonthIntervalType):
        return T.IntegerType()
    return T.LongType() if is_small(kind) else kind


def _to(kind: T.DataType, name: str) -> Column:
    if isinstance(kind, T.YearMonthIntervalType):
        return F.expr(_MONTHS.format(f"cast({name} as interval year to month)"))
    if isinstance(kind, T.DecimalType) and is_small(kind):
        return F.expr(f"cast({name} * {10**kind.scale}BD as bigint)")
    return F.col(name)


def _back(kind: T.DataType, name: str) -> Column:
    if isinstance(kind, T.YearMonthIntervalType):
        return F.expr(f"make_ym_interval(0, {name})").cast(kind)
    if isinstance(kind, T.DecimalType) and is_small(kind):
        unit = Decimal(1).scaleb(-kind.scale)
        return F.expr(f"cast({name} as decimal(18, 0)) * {unit:f}BD").cast(kind)
    return F.col(name)


def _walk(kind: T.DataType) -> Iterator[T.DataType]:
    yield kind
    if isinstance(kind, T.UserDefinedType):
        yield from _walk(kind.sqlType())
    elif isinstance(kind, T.ArrayType):
        yield from _walk(kind.elementType)
    elif isinstance(kind, T.MapType):
        yield from _walk(kind.keyType)
        yield from _walk(kind.valueType)
    elif isinstance(kind, T.StructType):
        for field in kind:
            yield from _walk(field.dataType)


def _carried(kind: T.DataType) -> T.DataType:
    """Return the type of the same layout that pyarrow knows: a year-month interval becomes a 32-bit
    integer."""
    if isinstance(kind, T.YearMonthIntervalType):
        return T.IntegerType()
    if isinstance(kind, T.UserDefinedType):
        return _carried(kind.sqlType())
    if isinstance(kind, T.ArrayType):
        nothing = isinstance(kind.elementType, T.NullType)  # that of array() is never null
        return T.ArrayType(_carried(kind.elementType), kind.containsNull or nothing)
    if isinstance(kind, T.MapType):
        return T.MapType(_carried(kind.keyType), _carried(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType(
            [T.StructField(f.name, _carried(f.dataType), f.nullable, f.metadata) for f in kind]
        )
    return kind


def places(schema: T.StructType, keys: Sequence[str | Column]) -> list[int] | None:
    """Return the places of keys that are plainly named, None where Spark has to find out what is
    meant: its analyzer takes as long as optimizing the plan of an exchange of few rows. Java may
    take letters beyond ASCII for others that Python tells apart."""
    names = [field.name for field in schema.fields]  # the user may have changed `schema.names`
    alike = [name.lower() for name in names]
    if not all(map(str.isascii, names)):
        return None
    chosen = []
    for key in keys:
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            return None
        if key not in names or alike.count(key.lower()) > 1:
            return None
        place = names.index(key)
        if not isinstance(schema.fields[place].dataType, _SIMPLE_KEYS):
            return None
        chosen.append(place)
    return chosen

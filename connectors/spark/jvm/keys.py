"""Find the columns that the keys of an exchange name, without Spark's analyzer: its answer takes as
long as optimizing the plan of an exchange of few rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql.types import BinaryType, BooleanType, NumericType, StringType, StructType

from ..types import TIMES

_NAME = re.compile(r"\w+", re.ASCII)
_SIMPLE = (*TIMES, NumericType, BooleanType, BinaryType, StringType)
"""The types of keys that Spark neither refuses nor rewrites."""


def places(schema: StructType, keys: Sequence[str | Column]) -> list[int] | None:
    """Return the places of keys that are plainly named, None where Spark has to find out what is
    meant. Java may take letters beyond ASCII for others that Python tells apart."""
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
        if not isinstance(schema.fields[place].dataType, _SIMPLE):
            return None
        chosen.append(place)
    return chosen

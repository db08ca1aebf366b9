"""Grouped functions in a physical plan, behind the private door."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from .calls import Call
from .grouping import may_be_key
from .jvm import Jvm, name_of
from .shuffles import Shuffle
from .types import may_be_given

_FUNCTIONS = {"FlatMapGroupsInArrowExec": PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF}
_SORT = "SortExec"
_PROFILED = "spark.sql.pyspark.udf.profiler"
_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
_ZONE = "spark.sql.session.timeZone"


def function_over(shuffle: Shuffle) -> Any:
    """The node that gives the rows of an exchange, sorted for it and nothing else, to a function of
    the user's, group by group; None when there is none. Rows that the user has sorted come to it
    through a projection."""
    if len(shuffle.above) < 2:
        return None
    *_, node, last = shuffle.above
    return node if name_of(last) == _SORT and name_of(node) in _FUNCTIONS else None


def call_of(jvm: Jvm, shuffle: Shuffle, node: Any, conf: Any) -> Call | None:
    """What a task that reads an exchange has to call; None when that is left to Spark."""
    made = node.func()
    function = made.func()
    known = made.evalType() == _FUNCTIONS[name_of(node)]
    own = conf.get(_LARGE) == "true" or conf.get(_PROFILED, None)
    if not known or own or not function.broadcastVars().isEmpty():
        return None
    rows: StructType = StructType.fromJson(json.loads(shuffle.node.schema().json()))
    places = _places(jvm, shuffle.node.output())
    keys = [places[_id(one)] for one in jvm.items(node.groupingAttributes())]
    columns = [places[_id(one)] for one in jvm.items(made.children())]
    may_be = all(may_be_key(rows[at].dataType) for at in keys)
    if not may_be or not all(may_be_given(field.dataType) for field in rows):
        return None
    schema = to_arrow_schema(rows, timezone=conf.get(_ZONE))
    by_name = conf.get(_BY_NAME) == "true"
    command = bytes(function.command().unsafeArray())
    return Call(command, tuple(keys), tuple(columns), schema.serialize().to_pybytes(), by_name)


def _places(jvm: Jvm, output: Any) -> dict[str, int]:
    return {_id(one): at for at, one in enumerate(jvm.items(output))}


def _id(attribute: Any) -> str:
    return str(attribute.exprId().toString())

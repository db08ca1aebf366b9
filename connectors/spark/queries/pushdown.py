"""Find the nodes of a physical plan whose work reading tasks can do: they call functions group by
group, and merge partial aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import PythonEvalType

from ..jvm.bridge import Jvm, name_of
from ..settings import ENCRYPTED, is_true
from ..tasks.grouped.function import Call, FunctionSettings
from ..tasks.partial_aggregates import Merging
from ..types import TIMES, may_be_given, may_be_key
from .exchange_finder import over
from .exchange_nodes import Caller, Reading, Shuffle

_CALLERS = {
    "FlatMapGroupsInArrowExec",
    "FlatMapGroupsInPandasExec",
    "FlatMapCoGroupsInArrowExec",
    "FlatMapCoGroupsInPandasExec",
}


def _kinds(*names: str) -> frozenset[int]:
    """Return the numbers of these kinds of functions, as far as this Spark has them."""
    kinds = (getattr(PythonEvalType, f"SQL_{name}_UDF", None) for name in names)
    return frozenset(kind for kind in kinds if kind is not None)


_ARROW = _kinds("GROUPED_MAP_ARROW", "GROUPED_MAP_ARROW_ITER", "COGROUPED_MAP_ARROW")
_PANDAS = _kinds("GROUPED_MAP_PANDAS", "GROUPED_MAP_PANDAS_ITER", "COGROUPED_MAP_PANDAS")
_BY_BATCH = _kinds("GROUPED_MAP_ARROW_ITER", "GROUPED_MAP_PANDAS_ITER")
_AGGREGATES, _MERGES = {"HashAggregateExec", "SortAggregateExec"}, {"Final", "PartialMerge"}
_KERNELS = {
    "Count": ("sum",),
    "Sum": ("sum",),
    "Average": ("sum", "sum"),
    "Min": ("min",),
    "Max": ("max",),
}
_UNMERGED = (T.NullType, T.ArrayType, T.StructType)  # Arrow does not group by these
_SUMMED = (T.LongType, T.DoubleType)
_COMPARED = (T.IntegralType, T.DecimalType, T.StringType, *TIMES)
_SQL = "spark.sql."
_PROFILED = f"{_SQL}pyspark.udf.profiler"
_UNSUPPORTED = (
    f"{_SQL}execution.arrow.useLargeVarTypes",
    f"{_SQL}execution.pyspark.udf.faulthandler.enabled",
    f"{_SQL}execution.pyspark.udf.killOnIdleTimeout",
    f"{_SQL}execution.pyspark.udf.hideTraceback.enabled",
    f"{_SQL}execution.pyspark.udf.tracebackWithLocals.enabled",
    f"{_SQL}pyspark.worker.logging.enabled",
    ENCRYPTED,  # our files are not encrypted
)
_ZONE = f"{_SQL}session.timeZone"
_BY_NAME = f"{_SQL}legacy.execution.pandas.groupedMap.assignColumnsByName"
_SAFELY = f"{_SQL}execution.pandas.convertToArrowArraySafely"
_DECIMALS = f"{_SQL}execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_NULLABLE = f"{_SQL}execution.pythonUDF.pandas.preferIntExtensionDtype"
_BATCH_ROWS = f"{_SQL}execution.arrow.maxRecordsPerBatch"


def plan_calls(jvm: Jvm, shuffles: Sequence[Shuffle], conf: Any) -> None:
    """Plan which exchanges are read by the tasks that call a function."""
    for caller in _callers(jvm, shuffles, conf):
        for shuffle in caller.shuffles:
            shuffle.reading = Reading(caller=caller)


def _callers(jvm: Jvm, shuffles: Iterable[Shuffle], conf: Any) -> Iterator[Caller]:
    """Yield the nodes that call a user's function for each group of rows, and whose rows come from
    exchanges only, at most sorted by Spark. Between a node and a sort of the user's there is a
    projection, so such a node is left out."""
    under: dict[int, tuple[Any, list[Shuffle]]] = {}
    for shuffle in shuffles:
        if above := over(shuffle, _CALLERS):
            under.setdefault(id(above[-1]), (above[-1], []))[1].append(shuffle)
    for node, inputs in under.values():
        if len(inputs) == node.children().size() and (call := _call(jvm, node, inputs, conf)):
            yield Caller(node, call, tuple(inputs))


def merging_of(jvm: Jvm, shuffle: Shuffle) -> Merging | None:
    """Return the way to merge an exchange's rows for the aggregate right above it, None if they
    cannot be merged."""
    if not (above := over(shuffle, _AGGREGATES)):
        return None
    node = above[-1]
    kernels: list[str] = []
    for aggregate in jvm.items(node.aggregateExpressions()):
        function = aggregate.aggregateFunction()
        function_kernels = _KERNELS.get(name_of(function), ())
        is_supported = function.aggBufferAttributes().size() == len(function_kernels)
        if not function_kernels or not is_supported or name_of(aggregate.mode()) not in _MERGES:
            return None
        kernels += function_kernels
    kinds = [field.dataType for field in shuffle.node.rows]
    keys = node.groupingExpressions().size()
    if not keys or len(kinds) != keys + len(kernels):
        return None
    may_be = all(may_be_key(kind) and not isinstance(kind, _UNMERGED) for kind in kinds[:keys])
    behind = zip(kinds[keys:], kernels, strict=True)
    return Merging(keys, tuple(kernels)) if may_be and all(_has(*pair) for pair in behind) else None


def _has(kind: T.DataType, kernel: str) -> bool:
    """Return True if Arrow's kernel for a type gives the same as Spark."""
    return isinstance(kind, _SUMMED if kernel == "sum" else _COMPARED) and may_be_key(kind)


def _call(jvm: Jvm, node: Any, shuffles: Sequence[Shuffle], conf: Any) -> Call | None:
    """Return the function for the tasks that read the exchanges, None where Spark must call it."""
    udf = node.func()
    function, kind = udf.func(), udf.evalType()
    unsupported = any(is_true(conf.get(key, None)) for key in _UNSUPPORTED)
    unsupported = unsupported or conf.get(_PROFILED, None) or not function.broadcastVars().isEmpty()
    if kind not in _ARROW | _PANDAS or unsupported:
        return None
    rows = [shuffle.node.given for shuffle in shuffles]
    keys = (node.groupingAttributes() if len(rows) == 1 else node.leftGroup()).size()
    kinds = [[field.dataType for field in side.fields[:keys]] for side in rows]
    may_be = all(map(may_be_key, kinds[0])) and all(side_kinds == kinds[0] for side_kinds in kinds)
    if (
        not may_be
        or node.output().isEmpty()
        or not all(may_be_given(field.dataType) for side in rows for field in side)
    ):
        return None
    zone = conf.get(_ZONE)
    schemas = [to_arrow_schema(side, timezone=zone) for side in rows]
    settings = FunctionSettings(
        zone,
        by_name=is_true(conf.get(_BY_NAME)),
        safely=is_true(conf.get(_SAFELY)),
        decimals_from_ints=is_true(conf.get(_DECIMALS)),
        nullable_ints=is_true(conf.get(_NULLABLE)),
        batch_rows=int(conf.get(_BATCH_ROWS)),
    )
    command = bytes(function.command().unsafeArray())
    columns = tuple(shuffle.node.columns for shuffle in shuffles)
    return Call(
        command, kind in _PANDAS, kind in _BY_BATCH, keys, columns, tuple(schemas), settings
    )

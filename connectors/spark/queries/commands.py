"""SQL commands that write or cache the rows of a query, behind the private door.

No command runs here before its query has. What cannot be opened is left to Spark, which reports the
errors of a text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as Classic

from ..jvm.bridge import REFUSALS, Jvm, is_cancelled, name_of
from ..jvm.names import CLASSES
from ..jvm.saves import folder_of

_BEGIN = re.compile(r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*+(\w+)", re.DOTALL)
_WORDS = {"insert", "create", "replace", "merge", "update", "delete", "with", "from", "cache"}
_INSERTS = {"InsertIntoStatement", "InsertIntoDir"}
_WRITES = {
    *("CreateTableAsSelect", "ReplaceTableAsSelect"),
    *("MergeIntoTable", "UpdateTable", "DeleteFromTable"),
    *_INSERTS,
}
_CACHES = {"CacheTable", "CacheTableAsSelect"}
_MERGE = "MergeRows"


class OptimizedQuery(Classic):
    """A query whose plan Spark has optimized with its command. To optimize the plan again would
    undo the choice of the files that the command has to read and write anew."""

    def __init__(self, logical: Any, spark: SparkSession) -> None:
        super().__init__(Jvm(spark)["dataset"].ofRows(spark._jsparkSession, logical), spark)
        self.logical = logical

    def __new__(cls, *_: Any) -> OptimizedQuery:
        return object.__new__(cls)


@dataclass(frozen=True, slots=True)
class WritingCommand:
    """A command that is analyzed but has not run. A text with several inserts is one command."""

    queries: tuple[DataFrame, ...]
    """The queries whose rows it writes."""
    folders: tuple[str, ...]
    """The folders that it overwrites, even if the query of the same place reads them; empty if
    Spark checks that."""
    _plan: Any
    _nodes: tuple[Any, ...]
    """The nodes of the plan that write, in the order of the queries."""

    def run(self, rows: Iterable[DataFrame]) -> DataFrame:
        """Write other rows in place of the queries', and return the command's answer."""
        spark = self.queries[0].sparkSession
        jvm = Jvm(spark)
        nodes = [_with_rows(jvm, *each) for each in zip(self._nodes, rows, strict=True)]
        alone = self._nodes == (self._plan,)
        plan = nodes[0] if alone else self._plan.withNewChildren(jvm.seq(nodes))
        return _frame(jvm, plan, spark)


@dataclass(frozen=True, slots=True)
class CacheCommand:
    """A command that caches a table and fills the cache at once."""

    table: str
    _spark: SparkSession
    _node: Any

    def run(self) -> DataFrame:
        """Cache the table without filling the cache, and return the command's answer."""
        jvm = Jvm(self._spark)
        return _frame(jvm, _copy(jvm, self._node, {"isLazy": True}), self._spark)

    def undo(self) -> None:
        """Forget the cache and its view, as Spark does if it cannot fill the cache."""
        self._spark.catalog.uncacheTable(self.table)
        if name_of(self._node) == "CacheTableAsSelect":
            self._spark.catalog.dropTempView(str(self._node.tempViewName()))


def open_command(spark: SparkSession, text: str) -> WritingCommand | CacheCommand | None:
    """Return the command of a text, None if Spark has to run it. The session must be the active one
    of this thread: the parser uses the active session's settings."""
    begin = _BEGIN.match(text)
    if begin is None or begin.group(1).lower() not in _WORDS:
        return None
    try:
        return _opened(spark, text)
    except REFUSALS as exc:
        if is_cancelled(exc):
            raise
        return None


def _opened(spark: SparkSession, text: str) -> WritingCommand | CacheCommand | None:
    jvm, state = Jvm(spark), spark._jsparkSession.sessionState()
    statement = parsed = state.sqlParser().parsePlan(text)
    if name_of(parsed) in _CACHES:
        return None if parsed.isLazy() else CacheCommand(_table(jvm, parsed), spark, parsed)
    if name_of(parsed) == "UnresolvedWith":
        statement = parsed.child()
    several = name_of(statement) == "Union"
    statements = jvm.items(statement.children()) if several else [statement]
    if not {name_of(each) for each in statements} <= (_INSERTS if several else _WRITES):
        return None
    if name_of(statement) == "CreateTableAsSelect" and spark.catalog.tableExists(
        _quoted(jvm.items(statement.name().nameParts()))
    ):
        return None  # Spark refuses it, or does nothing
    execution = state.executePlan(parsed, jvm.only("command modes").SKIP())
    plan, version_2 = execution.analyzed(), jvm["class"].forName(CLASSES["version 2"])
    nodes = jvm.items(plan.children()) if several else [plan]
    if is_optimized := all(version_2.isInstance(node) for node in nodes):
        plan = execution.optimizedPlan()  # with the exchanges that the tables ask for
        nodes = jvm.items(plan.children()) if several else [plan]
    if not all("query" in _fields(node) for node in nodes):
        return None
    query_of = OptimizedQuery if is_optimized else partial(_frame, jvm)
    queries = tuple(query_of(_source(node), spark) for node in nodes)
    folders = tuple(_overwritten(spark, node) for node in nodes)
    return WritingCommand(queries, folders, plan, tuple(nodes))


def _overwritten(spark: SparkSession, node: Any) -> str:
    """Return the folder that a node overwrites without a check of Spark's, empty if none."""
    if name_of(node) != "InsertIntoDataSourceDirCommand" or not node.overwrite():
        return ""
    return folder_of(spark, str(node.storage().locationUri().get().toString()))[0]


def _source(node: Any) -> Any:
    """Return the plan of the rows that a node writes. A merge of them stays with the node: Spark
    counts there what the table then notes about the merge."""
    query = node.query()
    return query.child() if name_of(query) == _MERGE else query


def _with_rows(jvm: Jvm, node: Any, rows: DataFrame) -> Any:
    """Return a node that writes other rows in place of its query's."""
    query, source = node.query(), _source(node)
    written = _same_columns(jvm, source.output(), rows)
    if name_of(query) == _MERGE:
        written = query.withNewChildren(jvm.seq([written]))
    return _copy(jvm, node, {"query": written, "analyzedQuery": jvm["option"].apply(written)})


def _same_columns(jvm: Jvm, columns: Any, rows: DataFrame) -> Any:
    """Return the plan of rows under the ids of other columns, by which a command names them."""
    logical = rows._jdf.queryExecution().analyzed()
    given = jvm.items(logical.output())
    pairs = list(zip(given, jvm.items(columns), strict=True))
    if all(column.exprId().equals(wanted.exprId()) for column, wanted in pairs):
        return logical
    return jvm["project"](
        jvm.seq(
            column
            if column.exprId().equals(wanted.exprId())
            else jvm.alias(column, wanted, wanted.metadata())
            for column, wanted in pairs
        ),
        logical,
    )


def _table(jvm: Jvm, node: Any) -> str:
    """Return the name of the table that a command caches, as SQL takes it."""
    if name_of(node) == "CacheTableAsSelect":
        return _quoted([node.tempViewName()])
    return _quoted(jvm.items(node.multipartIdentifier()))


def _quoted(parts: Iterable[Any]) -> str:
    return ".".join("`{}`".format(str(part).replace("`", "``")) for part in parts)


def _frame(jvm: Jvm, logical: Any, spark: SparkSession) -> DataFrame:
    """Return the DataFrame of a plan. A command runs now."""
    return DataFrame(jvm["dataset"].ofRows(spark._jsparkSession, logical), spark)


def _fields(node: Any) -> list[str]:
    return [str(node.productElementName(at)) for at in range(node.productArity())]


def _copy(jvm: Jvm, node: Any, others: Mapping[str, Any]) -> Any:
    """Return a node with other values in some of its fields; an empty option stays empty."""
    values = jvm["list"]()
    for at, name in enumerate(_fields(node)):
        value = node.productElement(at)
        values.add(others[name] if name in others and value != jvm.nothing() else value)
    return node.makeCopy(values.toArray())

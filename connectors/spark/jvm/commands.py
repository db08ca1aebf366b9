"""SQL commands that write or cache the rows of a query, behind the private door.

No command runs here before its query has. What cannot be opened is left to Spark, which reports the
errors of a text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from .bridge import Jvm, name_of
from .saves import folder_of

_BEGIN = re.compile(r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)
_WORDS = {"insert", "create", "replace", "merge", "update", "delete", "with", "from", "cache"}
_INSERTS = {"InsertIntoStatement", "InsertIntoDir"}
_WRITES = {
    *("CreateTableAsSelect", "ReplaceTableAsSelect"),
    *("MergeIntoTable", "UpdateTable", "DeleteFromTable"),
    *_INSERTS,
}
_CACHES = {"CacheTable", "CacheTableAsSelect"}
_VERSION_2 = "org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand"
_MODE = "org.apache.spark.sql.execution.CommandExecutionMode"


@dataclass(frozen=True, slots=True)
class WritingCommand:
    """A command that is analyzed but has not run."""

    query: DataFrame
    """The query whose rows it writes."""
    folder: str
    """The folder that it overwrites, even if the query reads it; empty if Spark checks that."""
    _node: Any

    def run(self, rows: DataFrame) -> DataFrame:
        """Write other rows in place of the query's, and return the command's answer."""
        spark = self.query.sparkSession
        jvm = Jvm(spark)
        written = _same_columns(jvm, self._node.query().output(), rows)
        others = {"query": written, "analyzedQuery": jvm["option"].apply(written)}
        return _run(spark, jvm, _copy(jvm, self._node, others))


@dataclass(frozen=True, slots=True)
class CacheCommand:
    """A command that caches a table and fills the cache at once."""

    table: str
    _spark: SparkSession
    _node: Any

    def run(self) -> DataFrame:
        """Cache the table without filling the cache, and return the command's answer."""
        jvm = Jvm(self._spark)
        return _run(self._spark, jvm, _copy(jvm, self._node, {"isLazy": True}))

    def undo(self) -> None:
        """Forget the table, as Spark does if it cannot fill the cache."""
        if name_of(self._node) == "CacheTableAsSelect":
            self._spark.catalog.uncacheTable(self.table)
            self._spark.catalog.dropTempView(str(self._node.tempViewName()))


def open_commands(spark: SparkSession, text: str) -> list[WritingCommand] | CacheCommand:
    """Return the command of a text, or its several inserts; none if Spark has to run it."""
    begin = _BEGIN.match(text)
    if begin is None or begin.group(1).lower() not in _WORDS:
        return []
    try:
        return _opened(spark, text)
    except (Py4JError, PySparkException):
        return []


def _opened(spark: SparkSession, text: str) -> list[WritingCommand] | CacheCommand:
    jvm, state = Jvm(spark), spark._jsparkSession.sessionState()
    statement = parsed = state.sqlParser().parsePlan(text)
    if name_of(parsed) in _CACHES:
        return [] if parsed.isLazy() else CacheCommand(_table(jvm, parsed), spark, parsed)
    if name_of(parsed) == "UnresolvedWith":
        statement = parsed.child()
    several = name_of(statement) == "Union"
    statements = jvm.items(statement.children()) if several else [statement]
    if not {name_of(each) for each in statements} <= (_INSERTS if several else _WRITES):
        return []
    if name_of(statement) == "CreateTableAsSelect" and spark.catalog.tableExists(
        _quoted(jvm.items(statement.name().nameParts()))
    ):
        return []  # Spark refuses it, or does nothing
    execution = state.executePlan(parsed, jvm.only(_MODE).SKIP())
    analyzed = execution.analyzed()
    if several:
        nodes = jvm.items(analyzed.children())
    elif jvm["class"].forName(_VERSION_2).isInstance(analyzed):
        nodes = [execution.optimizedPlan()]  # with the exchange that the table asks for
    else:
        nodes = [analyzed]
    commands = [_writing(spark, jvm, node) for node in nodes]
    return [command for command in commands if command] if all(commands) else []


def _writing(spark: SparkSession, jvm: Jvm, node: Any) -> WritingCommand | None:
    if "query" not in _fields(node):
        return None
    query = DataFrame(jvm["dataset"].ofRows(spark._jsparkSession, node.query()), spark)
    folder = ""
    if name_of(node) == "InsertIntoDataSourceDirCommand" and node.overwrite():
        folder, _ = folder_of(spark, str(node.storage().locationUri().get().toString()))
    return WritingCommand(query, folder, node)


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


def _run(spark: SparkSession, jvm: Jvm, node: Any) -> DataFrame:
    return DataFrame(jvm["dataset"].ofRows(spark._jsparkSession, node), spark)


def _fields(node: Any) -> list[str]:
    return [str(node.productElementName(at)) for at in range(node.productArity())]


def _copy(jvm: Jvm, node: Any, others: Mapping[str, Any]) -> Any:
    """Return a node with other values in some of its fields; an empty option stays empty."""
    values = jvm["list"]()
    for at, name in enumerate(_fields(node)):
        value = node.productElement(at)
        values.add(others[name] if name in others and value != jvm.nothing() else value)
    return node.makeCopy(values.toArray())

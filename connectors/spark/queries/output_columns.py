"""Give a plan the columns and the limit of the user's query.

Spark's optimizer may forget that a column cannot be null, and merges aliases of a column that have
different metadata.
"""

from __future__ import annotations

from typing import Any

from ..jvm.bridge import Jvm, name_of
from .exchange_finder import TOP


class OutputColumns:
    """The columns and the limit of a query. `asked` is its analyzed plan, `top` the limit that was
    taken off the root of its physical plan, or None."""

    def __init__(self, jvm: Jvm, asked: Any, top: Any) -> None:
        self._jvm = jvm
        self._asked = asked
        self._top = top
        self._projects = top is not None and name_of(top) == TOP

    def columns(self, root: Any) -> Any:
        """Return a root's columns with the names, types and metadata of the query."""
        last = root if self._top is None else self._top
        if last.schema().equals(self._asked.schema()):
            return root.output()
        output, stated = self._jvm.items(root.output()), self._jvm.items(self._asked.output())
        if self._projects:
            projected = self._jvm.items(last.projectList())
            pairs = zip(projected, stated, strict=True)
            asked = {column.exprId(): named for column, named in pairs}
            stated = [asked.get(column.exprId(), column) for column in output]
        return self._jvm.seq(map(self._column, stated, output))

    def limited(self, rows: Any) -> Any:
        """Return a logical plan of these rows with the limit above them."""
        top = self._top
        if top is None:
            return rows
        nothing, integer = self._jvm.nothing(), self._jvm["types"].IntegerType
        if self._projects:
            rows = self._jvm["sort"](top.sortOrder(), True, rows, nothing)
        if top.limit() >= 0:
            limit = self._jvm["literal"](top.limit(), integer)
            rows = self._jvm["limit"](limit, self._jvm["local limit"](limit, rows))
        if top.offset() > 0:
            rows = self._jvm["offset"](self._jvm["literal"](top.offset(), integer), rows)
        return self._jvm["project"](self._project_list(), rows) if self._projects else rows

    def _project_list(self) -> Any:
        projected = self._top.projectList()
        if self._top.schema().equals(self._asked.schema()):
            return projected
        pairs = zip(self._jvm.items(projected), self._jvm.items(self._asked.output()), strict=True)
        return self._jvm.seq([self._projected(asked, column) for column, asked in pairs])

    def _projected(self, asked: Any, column: Any) -> Any:
        if name_of(column) != "Alias":
            return self._column(asked, column)
        return self._jvm.alias(column.child(), column, asked.metadata())

    def _column(self, asked: Any, column: Any) -> Any:
        kind, nulls, metadata = asked.dataType(), asked.nullable(), asked.metadata()
        return self._jvm["column"](
            asked.name(), kind, nulls, metadata, column.exprId(), column.qualifier()
        )

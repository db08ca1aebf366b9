"""The last columns of a plan and its limit, as the user's query states them.

Spark's optimizer loses sight of what cannot be null, and merges aliases that say different things
of a column.
"""

from __future__ import annotations

from typing import Any

from ..jvm.bridge import Jvm, name_of
from .exchange_finder import TOP


class OutputColumns:
    """`asked` is the query as Spark has analyzed it, `top` the limit that was taken off the root of
    its plan."""

    def __init__(self, jvm: Jvm, asked: Any, top: Any) -> None:
        self._jvm = jvm
        self._asked = asked
        self._top = top
        self._projects = top is not None and name_of(top) == TOP

    def columns(self, root: Any) -> Any:
        """Return the columns that a root gives."""
        last = root if self._top is None else self._top
        if last.schema().equals(self._asked.schema()):
            return root.output()
        given = last.projectList() if self._projects else root.output()
        pairs = zip(self._jvm.items(given), self._jvm.items(self._asked.output()), strict=True)
        asked = {one.exprId(): stated for one, stated in pairs}
        columns = [
            self._column(asked.get(one.exprId(), one), one)
            for one in self._jvm.items(root.output())
        ]
        return self._jvm.seq(columns)

    def limited(self, rows: Any) -> Any:
        """Return a logical plan with the limit above these rows."""
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
        found = self._top.projectList()
        if self._top.schema().equals(self._asked.schema()):
            return found
        pairs = zip(self._jvm.items(found), self._jvm.items(self._asked.output()), strict=True)
        return self._jvm.seq([self._projected(asked, one) for one, asked in pairs])

    def _projected(self, asked: Any, one: Any) -> Any:
        if name_of(one) != "Alias":
            return self._column(asked, one)
        metadata, nothing = self._jvm["option"].apply(asked.metadata()), self._jvm.seq()
        return self._jvm["alias"](
            one.child(), one.name(), one.exprId(), one.qualifier(), metadata, nothing
        )

    def _column(self, asked: Any, given: Any) -> Any:
        kind, nulls, metadata = asked.dataType(), asked.nullable(), asked.metadata()
        return self._jvm["column"](
            asked.name(), kind, nulls, metadata, given.exprId(), given.qualifier()
        )

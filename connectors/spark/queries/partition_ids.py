"""Make expressions for the partition of a row: by Spark's hash or ordering, or round robin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F

from ..jvm.catalyst import CatalystDoor
from .exchange_nodes import HASH, ROUND_ROBIN, ExchangeNode

_SAMPLED = "spark.sql.execution.rangeExchange.sampleSizePerPartition"
_SAMPLED_MAX = 1_000_000
_DEAL = (
    "cast(pmod(monotonically_increasing_id() + shiftright(monotonically_increasing_id(), 33), {}L)"
    " as int)"
)


class PartitionIds:
    def __init__(self, door: CatalystDoor, session: Any) -> None:
        self._door = door
        self._session = session
        self._jvm = door.jvm

    def first(self) -> Any:
        """Return the expression that puts all rows into the first partition."""
        return self._jvm["literal"](0, self._jvm["types"].IntegerType)

    def number(self, exchange: ExchangeNode, rows: Callable[[], Any]) -> Any:
        """Return the expression for a row's partition. `rows` returns a physical plan of the rows,
        where these have to be sampled."""
        if exchange.count == 1:
            return self.first()
        if exchange.kind == HASH:
            return exchange.partitioning.partitionIdExpression()
        if exchange.kind == ROUND_ROBIN:
            return self._resolved(_DEAL.format(exchange.count))
        return self._range(exchange, rows)

    def _resolved(self, text: str) -> Any:
        """Return an expression without columns, resolved by Spark's analyzer."""
        parsed = self._session.sessionState().sqlParser().parseExpression(text)
        columns, nowhere = self._jvm.seq([self._door.alias(parsed, "n")]), self._jvm.seq()
        rows = self._jvm["project"](columns, self._door.relation(nowhere))
        analyzed = self._door.frame(rows, self._session)._jdf.queryExecution().analyzed()
        return analyzed.projectList().apply(0).child()

    def _range(self, exchange: ExchangeNode, rows: Callable[[], Any]) -> Any:
        """Return the place of a row's keys among bounds, in the order of Spark's range exchange."""
        by = self._jvm.items(exchange.partitioning.ordering())
        keys = [order.child() for order in by]
        ordering = self._jvm["ordering"](
            self._jvm.seq(
                self._jvm["order"](
                    self._jvm["bound"](at, order.dataType(), order.nullable()),
                    order.direction(),
                    order.nullOrdering(),
                    self._jvm.seq(),
                )
                for at, order in enumerate(by)
            )
        )
        bounds = self._bounds(rows(), keys, ordering, exchange.count)
        objects = self._jvm["class"].forName("[Ljava.lang.Object;")
        comparator = self._jvm["class"].forName("java.util.Comparator")
        arguments = [
            self._constant(bounds, objects),
            self._jvm["struct"].apply(self._jvm.seq(keys)),
            self._constant(ordering, comparator),
        ]
        integer = self._jvm["types"].IntegerType
        place = self._jvm["call"](
            self._jvm["class"].forName("java.util.Arrays"),
            integer,
            "binarySearch",
            self._jvm.seq(arguments),
            self._jvm.seq(),
            False,
            False,
            True,
            self._jvm.nothing(),
        )
        # for a key that is not a bound, binarySearch gives -1 - number
        sign = self._jvm["shift"](place, self._jvm["literal"](31, integer))
        return self._jvm["xor"](place, sign)

    def _constant(self, value: Any, kind: Any) -> Any:
        return self._jvm["literal"](value, self._jvm["object"](kind))

    def _bounds(self, plan: Any, keys: list[Any], ordering: Any, count: int) -> Any:
        """Run a job that samples the rows, and return the upper bounds of all partitions but the
        last."""
        wanted = int(self._session.conf().get(_SAMPLED, "100")) * count
        named = self._jvm.seq(self._door.alias(key, f"k{at}") for at, key in enumerate(keys))
        rows = self._jvm["project"](named, self._door.stage(plan))
        frame = self._door.frame(rows, self._session, is_analyzed=True)
        drawn = (
            frame.withColumn("drawn", F.rand()).orderBy("drawn").limit(min(wanted, _SAMPLED_MAX))
        )
        sample = drawn.drop("drawn")._jdf.queryExecution().executedPlan()
        with self._door.executing():
            drawn_rows = sample.executeCollect()
        keyed = self._jvm["array"].unsafeWrapArray(drawn_rows).sorted(ordering)
        step = max(1, keyed.size() // count)
        end = min(step * (count - 1), keyed.size())
        places = self._jvm.only("numbers").apply(step - 1, end, step)
        bounds = places.map(keyed)
        objects = self._jvm["class"].forName("java.lang.Object")
        return bounds.toArray(self._jvm.only("tags").apply(objects))

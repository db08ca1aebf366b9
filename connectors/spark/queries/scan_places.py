"""Scans in the places of a plan's exchanges.

A plan that comes of it is checked before a row is read: each scan stands exactly where Spark's plan
reads the exchange, gives the columns that the exchange gives, and what Spark requires of siblings
in a join, an aggregate or a window holds. Whatever goes wrong before, no wrong row comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....control.errors import Corrupt
from ..jvm.bridge import Jvm

_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"
_REQUIREMENTS = "org.apache.spark.sql.execution.exchange.ValidateRequirements"

Place = tuple[Any, Any]  # a node of a plan, and what stands there instead


@dataclass(frozen=True)
class Scan:
    """A node that reads an exchange, and the node of Spark's plan whose columns it gives."""

    reads: Any
    node: Any


class ScanPlaces:
    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._subquery = jvm.only(_PATTERNS).PLAN_EXPRESSION()

    def replace(self, plan: Any, places: Sequence[Place]) -> Any:
        """Return the plan with other nodes in some places.

        Raises:
            Corrupt: two places are equal, and what is to stand there is not.
        """
        if not places:
            return plan
        return plan.transformDownWithSubqueries(self._jvm.mapping(places))

    def scan(self, node: Any, output: Any, reads: Any) -> Scan:
        """Return what may stand in the place of a node with this output.

        Raises:
            Corrupt: it does not give the columns of the exchange.
        """
        if not reads.output().equals(output):
            raise Corrupt("a stage reads an exchange with other columns than it has")
        return Scan(reads, node)

    def fill(self, plan: Any, scans: Sequence[tuple[Any, Scan]], cut: Sequence[Any] = ()) -> Any:
        """Return the plan with scans in the places of nodes, checked; `cut` are the joins that
        read what is skewed in pieces.

        Raises:
            Corrupt: the plan that came of it is not the one that was asked for.
        """
        if not scans:
            return plan
        planned = self.replace(plan, [(join, _skewed(join)) for join in cut])
        filled = self.replace(planned, [(node, scan.reads) for node, scan in scans])
        self.check(planned, filled, scans)
        return filled

    def check(self, planned: Any, filled: Any, scans: Sequence[tuple[Any, Scan]]) -> None:
        """Check a plan that was filled against the one that Spark has made.

        Raises:
            Corrupt: it would not give the same rows.
        """
        if any(scan.node is not node for node, scan in scans):
            raise Corrupt("a stage reads an exchange in the place of another")
        asked_for = self.replace(filled, [(scan.reads, node) for node, scan in scans])
        if not asked_for.equals(planned):
            raise Corrupt("a stage does not read its exchanges where Spark's plan reads them")
        if not self._holds(filled) and self._holds(planned):
            raise Corrupt("a stage reads exchanges that must be read alike in different parts")

    def _holds(self, plan: Any) -> bool:
        """Return whether each node of a plan, and of its subqueries, has its rows where it needs
        them."""
        asked = plan.containsPattern(self._subquery)
        subqueries = self._jvm.items(plan.subqueriesAll()) if asked else []
        return all(map(self._jvm.only(_REQUIREMENTS).validate, [plan, *subqueries]))


def _skewed(join: Any) -> Any:
    """Return a join that no longer asks where the rows of its sides are: the last of its
    parameters, in either kind of join, says so."""
    *others, _ = (join.productElement(at) for at in range(join.productArity()))
    return join.copy(*others, True)

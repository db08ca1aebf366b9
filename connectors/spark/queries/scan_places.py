"""Put scans in the places of a plan's exchanges.

The new plan is checked before a row is read. Each scan must be exactly where Spark's plan reads the
exchange, and must have the exchange's columns. Spark's requirements on the inputs of a join, an
aggregate or a window must hold. So an earlier mistake cannot give a wrong row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....control.errors import Corrupt
from ..jvm.bridge import Jvm

Place = tuple[Any, Any]  # a node of a plan, and the node to put there


@dataclass(frozen=True)
class Scan:
    """A scan of a stored exchange."""

    reads: Any
    """The node that reads the exchange."""
    node: Any
    """The node of Spark's plan whose place it takes."""


class ScanPlaces:
    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def replace(self, plan: Any, places: Sequence[Place]) -> Any:
        """Return the plan with other nodes in some places.

        Raises:
            Corrupt: two places are equal, and the nodes to put there are not.
        """
        if not places:
            return plan
        return plan.transformDownWithSubqueries(self._jvm.mapping(places))

    def scan(self, node: Any, output: Any, reads: Any) -> Scan:
        """Return a scan for the place of a node with this output.

        Raises:
            Corrupt: the scan has other columns than the exchange.
        """
        if not reads.output().equals(output):
            raise Corrupt("a stage reads an exchange with other columns than it has")
        return Scan(reads, node)

    def fill(self, plan: Any, scans: Sequence[tuple[Any, Scan]], cut: Sequence[Any] = ()) -> Any:
        """Return the plan with scans in the places of nodes, after a check. `cut` are the joins
        that read skewed subpartitions in pieces.

        Raises:
            Corrupt: the new plan would not give the same rows.
        """
        if not scans:
            return plan
        planned = self.replace(plan, [(join, _skewed(join)) for join in cut])
        filled = self.replace(planned, [(node, scan.reads) for node, scan in scans])
        self.check(planned, filled, scans)
        return filled

    def check(self, planned: Any, filled: Any, scans: Sequence[tuple[Any, Scan]]) -> None:
        """Check a filled plan against Spark's plan.

        Raises:
            Corrupt: the filled plan would not give the same rows.
        """
        if any(scan.node is not node for node, scan in scans):
            raise Corrupt("a stage reads an exchange in the place of another")
        asked_for = self.replace(filled, [(scan.reads, node) for node, scan in scans])
        if not asked_for.equals(planned):
            # a replacement makes the filters of pruned scans anew, and these are equal to no others
            unchanged = self.replace(planned, [(node, node) for node, _ in scans])
            if not asked_for.equals(unchanged):
                raise Corrupt("a stage does not read its exchanges where Spark's plan reads them")
        if not self._holds(filled) and self._holds(planned):
            raise Corrupt("a stage reads exchanges that must be read alike in different parts")

    def _holds(self, plan: Any) -> bool:
        """Return True if Spark's requirements hold for each node of a plan and its subqueries."""
        asked = plan.containsPattern(self._jvm.subquery)
        subqueries = self._jvm.items(plan.subqueriesAll()) if asked else []
        return all(map(self._jvm.only("requirements").validate, [plan, *subqueries]))


def _skewed(join: Any) -> Any:
    """Return a copy of a join that does not require a distribution of its sides. The last parameter
    of both kinds of joins says that."""
    *others, _ = (join.productElement(at) for at in range(join.productArity()))
    return join.copy(*others, True)

"""The plan of a query on Spark's SQL page."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.connectors.spark.jvm.pages import plan_tree
from headgate.connectors.spark.jvm.pages.plan_tree import PlanTree, lines
from headgate.control.events.types import Produced, ResultRegistered, SegmentSummary
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.model.persistent import PersistentMap
from headgate.control.model.state import Production, Reads, ResultState, Totals, Written


def node(name: str, *children: Any) -> Any:
    return {"nodeName": name, "simpleString": name, "children": [*children], "metrics": []}


def shown(tree: PlanTree) -> list[str]:
    return [line.partition(":")[0] for line in lines(tree.tree())]


def test_stages_are_below_the_scans_of_their_results() -> None:
    """A result that is scanned twice has its stage below the first scan, and only there."""
    tree = PlanTree()
    tree.stage("1-01", "hash", node("Range"))
    tree.stage("1-02", "hash", node("Sort", node("Scan Headgate 1-01")))
    assert shown(tree)[:2] == ["Headgate exchange 1-02 hash", "   Sort"]
    tree.last(node("Join", node("Scan Headgate 1-02"), node("Scan Headgate 1-01")))
    assert shown(tree) == [
        "Join",
        "   Scan Headgate 1-02",
        "      Headgate exchange 1-02 hash",
        "         Sort",
        "            Scan Headgate 1-01",
        "               Headgate exchange 1-01 hash",
        "                  Range",
        "   Scan Headgate 1-01",
    ]


def test_an_exchange_that_nobody_scans_is_shown() -> None:
    """Exchanges that the last stage does not read are below its root, beside the others."""
    tree = PlanTree()
    assert shown(tree) == ["Headgate"]
    for result in ("1-01", "1-02"):
        tree.stage(result, "hash", node("Range"))
    tree.last(node("Sort", node("Scan Headgate 1-02")))
    assert shown(tree)[0] == "Sort"
    assert shown(tree)[-2:] == ["   Headgate exchange 1-01 hash", "      Range"]


def test_tasks_that_read_several_results() -> None:
    """A scan of several results has the stages of all of them below it."""
    tree = PlanTree()
    for result in ("1-01", "1-02"):
        tree.stage(result, "hash", node("Range"))
    tree.last(node("Scan Headgate 1-01 1-02-combined"))
    assert [line.strip() for line in shown(tree)] == [
        "Scan Headgate 1-01 1-02-combined",
        "Headgate exchange 1-01 hash",
        "Range",
        "Headgate exchange 1-02-combined combines the objects of its map stage",
        "Headgate exchange 1-02 hash",
        "Range",
    ]


def test_boxes_have_one_child() -> None:
    """Spark's page draws only the first child of a box of fused operators, so what nobody scans is
    below the first operator inside, and is drawn outside of the box."""
    tree = PlanTree()
    tree.stage("1-01", "hash", node("Range"))
    tree.last(node("WholeStageCodegen (1)", node("Sort", node("Project"))))
    (sort,) = tree.tree()["children"]
    assert ["Project", "InputAdapter"] == [below["nodeName"] for below in sort["children"]]
    assert shown(tree)[-2:] == ["      Headgate exchange 1-01 hash", "         Range"]


def test_a_combined_result_is_above_the_result_that_it_combines() -> None:
    """A scan of combined objects shows both results."""
    tree = PlanTree()
    tree.stage("1-01", "hash", node("Range"))
    tree.last(node("Scan Headgate 1-01-combined"))
    assert [line.strip() for line in shown(tree)] == [
        "Scan Headgate 1-01-combined",
        "Headgate exchange 1-01-combined combines the objects of its map stage",
        "Headgate exchange 1-01 hash",
        "Range",
    ]


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition has a value of its own, but not those of very many partitions, and none where
    one was made again. Bytes that nobody has read are no value."""
    tree = PlanTree()
    tree.stage("r", "hash", node("Range"))
    tree.tree()
    rows, sizes, read = (metric["accumulatorId"] for metric in tree.tree()["metrics"])
    written = [(rows, 7), (rows, 8), (sizes, 70), (sizes, 80)]
    assert written == tree.values({ResultId("r"): state(Written(2, 2, 15, 150), Reads())})
    some = Reads(15, 120, 2, 1)
    once = state(Written(2, 2, 15, 150), some)
    assert [*written, (read, 120)] == tree.values({ResultId("r"): once})
    again = state(Written(3, 3, 22, 220), some)
    assert [(rows, 22), (sizes, 220), (read, 120)] == tree.values({ResultId("r"): again})
    monkeypatch.setattr(plan_tree, "_PARTITIONS_MAX", 1)
    assert [(rows, 15), (sizes, 150), (read, 120)] == tree.values({ResultId("r"): once})


def state(written: Written, reads: Reads) -> ResultState:
    """Return a result of two partitions, of 7 and 8 rows."""
    result = ResultId("r")
    attempts = [AttemptId(PartitionId(result, index), 1, index) for index in range(2)]
    produced = {
        attempt: Produced(attempt, (SegmentSummary(0, 70 + 10 * at, 7 + at, 0, b""),))
        for at, attempt in enumerate(attempts)
    }
    production = Production(
        attempts=PersistentMap(produced), winners=PersistentMap(enumerate(attempts))
    )
    totals = Totals(written=written, reads=reads)
    return ResultState(
        ResultRegistered(result, 2, 1, "", ""), production, totals=totals, complete=True
    )

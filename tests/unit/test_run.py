"""Tasks of an exchange begin when the log has its registration, and not before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headgate.connectors.spark.exchanges.progress import Progress
from headgate.connectors.spark.exchanges.rerun import Reruns
from headgate.connectors.spark.exchanges.run import Exchanger, ExchangeRun
from headgate.connectors.spark.exchanges.spec import ExchangeSpec
from headgate.connectors.spark.exchanges.stored import StoredResults
from headgate.connectors.spark.jvm.catalyst import Lineage
from headgate.connectors.spark.jvm.names import Features
from headgate.control.contract import ShuffleDescriptor
from headgate.control.errors import HeadgateError, Invalid, OutcomeUnknown, Unavailable
from headgate.control.ids import JobId, ResultId

RESULT = ResultId("r")
Register = Callable[..., Future[ShuffleDescriptor]]


def written(register: Register) -> tuple[list[str], HeadgateError]:
    """Write an exchange of no partitions; return what happened, and the error that ended it."""
    seen: list[str] = []

    def run() -> list[int]:
        seen.append("tasks")
        return []

    def complete(descriptor: ShuffleDescriptor) -> None:
        seen.append("complete")
        raise Unavailable("enough seen")

    master: Any = SimpleNamespace(
        register_partition_with_producer=register,
        await_complete=complete,
        release_partition_externally=lambda descriptor: seen.append("released"),
    )
    worker: Any = SimpleNamespace(job=JobId("j"), wait_s=0.2)
    store: Any = None
    results = StoredResults(master, store, worker, 1, Reruns.__new__(Reruns))
    current: Any = SimpleNamespace(
        exchanges=SimpleNamespace(codec="none"), budget=SimpleNamespace(is_limited=False)
    )
    stage = SimpleNamespace(count=0, run=run)
    rows: Any = SimpleNamespace(
        schema=pa.schema([]), lineage=lambda: Lineage(True, True), writes=lambda task: stage
    )
    settings: Any = SimpleNamespace(hide=str, describe=lambda described: None)
    readers: Any = None
    spec = ExchangeSpec(RESULT, "", rows, "", 1, settings, readers)
    exchanger = Exchanger(cast(SparkSession, None), Features(), None, current, results, Progress())
    with pytest.raises(HeadgateError) as caught:
        ExchangeRun(exchanger, spec).run()
    return seen, caught.value


def test_tasks_begin_before_the_decision() -> None:
    """Tasks begin while a registration that the log has is still undecided. What they made is read
    only after the decision."""
    undecided: Future[ShuffleDescriptor] = Future()
    seen, error = written(lambda *_: undecided)
    assert ["tasks", "released"] == seen
    assert "no master has answered the registration of result r" in str(error)
    undecided.set_result(ShuffleDescriptor(JobId("j"), RESULT, 0, 1, 1))
    assert ["tasks", "complete", "released"] == written(lambda *_: undecided)[0]


def test_no_task_begins_before_the_log_has_the_registration() -> None:
    """A registration that the log has not confirmed starts nothing."""

    def unconfirmed(*_: object) -> Future[ShuffleDescriptor]:
        raise OutcomeUnknown("no confirmation")

    seen, error = written(unconfirmed)
    assert (["released"], OutcomeUnknown) == (seen, type(error))


def test_a_refused_registration_ends_the_exchange() -> None:
    """Rows that tasks made for a refused registration are not read."""
    refused: Future[ShuffleDescriptor] = Future()
    refused.set_exception(Invalid("the name is taken"))
    seen, error = written(lambda *_: refused)
    assert (["tasks", "released"], Invalid) == (seen, type(error))

"""Tasks of an exchange begin when the log has its registration, and not before."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.exchanges.progress import Progress
from headgate.connectors.spark.exchanges.rerun import Reruns
from headgate.connectors.spark.exchanges.run import Exchanger, ExchangeRun
from headgate.connectors.spark.exchanges.spec import ExchangeSpec
from headgate.connectors.spark.exchanges.stored import StoredResults
from headgate.connectors.spark.jvm import task_rdds
from headgate.connectors.spark.jvm.catalyst import Lineage
from headgate.connectors.spark.jvm.names import Features
from headgate.control.contract import ShuffleDescriptor
from headgate.control.errors import HeadgateError, Invalid, OutcomeUnknown, Unavailable
from headgate.control.ids import JobId, ResultId
from headgate.storage.reading.ways import DIRECT, Way

RESULT = ResultId("r")
RDD: Any = SimpleNamespace(mapPartitionsWithIndex=lambda _: RDD, getNumPartitions=int, collect=list)
Register = Callable[..., Future[ShuffleDescriptor]]


def runner(master: Any, stage: Any) -> tuple[StoredResults, ExchangeRun]:
    """Return the stored results of a session, and an exchange whose map stage is `stage`."""
    worker: Any = SimpleNamespace(job=JobId("j"), wait_s=0.2, limits=None)
    store: Any = None
    results = StoredResults(master, store, worker, 1, Reruns.__new__(Reruns))
    current: Any = SimpleNamespace(
        exchanges=SimpleNamespace(codec="none", combine=True),
        budget=SimpleNamespace(is_limited=False, costs=None),
    )
    source: Any = SimpleNamespace(
        schema=pa.schema([]), lineage=lambda: Lineage(True, True), writes=lambda task: stage
    )
    settings: Any = SimpleNamespace(hide=str, describe=lambda described: None)
    readers: Any = None
    spec = ExchangeSpec(RESULT, "", source, "", 1, settings, readers)
    context: Any = SimpleNamespace(parallelize=lambda *_: RDD)
    spark = cast(SparkSession, SimpleNamespace(sparkContext=context))
    exchanger = Exchanger(spark, Features(), None, current, results, Progress())
    return results, ExchangeRun(exchanger, spec)


def written(register: Register) -> tuple[list[str], HeadgateError]:
    """Write an exchange of no partitions; return what happened, and the error that ended it."""
    seen: list[str] = []

    def tasks() -> list[int]:
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
    results, exchange = runner(master, SimpleNamespace(count=0, run=tasks))
    with pytest.raises(HeadgateError) as caught, results.pending() as pending:
        exchange.run(pending)
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


def test_the_map_stage_of_a_combined_result_holds_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map stage may run again as long as the combined rows are stored. It holds neither the
    user's query, which would never be garbage, nor the state of the result that is combined."""

    class Query:
        def estimate(self) -> float:
            return 0.0

    class State:
        registered = SimpleNamespace(result=RESULT, partitions=0)

    registered: Future[ShuffleDescriptor] = Future()
    registered.set_result(ShuffleDescriptor(JobId("j"), RESULT, 0, 1, 1))
    query, states = Query(), [State(), State()]
    gone: list[Any] = [weakref.ref(query), *map(weakref.ref, states)]
    master: Any = SimpleNamespace(
        register_partition_with_producer=lambda *_: registered,
        await_complete=lambda _: states.pop(),
        release_partition_externally=lambda _: None,
        announce=lambda *_: None,
    )
    results, exchange = runner(master, SimpleNamespace(count=0, run=list))
    costs, readers = SimpleNamespace(gets=0), SimpleNamespace(executors=1)
    way = SimpleNamespace(way=Way(1, 1), combining=costs, reading=costs, combining_s=0, reading_s=0)
    monkeypatch.setattr(run, "exchange_size", lambda *_: SimpleNamespace(readers=readers))
    monkeypatch.setattr(run, "choose", lambda *_: way)
    monkeypatch.setattr(run, "predict", lambda *_: SimpleNamespace(**{**vars(way), "way": DIRECT}))
    monkeypatch.setattr(run, "combined_parts", lambda *_: ())
    monkeypatch.setattr(task_rdds, "require_carried", lambda: None)
    monkeypatch.setattr(results, "place", lambda descriptor, *_: descriptor.result)
    combined: Any = exchange.run([], query.estimate)
    assert "r-combined" == combined
    del query, exchange
    assert [None] * 3 == [each() for each in gone]
    assert results.reruns.writing_of(ResultId("r-combined")) is not None

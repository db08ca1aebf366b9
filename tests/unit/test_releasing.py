"""Releasing a session's stored results: a release that failed can be repeated."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from headgate import Closed, Headgate, Invalid, Unavailable
from headgate.connectors.spark.exchanges import exchange
from headgate.connectors.spark.exchanges.exchange import Exchanger
from headgate.connectors.spark.exchanges.lifetimes import Lifetimes, NoReader
from headgate.connectors.spark.exchanges.rerun import Reruns
from headgate.connectors.spark.jvm.caches import Cache
from headgate.connectors.spark.queries.session_queries import SessionQueries
from headgate.control.contract import ShuffleDescriptor
from headgate.control.ids import ResultId, job_id
from headgate.infra.start import session_hook

FIRST, SECOND = (ShuffleDescriptor(job_id("job"), ResultId(name), 1, 1, 1) for name in "ab")


def refuse(*_: object) -> None:
    raise RuntimeError("no frame")


PLAN = SimpleNamespace(executed=None, shown=None, is_adaptive=False)
DOOR: Any = SimpleNamespace(
    exchange_plan=lambda *_: PLAN,
    shown=lambda _: None,
    rows_behind=refuse,
    weakly=refuse,
)


class Frame:
    """A stand-in for a DataFrame that can only be told from others."""


class Master:
    """A master that releases results, except in the calls that are to fail."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.calls = 0
        self.released: list[ShuffleDescriptor] = []

    def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        self.calls += 1
        if self.calls in self.failing:
            raise Unavailable("no decision")
        self.released.append(descriptor)


def session(master: Master) -> Headgate:
    context: Any = SimpleNamespace(conf=SimpleNamespace(get=str))
    reruns = Reruns(context, job_id("job"), "tests", lambda _: None)
    current = SimpleNamespace(look_up=lambda: None)
    means: Any = SimpleNamespace(
        epoch=1, current=current, master=master, reruns=reruns, forget=reruns.forget
    )
    services: Any = SimpleNamespace(require_whole_log=lambda: None)
    exchanger = Exchanger(context, means, DOOR)
    return Headgate(exchanger, SessionQueries(exchanger, services.require_whole_log), services)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_release_that_failed_can_be_called_again(failing: int) -> None:
    """A query is known until all of its results are released, whichever release failed."""
    master, frame = Master(failing), Frame()
    hg: Any = session(master)
    hg._queries.finished[frame] = SimpleNamespace(results=(FIRST, SECOND))
    with pytest.raises(Unavailable):
        hg.release(frame)
    hg.release(frame)
    assert [FIRST, SECOND] == list(dict.fromkeys(master.released))
    with pytest.raises(Invalid):
        hg.release(frame)


def test_an_exchange_whose_release_failed_is_known() -> None:
    """A DataFrame of `repartition` whose release failed can be released again."""
    master, frame = Master(1), Frame()
    hg: Any = session(master)
    hg._written[frame] = SimpleNamespace(descriptor=FIRST)
    with pytest.raises(Unavailable):
        hg.release(frame)
    hg.release(frame)
    assert [FIRST] == master.released


def test_a_report_of_a_closed_job_is_refused_as_such() -> None:
    """The error after the end of `with headgate.attach(spark)` says that the job is closed, in each
    session, and there are no last words."""
    hg: Any = session(Master())
    hg._exchanger.job_context.worker = SimpleNamespace(job="job")
    guest: Any = Headgate(hg._exchanger, hg._queries, hg._services, is_guest=True)
    hg._queries._closed.set()
    hg._ended = True
    for each in (hg, guest):
        with pytest.raises(Closed, match="job job is closed: ask for results and reports before"):
            each.results()
        with pytest.raises(Closed):
            each.ops.is_available("1-0001")
        with pytest.raises(Closed):
            each.ops.may_release_executor("host")
    assert "" == session_hook._last_words(hg)


def test_only_results_that_can_be_read_are_named() -> None:
    """The error for a name that the job does not have names no result that was released."""
    released, kept = (
        SimpleNamespace(complete=True, fate=SimpleNamespace(released=reason))
        for reason in ("asked for", None)
    )
    state: Any = SimpleNamespace(job="job", results={"1-0001": released, "1-0002": kept})
    with pytest.raises(Invalid, match=r"its complete results are: 1-0002$"):
        exchange.readable(state, ResultId("typo"))


def test_what_nobody_reads_is_released_by_a_later_sweep() -> None:
    """A sweep that fails forgets nothing: the next sweep releases the same results and those behind
    them."""
    master = Master(1)
    kept = Lifetimes(lambda results: master.release_partition_externally(results[0]))
    kept.add(NoReader(), (FIRST,))
    kept.add(NoReader(), (SECOND,))
    kept.sweep()
    assert [] == master.released
    assert {FIRST.result, SECOND.result} == kept.results
    kept.sweep()
    kept.sweep()
    assert [FIRST, SECOND] == master.released


def test_what_an_action_could_not_release_is_kept() -> None:
    """Rows that an action could not release are released by a later query's sweep."""
    master, frame = Master(1), Frame()
    hg: Any = session(master)
    hg._queries.finished[frame] = SimpleNamespace(results=(FIRST,))
    hg._queries.forget(frame)
    hg._queries.lifetimes.sweep()
    assert [FIRST] == master.released


def test_an_exchange_without_a_frame_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored rows are released when Spark makes no DataFrame of them."""
    master = Master()
    exchanger = session(master)._exchanger
    settings = SimpleNamespace(carried=nullcontext, hide=str)
    monkeypatch.setattr(exchange, "TaskSettings", lambda _: settings)
    monkeypatch.setattr(exchange, "JvmTransport", lambda *_: SimpleNamespace(reads=refuse))
    written = SimpleNamespace(descriptor=FIRST, read=None)
    monkeypatch.setattr(Exchanger, "write", lambda *_, **__: written)
    page = SimpleNamespace(line="job.py:1", begin=lambda *_: None, stage=lambda *_: None)
    monkeypatch.setattr(Exchanger, "page", lambda _: nullcontext(page))
    df: Any = SimpleNamespace(schema=StructType().add("k", "long"))
    with pytest.raises(RuntimeError, match="no frame"):
        exchanger.run(df, 2, ["k"], FIRST.result)
    assert [FIRST] == master.released


def test_a_cache_that_is_not_filled_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were stored to fill a cache are released when Spark does not take it."""
    master = Master()
    hg: Any = session(master)
    done = SimpleNamespace(refused=(), results=(FIRST, SECOND))
    filling = SimpleNamespace(refusals=lambda *_, **__: [""], run=lambda _: (Frame(), done))
    cache = SimpleNamespace(is_empty=True, fill=refuse)
    monkeypatch.setattr(hg._queries, "fillings", lambda *_: [(filling, cache)])
    monkeypatch.setattr(hg._queries, "_filling_of", lambda _: nullcontext())
    with pytest.raises(RuntimeError, match="no frame"):
        hg._queries.fill(None, None)
    assert [FIRST, SECOND] == master.released


def test_what_nobody_can_be_seen_to_read_is_released() -> None:
    """Rows whose reader Spark does not tell are released at once."""
    master = Master()
    hg: Any = session(master)
    with pytest.raises(RuntimeError, match="no frame"):
        hg._queries.keep(Frame(), (FIRST,))
    assert [FIRST] == master.released


def test_a_cache_that_is_not_filled_has_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that Spark did not fill with our rows gets its former plan back."""
    plans: list[str] = []
    builder = SimpleNamespace(
        cachedPlan=lambda: "its own", cachedColumnBuffers=refuse, clearCache=lambda _: None
    )
    door: Any = SimpleNamespace(
        rows_behind=lambda plan: (plan, 1),
        weakly=lambda plan: SimpleNamespace(get=lambda: plan),
        executing=nullcontext,
    )
    execution = SimpleNamespace(executedPlan=lambda: "ours")
    frame: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))
    monkeypatch.setattr(Cache, "plan_by", lambda _, plan: plans.append(plan))
    with pytest.raises(RuntimeError, match="no frame"):
        Cache(builder).fill(door, frame)
    assert ["ours", "its own"] == plans

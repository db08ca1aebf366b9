"""The stored results of a session: who reads them, and when they are released."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

from headgate import Closed, Headgate, Invalid, Unavailable
from headgate.connectors.spark.exchanges import run
from headgate.connectors.spark.exchanges.progress import Progress
from headgate.connectors.spark.exchanges.rerun import Reruns
from headgate.connectors.spark.exchanges.run import Exchanger, ExchangeRun
from headgate.connectors.spark.exchanges.stored import StoredResults, readable
from headgate.connectors.spark.jvm.caches import Cache
from headgate.connectors.spark.jvm.names import Feature
from headgate.connectors.spark.queries.session_queries import SessionQueries
from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.contract import ShuffleDescriptor
from headgate.control.ids import ResultId, job_id
from headgate.infra.start import session_hook

FIRST, SECOND = (ShuffleDescriptor(job_id("job"), ResultId(name), 1, 1, 1) for name in "ab")


def refuse(*_: object) -> None:
    raise RuntimeError("no frame")


DOOR: Any = SimpleNamespace(
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
    job: Any = SimpleNamespace(job="job")
    current: Any = SimpleNamespace(look_up=lambda: None)
    services: Any = SimpleNamespace(require_whole_log=lambda: None)
    door: Any = DOOR
    results = StoredResults(cast(Any, master), services, job, 1, reruns)
    exchanger = Exchanger(context, frozenset(Feature), door, current, results, Progress())
    queries = SessionQueries(exchanger, services.require_whole_log, is_public=False)
    return Headgate(exchanger, queries, services)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_release_that_failed_can_be_called_again(failing: int) -> None:
    """A query is known until all of its results are released, whichever release failed."""
    master, frame = Master(failing), Frame()
    hg: Any = session(master)
    hg._results.add(frame, SimpleNamespace(results=(FIRST, SECOND)))
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
    hg._results.add(frame, SimpleNamespace(results=(FIRST,)))
    with pytest.raises(Unavailable):
        hg.release(frame)
    hg.release(frame)
    assert [FIRST] == master.released


def test_a_report_of_a_closed_job_is_refused_as_such() -> None:
    """The error after the end of `with headgate.attach(spark)` says that the job is closed, in each
    session, and there are no last words."""
    hg: Any = session(Master())
    guest: Any = Headgate(hg._exchanger, hg._queries, hg._services, is_guest=True)
    hg._results.closed.set()
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
        readable(state, ResultId("typo"))


def test_what_nobody_reads_is_released_by_a_later_sweep() -> None:
    """A sweep that fails forgets nothing: the next sweep releases the same results and those behind
    them."""
    master = Master(1)
    results: Any = session(master)._results
    for each in (FIRST, SECOND):
        results.hold((each,), lambda: SimpleNamespace(is_gone=lambda: True))
    results.sweep()
    assert [] == master.released
    assert {FIRST.result, SECOND.result} == results.in_use
    results.sweep()
    results.sweep()
    assert [FIRST, SECOND] == master.released
    assert not results.in_use


def test_what_an_action_could_not_release_is_kept() -> None:
    """Rows that an action could not release are released by a later query's sweep."""
    master = Master(1)
    results = session(master)._results
    results.end((FIRST,))
    assert [] == master.released
    results.sweep()
    assert [FIRST] == master.released


def without_frame(monkeypatch: pytest.MonkeyPatch, hg: Any, page: Any) -> None:
    """Let Spark make no DataFrame of the rows of an exchange, or of a result that is read."""
    settings = SimpleNamespace(carried=nullcontext, hide=str)
    rows: Any = SimpleNamespace(reads=refuse, schema=None)
    stored: Any = SimpleNamespace(descriptor=FIRST, results=(FIRST,), read=None)
    registered = SimpleNamespace(schema=StructType().json(), partitions=1, subpartitions=1)
    monkeypatch.setattr(run, "TaskSettings", lambda *_: settings)
    monkeypatch.setattr(run, "StoredReader", lambda *_: rows)
    monkeypatch.setattr(run, "readable", lambda *_: SimpleNamespace(registered=registered))
    monkeypatch.setattr(run, "PublicRows", lambda *_: rows)
    monkeypatch.setattr(Exchanger, "readers", lambda *_: SimpleNamespace(executors=1))
    monkeypatch.setattr(Exchanger, "page", lambda _: page)
    monkeypatch.setattr(ExchangeRun, "run", lambda _, pending, __: pending.append(FIRST) or stored)
    monkeypatch.setattr(StoredResults, "state", None)
    monkeypatch.setattr(hg._results, "place", lambda *_: stored)


@contextmanager
def shown(fails: bool) -> Iterator[Any]:
    yield SimpleNamespace(line="job.py:1", begin=lambda *_: None, stage=lambda *_: None)
    if fails:
        refuse()


@pytest.mark.parametrize("fails", [True, False], ids=["page", "frame"])
def test_an_exchange_without_a_frame_is_released(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Stored rows are released when Spark makes no DataFrame of them, or fails before."""
    master = Master()
    hg: Any = session(master)
    without_frame(monkeypatch, hg, shown(fails))
    df: Any = SimpleNamespace(schema=StructType().add("k", "long"))
    with pytest.raises(RuntimeError, match="no frame"):
        replace(hg._exchanger, door=None).repartition(df, 2, ["k"])
    assert [FIRST] == master.released


def test_a_result_that_cannot_be_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that `read` makes no DataFrame of stays stored: others have written it, and may read
    it."""
    master = Master()
    hg: Any = session(master)
    without_frame(monkeypatch, hg, None)
    with pytest.raises(RuntimeError, match="no frame"):
        hg.read("a")
    assert [] == master.released


def test_unused_results_are_forgotten() -> None:
    """The driver remembers nothing of results that `remove_unused` has released: it would remember
    more with each exchange of a long job."""
    results: Any = session(Master())._results
    results.master.remove_unused = lambda *_: (FIRST.result,)
    results.made_by(FIRST.result, None)
    results.read_by(1, [SimpleNamespace(descriptor=FIRST, ordered=True)])
    assert (FIRST.result,) == results.remove_unused(())
    assert not results._memories
    assert not results._scans


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
    assert [SECOND, FIRST] == master.released


def test_what_nobody_can_be_seen_to_read_is_released() -> None:
    """Rows whose reader Spark does not tell are released at once."""
    master = Master()
    hg: Any = session(master)
    with pytest.raises(RuntimeError, match="no frame"):
        hg._queries._keep(Frame(), SimpleNamespace(results=(FIRST,)))
    assert [FIRST] == master.released


def test_a_cache_that_is_not_filled_has_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that Spark did not fill with our rows gets its former plan back."""
    plans: list[str] = []
    builder = SimpleNamespace(
        cachedPlan=lambda: "its own", cachedColumnBuffers=refuse, clearCache=lambda _: None
    )
    door: Any = SimpleNamespace(
        rows_behind=lambda plan: plan,
        weakly=lambda plan: SimpleNamespace(get=lambda: plan),
        executing=nullcontext,
    )
    execution = SimpleNamespace(executedPlan=lambda: "ours")
    frame: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))
    monkeypatch.setattr(Cache, "plan_by", lambda _, plan: plans.append(plan))
    with pytest.raises(RuntimeError, match="no frame"):
        Cache(builder).fill(door, frame)
    assert ["ours", "its own"] == plans


def test_an_answer_is_kept_for_each_way_of_reading() -> None:
    """A limited query that is collected and one that is not each keep rows of their own. Both are
    released when no DataFrame can ask for them any more."""
    master, asked, collected, others = Master(), Frame(), Frame(), Frame()
    results: Any = session(master)._results
    results.state_of = lambda _: SimpleNamespace(fate=SimpleNamespace(released=None))

    def answers() -> list[Any]:
        with results.reading(asked, True) as first, results.reading(asked, False) as second:
            return [first, second]

    results.keep_answer(asked, (True,), collected, (FIRST,))
    assert [collected, None] == answers()
    results.keep_answer(asked, (False,), others, (SECOND,))
    assert [collected, others] == answers()
    asked = Frame()
    deadline = Deadline.after(5.0)
    while len(master.released) < 2 and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.01)
    assert {FIRST, SECOND} == set(master.released)
    results.close()


def test_an_answer_that_somebody_released_is_no_answer() -> None:
    """Rows serve both ways of reading until they are released. They are in use while they are
    read."""
    master, asked, rows = Master(), Frame(), Frame()
    results: Any = session(master)._results
    fate = SimpleNamespace(released=None)
    results.state_of = lambda _: SimpleNamespace(fate=fate)
    results.keep_answer(asked, (True, False), rows, (FIRST,))
    for is_collected in (True, False):
        with results.reading(asked, is_collected) as answer:
            assert answer is rows
            assert {FIRST.result} == results.in_use
    fate.released = "by an operator"
    with results.reading(asked, True) as answer:
        assert answer is None
    results.close()


def test_what_is_pending_is_dropped() -> None:
    """Each result that an exchange has written before it fails is dropped, the last first, also if
    the log does not answer. A result that somebody reads is not."""
    master = Master(1)
    results = session(master)._results
    with suppress(RuntimeError), results.pending() as pending:
        pending += [FIRST, SECOND]
        refuse()
    assert [FIRST] == master.released
    with results.pending() as pending:
        pending.append(SECOND)
        pending.clear()
    assert [FIRST] == master.released


def test_an_action_that_fails_leaves_the_rows_of_its_dataframe() -> None:
    """The stored rows of a DataFrame of `repartition` or `offload` stay when an action on it fails,
    or when it is checkpointed: they are not the action's."""
    master, frame = Master(), Frame()
    hg: Any = session(master)
    hg._results.add(frame, SimpleNamespace(results=(FIRST,)))
    hg._queries._instead = lambda df, *_, **__: nullcontext((df, None))
    for way in (hg._queries._asking, hg._queries._running, hg._queries._keeping):
        with suppress(RuntimeError), way(frame, True, ""):
            refuse()
    assert [] == master.released
    hg.release(frame)
    assert [FIRST] == master.released


def test_a_close_that_is_interrupted_has_left_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while `close` waits for a release in another thread leaves no method of PySpark
    replaced."""
    hg: Any = session(Master())
    left: list[object] = []
    monkeypatch.setattr(hg._queries, "leave", lambda: left.append(hg))
    monkeypatch.setattr(StoredResults, "close", refuse)
    with suppress(RuntimeError):
        hg.close()
    assert [hg] == left

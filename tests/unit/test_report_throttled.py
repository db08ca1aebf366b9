"""Answers by which a store asks for fewer requests are counted, and told in the log."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from headgate.connectors.spark.report import job_report
from headgate.control.errors import Throttled
from headgate.control.events.types import Consumed, Produced
from headgate.infra.cli import views
from headgate.storage.environment import ObjectStoreEnvironment
from headgate.storage.stores.request_meter import RequestCounts
from headgate.storage.stores.retries import RetrySettings
from headgate.testing.faulty_store import (
    FaultPlan,
    FaultyBlobStore,
    Operation,
    PlannedFault,
)

from ..doubles.jobs import JOB, Job, audited, bodies
from ..doubles.logs import FaultyLog
from ..doubles.stacks import LAYOUT, LIMITS, Stack, produce, read, register, stack

__all__ = ["stack"]
QUICK = RetrySettings(backoff_ms=1, backoff_ms_max=2)
KINDS = {
    Operation.CREATE: "puts",
    Operation.LOOK: "heads",
    Operation.GET: "gets",
    Operation.DELETE: "deletes",
    Operation.LIST: "lists",
}


def slow(stack: Stack, *calls: tuple[Operation, int]) -> FaultyBlobStore:
    """Return a store that asks for fewer requests at some calls."""
    faults = tuple(PlannedFault(*call, error=Throttled("slow")) for call in calls)
    return FaultyBlobStore(stack.store, FaultPlan(faults), QUICK)


@pytest.mark.parametrize("operation", KINDS, ids=KINDS.values())
def test_a_throttled_answer_is_counted_by_its_kind(stack: Stack, operation: Operation) -> None:
    """Every kind of request has its own count, and a request that was sent again has both."""
    store = slow(stack, (operation, 1), (operation, 2))
    store.put("a", b"12345", "w")
    assert 5 == len(store.get("a"))
    assert 5 == store.size_bytes("a")
    assert ["a"] == [stat.name for stat in store.list("")]
    store.delete(["a"])
    throttled = {n: c for n, c in asdict(store.requests).items() if c and n.startswith("thr")}
    assert {f"throttled_{KINDS[operation]}": 2} == throttled
    assert RequestCounts() == store.requests - store.requests


def test_tasks_announce_what_was_throttled(stack: Stack) -> None:
    """The events of writers and readers have the throttled answers, each once, and reports and
    commands show them."""
    store = slow(stack, *((Operation.CREATE, at) for at in (1, 2, 3)), (Operation.GET, 1))
    with stack.master() as master:
        master.register_job(Job())
        environment = ObjectStoreEnvironment(
            JOB, FaultyLog(stack.inner), store, LAYOUT.root, LIMITS
        )
        descriptor = register(master)
        for partition in range(2):
            produce(stack, environment, descriptor, partition)
        read(stack, environment, master, descriptor)
        environment.close()
        facts = bodies(stack.inner)
        assert [3, 0] == [body.throttled for body in facts if isinstance(body, Produced)]
        assert [1, 0, 0] == [body.throttled for body in facts if isinstance(body, Consumed)]
        state = audited(stack.inner).state
        report = job_report(state, driver=store.requests)
        assert (3, 1) == (report.throttled_puts, report.throttled_gets)
        (result,) = report.results
        assert (3, 1) == (result.throttled_puts, result.throttled_gets)
        assert 3 == report.driver.throttled_puts
        assert "; throttled: 3 PUTs, 1 GETs" in str(views.state_table(state).title)

"""The JVM keeps objects for Python as long as Python uses them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import GATEWAY_SERVER_OBJECT_ID
from pyspark.sql import SparkSession

from headgate import Headgate
from headgate.control.clock import SYSTEM_CLOCK, Deadline

pytestmark = pytest.mark.timeout(300)


def test_the_jvm_forgets_what_python_has_dropped(spark: SparkSession, hg: Headgate) -> None:
    """Objects of the JVM that Python no longer uses are released soon, and no others."""
    gateway: Any = spark.sparkContext._gateway
    bound = gateway.java_gateway_server.getGateway().getBindings()
    objects = [gateway.jvm.java.lang.Object() for _ in range(50)]
    used, dropped = objects[:5], {each._target_id for each in objects[5:]}
    objects.append(JavaObject(GATEWAY_SERVER_OBJECT_ID, gateway._gateway_client))  # as foreachBatch
    objects.clear()
    deadline = Deadline.after(10.0)
    while any(map(bound.containsKey, dropped)) and not deadline.passed:
        SYSTEM_CLOCK.sleep_s(0.1)
    assert not any(map(bound.containsKey, dropped))
    assert all(bound.containsKey(each._target_id) for each in used)
    assert bound.containsKey(GATEWAY_SERVER_OBJECT_ID)


def test_many_queries_leave_no_objects_in_the_jvm(spark: SparkSession, hg: Headgate) -> None:
    """The JVM keeps no object of a query for Python after its rows are released."""
    gateway: Any = spark.sparkContext._gateway
    bound = gateway.java_gateway_server.getGateway().getBindings()
    query = spark.range(60).selectExpr("id % 3 as k", "id as v").groupBy("k").count()

    def run(times: int) -> int:
        """Return the number of objects that are left when no more of them go."""
        for _ in range(times):
            hg.release(hg.offload(query))
        gc.collect()
        before, now = 0, int(bound.size())
        while now != before:
            SYSTEM_CLOCK.sleep_s(1.0)
            before, now = now, int(bound.size())
        return now

    first = run(3)
    assert run(20) < first + 20

"""Calls that go to the JVM together give what they give one by one."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from headgate.connectors.spark.jvm import bridge
from headgate.connectors.spark.jvm.bridge import Jvm
from headgate.connectors.spark.jvm.gateway.calls_together import CallsAtOnce, CallsTogether

from .conftest import Place

pytestmark = pytest.mark.timeout(120)

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["", "e", "$0", "\n", "\\n", "r\ne\n", "$", "s$1", "\r\n\\", "\u2028"]),
    st.binary(max_size=10),
)


@pytest.fixture(scope="module")
def place() -> Place:
    return Place("embedded", {})  # no test depends on the services


@pytest.fixture(scope="module")
def jvm(spark: SparkSession) -> Jvm:
    return Jvm(spark)


@pytest.fixture(params=[True, False], ids=["together", "at once"])
def either(jvm: Jvm, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Jvm:
    """Return access to a JVM that compiles our classes, and to one that does not."""
    if not request.param:
        monkeypatch.setattr(bridge, "_sender", lambda _: None)
    with jvm.together() as calls:
        assert isinstance(calls, CallsTogether if request.param else CallsAtOnce)
    return jvm


def bound(spark: SparkSession) -> int:
    """Return the number of objects that the JVM keeps for Python."""
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.java_gateway_server.getGateway().getBindings().size())


@settings(max_examples=60, deadline=None)
@given(values=st.lists(VALUES, max_size=8), data=st.data())
def test_values_arrive_as_they_are(jvm: Jvm, values: list[Any], data: st.DataObject) -> None:
    """Every value goes to the JVM and comes back as in a single call, also by way of other calls,
    and whichever results are wanted."""
    alone = jvm["list"]()
    for value in values:
        alone.add(value)
    wanted = data.draw(
        st.lists(st.sampled_from(range(len(values))), max_size=5) if values else st.just([])
    )
    with jvm.together() as calls:
        first, second = jvm["list"](), jvm["list"]()
        for value in values:
            first.add(value)
        for at in range(len(values)):
            second.add(first.get(at))
        *given, size, copied, same = calls.now(
            *[second.get(at) for at in wanted], second.size(), second, second.equals(first)
        )
    assert same
    assert len(values) == size
    assert [alone.get(at) for at in wanted] == given
    assert list(alone) == list(copied)


def test_calls_are_made_in_order(either: Jvm) -> None:
    """Calls whose results nobody wants are made, too: at the end, if `now` was not called."""
    words = either["list"]()
    with either.together() as calls:
        waiting = calls.on(words)
        for word in "abc":
            waiting.add(word)
        waiting.set(1, "x")
        assert [["a", "x", "c"]] == [list(given) for given in calls.now(waiting)]
        calls.on(words).remove("a")
    assert ["x", "c"] == list(words)


def test_errors_are_those_of_single_calls(either: Jvm, spark: SparkSession) -> None:
    """A call that fails raises what it raises alone. The calls before it were made, those after it
    were not, and the next calls of the thread do not wait."""
    words = either["list"]()

    def calls_around(target: Any, method: str, *arguments: Any) -> None:
        with either.together() as calls:
            calls.on(words).add("before")
            wanted = getattr(calls.on(target), method)(*arguments)
            calls.on(words).add("after")
            calls.now(wanted)

    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        calls_around(spark._jsparkSession, "table", "nowhere")
    with pytest.raises(Py4JJavaError, match="IndexOutOfBounds"):
        calls_around(words, "get", 7)
    with pytest.raises(Py4JError, match="does not exist"):
        calls_around(words, "nothing")
    assert ["before"] * 3 == list(words)
    assert either["list"]().isEmpty()


def test_an_error_of_python_sends_nothing(jvm: Jvm) -> None:
    words = jvm["list"]()

    def failing() -> None:
        with jvm.together() as calls:
            calls.on(words).add("never")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert words.isEmpty()
    assert jvm["list"]().isEmpty()


def test_nobody_asks_for_a_value_too_early(jvm: Jvm) -> None:
    """A result has no value before it is there, and calls that wait do not nest."""
    words = jvm["list"](["a"])
    with jvm.together() as calls:
        is_empty = calls.on(words).isEmpty()
        with pytest.raises(TypeError, match="no value yet"):
            assert not is_empty
        with pytest.raises(TypeError, match="no value yet"):
            str(is_empty)
        with pytest.raises(AssertionError), jvm.together():
            pass
        (known,) = calls.now(is_empty)
        assert known is False
        waiting = jvm["list"]()
        with pytest.raises(TypeError, match="gone"):
            is_empty.booleanValue()
        with pytest.raises(TypeError, match="gone"):
            waiting.add(is_empty)
        with pytest.raises(TypeError, match="gone"):
            calls.now(is_empty)


def test_the_jvm_keeps_what_is_wanted_only(jvm: Jvm, spark: SparkSession) -> None:
    """It keeps no other result, none after an error, and each object that a waiting call uses."""

    def calls_of(count: int) -> list[Any]:
        with jvm.together() as calls:
            words = jvm["list"]()
            for _ in range(100):
                words = jvm["list"](words)
            given: list[Any] = calls.now(*[jvm["list"](words) for _ in range(count)])
            return given

    kept = calls_of(3)
    before = bound(spark)
    kept += calls_of(2)

    def failing() -> None:
        with jvm.together() as calls:
            for _ in range(100):
                jvm["list"]()
            calls.on(kept[0]).get(1)

    with pytest.raises(Py4JJavaError, match="IndexOutOfBounds"):
        failing()
    assert bound(spark) <= before + 10
    with jvm.together() as calls:
        words = calls.on(jvm.static("java.util.ArrayList")(["x"]))
        gc.collect()
        assert ["x"] == calls.now(words.get(0))
    assert all(each.isEmpty() for each in kept)


def test_threads_wait_apart(jvm: Jvm) -> None:
    """A thread's calls do not wait because another thread's do."""
    with ThreadPoolExecutor(1) as other, jvm.together():
        assert other.submit(lambda: jvm["list"]().isEmpty()).result(10)

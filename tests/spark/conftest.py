"""One Spark session for each module, and a headgate on the embedded or the real stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headgate import Headgate, attach
from headgate.control.errors import Invalid
from headgate.infra.devstack import stack

from ..quick_java import QUICK_JAVA

os.environ["PYSPARK_PYTHON"] = sys.executable
ROOT = Path(__file__).resolve().parents[2]
IN_MAKE_TEST = {
    f"test_{name}"
    for name in ("actions", "attach", "caches", "commands", "grouped", "offload", "repartition")
}
READ_BY_TASKS = {"spark.headgate.driver.read.bytes": "0"}
collect_ignore = [
    f"test_{name}.py" for name in ("comet", "iceberg") if f"{name.upper()}_JAR" not in os.environ
]


@dataclass(frozen=True, slots=True)
class Place:
    """A destination of exchanges, as `spark.headgate.*` settings."""

    name: str
    conf: dict[str, str]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("spark")
            if item.path.stem not in IN_MAKE_TEST:
                item.add_marker("slow")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the stacks of each test: embedded and real, or real only for a module marked as real.
    A module with a `place` fixture of its own uses that alone."""
    if "place" in metafunc.fixturenames and not hasattr(metafunc.module, "place"):
        is_real = metafunc.definition.get_closest_marker("real") is not None
        twice = pytest.param("embedded", marks=pytest.mark.repeated)
        names = [*([] if is_real else [twice]), pytest.param("real", marks=pytest.mark.real)]
        metafunc.parametrize("place", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Place:
    """Return the stack of a module. On the embedded one tasks read; on the real one the driver
    reads what is small, as for users."""
    return real_place() if request.param == "real" else Place("embedded", READ_BY_TASKS)


def real_place() -> Place:
    """Return the stack that `make stack` started; its credentials go through the environment."""
    state = stack.status()
    if state is None or not state.is_up():
        raise Invalid("start the stack first: make stack")
    os.environ["AWS_ACCESS_KEY_ID"] = state.access_key
    os.environ["AWS_SECRET_ACCESS_KEY"] = state.secret_key
    conf = {
        "spark.headgate.broker": state.bootstrap,
        "spark.headgate.store": f"s3://{state.bucket}/tests",
        "spark.headgate.s3.endpoint": state.endpoint,
    }
    return Place("real", conf)


def forget_settings() -> None:
    """Let no session inherit what the first one of this process gave to its JVM."""
    jvm = SparkContext._jvm
    if jvm is not None:
        for name in list(jvm.System.getProperties()):
            if name.startswith("spark."):
                jvm.System.clearProperty(name)


def build_session(place: Place, master: str, **more: str) -> SparkSession:
    forget_settings()
    builder = SparkSession.builder.master(master).appName("headgate-tests")
    conf = {
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.task.killTimeout": "200ms",
        "spark.python.daemon.module": "tests.quick_python",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.headgate.warm.up": "false",
        **place.conf,
        **more,
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@contextmanager
def setting(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Change the session's configuration while the block runs."""
    is_set = spark._jsparkSession.sessionState().conf().contains
    before = {key: spark.conf.get(key) if is_set(key) else None for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, former in before.items():
            spark.conf.unset(key)
            if former is not None:
                spark.conf.set(key, former)


@pytest.fixture(scope="module")
def spark(place: Place, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Open a session with the module's `CONF`, which no other session of its context has."""
    session = build_session(place, "local[2]")
    for key, value in getattr(request.module, "CONF", {}).items():
        session.conf.set(key, value)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def hg(spark: SparkSession) -> Iterator[Headgate]:
    with attach(spark) as attached:
        yield attached


@pytest.fixture(scope="module")
def unequal(spark: SparkSession) -> None:
    """Create tables of very different sizes, whose parts differ when small neighbours are read
    together."""
    spark.range(20_000).selectExpr("id % 1000 k", "id v").createOrReplaceTempView("large")
    spark.range(20).selectExpr("id k", "id v").createOrReplaceTempView("little")
    spark.range(40).selectExpr("id k").createOrReplaceTempView("chosen")

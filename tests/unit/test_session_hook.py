"""Sessions that applications make: which of them are attached, as which job, and what fails."""

from __future__ import annotations

import importlib.util
import sys
import threading
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

import headgate
from headgate.control.errors import Invalid, Unavailable
from headgate.infra.start import commands
from headgate.infra.start import session_hook as hook

JOB, BROKER = "spark.headgate.job.id", "spark.headgate.broker"


NUMBERS = count()


class Conf(dict[str, str]):
    set = dict.__setitem__


class SparkSession:
    _instantiatedSession: ClassVar[Any] = None
    _activeSession: ClassVar[Any] = None

    def __init__(self, context: Any, jsession: Any = None) -> None:
        self.sparkContext, self.conf = context, Conf(context.conf)
        jsession = jsession or context.default
        self._jsparkSession = SimpleNamespace(sessionUUID=lambda: jsession)
        type(self)._instantiatedSession = type(self)._instantiatedSession or self

    def newSession(self) -> SparkSession:
        return type(self)(self.sparkContext, f"child {next(NUMBERS)}")


class Headgate:
    def __init__(self, job: str, settings: str) -> None:
        self.job, self.settings = job, settings

    def of(self, spark: Any) -> Any:
        same = self.settings == spark.conf.get(BROKER)
        return Headgate(f"guest of {self.job}", self.settings) if same else None

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[SparkSession]:
    """Return a class of sessions whose methods are replaced."""
    from pyspark.core.context import SparkContext

    for name, empty in (
        ("_attached", {}),
        ("_hosts", {}),
        ("_given_up", set()),
        ("_installed", {True}),
    ):
        monkeypatch.setattr(hook, name, empty)
    hook._sessions.clear()
    monkeypatch.setattr(SparkContext, "stop", SparkContext.stop)
    monkeypatch.setitem(vars(threading), "_register_atexit", lambda function: None)
    monkeypatch.setattr(headgate, "attach", attach)
    kind = type("SparkSession", (SparkSession,), {"newSession": SparkSession.newSession})
    module = ModuleType("sessions")
    vars(module)["SparkSession"] = kind
    hook._replace_methods(module)
    return kind


def attach(spark: Any) -> Any:
    hook.give_up(spark)
    return Headgate(spark.conf[JOB], spark.conf.get(BROKER))


def context(**conf: str) -> Any:
    keys = {f"spark.headgate.{key.replace('_', '.')}": text for key, text in conf.items()}
    return SimpleNamespace(conf={JOB: "j", **keys}, applicationId="app", default="default")


def jobs() -> list[str]:
    return [attached.job for _, attached in hook._attached.values()]


def test_a_session_that_its_application_attaches_stays_its_own(made: type[SparkSession]) -> None:
    """No later session gets its job, and another view of it is not attached again."""
    spark: Any = made(context())
    assert jobs() == ["j"]
    headgate.attach(spark)
    made(spark.sparkContext)
    assert jobs() == []
    spark.newSession()
    assert jobs() == ["j-session-2"]


def test_a_session_over_one_of_the_jvm(made: type[SparkSession]) -> None:
    """Livy and Zeppelin make their only session so. Later ones are views, as of a batch."""
    first: Any = made(context(), "of Livy")
    made(first.sparkContext, "of a batch")
    assert [spark for spark, _ in hook._attached.values()] == [first]


def test_an_extension_that_is_unloaded_attaches_nothing(
    made: type[SparkSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`%unload_ext headgate` closes what is attached, and leaves the next session alone, until the
    extension is loaded again."""
    monkeypatch.setattr(commands, "name_python", lambda environment: None)
    spark: Any = made(context())
    assert ["j"] == jobs()
    headgate.unload_ipython_extension(None)
    assert [] == jobs()
    spark.newSession()
    assert [] == jobs()
    headgate.load_ipython_extension(None)
    spark.newSession()
    assert ["j-session-2"] == jobs()


def test_a_second_session_is_a_guest(made: type[SparkSession]) -> None:
    """It has the job of the first one, as long as the first one has its headgate and the same
    settings, and as long as somebody keeps it."""
    spark: Any = made(context())
    kept, forgotten = spark.newSession(), spark.newSession()
    assert jobs() == ["j", "guest of j", "guest of j"]
    del forgotten
    spark.sparkContext.conf[BROKER] = "another"
    other = spark.newSession()
    assert jobs() == ["j", "guest of j", "j-session-4"]
    headgate.attach(spark)
    assert jobs() == ["j-session-4", "j-session-2-session-5"]
    assert kept is not other


@pytest.mark.parametrize("error", [Unavailable("x"), ModuleNotFoundError("headgate")])
def test_a_session_that_fails_is_not_used_unattached(
    made: type[SparkSession], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A second try gets the error or an attached session, but no session of Spark's alone
    unless it may be native."""

    def refuse(spark: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(headgate, "attach", refuse)
        with pytest.raises(type(error)):
            made(context())
        assert made._instantiatedSession is None
        made(context(on_failure="native"))
    assert jobs() == []
    made(context())
    assert jobs() == ["j"]


def test_a_session_of_spark_connect_has_nothing_to_give_up(made: type[SparkSession]) -> None:
    made(context())
    hook.give_up(type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})())
    assert jobs() == ["j"]


def test_an_import_is_watched_after_somebody_has_only_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking where PySpark's sessions are does not count as importing them."""
    monkeypatch.delitem(sys.modules, hook._SESSIONS, raising=False)
    monkeypatch.setattr(sys, "meta_path", [hook._Finder(), *sys.meta_path])
    for _ in range(2):
        spec = importlib.util.find_spec(hook._SESSIONS)
        assert spec is not None
        assert isinstance(spec.loader, hook._ReplacingLoader)


def test_a_pyspark_without_contexts_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark Connect alone has none, and its import must not fail in a Python with the hook."""
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)
    hook._replace_methods(ModuleType("pyspark.sql.session"))


def test_a_word_that_is_no_switch_is_refused(made: type[SparkSession]) -> None:
    """The start-up hook must not take a mistyped `true` for a no."""
    hook._installed.clear()
    hook._installed.add(False)
    with pytest.raises(Invalid, match="enabled = 'ture' cannot be used"):
        made(context(enabled="ture"))
    made(context(enabled="auto"))
    assert jobs() == []


def test_a_notebook_has_a_magic(monkeypatch: pytest.MonkeyPatch) -> None:
    """`%headgate` shows what the handle of the active session knows."""
    magics: dict[str, Any] = {}

    def register(function: Any, kind: str, name: str) -> None:
        magics[f"{kind} {name}"] = function

    answers = SimpleNamespace(report=lambda: "the report", results=lambda: "the results")
    monkeypatch.setattr(headgate, "current", lambda: answers)
    monkeypatch.setattr(hook, "install", lambda by_default: None)
    monkeypatch.setattr(hook, "attach_present", lambda: None)
    monkeypatch.setattr(commands, "name_python", lambda environment: None)
    headgate.load_ipython_extension(SimpleNamespace(register_magic_function=register))
    shown = [magics["line headgate"](line) for line in ("", " report ", "results")]
    assert shown == ["the report", "the report", "the results"]
    with pytest.raises(Invalid, match="use %headgate report or"):
        magics["line headgate"]("reslts")

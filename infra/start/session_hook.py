"""Attach each Spark session that an application makes, and close its headgate when it ends.

Two methods of PySpark's sessions and one of its contexts are replaced as soon as PySpark is
imported, and nothing is imported for that. A session that the application attaches by itself gives
up that headgate.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...control.errors import Closed, Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...connectors.spark.session import Headgate

_LOG = logging.getLogger("headgate")
_SESSIONS = "pyspark.sql.session"
_ENABLED, _ON_FAILURE = "spark.headgate.enabled", "spark.headgate.on.failure"
_SQL, _JOB = "spark.headgate.sql.enabled", "spark.headgate.job.id"
_FAIL, _NATIVE = "fail", "native"
_POLL_S = 0.1

_lock = threading.RLock()
_attached: dict[str, tuple[SparkSession, Headgate]] = {}
_hosts: dict[str, str] = {}
"""For each session that is a guest in the job of another one, the other one."""
_owner = os.getpid()
"""The process that has attached them: one that it forks has copies, which it must not close."""
_given_up: set[str] = set()
"""The sessions that their applications have attached by themselves."""
_sessions: Counter[str] = Counter()
"""The number of sessions of each application of Spark that the hook has attached so far."""
_forgotten: SimpleQueue[str] = SimpleQueue()
"""The guests whose sessions nobody has any more."""
_tells: set[bool] = set()
"""Not empty if a line is printed about each job that ends."""
_installed: set[bool] = set()
"""The arguments of `install` so far."""


def install(by_default: bool, tells: bool = False) -> None:
    """Attach the sessions that this process makes from now on: those whose configuration has
    `spark.headgate.enabled=true`, and with `by_default` also those that do not say `false`. With
    `tells`, print a line about each job that ends."""
    is_first = not _installed
    if tells:
        _tells.add(True)
    _installed.add(by_default)
    if not is_first:
        return
    if (module := sys.modules.get(_SESSIONS)) is not None:
        _replace_methods(module)
    else:
        sys.meta_path.insert(0, _Finder())


def attach_present() -> None:
    """Attach the session that was made before, if there is one."""
    module = sys.modules.get(_SESSIONS)
    session = None if module is None else module.SparkSession.getActiveSession()
    if session is not None:
        _begin(session)


def magic(line: str) -> object:
    """Answer `%headgate` in a notebook.

    Raises:
        Invalid: there is no such word, or no headgate is attached.
    """
    from ... import current

    match line.strip():
        case "" | "report":
            return current().report()
        case "results":
            return current().results()
        case other:
            raise Invalid(f"%headgate {other}: use %headgate report or %headgate results")


def close_all() -> None:
    """Close every headgate that the hook has attached."""
    for name in reversed(list(_attached)):
        _close(name)


def uninstall() -> None:
    """Close what the hook has attached. Later sessions are left alone, unless their configuration
    has `spark.headgate.enabled=true`."""
    _installed.discard(True)
    _installed.add(False)  # their methods stay replaced: the next `install` needs no others
    close_all()


def close_at_exit() -> None:
    """Close every headgate when the queries that other threads still run have ended.

    A child that was forked runs this too, and has nothing to wait for and nothing to close.
    """
    try:
        while busy := [thread for thread in threading.enumerate() if _runs_query(thread)]:
            busy[0].join(_POLL_S)
    finally:
        close_all()


def _runs_query(thread: threading.Thread) -> bool:
    """Return True if Python would wait for a thread that is in a call of PySpark's."""
    if thread.daemon or thread is threading.current_thread():
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("pyspark."):
            return True
        frame = frame.f_back
    return False


def give_up(spark: SparkSession) -> None:
    """Close the headgate that the hook has given to a session, if any: its application attaches
    another."""
    if _sessions and not type(spark).__module__.startswith("pyspark.sql.connect"):
        name = _name_of(spark)
        _given_up.add(name)
        guests = [other for other in _attached if _hosts.get(other) == name]
        sessions = [_attached[guest][0] for guest in guests]
        for each in (*guests, name):
            _close(each)
        for session in sessions:
            _begin(session)


class _Finder(MetaPathFinder):
    """Waits for the import of PySpark's sessions."""

    _asks = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _SESSIONS or self._asks:
            return None
        self._asks = True
        try:  # stay: who asks now may not import it
            spec = find_spec(name)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ReplacingLoader(spec.loader)
        return spec


class _ReplacingLoader(Loader):
    """Loads the module of PySpark's sessions, and replaces their methods."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _replace_methods(module)


def _replace_methods(module: ModuleType) -> None:
    try:
        from pyspark.core.context import SparkContext
    except ImportError:  # Spark Connect alone, or Spark 3: other applications of this Python use it
        _LOG.log(
            logging.WARNING if True in _installed else logging.DEBUG,
            "Headgate cannot attach the sessions of this PySpark",
        )
        return

    session = module.SparkSession
    init, child, stop = session.__init__, session.newSession, SparkContext.stop

    @wraps(init)
    def made(
        self: SparkSession, context: Any, jsession: Any = None, *args: Any, **more: Any
    ) -> None:
        init(self, context, jsession, *args, **more)
        if jsession is not None and session._instantiatedSession is not self:
            return  # it is another view of a session, as batches of streams get
        try:
            _begin(self)
        except BaseException:
            if session._instantiatedSession is self:  # a second try must not get it unattached
                session._instantiatedSession = session._activeSession = None
            raise

    @wraps(child)
    def with_child(self: SparkSession) -> SparkSession:
        made: SparkSession = child(self)
        _begin(made)
        return made

    @wraps(stop)
    def stopped(self: Any) -> None:
        for name, (spark, _) in list(_attached.items()):
            if spark.sparkContext is self:
                _close(name)
        stop(self)

    for kind, name, method in (
        (session, "__init__", made),
        (session, "newSession", with_child),
        (SparkContext, "stop", stopped),
    ):
        setattr(kind, name, method)


def _begin(spark: SparkSession) -> None:
    """Attach a session, if it should be and is not yet.

    Raises:
        HeadgateError: it cannot be attached, and its exchanges may not run in Spark instead.
    """
    from ... import attach

    enabled = str(spark.conf.get(_ENABLED, "auto")).strip().lower()
    if enabled not in ("auto", "true", "false"):
        raise Invalid(f"{_ENABLED} = {enabled!r} cannot be used: use auto, true or false")
    if enabled == "false" or (enabled != "true" and True not in _installed):
        return
    with _lock:
        while not _forgotten.empty():
            _close(_forgotten.get())
        name = _name_of(spark)
        if name in _attached or name in _given_up:
            return
        must_attach = _must_attach(spark)
        _set_defaults(spark)
        try:
            headgate = None if _is_guest(name, spark) else attach(spark)
        except Exception as exc:  # also of Spark, when executors have no headgate
            if must_attach:
                raise
            _LOG.warning("the exchanges of this session run in Spark: %s", exc)
        else:
            if not _attached:
                # ordinary exit functions run when no thread may start any more; closing needs some
                vars(threading)["_register_atexit"](close_at_exit)
            if headgate is not None:
                _attached[name] = spark, headgate
            _sessions[spark.sparkContext.applicationId] += 1
        finally:
            _given_up.discard(name)  # that was our own call of `attach`


def _is_guest(name: str, spark: SparkSession) -> bool:
    """Run a session's actions in the job of another one of its application, if their settings
    allow it. The session is not kept: what was attached for it goes when nobody has it any more."""
    for host, (other, owner) in list(_attached.items()):
        if host in _hosts or other.sparkContext is not spark.sparkContext:
            continue
        view = copy(spark)
        if (headgate := owner.of(view)) is not None:
            _attached[name], _hosts[name] = (view, headgate), host
            weakref.finalize(spark, _forgotten.put, name).atexit = False
            return True
    return False


def _set_defaults(spark: SparkSession) -> None:
    """Let the session's actions run in Headgate, and give a second session a job of its own."""
    if spark.conf.get(_SQL, None) is None:
        spark.conf.set(_SQL, "true")
    application = spark.sparkContext.applicationId
    if (number := _sessions[application] + 1) > 1:
        from ...connectors.spark.attach import default_job

        job = spark.conf.get(_JOB, None) or default_job(application)
        spark.conf.set(_JOB, f"{job}-session-{number}")


def _must_attach(spark: SparkSession) -> bool:
    on_failure = str(spark.conf.get(_ON_FAILURE, _FAIL)).strip().lower()
    if on_failure not in (_FAIL, _NATIVE):
        raise Invalid(f"{_ON_FAILURE} = {on_failure!r} cannot be used: use {_FAIL} or {_NATIVE}")
    return on_failure == _FAIL


def _close(name: str) -> None:
    """Close a headgate. An error is logged: it must not replace the application's own, or keep its
    session from stopping."""
    if os.getpid() != _owner:
        return
    with _lock:
        entry = _attached.pop(name, None)
        is_guest = _hosts.pop(name, None) is not None
    if entry is not None:
        _, headgate = entry
        words = _last_words(headgate) if _tells and not is_guest else ""
        try:
            headgate.__exit__(None, None, None)
        except Exception as exc:
            _LOG.error("job %s was not closed: %s", headgate.job, exc)
        if words:
            print(f"headgate: {words}", file=sys.stderr)


def _last_words(headgate: Headgate) -> str:
    try:
        return headgate.last_words()
    except Closed:  # by the application, which has asked for what it wants
        return ""
    except Exception as exc:  # the session may have ended by an error
        return f"job {headgate.job}: its report is not there: {exc}"


def _name_of(spark: SparkSession) -> str:
    from ...connectors.spark.jvm.scheduler import session_name

    return session_name(spark)

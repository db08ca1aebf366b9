"""Queries on Spark's SQL page: one execution for a query of the user's, with all of its map stages.

Spark makes an execution of its own for an action, which only reads stored rows. So another
execution is above it, as the root. Its events are those that Spark posts for a query. They are made
from JSON, by the reader of Spark's event log: that takes few calls of the JVM.

Guarantees that an error of all this changes nothing but the page.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.traceback_utils import SCCallSiteSync

from .....control.clock import SYSTEM_CLOCK
from .....control.errors import HeadgateError
from .....control.ids import ResultId
from ..bridge import Jvm
from ..names import Feature, Features
from ..task_settings import DESCRIPTION
from .plan_tree import Node, PlanTree, States, lines, metrics_of

_LOG = logging.getLogger("headgate")
_EVENTS = "org.apache.spark.sql.execution.ui.SparkListener"
_NUMBER, _ROOT = "spark.sql.execution.id", "spark.sql.execution.root.id"
_SHORT, _LONG = "callSite.short", "callSite.long"
_FRAMES_MAX = 20
_CELLS = ("ipykernel_", "<ipython-input-")
"""Beginnings of names that Jupyter gives to the folder of its cells, and IPython to what is
typed."""
_LATE_MS, _LOOK_S = 200, 0.01
_LIBRARIES = tuple(f"{path}{os.sep}" for path in (Path(__file__).parents[4], *pyspark.__path__))
_PASSED = (*_LIBRARIES, contextlib.__file__, functools.__file__)
_within = threading.local()
"""Its `pages` are those of the queries that the thread runs, the innermost last."""


class QueryPage:
    """A query on Spark's SQL page. It is not shown before `begin`. Inside of its context, the jobs
    of the thread have the user's line as their call site. Threads that share the local properties
    of their jobs show nothing."""

    def __init__(
        self,
        spark: SparkSession,
        features: Features,
        results: Callable[[], States],
        is_read: bool = False,
    ) -> None:
        """Take `is_read` if the rows of the query are read inside of its context."""
        self._spark = _core(spark.sparkContext)
        self._is_shown = Feature.PAGES in features and self._spark.is_pinned
        self._results = results
        self._is_read = is_read
        self._plan = PlanTree()
        self._lock = threading.Lock()
        self._number = -1
        self._plans = 0
        self._is_stale = False
        self._hide: Callable[[str], str] = str
        self._site = call_site()
        self._before: Any = None
        self._properties: Any = None
        self._asked: list[Any] = [None, None]
        """The query above this one, and the user's description, if there are."""

    def __enter__(self) -> Self:
        if not self._is_shown:
            return self
        self._before = self._spark.context.getLocalProperties()
        properties = self._before.clone()
        properties.setProperty(_SHORT, self._site[0])
        properties.setProperty(_LONG, self._site[1])
        self._spark.context.setLocalProperties(properties)
        self._asked = [properties.getProperty(key) for key in (_ROOT, DESCRIPTION)]
        self._properties = properties
        SCCallSiteSync._spark_stack_depth += 1  # else PySpark names a line of ours
        _within.pages = [*_pages(), self]
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        """End the query on the page, with the volumes of its exchanges so far. A caller that wants
        no more rows is no failure."""
        self.leave()
        if self._number < 0:
            return
        is_well = error is None or isinstance(error, GeneratorExit)
        with self._unshown("the end of a query"):
            failed = "" if is_well else self._hide(f"{type(error).__name__}: {error}")
            # without a text, a failed job would count
            self._spark.later(self._end, SYSTEM_CLOCK.now_ms(), failed)

    def _end(self, at_ms: int, failed: str) -> None:
        """End the query, if its rows are read inside, when all exchanges are read. Wait no longer
        than it may take the master to hear of the last readers: a query with a limit reads less."""
        self._spark.forget_jobs(self._number)
        while self._is_read and SYSTEM_CLOCK.now_ms() < at_ms + _LATE_MS:
            if self._plan.is_read(self._states()):
                break
            SYSTEM_CLOCK.sleep_s(_LOOK_S)
        with self._unshown("the numbers of a query"):
            if self._is_stale:
                self._show_all()
            values = self._plan.values(self._states())
            self._post("DriverAccumUpdates", self._number, accumUpdates=values)
        with self._unshown("the end of a query"):
            self._post("SQLExecutionEnd", self._number, time=at_ms, errorMessage=failed)

    def _states(self) -> States:
        """Return the results as far as they are known: none when the job was closed meanwhile."""
        with contextlib.suppress(HeadgateError):
            return self._results()
        return {}

    def leave(self) -> None:
        """Let this thread start jobs that do not belong to the query. Do nothing if it has left."""
        if self._properties is None:
            return
        self._properties = None
        _within.pages = [page for page in _pages() if page is not self]
        SCCallSiteSync._spark_stack_depth -= 1
        with self._unshown("the end of a query"):
            self._spark.context.setLocalProperties(self._before)

    def begin(self, hide: Callable[[str], str]) -> None:
        """Show the query. Jobs that this thread starts from now on belong to it. `hide` redacts
        texts."""
        if self._number >= 0 or self._properties is None:
            return
        self._hide = hide
        with self._unshown("a query"):
            number = self._spark.number()
            root, described = self._asked
            self._post(
                "SQLExecutionStart",
                number,
                rootExecutionId=int(root or number),
                description=hide(described) if described else self._site[0],
                details=self._site[1],
                physicalPlanDescription="",
                sparkPlanInfo=self._plan.tree(),
                time=SYSTEM_CLOCK.now_ms(),
                modifiedConfigs={},
                jobTags=[],
            )
            for key, value in ((_NUMBER, number), (_ROOT, root or number)):
                self._properties.setProperty(key, str(value))
                self._spark.context.setLocalProperty(key, str(value))
            self._number = number

    @property
    def line(self) -> str:
        """Return the file and the line of the user's call."""
        place = Path(self._site[0].rpartition(" at ")[2])
        name, _, number = place.name.rpartition(":")
        is_cell = any(each.startswith(_CELLS) for each in (place.parent.name, name))
        return f"{'cell' if is_cell else name}:{number}"

    def stage(self, result: ResultId, label: str, plan: Any) -> None:
        """Show the plan of a map stage, before the stage runs."""
        self._show(plan, lambda node: self._plan.stage(result, self._hide(label), node))

    def early(self, plan: Any) -> None:
        """Note a part of a plan that runs before its stage is shown."""
        if self._number >= 0:
            with self._unshown("a part of a plan"):
                self._known(plan)

    def last(self, plan: Any) -> None:
        """Show the plan of the last stage."""
        self._show(plan, self._plan.last, is_last=True)

    def _show(self, plan: Any, add: Callable[[Node], None], is_last: bool = False) -> None:
        """Add a plan. The whole plan of a query is shown meanwhile, and not anew for each of very
        many stages."""
        if self._number < 0:
            return
        with self._unshown("a plan"):
            with self._lock:
                add(self._known(plan))
                self._plans += 1
                is_stale = not is_last and self._plans & (self._plans - 1) != 0
                self._is_stale = is_stale
            if not is_stale:
                self._spark.later(self._show_all)  # needs the lock, and may be waited for

    def _known(self, plan: Any) -> Node:
        """Return a plan. Let Spark know its metrics: it has to before the plan's tasks run."""
        node: Node = json.loads(self._spark.mapper.writeValueAsString(plan))
        metrics = metrics_of(node)
        self._post("SQLAdaptiveSQLMetricUpdates", self._number, sqlPlanMetrics=metrics)
        return node

    def _show_all(self) -> None:
        with self._unshown("the plan of a query"), self._lock:
            tree = self._plan.tree()
            text = self._hide("\n".join(lines(tree)))
            plan = {"physicalPlanDescription": text, "sparkPlanInfo": tree}
            self._post("SQLAdaptiveExecutionUpdate", self._number, **plan)

    @contextlib.contextmanager
    def _unshown(self, what: str) -> Iterator[None]:
        """Go on after an error. Plans may be too deep for JSON, Spark may have stopped, and Python
        may be about to end and begin no more threads."""
        try:
            yield
        except (Py4JError, LookupError, OSError, RuntimeError) as exc:
            _LOG.debug("Spark's SQL page does not show %s: %s", what, exc)

    def _post(self, name: str, number: int, **fields: Any) -> None:
        event = json.dumps({"Event": f"{_EVENTS}{name}", "executionId": number, **fields})
        self._spark.bus.post(self._spark.protocol.sparkEventFromJson(event))


def end_pages(context: SparkContext) -> None:
    """Wait until the page shows the end of all queries that have ended."""
    if context._jsc is not None:  # else Spark has stopped
        _core(context).wait()


def leave_page() -> None:
    """Let this thread start jobs that do not belong to the query that it runs."""
    for page in _pages()[-1:]:
        page.leave()


def _pages() -> list[QueryPage]:
    pages: list[QueryPage] = getattr(_within, "pages", [])
    return pages


def call_site() -> tuple[str, str]:
    """Return the user's call of Headgate or PySpark with its line, and the lines that led to it."""
    called, frame = "Headgate", sys._getframe()
    while frame.f_back and frame.f_code.co_filename.startswith(_PASSED):
        if frame.f_code.co_filename.startswith(_LIBRARIES):
            called = frame.f_code.co_name
        frame = frame.f_back
    lines = [f"{frame.f_code.co_filename}:{frame.f_lineno}"]
    while frame.f_back and len(lines) < _FRAMES_MAX:
        frame = frame.f_back
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    return f"{called} at {lines[0]}", "\n".join(lines)


class _Core:
    """Objects of a Spark context that are looked up once, because each look-up calls the JVM."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.is_pinned = isinstance(context._gateway, ClientServer)
        """True if each thread has a thread of the JVM, with local properties, to itself."""
        self.jvm = Jvm(context)
        self._later: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def later(self, call: Callable[..., object], *given: Any) -> None:
        """Call a function in the thread that calls all of them, one after the other."""
        with self._lock:
            self._later = self._later or ThreadPoolExecutor(1, "headgate-pages")
            self._later.submit(call, *given)

    def wait(self) -> None:
        """Wait until all functions have been called, and end the thread."""
        with self._lock:
            if self._later is not None:
                self._later.shutdown()
            self._later = None

    @functools.cached_property
    def context(self) -> Any:
        return self._context._jsc.sc()

    @functools.cached_property
    def bus(self) -> Any:
        return self.context.listenerBus()

    @functools.cached_property
    def protocol(self) -> Any:
        return self.jvm.only("json")

    @functools.cached_property
    def mapper(self) -> Any:
        return self.protocol.mapper()

    def number(self) -> int:
        """Return the next number of an execution. Spark's own method is private.

        Raises:
            LookupError, Py4JError: this Spark has no such method.
        """
        numbers = self.jvm.only("executions")
        return int(self.jvm["methods"].invokeMethod(numbers, True, "nextExecutionId"))

    def forget_jobs(self, number: int) -> None:
        """Let Spark forget the jobs of an execution, with their RDDs. Spark before 4.3 has none."""
        with contextlib.suppress(Py4JError):
            self.context.dagScheduler().cleanupQueryJobs(number)


@functools.lru_cache(maxsize=1)  # else the JVM keeps contexts that have stopped
def _core(context: SparkContext) -> _Core:
    return _Core(context)

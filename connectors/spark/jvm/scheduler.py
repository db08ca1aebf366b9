"""The jobs and tasks of Spark's scheduler, behind the private door."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from ....control.clock import SYSTEM_CLOCK, Deadline
from ....control.ids import ResultId
from .bridge import Jvm
from .task_settings import WRITES

_PAUSE_S = 0.05
_LEFT_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class NativeJob:
    """A job that Spark has run."""

    number: int
    tags: frozenset[str]
    shuffles: Mapping[int, str]
    """The ids and names of the stages that wrote one of Spark's own shuffles."""
    description: str
    """The description of the whole query, empty without a query or a shuffle."""
    plan: str
    """The physical plan of the query as text, empty without a query or a shuffle."""


def session_name(spark: SparkSession) -> str:
    """Return the id of a session, which no other session of its process has; the id of its
    application where this Spark names no sessions."""
    with suppress(Py4JError):
        return str(spark._jsparkSession.sessionUUID())
    return str(spark.sparkContext.applicationId)


def ended_jobs(spark: SparkSession) -> Iterator[Any]:
    """Yield the jobs that have ended, from the store that Spark's web pages show."""
    core = spark.sparkContext._jsc.sc()
    await_listeners(core)
    jobs = core.statusStore().jobsList(None)
    for at in range(jobs.size()):
        if (job := jobs.apply(at)).status().name() != "RUNNING":
            yield job


def await_listeners(core: Any) -> None:
    """Wait until Spark's stores have all events so far, but no longer than Spark waits: a listener
    of the user's may be slow."""
    with suppress(Py4JJavaError):
        core.listenerBus().waitUntilEmpty()


def native_jobs(spark: SparkSession, known: Container[int]) -> Iterator[NativeJob]:
    """Yield the jobs that have ended and are not in `known`, with their shuffles."""
    store = spark.sparkContext._jsc.sc().statusStore()
    queries = spark._jsparkSession.sharedState().statusStore()
    for job in ended_jobs(spark):
        if job.jobId() in known:
            continue
        stages = {stage.stageId(): stage for stage in _stages(store, job)}
        described = job.description()
        if stages and described.isDefined() and described.get().startswith(WRITES):
            del stages[max(stages)]  # its rows are in no shuffle of Spark's
        shuffles = {at: stages[at].name() for at in stages if stages[at].shuffleWriteRecords()}
        query = store.jobWithAssociatedSql(job.jobId())._2()
        run = queries.execution(query.get()) if shuffles and query.isDefined() else query
        description = plan = ""
        if run.isDefined() and shuffles:
            plan = run.get().physicalPlanDescription()
            root = queries.execution(run.get().rootExecutionId())
            description = (root if root.isDefined() else run).get().description()
        tags = frozenset(job.jobTags().mkString(",").split(","))
        yield NativeJob(job.jobId(), tags, shuffles, description, plan)


def _stages(store: Any, job: Any) -> Iterator[Any]:
    """Yield the stages of a job that Spark still has: it forgets stages before jobs."""
    for number in job.stageIds().mkString(" ").split():
        with suppress(Py4JJavaError):
            yield store.lastStageAttempt(int(number))


def end_jobs(context: SparkContext, tag: str) -> None:
    """End the jobs with a tag. Do nothing if Spark has stopped: it has ended all jobs."""
    with suppress(Py4JError, AttributeError):  # a stopped context has no JVM any more
        context.cancelJobsWithTag(tag)


class StoppedJobs:
    """Ends jobs by their tags. Nothing waits for them: some broadcasts cannot be ended, such as one
    that lists files."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._left: list[tuple[str, Callable[[], bool]]] = []

    def add(self, tag: str, is_done: Callable[[], bool]) -> None:
        self._left.append((tag, is_done))

    def end(self) -> bool:
        """End the jobs that run now, and return True while some may begin: the caller then calls
        again."""
        self._left = [(tag, is_done) for tag, is_done in self._left if not is_done()]
        for tag, _ in self._left:
            end_jobs(self._context, tag)
        return bool(self._left)

    def leave(self, tag: str, shares: Callable[[], bool]) -> None:
        """Let a thread of its own end the remaining jobs by the tag of the whole query, unless the
        query shares some of its jobs with others."""
        if self.end():
            if not shares():
                left = [is_done for _, is_done in self._left]
                self._left = [(tag, lambda: all(is_done() for is_done in left))]
            threading.Thread(target=self._end_all, name="headgate-needless", daemon=True).start()

    def _end_all(self) -> None:
        deadline = Deadline.after(_LEFT_S_MAX)
        while not deadline.passed and self.end():
            SYSTEM_CLOCK.sleep_s(_PAUSE_S)


def is_over(future: Callable[[], Any]) -> bool:
    """Return True if a future of the JVM has ended, or Spark has stopped, which ends all jobs."""
    with suppress(Py4JError, AttributeError, OSError):
        return bool(future().isDone())
    return True


def kill_task(context: SparkContext, task: int, reason: str) -> None:
    """End a task attempt without counting it as a failure. Do nothing if it has ended."""
    context._jsc.sc().killTaskAttempt(task, False, reason)


def try_scheduling(context: SparkContext) -> None:
    """Look at the queues of Spark's scheduler.

    Raises:
        Py4JError: this Spark has others.
    """
    for tasks in _in_queues(context):
        tasks.runningTasksSet()


def put_first(context: SparkContext, stages: Collection[int]) -> None:
    """Give these stages the next free task slots under Spark's FIFO scheduling, which otherwise
    serves older jobs first. Under FAIR scheduling their pool has its share anyway."""
    for tasks in _tasks_of(context, stages):
        getattr(tasks, "priority_$eq")(-1)


def running_stages(context: SparkContext, tag: str) -> set[int]:
    """Return the stages of the running jobs with a tag."""
    jvm: Any = context._jvm
    running = jvm.java.util.ArrayList()
    running.add(jvm.org.apache.spark.JobExecutionStatus.RUNNING)
    jobs = context._jsc.sc().statusStore().jobsList(running)
    tagged = [job for at in range(jobs.size()) if (job := jobs.apply(at)).jobTags().contains(tag)]
    return {int(stage) for job in tagged for stage in job.stageIds().mkString(" ").split()}


def running_tasks(context: SparkContext, stages: Collection[int]) -> int:
    """Return the number of task slots that these stages have."""
    return sum(tasks.runningTasks() for tasks in _tasks_of(context, stages))


def await_all_slots(context: SparkContext, stages: Collection[int]) -> bool:
    """Return True if one of these stages begins only when all its tasks have slots: it has a
    barrier."""
    return any(tasks.isBarrier() for tasks in _tasks_of(context, stages))


def without_barrier(context: SparkContext, tasks: Collection[int]) -> list[int]:
    """Return those of these tasks whose stages have no barrier. The end of another one ends its
    job."""
    stages = [stage for stage in _in_queues(context) if stage.isBarrier()]
    return [
        task
        for task in tasks
        if not any(stage.runningTasksSet().contains(task) for stage in stages)
    ]


class StoppedStages:
    """Stages that get no task slots for a while: they would take the slots again that they give to
    stages with a barrier. Threads may share it."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._stages: dict[str, tuple[Any, set[ResultId]]] = {}
        """Each with the results that it waits for, by its name."""

    @cached_property
    def _pool(self) -> Any:
        """Return the pool in which they wait.

        Raises:
            Py4JError: this Spark does not compile it.
        """
        return Jvm(self._context).make("IdlePool")

    def add(self, result: ResultId, tasks: Collection[int]) -> None:
        """Give no further slots to the stages of these tasks, which wait for a result."""
        with self._lock:
            for stage in list(_in_queues(self._context)):
                if any(stage.runningTasksSet().contains(task) for task in tasks):
                    if not self._stages:
                        self._pool.schedulableQueue().clear()
                        self._root().addSchedulable(self._pool)
                    _, waiting = self._stages.setdefault(str(stage.name()), (stage, set()))
                    if not waiting:
                        self._pool.schedulableQueue().add(stage)
                        stage.parent().removeSchedulable(stage)
                    waiting.add(result)

    def end(self, result: ResultId) -> None:
        """Give slots again to all stages that wait for no other result. Each is in one of the pools
        at any time: else it would not hear of a lost executor."""
        with self._lock, suppress(Py4JError, AttributeError, OSError):  # Spark may have stopped
            before = len(self._stages)
            for name, (stage, waiting) in list(self._stages.items()):
                waiting.discard(result)
                if not waiting:
                    del self._stages[name]
                    stage.parent().addSchedulable(stage)
                    self._pool.schedulableQueue().remove(stage)
                    if stage.isZombie() and not stage.runningTasks():
                        stage.parent().removeSchedulable(stage)
            if before and not self._stages:
                self._root().removeSchedulable(self._pool)
            if before > len(self._stages):
                self._context._jsc.sc().schedulerBackend().reviveOffers()

    def _root(self) -> Any:
        return self._context._jsc.sc().taskScheduler().rootPool()


def task_slots(context: SparkContext) -> tuple[int, int]:
    """Return the number of tasks that the present executors run side by side, and the number of
    these executors: of as many as slots where Spark does not tell. With dynamic allocation both
    change."""
    try:
        jvm_context = context._jsc.sc()
        profile = jvm_context.resourceProfileManager().defaultResourceProfile()
        slots = max(1, int(jvm_context.maxNumConcurrentTasks(profile)))
        executors = 1 if jvm_context.isLocal() else int(jvm_context.getExecutorIds().size())
        return slots, min(slots, max(1, executors))
    except Py4JError:
        slots = max(1, context.defaultParallelism)
        return slots, slots


def _tasks_of(context: SparkContext, stages: Collection[int]) -> Iterator[Any]:
    """Yield Spark's managers of the tasks of these stages."""
    return (tasks for tasks in _in_queues(context) if tasks.stageId() in stages)


def _in_queues(context: SparkContext) -> Iterator[Any]:
    """Yield Spark's managers of the tasks of all stages. Each pool of FAIR scheduling has a queue
    of its own."""
    pools = [context._jsc.sc().taskScheduler().rootPool()]
    for pool in pools:
        for member in pool.schedulableQueue().toArray():
            if member.schedulableQueue() is not None:
                pools.append(member)
            else:
                yield member

"""The jobs and tasks of Spark's scheduler, behind the private door."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from .bridge import name_of


@dataclass(frozen=True, slots=True)
class NativeJob:
    """A job of Spark's: the stages that wrote a shuffle of its own, by their names, and what Spark
    says of the query that it belonged to."""

    number: int
    tags: frozenset[str]
    shuffles: Mapping[int, str]
    description: str
    plan: str


def session_name(spark: SparkSession) -> str:
    """What tells a session from the others of its process."""
    return str(spark._jsparkSession.sessionUUID())


def ended_jobs(spark: SparkSession) -> Iterator[Any]:
    """The jobs that have ended, as Spark's pages would show them."""
    core = spark.sparkContext._jsc.sc()
    core.listenerBus().waitUntilEmpty()
    jobs = core.statusStore().jobsList(None)
    for at in range(jobs.size()):
        if (job := jobs.apply(at)).status().name() != "RUNNING":
            yield job


def native_jobs(spark: SparkSession, known: Container[int]) -> Iterator[NativeJob]:
    """What the jobs have shuffled that have ended and are not known yet."""
    store = spark.sparkContext._jsc.sc().statusStore()
    queries = spark._jsparkSession.sharedState().statusStore()
    for job in ended_jobs(spark):
        if job.jobId() in known:
            continue
        stages = _stages(store, job)
        shuffles = {one.stageId(): one.name() for one in stages if one.shuffleWriteRecords()}
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
    """Spark forgets the stages of a job before the job."""
    for number in job.stageIds().mkString(" ").split():
        with suppress(Py4JJavaError):
            yield store.lastStageAttempt(int(number))


def kill_task(context: SparkContext, task: int, reason: str) -> None:
    """End one task attempt without counting it as a failure; one that has ended is no error."""
    context._jsc.sc().killTaskAttempt(task, False, reason)


def put_first(context: SparkContext, stages: Collection[int]) -> None:
    """Let these stages have the next slots under Spark's FIFO scheduling, which otherwise serves
    older jobs first; under FAIR their pool has its share without it."""
    waiting = context._jsc.sc().taskScheduler().rootPool().schedulableQueue().toArray()
    for one in waiting:
        if name_of(one) == "TaskSetManager" and one.stageId() in stages:
            getattr(one, "priority_$eq")(-1)

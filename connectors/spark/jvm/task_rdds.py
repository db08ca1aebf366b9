"""Make RDDs whose tasks run ours. PySpark's own way makes them in four times as many calls of the
JVM, because it passes the environment of the workers anew each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any

from pyspark import RDD, cloudpickle
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from ..tasks.frames import VolumeFrames, Volumes
from ..tasks.shipping import Task
from .bridge import Jvm
from .compiled_classes import CompiledClasses
from .task_settings import require_carried

_AWAIT = "scala.concurrent.Await"
_ERRORS = "org.apache.spark.errors.SparkCoreErrors"
_COMMAND_BYTES_MAX = 1 << 20  # PySpark sends a larger one as a broadcast
_pickled: Callable[[object], bytes] = cloudpickle.dumps


class JvmMapStage:
    """An RDD each of whose tasks gives a row with the number of the rows that it has written."""

    def __init__(self, rdd: Any, count: int, jvm: Jvm, gateway: Any, bar: Any) -> None:
        """Take Spark's progress bar as `bar`, None if there is none."""
        self.count = count
        self._rdd = rdd
        self._jvm = jvm
        self._gateway = gateway
        self._bar = bar

    def run(self) -> list[int]:
        # `collect` would have Spark examine the whole code of its context, which takes longer than
        # a small job
        require_carried()
        with self._jvm.together() as calls:
            job = self._jvm["job"](self._rdd, self._jvm.any).collectAsync()
            rows = self._jvm.only(_AWAIT).result(job, self._jvm.for_ever)
            calls.on(self._rdd).doCheckpoint()  # of what the user has marked, as `collect` does
            if self._bar is not None:
                calls.on(self._bar).finishAll()
            (text,) = calls.now(rows.mkString("[", ",", "]"))
        return [each for (each,) in json.loads(text)]

    def run_again(self, partitions: list[int]) -> None:
        require_carried()
        if self._rdd.isBarrier():  # Spark runs no part of such a stage
            self.run()
            return
        chosen = self._gateway.new_array(self._gateway.jvm.int, len(partitions))
        for at, partition in enumerate(partitions):
            chosen[at] = partition
        self._rdd.toJavaRDD().collectPartitions(chosen)


class TaskRdds:
    def __init__(self, spark: SparkSession, jvm: Jvm, compiled: CompiledClasses) -> None:
        self._context: Any = spark.sparkContext
        self._jvm = jvm
        self._nothing = jvm["list"]()
        self._compiled = compiled
        self._empty = lru_cache(maxsize=32)(self._without_rows)
        self._passed: tuple[object, Any, Any] = (), None, None

    @cached_property
    def _bar(self) -> Any:
        bar = self._context._jsc.sc().progressBar()
        return bar.get() if bar.isDefined() else None

    def over(self, parent: Any, task: Task, given: Any) -> JvmMapStage:
        """Return a map stage of a task that gives one volume for each partition of an RDD. `given`
        is the serializer that reads the RDD's elements."""
        bar, environment = self._bar, self._environment()
        with self._jvm.together() as calls:
            made = self._made(parent, task, given, Volumes(), environment)
            written = self._compiled.written(made)
            written, count = calls.now(written, written.getNumPartitions())
        return JvmMapStage(written, count, self._jvm, self._context._gateway, bar)

    def require_slots(self, rows: Any) -> None:
        """Check that a stage with a barrier may begin, as Spark checks its own map stages. It tries
        jobs such as ours again for ten minutes.

        Raises:
            Py4JJavaError: the stage has more tasks than there are slots.
        """
        if rows.isBarrier():
            count, context = int(rows.getNumPartitions()), self._context._jsc.sc()
            stages = context.dagScheduler()
            asked = stages.getShuffleDependenciesAndResourceProfiles(rows)._2()
            slots = int(context.maxNumConcurrentTasks(stages.mergeResourceProfilesForStage(asked)))
            if count > slots:
                errors = self._jvm.only(_ERRORS)
                error = errors.numPartitionsGreaterThanMaxNumConcurrentTasksError(count, slots)
                self._jvm.static("scala.util.Failure")(error).get()

    def without_input(self, count: int, task: Task) -> Any:
        """Return an RDD of rows that each have a message, with the volume that was read for it.
        `count` tasks, which are given nothing, give them."""
        parent, environment = self._empty(count), self._environment()
        with self._jvm.together() as calls:
            made = self._made(parent, task, NoOpSerializer(), VolumeFrames(), environment)
            (rows,) = calls.now(self._compiled.read(made))
        return rows

    def of_messages(self, messages: Iterable[bytes]) -> Any:
        """Return an RDD as `without_input` does, of messages that are there: one partition for
        each, without a row if there is only a volume."""
        given = [bytearray(message) for message in messages]
        with self._jvm.together() as calls:
            listed = self._jvm["list"](len(given))
            for message in given:
                listed.add(message)
            made = calls.on(self._context._jsc).parallelize(listed, len(given)).rdd()
            (rows,) = calls.now(self._compiled.read(made))
        return rows

    def _without_rows(self, count: int) -> Any:
        """Return an RDD of so many empty partitions."""
        return self._context._jsc.parallelize(self._nothing, count).rdd()

    def _made(
        self, parent: Any, task: Task, given: Any, returned: Any, environment: Iterable[Any]
    ) -> Any:
        context = self._context
        command = _pickled((task, None, given, returned))
        if len(command) > _COMMAND_BYTES_MAX or list(context._pickled_broadcast_vars):
            made = RDD(parent.toJavaRDD(), context, given).mapPartitionsWithIndex(task)
            made._jrdd_deserializer = returned
            return made._jrdd.rdd()
        function = self._jvm["function"](
            bytearray(command),
            *environment,
            context.pythonExec,
            context.pythonVer,
            self._nothing,
            context._javaAccumulator,
        )
        return self._jvm["python"](parent, function, False, False)

    def _environment(self) -> tuple[Any, Any]:
        """Return the environment of the workers and their files of code, as the JVM's objects."""
        now = dict(self._context.environment), list(self._context._python_includes)
        if (passed := self._passed)[0] != now:
            passed = self._passed = now, self._jvm["alike"](now[0]), self._jvm["list"](now[1])
        return passed[1:]

"""Make RDDs whose tasks run ours. PySpark's own way makes them in four times as many calls of the
JVM, because it passes the environment of the workers anew each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, cloudpickle
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from ..tasks.frames import MessageFrames, VolumeFrames, Volumes
from ..tasks.shipping import Task
from .bridge import Jvm
from .compiled_classes import CompiledClasses
from .task_settings import require_carried

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
        job = self._jvm["job"](self._rdd, self._jvm.any).collectAsync()
        rows = self._jvm.only("await").result(job, self._jvm.only("duration").Inf())
        self._rdd.doCheckpoint()  # of what the user has marked, as `collect` does
        if self._bar is not None:
            self._bar.finishAll()
        return [each for (each,) in json.loads(rows.mkString("[", ",", "]"))]

    def run_again(self, partitions: list[int]) -> None:
        require_carried()
        if self._rdd.isBarrier():  # Spark runs no part of such a stage
            self.run()
            return
        chosen = self._gateway.new_array(self._gateway.jvm.int, len(partitions))
        for at, partition in enumerate(partitions):
            chosen[at] = partition
        self._rdd.toJavaRDD().collectPartitions(chosen)


@dataclass(frozen=True, slots=True)
class PublicMapStage:
    """A map stage that calls public PySpark only."""

    volumes: RDD[Any]

    @property
    def count(self) -> int:
        return self.volumes.getNumPartitions()

    def run(self) -> list[int]:
        require_carried()
        return [volume.rows for volume in self.volumes.collect()]

    def run_again(self, partitions: list[int]) -> None:
        require_carried()
        if self._is_barrier():  # Spark runs no part of such a stage
            self.run()
            return
        self.volumes.context.runJob(self.volumes, lambda volumes: volumes, partitions)

    def _is_barrier(self) -> bool:
        with suppress(Py4JError):  # public PySpark does not tell
            return bool(self.volumes._jrdd.rdd().isBarrier())
        return False


class TaskRdds:
    def __init__(self, spark: SparkSession, jvm: Jvm, compiled: CompiledClasses | None) -> None:
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

    def over(self, parent: Any, task: Task, given: Any) -> JvmMapStage | PublicMapStage:
        """Return a map stage of a task that gives one volume for each partition of an RDD. `given`
        is the serializer that reads the RDD's elements."""
        if self._compiled is None:
            rows: RDD[Any] = RDD(parent.toJavaRDD(), self._context, given)
            return PublicMapStage(rows.mapPartitionsWithIndex(task))
        written = self._compiled.written(self._made(parent, task, given, Volumes()))
        count, gateway = written.getNumPartitions(), self._context._gateway
        return JvmMapStage(written, count, self._jvm, gateway, self._bar)

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
                errors = self._jvm.only("core errors")
                error = errors.numPartitionsGreaterThanMaxNumConcurrentTasksError(count, slots)
                self._jvm["failure"](error).get()

    def without_input(self, count: int, task: Task) -> Any:
        """Return an RDD of rows that each have a message, with the volume that was read for it.
        `count` tasks, which are given nothing, give them. Without compiled classes, return an RDD
        of the messages."""
        parent, given = self._empty(count), NoOpSerializer()
        if self._compiled is None:
            return self._made(parent, task, given, MessageFrames())
        return self._compiled.read(self._made(parent, task, given, VolumeFrames()))

    def takes_messages(self) -> bool:
        """Return True if `of_messages` may be called: classes are compiled."""
        return self._compiled is not None

    def of_messages(self, messages: Sequence[bytes]) -> Any:
        """Return an RDD as `without_input` does, of messages that are there: one partition for
        each, without a row if there is only a volume."""
        assert self._compiled is not None
        framed = bytearray().join(len(message).to_bytes(4) + message for message in messages)
        context, given = self._context._jsc.sc(), self._jvm["input"](framed)
        made = self._jvm["python"].readRDDFromInputStream(context, given, len(messages))
        return self._compiled.read(made.rdd())

    def _without_rows(self, count: int) -> Any:
        """Return an RDD of so many empty partitions."""
        return self._context._jsc.parallelize(self._nothing, count).rdd()

    def _made(self, parent: Any, task: Task, given: Any, returned: Any) -> Any:
        context = self._context
        command = _pickled((task, None, given, returned))
        if len(command) > _COMMAND_BYTES_MAX or list(context._pickled_broadcast_vars):
            made = RDD(parent.toJavaRDD(), context, given).mapPartitionsWithIndex(task)
            made._jrdd_deserializer = returned
            return made._jrdd.rdd()
        function = self._jvm["function"](
            bytearray(command),
            *self._environment(),
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

"""Make RDDs whose tasks run ours. PySpark's own way makes them in four times as many calls of the
JVM, because it passes the environment of the workers anew each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import RDD, cloudpickle
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from ..tasks.shipping import Task
from .bridge import Jvm

_COMMAND_BYTES_MAX = 1 << 20  # PySpark sends a larger one as a broadcast
_pickled: Callable[[object], bytes] = cloudpickle.dumps


class TaskRdds:
    def __init__(self, spark: SparkSession, jvm: Jvm) -> None:
        self._context: Any = spark.sparkContext
        self._jvm = jvm
        self._nothing = jvm["list"]()
        self._passed: tuple[object, Any, Any] = (), None, None

    def over(self, parent: Any, task: Task, given: Any) -> RDD[Any]:
        """Return the results of a task for each partition of an RDD. `given` is the serializer that
        reads its elements."""
        made = self._made(parent, task, given, self._context.serializer)
        return RDD(made, self._context, self._context.serializer)

    def without_input(self, count: int, task: Task) -> Any:
        """Return a JavaRDD of the bytes that `count` tasks give. They are given nothing."""
        empty = self._context._jsc.parallelize(self._nothing, count).rdd()
        return self._made(empty, task, NoOpSerializer(), NoOpSerializer())

    def _made(self, parent: Any, task: Task, given: Any, returned: Any) -> Any:
        context = self._context
        command = _pickled((task, None, given, returned))
        if len(command) > _COMMAND_BYTES_MAX or list(context._pickled_broadcast_vars):
            made = RDD(parent.toJavaRDD(), context, given).mapPartitionsWithIndex(task)
            made._jrdd_deserializer = returned
            return made._jrdd
        function = self._jvm["function"](
            bytearray(command),
            *self._environment(),
            context.pythonExec,
            context.pythonVer,
            self._nothing,
            context._javaAccumulator,
        )
        return self._jvm["python"](parent, function, False, False).asJavaRDD()

    def _environment(self) -> tuple[Any, Any]:
        """Return the environment of the workers and their files of code, as the JVM's objects."""
        now = dict(self._context.environment), list(self._context._python_includes)
        if (passed := self._passed)[0] != now:
            passed = self._passed = now, self._jvm["alike"](now[0]), self._jvm["list"](now[1])
        return passed[1:]

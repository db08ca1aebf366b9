"""Tell Spark what a task of ours has read and written, so that its pages and its event log show it.

Only the JVM side of a task can do so. What Python sends there ends with a `Volume`, and a function
that Spark evaluates in the task adds this volume to the task's own metrics. The function is made of
Spark's expressions: no class of ours is in the JVM.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...tasks.frames import VOLUME
from ..bridge import Jvm

_METRICS = "org.apache.spark.executor"
_TASK = "org.apache.spark.TaskContext"
_BUFFER = "java.nio.ByteBuffer"
_ROWS_AT, _BYTES_AT = VOLUME.size, VOLUME.size // 2  # from the end
_OBJECTS = "org.apache.spark.sql.execution.ObjectOperator"


class TaskMetrics:
    """Functions that take bytes, note the volume at their end, and return the same bytes."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    @cached_property
    def written(self) -> Any:
        return self._noting(
            ("ShuffleWriteMetrics", "shuffleWriteMetrics"),
            ("incRecordsWritten", "incBytesWritten"),
        )

    @cached_property
    def read(self) -> Any:
        return self._noting(
            ("ShuffleReadMetrics", "shuffleReadMetrics"), ("incRecordsRead", "incRemoteBytesRead")
        )

    def _noting(self, kind: tuple[str, str], setters: tuple[str, str]) -> Any:
        jvm, kinds = self._jvm, self._jvm["types"]
        sent = jvm["bound"](0, kinds.BinaryType, False)
        task = self._static(_TASK, self._object(_TASK), "get")
        of_task = self._call(task, "taskMetrics", self._object(f"{_METRICS}.TaskMetrics"))
        metrics = self._call(of_task, kind[1], self._object(f"{_METRICS}.{kind[0]}"))
        volume = (self._long(sent, _ROWS_AT), self._long(sent, _BYTES_AT))
        named = zip(setters, volume, strict=True)
        noted = jvm["bean"](metrics, jvm["map of two"](*(each for pair in named for each in pair)))
        same = jvm["if"](jvm["is not null"](noted), sent, sent)
        as_row = jvm.only(_OBJECTS).wrapObjectToRow(kinds.BinaryType)
        return as_row.andThen(jvm["evaluate"](jvm.seq([same])))

    def _long(self, sent: Any, from_end: int) -> Any:
        """Return the whole number of eight bytes that begins so far from the end."""
        jvm, kinds = self._jvm, self._jvm["types"]
        end = jvm["literal"](from_end, kinds.IntegerType)
        place = jvm["length"](sent), end
        at = self._static("java.lang.Math", kinds.IntegerType, "subtractExact", *place)
        buffer = self._static(_BUFFER, self._object(_BUFFER), "wrap", sent)
        return self._call(buffer, "getLong", kinds.LongType, at)

    def _static(self, owner: str, kind: Any, name: str, *arguments: Any) -> Any:
        jvm = self._jvm
        given = jvm.seq(arguments), jvm.seq(), True, True, False, jvm.nothing()
        return jvm["call"](jvm["class"].forName(owner), kind, name, *given)

    def _call(self, on: Any, name: str, kind: Any, *arguments: Any) -> Any:
        jvm = self._jvm
        return jvm["call on"](on, name, kind, jvm.seq(arguments), jvm.seq(), True, True, False)

    def _object(self, name: str) -> Any:
        return self._jvm["object"](self._jvm["class"].forName(name))

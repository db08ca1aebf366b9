"""Give access to the JVM's classes by short names, and convert Scala's collections."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ....control.errors import Corrupt
from .names import CLASSES, OBJECTS, Needs

_INVALID = "InvalidAQEPlanException"
_SCHEDULER = "org.apache.spark.scheduler."
_EXECUTED = (
    "org.apache.spark.sql.execution.SparkPlan.executeQuery",
    "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
)
_OF_QUERIES = re.compile("SQLSTATE: (?!XX|0A)")  # neither a fault of Spark nor an unsupported plan
_CANCELLED = "[SPARK_JOB_CANCELLED]"
_OF_THREADS = (
    "java.util.concurrent.ExecutionException",
    "org.apache.spark.util.SparkFatalException",
)
_PARTS = {"SortedRuns": ("RowInput", "ColumnInput")}

REFUSALS = (LookupError, Py4JError, PySparkException)
"""The errors of names and calls that this Spark does not know, or of what it refuses."""


class Jvm:
    def __init__(self, spark: SparkSession | SparkContext) -> None:
        context = spark if isinstance(spark, SparkContext) else spark.sparkContext
        self._gateway: Any = context._gateway
        self._jvm: Any = context._jvm

    def __getitem__(self, name: str) -> Any:
        """Return a class by its short name."""
        return _find(self._jvm, CLASSES[name])

    def only(self, name: str) -> Any:
        """Return a Scala object by its short name."""
        return _module(self._jvm, OBJECTS[name])

    def require(self, needs: Needs) -> None:
        """Look up all names that a feature needs.

        Raises:
            LookupError: this Spark does not have all of them.
        """
        for path in (*needs.classes.values(), *(f"{path}$" for path in needs.objects.values())):
            _find(self._jvm, path)

    def compile(self, name: str) -> Any:
        """Have Spark compile a class of the folder `java`, and return its text as Spark takes it.

        Raises:
            Py4JError: this Spark does not compile it.
        """
        text = _text(self._jvm, name)
        self.only("compiler").compile(text)
        return text

    def make(self, name: str) -> Any:
        """Return the only object in the driver of a class of the folder `java`.

        Raises:
            Py4JError: this Spark does not compile it.
        """
        return _made(self._gateway, name)

    def nothing(self) -> Any:
        return self.only("nothing")

    def seq(self, items: Iterable[Any] = ()) -> Any:
        seq = self.only("nil")
        for item in reversed(list(items)):
            seq = seq.prepended(item)
        return seq

    def items(self, seq: Any) -> list[Any]:
        return [seq.apply(at) for at in range(int(seq.size()))]

    def named_items(self, seq: Any) -> list[tuple[str, Any]]:
        """Return the items of a sequence, each after the name of its class."""
        return [(name_of(item), item) for item in self.items(seq)]

    def named_leaves(self, plan: Any) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of a plan and of its subqueries, each after the name of its class."""
        yield from self.named_items(plan.collectLeaves())
        nested = plan.containsPattern(self.subquery)
        for subquery in self.items(plan.subqueriesAll()) if nested else ():
            yield from self.named_items(subquery.collectLeaves())

    def alias(self, expression: Any, column: Any, metadata: Any) -> Any:
        """Return an expression under the name and the id of a column."""
        named = column.name(), column.exprId(), column.qualifier()
        return self["alias"](expression, *named, self["option"].apply(metadata), self.seq())

    def mapping(self, items: Iterable[tuple[Any, Any]]) -> Any:
        """Return a Scala map.

        Raises:
            Corrupt: two keys are equal, and their values are not.
        """
        pairs = list(items)
        if len(pairs) == 1:
            return self["map of one"](*pairs[0])
        java = self["alike"]()
        for key, value in pairs:
            before = java.put(key, value)
            if before is not None and not before.equals(value):
                raise Corrupt("equal places of a plan are to be given different rows")
        return self["scala"].asScala(java)

    @cached_property
    def any(self) -> Any:
        """Return the tag of a class of elements about which nothing is known."""
        return self.only("tags").Any()

    @cached_property
    def subquery(self) -> Any:
        """Return the pattern that plans with subqueries contain."""
        return self.only("patterns").PLAN_EXPRESSION()

    @cached_property
    def pruning(self) -> Any:
        """Return the pattern of plans whose scans are pruned by the rows of a join's other side."""
        return self.only("patterns").DYNAMIC_PRUNING_SUBQUERY()

    def longs(self, numbers: npt.NDArray[np.int64]) -> Any:
        """Return numbers as an array of Java."""
        raw = self["byte buffer"].wrap(numbers.astype(">i8").tobytes())
        array = self._gateway.new_array(self._jvm.long, len(numbers))
        raw.asLongBuffer().get(array)
        return array

    def first_of_each(self, items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the pairs without those whose key equals an earlier key."""
        keys = self["alike"]()
        return [(key, value) for key, value in items if keys.putIfAbsent(key, True) is None]


def name_of(node: Any) -> str:
    """Return the name of the class of a Scala case class or case object, as plans are made of. It
    is asked for without its class, which would be one more object and one more call."""
    return str(node.productPrefix())


def link(node: Any) -> Any:
    """Return the logical node of a physical node, None for a node that Spark has added."""
    logical = node.logicalLink()
    return logical.get() if logical.isDefined() else None


def schema_of(node: Any) -> StructType:
    """Return the schema of a node of a plan."""
    return StructType.fromJson(json.loads(node.schema().json()))


def is_sparks(error: Exception) -> bool:
    """Return True if Spark has run a part of the query that has failed, for example on the user's
    rows, or was ended: a job, or the driver, which executes subqueries and recursions, and
    evaluates expressions of few rows. Any other
    error is one of planning, whatever its type: PySpark gives many Java exceptions types of its
    own, also those that our own calls raise."""
    is_java = isinstance(error, Py4JJavaError)
    trace = str(error if is_java else getattr(error, "_stackTrace", ""))
    by_driver = any(name in trace for name in _EXECUTED) and _OF_QUERIES.search(str(error))
    return bool(_SCHEDULER in trace or by_driver)


def is_cancelled(error: Exception) -> bool:
    """Return True if a job of Spark was ended by the user: nothing may go on instead."""
    return _CANCELLED in str(error)


def error_of_thread(error: Py4JJavaError) -> Exception:
    """Return the error of a broadcast by itself, as adaptive execution raises it. Without adaptive
    execution Spark raises the error of the thread that waited for the broadcast."""
    java = error.java_exception
    while java.getClass().getName() in _OF_THREADS and java.getCause() is not None:
        java = java.getCause()
    converted: Exception = convert_exception(java)
    if isinstance(converted, UnknownException):
        converted = Py4JJavaError(str(error.errmsg), java)
    return converted


def is_invalid_plan(error: Exception) -> bool:
    """Return True if Spark refuses a plan of its adaptive execution."""
    return isinstance(error, Py4JJavaError) and _INVALID in error.java_exception.toString()


class _Class:
    """A class whose static members are looked up once, because each look-up calls the JVM."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __call__(self, *arguments: Any) -> Any:
        return self._java(*arguments)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._java, name)
        setattr(self, name, member)
        return member


def _module(jvm: Any, name: str) -> Any:
    return getattr(_find(jvm, f"{name}$"), "MODULE$")


def _text(jvm: Any, name: str) -> Any:
    comments = _module(jvm, OBJECTS["immutable map"]).empty()
    return _find(jvm, CLASSES["text"])(_body(name), comments)


def _body(name: str) -> str:
    folder = files(__package__) / "java"
    return "".join(
        folder.joinpath(f"{each}.java").read_text() for each in (name, *_PARTS.get(name, ()))
    )


@lru_cache(maxsize=2)  # there are two such classes
def _made(gateway: Any, name: str) -> Any:
    """Return an object of a class. It is made once, and not by py4j's own call: py4j remembers the
    methods of a class by its name, and all classes that Spark compiles are called
    `GeneratedClass`."""
    java = gateway.jvm.java.lang
    types, arguments = gateway.new_array(java.Class, 1), gateway.new_array(java.Object, 1)
    types[0] = arguments.getClass()
    arguments[0] = gateway.new_array(java.Object, 0)
    generate = java.Class.forName(CLASSES["generated"]).getMethod("generate", types)
    compiled = _module(gateway.jvm, OBJECTS["compiler"]).compile(_text(gateway.jvm, name))
    return generate.invoke(compiled._1(), arguments)


@lru_cache(maxsize=256)
def _find(jvm: Any, path: str) -> _Class:
    """Return the class of a full path. The result is cached: the JVM searches all its jars for a
    package.

    Raises:
        LookupError: there is no such class.
    """
    java_class = getattr(jvm, path)
    if type(java_class).__name__ != "JavaClass":
        raise LookupError(f"no {path}")
    return _Class(java_class)

"""Give access to the JVM's classes by short names, send several calls together, and convert Scala's
collections."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ....control.errors import Corrupt
from .gateway.calls_together import CallsAtOnce, CallsTogether, LaterClass

_COMPILER = "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator"
_GENERATED = "org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass"
_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"
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
CLASSES = {
    "class": "java.lang.Class",
    "weak": "java.lang.ref.WeakReference",
    "list": "java.util.ArrayList",
    "alike": "java.util.HashMap",
    "same": "java.util.IdentityHashMap",
    "pairs": "org.apache.spark.api.java.JavaPairRDD",
    "python": "org.apache.spark.api.python.PythonRDD",
    "job": "org.apache.spark.rdd.AsyncRDDActions",
    "function": "org.apache.spark.api.python.SimplePythonFunction",
    "bytes": "org.apache.spark.network.util.JavaUtils",
    "loader": "org.apache.spark.sql.api.r.SQLUtils",
    "evaluate": "org.apache.spark.sql.catalyst.encoders.ExpressionEncoder$Deserializer",
    "alias": "org.apache.spark.sql.catalyst.expressions.Alias",
    "column": "org.apache.spark.sql.catalyst.expressions.AttributeReference",
    "xor": "org.apache.spark.sql.catalyst.expressions.BitwiseXor",
    "bound": "org.apache.spark.sql.catalyst.expressions.BoundReference",
    "struct": "org.apache.spark.sql.catalyst.expressions.CreateStruct",
    "literal": "org.apache.spark.sql.catalyst.expressions.Literal",
    "decimal": "org.apache.spark.sql.catalyst.expressions.MakeDecimal",
    "hash": "org.apache.spark.sql.catalyst.expressions.Murmur3Hash",
    "named": "org.apache.spark.sql.catalyst.expressions.NamedExpression",
    "shift": "org.apache.spark.sql.catalyst.expressions.ShiftRight",
    "order": "org.apache.spark.sql.catalyst.expressions.SortOrder",
    "unscaled": "org.apache.spark.sql.catalyst.expressions.UnscaledValue",
    "text": "org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment",
    "ordering": "org.apache.spark.sql.catalyst.expressions.codegen.LazilyGeneratedOrdering",
    "call": "org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke",
    "limit": "org.apache.spark.sql.catalyst.plans.logical.GlobalLimit",
    "local limit": "org.apache.spark.sql.catalyst.plans.logical.LocalLimit",
    "relation": "org.apache.spark.sql.catalyst.plans.logical.LocalRelation",
    "offset": "org.apache.spark.sql.catalyst.plans.logical.Offset",
    "project": "org.apache.spark.sql.catalyst.plans.logical.Project",
    "answer": "org.apache.spark.sql.catalyst.plans.logical.ReturnAnswer",
    "repartition": "org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression",
    "sort": "org.apache.spark.sql.catalyst.plans.logical.Sort",
    "bounds": "org.apache.spark.sql.catalyst.plans.physical.CoalescedBoundary",
    "coalesced": "org.apache.spark.sql.catalyst.plans.physical.CoalescedHashPartitioning",
    "ranges": "org.apache.spark.sql.catalyst.plans.physical.RangePartitioning",
    "unknown": "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning",
    "attributes": "org.apache.spark.sql.catalyst.types.DataTypeUtils",
    "dataset": "org.apache.spark.sql.classic.Dataset",
    "columns": "org.apache.spark.sql.functions",
    "sessions": "org.apache.spark.sql.classic.SparkSession",
    "converter": "org.apache.spark.sql.connect.execution.SparkConnectPlanExecution",
    "some": "org.apache.spark.sql.execution.LocalLimitExec",
    "scan": "org.apache.spark.sql.execution.LogicalRDD",
    "made": "org.apache.spark.sql.execution.ProjectExec",
    "leaf": "org.apache.spark.sql.execution.RDDScanExec",
    "with settings": "org.apache.spark.sql.execution.SQLExecutionRDD",
    "sorted": "org.apache.spark.sql.execution.SortExec",
    "union": "org.apache.spark.sql.execution.UnionExec",
    "stage": "org.apache.spark.sql.execution.adaptive.LogicalQueryStage",
    "shuffle stage": "org.apache.spark.sql.execution.adaptive.ShuffleQueryStageExec",
    "broadcast stage": "org.apache.spark.sql.execution.adaptive.BroadcastQueryStageExec",
    "optimizer": "org.apache.spark.sql.execution.adaptive.AQEOptimizer",
    "map sizes": "org.apache.spark.MapOutputStatistics",
    "compiled": "org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory",
    "exchange": "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec",
    "types": "org.apache.spark.sql.types.DataTypes",
    "metadata": "org.apache.spark.sql.types.Metadata",
    "object": "org.apache.spark.sql.types.ObjectType",
    "option": "scala.Option",
    "array": "scala.collection.immutable.ArraySeq",
    "right": "scala.util.Right",
    "map of one": "scala.collection.immutable.Map$Map1",
    "scala": "scala.jdk.javaapi.CollectionConverters",
}


class Jvm:
    def __init__(self, spark: SparkSession | SparkContext) -> None:
        context = spark if isinstance(spark, SparkContext) else spark.sparkContext
        self._gateway: Any = context._gateway
        self._jvm: Any = context._jvm
        self._thread = threading.local()
        """Its `calls` are those that wait."""

    def __getitem__(self, name: str) -> Any:
        """Return a class by its short name."""
        if (calls := self._waiting) is not None:
            return LaterClass(calls, CLASSES[name])
        return _find(self._jvm, CLASSES[name])

    @property
    def _waiting(self) -> CallsTogether | None:
        return getattr(self._thread, "calls", None)

    @contextmanager
    def together(self) -> Iterator[Any]:
        """Send calls in one message: those of what this object and `on` give inside, when `now` is
        called or at the end. The messages of this thread do not nest. Where Spark does not compile
        our classes, each call is sent at once."""
        assert self._waiting is None, "calls wait already"
        if (send := _sender(self._gateway)) is None:
            yield CallsAtOnce()
            return
        calls = self._thread.calls = CallsTogether(send, self._gateway._gateway_client)
        try:
            yield calls
            calls.now()
        finally:
            del self._thread.calls

    def compile(self, name: str) -> Any:
        """Have Spark compile a class of the folder `java`, and return its text as Spark takes it.

        Raises:
            Py4JError: this Spark does not compile it.
        """
        text = _text(self._jvm, name)
        _module(self._jvm, _COMPILER).compile(text)
        return text

    def make(self, name: str) -> Any:
        """Return the only object in the driver of a class of the folder `java`.

        Raises:
            Py4JError: this Spark does not compile it.
        """
        return _made(self._gateway, name)

    def require_classes(self) -> None:
        """Look all classes up.

        Raises:
            LookupError: this Spark does not have all of them.
        """
        for path in CLASSES.values():
            _find(self._jvm, path)

    def only(self, name: str) -> Any:
        """Return the Scala object of this path."""
        module = _module(self._jvm, name)
        return module if self._waiting is None else self._waiting.on(module)

    def static(self, name: str) -> Any:
        """Return the class of this path."""
        return _find(self._jvm, name)

    def nothing(self) -> Any:
        return self.only("scala.None")

    def seq(self, items: Iterable[Any] = ()) -> Any:
        seq = self.only("scala.collection.immutable.Nil")
        for item in reversed(list(items)):
            seq = seq.prepended(item)
        return seq

    def items(self, seq: Any) -> list[Any]:
        return [item for _, item in self._named(seq, int(seq.size()), names=False)]

    def named_items(self, seq: Any) -> list[tuple[str, Any]]:
        """Return the items of a sequence, each after the name of its class."""
        return self._named(seq, int(seq.size()))

    def named_leaves(self, plan: Any) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of a plan and of its subqueries, each after the name of its class."""
        pattern = self.subquery
        with self.together() as calls:
            leaves = calls.on(plan).collectLeaves()
            seq, count, nested = calls.now(
                leaves, leaves.size(), calls.on(plan).containsPattern(pattern)
            )
        yield from self._named(seq, count)
        for subquery in self.items(plan.subqueriesAll()) if nested else ():
            leaves = subquery.collectLeaves()
            yield from self._named(leaves, int(leaves.size()))

    def _named(self, seq: Any, count: int, names: bool = True) -> list[tuple[str, Any]]:
        with self.together() as calls:
            items = [calls.on(seq).apply(at) for at in range(count)]
            known = [item.productPrefix() for item in items] if names else [""] * count
            given = calls.now(*items, *known)
        return list(zip(given[count:], given[:count], strict=True))

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
        return _module(self._jvm, "scala.reflect.ClassTag").Any()

    @cached_property
    def null(self) -> Any:
        """Return the evidence with which an option without a value gives null."""
        return _module(self._jvm, "scala.$less$colon$less").refl()

    @cached_property
    def for_ever(self) -> Any:
        """Return the duration that never ends."""
        return _module(self._jvm, "scala.concurrent.duration.Duration").Inf()

    @cached_property
    def subquery(self) -> Any:
        """Return the pattern that plans with subqueries contain."""
        return _module(self._jvm, _PATTERNS).PLAN_EXPRESSION()

    @cached_property
    def pruning(self) -> Any:
        """Return the pattern of plans whose scans are pruned by the rows of a join's other side."""
        return _module(self._jvm, _PATTERNS).DYNAMIC_PRUNING_SUBQUERY()

    def longs(self, numbers: npt.NDArray[np.int64]) -> Any:
        """Return numbers as an array of Java."""
        raw = self.static("java.nio.ByteBuffer").wrap(numbers.astype(">i8").tobytes())
        array = self._gateway.new_array(self._jvm.long, len(numbers))
        raw.asLongBuffer().get(array)
        return array

    def first_of_each(self, items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the pairs without those whose key equals an earlier key."""
        keys = self["alike"]()
        return [(key, value) for key, value in items if keys.putIfAbsent(key, True) is None]

    def java_map(self, mapping: Any) -> Any:
        """Return a Scala map as a Java map."""
        return self["scala"].asJava(mapping)


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
    comments = _module(jvm, "scala.collection.immutable.Map").empty()
    return _find(jvm, CLASSES["text"])(_body(name), comments)


def _body(name: str) -> str:
    folder = files(__package__) / "java"
    return "".join(
        folder.joinpath(f"{each}.java").read_text() for each in (name, *_PARTS.get(name, ()))
    )


@lru_cache(maxsize=1)  # else the JVM keeps what belongs to a gateway that has ended
def _sender(gateway: Any) -> Callable[[str], str] | None:
    """Return the method that makes calls together, None where Spark does not compile its class."""
    try:
        apply = _made(gateway, "CallsTogether").apply
    except (LookupError, Py4JError):
        return None
    apply.converters = None  # a text needs none, and py4j takes long to find that out
    send: Callable[[str], str] = apply
    return send


@lru_cache(maxsize=2)  # there are two such classes
def _made(gateway: Any, name: str) -> Any:
    """Return an object of a class. It is made once, and not by py4j's own call: py4j remembers the
    methods of a class by its name, and all classes that Spark compiles are called
    `GeneratedClass`."""
    java = gateway.jvm.java.lang
    kinds = java.Class, java.Object, java.Object
    types, arguments, references = [gateway.new_array(kind, 1) for kind in kinds]
    types[0], arguments[0] = references.getClass(), references
    references[0] = gateway.java_gateway_server.getGateway()
    generate = java.Class.forName(_GENERATED).getMethod("generate", types)
    compiled = _module(gateway.jvm, _COMPILER).compile(_text(gateway.jvm, name))
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
        raise LookupError(path)
    return _Class(java_class)

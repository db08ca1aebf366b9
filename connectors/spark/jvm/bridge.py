"""Give access to the JVM's classes by short names, and convert Scala's collections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ....control.errors import Corrupt

_SCHEDULER = "org.apache.spark.scheduler.DAGScheduler"


class Jvm:
    def __init__(self, spark: SparkSession, classes: Mapping[str, str]) -> None:
        """Look the classes up by their paths.

        Raises:
            LookupError: this Spark does not have all of them.
        """
        self._jvm: Any = spark._jvm
        self._classes = {name: _find(self._jvm, path) for name, path in classes.items()}

    def __getitem__(self, name: str) -> Any:
        return self._classes[name]

    def only(self, name: str) -> Any:
        """Return the Scala object of this path."""
        return getattr(_find(self._jvm, f"{name}$"), "MODULE$")

    def nothing(self) -> Any:
        return self.only("scala.None")

    def seq(self, items: Iterable[Any] = ()) -> Any:
        if not (elements := list(items)):
            return self.only("scala.collection.immutable.Nil")
        java = _find(self._jvm, "java.util.ArrayList")()
        for item in elements:
            java.add(item)
        return self._scala.asScala(java).toSeq()

    def items(self, seq: Any) -> list[Any]:
        return [seq.apply(at) for at in range(seq.size())]

    def mapping(self, items: Iterable[tuple[Any, Any]]) -> Any:
        """Return a Scala map.

        Raises:
            Corrupt: two keys are equal, and their values are not.
        """
        java = _find(self._jvm, "java.util.HashMap")()
        for key, value in items:
            before = java.put(key, value)
            if before is not None and not before.equals(value):
                raise Corrupt("equal places of a plan are to be given different rows")
        return self._scala.asScala(java)

    def first_of_each(self, items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the pairs without those whose key equals an earlier key."""
        keys = _find(self._jvm, "java.util.HashMap")()
        return [(key, value) for key, value in items if keys.putIfAbsent(key, True) is None]

    def java_map(self, mapping: Any) -> Any:
        """Return a Scala map as a Java map."""
        return self._scala.asJava(mapping)

    @cached_property
    def _scala(self) -> Any:
        return _find(self._jvm, "scala.jdk.javaapi.CollectionConverters")


def name_of(thing: Any) -> str:
    """Return the simple name of the class of a JVM object."""
    return str(thing.getClass().getSimpleName())


def is_sparks(error: Exception) -> bool:
    """Return True if a job of Spark has failed, for example on the user's rows, or was ended. An
    error without a job is one of planning, whatever its type: PySpark gives many Java exceptions
    types of its own, also those that our own calls raise."""
    if isinstance(error, Py4JJavaError):
        return _SCHEDULER in str(error)
    return _SCHEDULER in str(getattr(error, "_stackTrace", ""))


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

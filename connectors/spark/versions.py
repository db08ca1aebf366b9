"""The versions of Spark whose private calls are known, and every difference between them.

`make test-matrix` tries each version. The rows of a newer version go through public calls only; an
older one is refused. This module does not need an installed Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...control.errors import Invalid

SOCKETS = "spark.python.unix.domain.socket.enabled"


@dataclass(frozen=True, slots=True)
class Version:
    """One minor version: the arguments that its calls take in addition to those of every version,
    and its abilities."""

    logical_rdd: tuple[object, ...] = ()
    """More arguments of `LogicalRDD`."""
    shuffle_exchange: tuple[object, ...] = ()
    """More arguments of `ShuffleExchangeExec`."""
    to_arrow_schema: tuple[tuple[str, Any], ...] = ()
    """More keyword arguments of PySpark's `to_arrow_schema`."""
    sockets: bool = True
    """True if Spark can reach Python tasks by a Unix domain socket."""
    grouped: bool = False
    """True if the tasks that read an exchange may call the grouped function above it."""


_ZONED = (("timezone", "UTC"),)
VERSIONS: Mapping[str, Version] = {
    "4.0": Version(sockets=False),
    "4.1": Version(),
    "4.2": Version(to_arrow_schema=_ZONED),
    "4.3": Version(
        logical_rdd=(False,),
        shuffle_exchange=(False,),
        to_arrow_schema=_ZONED,
        grouped=True,
    ),
}
OLDEST, *_, NEWEST = VERSIONS


def version_of(spark: str) -> Version | None:
    """Return the known version that a version text of Spark names, None for a newer one.

    Raises:
        Invalid: the version is older than every known one.
    """
    minor = ".".join(re.findall(r"\d+", spark)[:2])
    if _number(minor) < _number(OLDEST):
        raise Invalid(
            f"Spark {spark} is too old: Headgate runs on {OLDEST} and newer, tried up to {NEWEST}"
        )
    return VERSIONS.get(minor)


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))

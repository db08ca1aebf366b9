"""The versions of Spark whose private calls are known, and all in which they differ.

`make test-matrix` tries each. A newer one goes by public calls only, an older one is refused. This
asks for no Spark to be installed.
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
    """One minor version: what the calls of these names take beside what they take in all, whether
    Python's tasks can be reached by a socket in the file system, and whether grouped functions are
    called by the tasks that read."""

    logical_rdd: tuple[object, ...] = ()
    shuffle_exchange: tuple[object, ...] = ()
    to_arrow_schema: tuple[tuple[str, Any], ...] = ()
    sockets: bool = True
    grouped: bool = False


_ZONED = (("timezone", "UTC"),)
VERSIONS: Mapping[str, Version] = {
    "4.0": Version(sockets=False),
    "4.1": Version(),
    "4.2": Version(to_arrow_schema=_ZONED),
    "4.3": Version((False,), (False,), _ZONED, grouped=True),
}
OLDEST, *_, NEWEST = VERSIONS


def version_of(spark: str) -> Version | None:
    """What is known of a version as Spark tells it, None for a newer one.

    Raises:
        Invalid: it is older than all that are known.
    """
    minor = ".".join(re.findall(r"\d+", spark)[:2])
    if _number(minor) < _number(OLDEST):
        raise Invalid(
            f"Spark {spark} is too old: Headgate runs on {OLDEST} and newer, tried up to {NEWEST}"
        )
    return VERSIONS.get(minor)


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))

"""The applications of rounds, each a process of its own: their messages and their session.

An application prints each phase that it enters as a line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.conftest import Place, build_session


def tell(phase: str, **more: Any) -> None:
    print(json.dumps({"phase": phase, **more}), flush=True)


def session(conf: Mapping[str, str], cores: str, **more: str) -> SparkSession:
    """Open a session with little memory; `conf` says where exchanges go."""
    small = {"spark.driver.memory": "1g", **more}
    return build_session(Place("chaos", dict(conf)), cores, **small)

"""The applications of rounds, each a process of its own: their messages and their session.

An application prints each phase that it enters as a line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from headgate import Headgate
from headgate.connectors.spark.exchanges import run
from headgate.storage.limits import Limits
from headgate.storage.reading.ways import DIRECT, ExchangeSize, Prediction, Way, predict
from headgate.storage.stores.costs import StoreCosts
from tests.spark.conftest import Place, build_session


def tell(phase: str, **more: Any) -> None:
    print(json.dumps({"phase": phase, **more}), flush=True)


def combine(way: Sequence[int] | None) -> None:
    """Let every exchange of this process be combined in this way, however small it is."""
    if way is None:
        return
    bundles, ranges = way

    def chosen(size: ExchangeSize, limits: Limits, costs: StoreCosts) -> Prediction:
        fits = Way(min(bundles, size.partitions), min(ranges, size.subpartitions))
        return predict(size, fits if size.partitions else DIRECT, limits, costs)

    patch.object(run, "choose", chosen).start()


def combined(hg: Headgate) -> int:
    """Return the number of results that have combined rows."""
    return sum(result.result.endswith("-combined") for result in hg.results())


def session(conf: Mapping[str, str], cores: str, **more: str) -> SparkSession:
    """Open a session with little memory and Spark's own wait for workers of killed tasks; `conf`
    says where exchanges go."""
    own = {"spark.driver.memory": "1g", "spark.python.task.killTimeout": "2s", **more}
    return build_session(Place("chaos", dict(conf)), cores, **own)

"""Compare grouped functions in Spark alone and through Headgate."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from headgate import Headgate

from .entered import finished

ZONE = "spark.sql.session.timeZone"
IN_A_ZONE = {"spark.sql.adaptive.enabled": "false", ZONE: "America/New_York"}
ROWS = """
    id v, id % 7 k, if(id % 11 = 0, null, id % 3) n, string(id % 13) s, binary(string(id % 4)) b,
    if(id % 5 = 0, double('nan'), if(id % 5 = 1, -0.0d, if(id % 5 = 2, 0.0d, id % 5 - 4.5d))) x,
    cast(id % 9 - 4 as decimal(10, 2)) d, cast(id % 3 as decimal(30, 5)) w, id % 2 = 0 t,
    date_add(date'1582-10-01', int(id % 6)) day, timestamp_micros(id % 5 * 3600000000) at,
    timestamp_ntz'2020-01-01' z, float(id % 4) f, array(id, null) y, named_struct('p', id) q,
    make_dt_interval(int(id % 3)) i,
    array(timestamp_micros(id)) ta, map('t', timestamp_micros(id)) tm,
    named_struct('t', timestamp_micros(id), 'd', cast(id as decimal(5, 1))) td,
    map(id, string(id)) m, cast(null as void) e
"""


def same(hg: Headgate, query: DataFrame, here: bool = True) -> None:
    """Assert that rows, order and schema are Spark's, and that the function was called where
    expected."""
    expected = list(map(str, query.collect()))  # as text, because NaN is not equal to NaN
    out = hg.offload(query)
    called = "FlatMap" not in finished(hg, out).plan
    assert expected == list(map(str, out.collect()))
    assert query.schema == out.schema
    assert here == called
    hg.release(out)


def same_error(hg: Headgate, query: DataFrame, named: str = "") -> None:
    """Assert that PySpark and Headgate raise the same error, and that the user's traceback names
    the user's function."""
    messages = []
    for df in (query, hg.offload(query)):
        with pytest.raises(PythonException) as caught:
            df.collect()
        messages.append(str(caught.value).strip().splitlines()[-1])
        assert f"in {named}" in str(caught.value) or not named
    assert messages[0] == messages[1]

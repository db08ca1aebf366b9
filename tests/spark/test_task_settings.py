"""The session's settings hold in the tasks below an exchange, as in Spark's own actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate import Headgate, attach
from headgate.control.ids import ResultId

from .conftest import setting

pytestmark = pytest.mark.timeout(300)

CAST = {"spark.sql.legacy.castComplexTypesToString.enabled": "true"}
LAST = {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}
STRICT = {"spark.sql.legacy.timeParserPolicy": "EXCEPTION", "spark.sql.ansi.enabled": "false"}
OLD = {"spark.sql.legacy.timeParserPolicy": "LEGACY", "spark.sql.ansi.enabled": "false"}
PARSED = "to_timestamp(concat('2020-1-', id % 5 + 1, ' x'), 'yyyy-MM-dd')"
ANSWERED = [
    ("cast(array(id % 5, null) as string)", CAST),
    ("map_from_arrays(array(1, 1), array(id % 5, 9L))[1]", LAST),
    (PARSED, OLD),
]


@pytest.fixture(scope="module", params=["auto", "off"])
def by_road(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Headgate]:
    """Attach a headgate with the private transport, and one with the public transport."""
    job = f"{spark.sparkContext.applicationId}-{request.param}"
    conf = {"spark.headgate.catalyst": request.param, "spark.headgate.job.id": job}
    with setting(spark, conf):
        hg = attach(spark)
    with hg:
        yield hg


def told(df: DataFrame) -> list[str]:
    return sorted(str(tuple(row)) for row in df.collect())


@pytest.mark.parametrize(("expression", "conf"), ANSWERED)
def test_below_a_repartition(
    spark: SparkSession, by_road: Headgate, expression: str, conf: dict[str, str]
) -> None:
    """Rows below a repartition are made under the settings by either transport, also when they are
    made again."""
    with setting(spark, conf):
        df = spark.range(40).selectExpr(f"{expression} x", "id")
        assert told(df) == told(by_road.repartition(df, 3, "x"))
    writing = by_road._results.reruns.writing_of(ResultId(by_road.results()[-1].result))
    assert writing is not None
    writing.again([0])


@pytest.mark.parametrize(("expression", "conf"), ANSWERED)
@pytest.mark.parametrize(
    "query", ["select x, count(*) from t group by x", "select * from t order by x, id"]
)
def test_below_a_query(
    spark: SparkSession, hg: Headgate, query: str, expression: str, conf: dict[str, str]
) -> None:
    """Rows of a whole query, and the bounds of a range, are computed under the settings."""
    with setting(spark, conf):
        spark.range(40).selectExpr(f"{expression} x", "id").createOrReplaceTempView("t")
        df = spark.sql(query)
        assert told(df) == told(hg.offload(df))


JOINED = (
    "select b.id, t.x from range(40) b join (select id % 5 k, min({}) x from range(40) group by k)"
    " t on b.id = t.k"
)
SCALAR = "select id from range(40) where (select count({}) from range(3)) >= id"


@pytest.mark.parametrize(("expression", "conf"), ANSWERED)
@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize(
    "query",
    [
        JOINED,
        SCALAR,
        f"select x, count(*) from ({JOINED}) group by x",
        f"select * from ({JOINED}) a join (select max(id) m from range(9)) b on a.id <= b.m",
    ],
    ids=["broadcast", "subquery", "below an exchange", "sent early"],
)
def test_beside_the_exchanges(
    spark: SparkSession,
    hg: Headgate,
    query: str,
    expression: str,
    conf: dict[str, str],
    adaptive: str,
) -> None:
    """Rows of broadcasts and subqueries are computed under the settings, those of the last stage
    and of stages below an exchange."""
    with setting(spark, {**conf, "spark.sql.adaptive.enabled": adaptive}):
        df = spark.sql(query.format(expression))
        assert told(df) == told(hg.offload(df))


WRONG = {
    "divided": "1 div (id - 3)",
    "cast": "if(id = 3, cast(concat('x', id) as int), 1)",
    "parsed": f"if(id = 3, {PARSED}, null)",
    "raised": "if(id = 3, raise_error('wrong'), null)",
}
PLACES = {
    "broadcast": "select /*+ broadcast(t) */ b.n, t.x from (select id % 5 i, count(*) n"
    " from range(40) group by 1) b join (select id k, {} x from range(9)) t on b.i = t.k",
    "broadcast below an exchange": "select t.x, count(*) from range(40) b join"
    " (select /*+ broadcast(t) */ id k, {} x from range(9)) t on b.id = t.k group by 1",
    "below a broadcast": JOINED,
    "sent early": f"select * from ({JOINED}) a join (select max(id) m from range(9)) b on id < m",
    "below an exchange": f"select x, count(*) from ({JOINED}) group by x",
    "sampled": "select * from (select {} x, id from range(40)) order by x",
    "map stage": "select {} x, count(*) from range(40) group by 1",
}


def error_of(act: Callable[[], object]) -> tuple[object, ...]:
    """Return all that a user's code can know of an error."""
    try:
        act()
    except PySparkException as exc:
        contexts = [
            (each.objectType(), each.startIndex(), each.fragment())
            for each in exc.getQueryContext()
            if each.contextType().name == "SQL"
        ]
        parameters = exc.getMessageParameters()
        return type(exc), exc.getCondition(), exc.getSqlState(), parameters, contexts
    except Py4JJavaError as exc:
        return type(exc), exc.java_exception.getClass().getName()
    raise AssertionError("no error")


@pytest.mark.parametrize("expression", WRONG.values(), ids=WRONG)
def test_errors_are_the_same(spark: SparkSession, hg: Headgate, expression: str) -> None:
    """An error of the user's expression has Spark's type, condition, state and context, wherever in
    the plan the expression is, with and without adaptive execution."""
    wrong = []
    asked = [*((place, "true") for place in PLACES), ("broadcast", "false")]
    for place, adaptive in asked:
        with setting(spark, {"spark.sql.adaptive.enabled": adaptive}):
            df = spark.sql(PLACES[place].format(expression))
            expected, actual = error_of(df.collect), error_of(partial(hg.offload, df))
        if expected != actual:
            wrong.append(f"{place}, adaptive {adaptive}: {expected} is {actual}")
    assert not wrong, "\n".join(wrong)


def test_an_error_that_a_setting_asks_for(spark: SparkSession, hg: Headgate) -> None:
    """A query that fails in Spark under a setting fails in Headgate under that setting."""
    with setting(spark, STRICT):
        rows = spark.range(40).selectExpr(f"{PARSED} x", "id")
        df = rows.groupBy("x").count()
        for failing in (df.collect, lambda: hg.offload(df), lambda: hg.repartition(rows, 3, "x")):
            with pytest.raises(PySparkException, match=r"Spark 3\.0"):
                failing()

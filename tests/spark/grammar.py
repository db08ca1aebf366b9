"""The grammar of random queries, and the tables that they read, as data.

Every relation has the columns a, b, c, d, s, so that relations can be nested freely: a and c are
keys, b is a number, d a value, and s is nested. TYPES gives their types. No query depends on a
choice that Spark may make freely, such as the first of several tied rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyspark
from pyspark.sql import SparkSession

from .switches import READING, SESSION

# The number of rows, Spark's partitions, and n where one row in n does not have the hot key.
_TABLES = {
    "few": (9, 2, 1),
    "some": (60, 2, 1),
    "many": (200, 2, 1),
    "more": (150, 2, 1),
    "none": (0, 2, 1),
    "hot": (3000, 3, 4),
    "large": (1500, 2, 1),
}
_CASED = "concat(if(q % 2 = 0, 'k', 'K'), q % 7)"
_MIXED = "elt(int(q % 5) + 1, 'k', '', '\uff5e', '\U0001f600', 'k ')"
_FLOAT = "case q % 8 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D else 1.5 end"
_SPACED = "concat('k', q % 7, repeat(' ', int(q % 3)))"
_TRIMMED = "UTF8_BINARY" if pyspark.__version__.startswith("4.0.") else "UTF8_BINARY_RTRIM"
# Expressions of a and c by a number q, and of d and s.x by a number r; and how a and c are shown,
# because any of several equal keys may stand for all of them.
TYPES = (
    ("int(q % 40)", "concat('k', q % 7)", "r % 60 / 8", "int(r % 3)", "a", "c"),
    ("decimal(q % 40) / 4", f"{_CASED} collate UTF8_LCASE", "timestamp_millis(r % 50 * 7919L)",
     "struct(r % 2 as u, 'v' as v)", "a", "lower(c)"),
    ("date_add(date'1999-12-28', int(q % 40))", _MIXED, "decimal(r % 50)", "int(r % 3)", "a", "c"),
    (_FLOAT, "binary(concat('k', q % 7))", "float(r % 60 / 8)", "array(struct(r % 2 as u))",
     "a + 0", "c"),
    ("struct(q % 40 as u, 'v' as v)", f"{_CASED} collate UNICODE_CI",
     "make_dt_interval(0, int(r % 50))", "decimal(r % 3)", "a", "lower(c)"),
    ("array(q % 40, null)", f"{_SPACED} collate {_TRIMMED}",
     "timestamp_ntz'2001-02-03' + make_dt_interval(int(r % 50))", "r % 2 = 0", "a",
     "rtrim(c)" if "RTRIM" in _TRIMMED else "c"),
    ("q % 2 = 0", "decimal(q % 7)", "date_add(date'1582-10-01', int(r % 30))", "r % 3", "a", "c"),
)  # fmt: skip


# A subquery under each branch, which Spark's optimizer copies with the very same columns.
_COPIED = (
    *("(select * from <both> o where <member>)",) * 2,
    "(select o.* from <both> o <half> <other> i on o.a = i.a)",
    "(select (select max(a) from few#) a, b, c, d, s from <both> o where <member>)",
    "(select a, b, (select max(c) from few#) c, d, s from <both> o where <member>)",
    "(select * from <both> <common> select * from <other>)",
)
# A subquery that is named once and used several times, with and without filters above it.
_USED_AGAIN = (
    "(with w as (select * from <relation>) select l.a, r.b, l.c, l.d, l.s from w l"
    " <join> (select a, <sum> b from w group by a) r on l.a = r.a)",
    *(
        "(with w as (select * from <relation>)"
        " select a, max(b) b, c, max(d) d, max(s) s from w <kept> group by a, c"
        " <set> select a, max(b) b, c, max(d) d, max(s) s from w <kept> group by a, c)",
    )
    * 2,
    "(with w as (select distinct * from <relation>) select * from (select * from w <kept>) l"
    " <half> (select * from w <kept>) r on l.a = r.a)",
    "(with w as (<grouped> from <relation> group by <by>)"
    " select * from w <where> union all select * from w <where>)",
    "(with w as (<grouped> from <relation> group by a, c) select l.a, r.b, l.c, r.d, l.s"
    " from (select * from w <where>) l <join> (select * from w <where>) r on l.a = r.a)",
    "(with w as (select distinct a, c, b from <relation>) select o.* from <relation> o where"
    " a in (select a from w <where>)"
    " and not exists (select 1 from w i where i.c = o.c and i.b > 70))",
)
# An expression that depends on settings, at each place of a plan beside those of other rules: in
# broadcasts, in subqueries, below the sample of a range, and between two exchanges.
BY_SETTINGS = (
    "(select /*+ broadcast(r) */ l.a, r.b, r.c, l.d, l.s from <sized> l join"
    " (select a, max(c) c, max(bigint(<odd>)) b from <table> group by a) r on l.a = r.a)",
    "(select /*+ broadcast(r) */ l.a, r.b, l.c, l.d, l.s from <relation> l left join"
    " (select a, bigint(<odd>) b from few#) r on l.a = r.a)",
    "(select a, (select max(bigint(<odd>)) from <other>) b, c, d, s from <relation>)",
    "(select * from <relation> o where b >= (select min(bigint(<odd>)) from <table>))",
    "(select /*+ repartition_by_range(4, b) */ a, bigint(<odd>) b, c, d, s from <relation>)",
    "(select a, bigint(<odd>) b, c, d, s from (<grouped> from <relation> group by a, c))",
)
# The texts that may replace <name>, the simplest first; # is the number of the types, and @a and @c
# are the keys as they are shown. No limit stands directly under a scalar subquery, because Spark
# 4.3 loses its order there.
RULES: Mapping[str, tuple[str, ...]] = {
    "query": ("<reading> <session> <asked>",) * len(TYPES),
    "reading": (" ".join(f"<{name}>" for name in READING),),
    "session": ("", " ".join(f"<{name}>" for name in SESSION)),
    **READING,
    **SESSION,
    "asked": (
        "select @a a, b, @c c, d, s from <relation> <end>",
        "select @a a, b, @c c, d, s from <relation> <end>",
        "select count(*), sum(b), max(d) from <relation>",
        "select @c c, count(*), sum(b) from <relation> group by @c",
        "select b, d from <relation> <end>",
    ),
    "end": ("", "", "order by <order>", "order by <order>", "order by <order> limit 9 offset 2"),
    "relation": (
        *("<table>",) * 4,
        "(select * from <relation> o where <condition>)",
        "(select * from <relation> order by <order> <limit>)",
        "(select <hint> <distinct> * from <relation> <placed>)",
        "(select * from <relation> <set> select * from <relation>)",
        "(<grouped> from <relation> group by <by> <having>)",
        *(
            "(select <hinted> coalesce(l.a, r.a) a, r.b, l.c, greatest(l.d, r.d) d,"
            " coalesce(r.s, l.s) s from <keyed> l <join> <relation> r on <on>)",
        )
        * 2,
        "(select <hinted> l.a, m.b, r.c, l.d, r.s from <keyed> l <join> <keyed> r on l.a = r.a"
        " <join> <keyed> m on r.c = m.c and l.a = m.a)",
        "(select <hinted> l.a, l.b, r.c, l.d, r.s from <sized> l <join> <keyed> r on <on>)",
        "(select <hinted> l.* from <relation> l <half> <relation> r on <condition on both>)",
        "(select r.a, r.b, l.c, l.d, r.s from <relation> l <any join>"
        " (select * from <relation> order by <order> limit 3) r <far>)",
        *_USED_AGAIN,
        *_COPIED * 3,
        *BY_SETTINGS,
        "(select a, bigint(n) b, c, d, s from (select *, <ranked> n from <relation>) <ranks>)",
        "(select a, <scalar> b, c, d, s from (select distinct * from <relation>) o)",
        "(select o.a, x.b, c, d, s from <relation> o <lateral>)",
        "(select a, coalesce(p0, p1 + 1) b, c, d, s from"
        " (select *, b % 3 p from <relation>) pivot (<plain>(b) for p in (0 p0, 1 p1)))",
        "(select a, bigint(e) b, c, d, s from <relation> <view> explode(s.y) g as e)",
        "(select a, m[1].b b, m[1].c c, m[1].d d, s from"
        " (select <hint> a, map(1, struct(b, c, d)) m, s from <relation>))",
        "(select max(a) a, <sum> b, max(c) c, d, max(s) s from"
        " (select *, <map> m from <relation>) group by m, d)",
        "(select a, bigint(<odd>) b, c, d, s from <relation>)",
    ),
    "table": (
        *("few#", "some#", "many#", "more#", "some#", "many#", "more#"),
        *("none#", "hot#", "large#"),
    ),
    "sized": ("many#", "hot#", "hot#", "hot#", "large#"),
    "other": ("few#", "some#", "some#", "more#", "large#", "none#", "<relation>"),
    "both": (
        *("(select * from <sized> union all select * from <other>)",) * 3,
        "(select * from <other> union all select * from <sized> union all select * from <other>)",
        "(select l.a, l.b, r.c, l.d, r.s from <sized> l <join> <keyed> r on l.a = r.a)",
        *(
            "(select /*+ broadcast(r) */ l.a, l.b, r.c, l.d, r.s from <sized> l"
            " join <keyed> r on l.a = r.a)",
        )
        * 2,
    ),
    "member": (
        "a in (select a from <other>)",
        "a in (select a from <other> where b < 60)",
        "exists (select 1 from <other> i where i.a = o.a)",
        "exists (select 1 from <other> i where i.c = o.c)",
        "not exists (select 1 from <other> i where i.a = o.a)",
        "not exists (select 1 from <other> i where i.a = o.a and i.c = o.c)",
        "a not in (select a from <other> where a is not null)",
        "c in (select c from <other>) and a in (select a from <other> where b > 50)",
        "a in (select a from <other>) and b >= (select count(distinct b) from <other> where b < 0)",
    ),
    "common": ("intersect", "except"),
    "grouped": ("select a, <sum> b, c, max(d) d, max(s) s",),
    "kept": ("where b % 2 = 0", "where b % 3 = 0", "where b > 40", "where b < 60"),
    "where": (
        "",
        "where b % 2 = 0",
        "where b % 3 = 0",
        "where b > 40",
        "where c is null",
        "where d is not null",
    ),
    "keyed": ("(select a, c, max(b) b, max(d) d, max(s) s from <keyless> group by a, c)",),
    "keyless": ("<table>", "<table>", "<relation>"),
    "condition": (
        "b % 3 = 0 or c is null",
        "b < 0",
        "a in (select a from <relation>)",
        "a not in (select a from <relation> where a is not null)",
        "(a, c) not in (select a, c from <relation> where a is not null and c is not null)",
        "b > (select avg(b) from <relation>)",
        "b > (select count(distinct b) from <relation> where b < 0)",
        "b > (select count(*) from (select * from <relation> limit 40))",
        "exists (select 1 from <relation> i where i.c = o.c and i.b < 50)",
        "not exists (select 1 from <relation> i where i.a = o.a and i.b < o.b)",
        "exists (select 1 from <relation> i where i.a = o.a) or b < 30",
        "b <= (select max(i.b) from <relation> i where i.a = o.a)",
        "(select count(*) from <relation> i where i.c = o.c) % 2 = 0",
    ),
    "order": (
        "a <way>, b <way>, c <way>, d <way>, s <way>",
        "c <way>, b <way>, s <way>, a <way>, d <way>",
        "d <way>, s <way>, a <way>, c <way>, b <way>",
        "s <way>, d <way>, c <way>, b <way>, a <way>",
        "b <way>, a <way>, d <way>, s <way>, c <way>",
    ),
    "way": ("", "desc", "nulls last", "desc nulls first"),
    "limit": ("limit 7", "limit 0", "limit 1", "limit 50", "limit 9 offset 4", "offset 3"),
    "hint": (
        "",
        "/*+ repartition(4) */",
        "/*+ repartition(3, a) */",
        "/*+ repartition(s, a) */",
        "/*+ repartition_by_range(4, a, b) */",
        "/*+ repartition_by_range(s, d) */",
        "/*+ rebalance(a) */",
        "/*+ coalesce(1) */",
    ),
    "distinct": ("", "distinct"),
    "placed": ("", "distribute by a, c", "distribute by a sort by b", "cluster by c", "sort by d"),
    "set": ("union all", "union", "intersect", "intersect all", "except", "except all"),
    "plain": ("sum", "max"),
    "sum": (
        "sum(b)",
        "count(*)",
        "max(b) - min(b)",
        "bigint(avg(b))",
        "bigint(sum(decimal(b) / 4))",
        "count(distinct b)",
        "count(distinct b, d)",
        "sum(distinct b) + count(distinct d)",
        "sum(b) filter (where b % 3 > 0)",
        "count(distinct b) filter (where d is not null)",
        "bigint(size(collect_set(b)))",
        "try_element_at(sort_array(collect_list(b)), 2)",
        "bigint(percentile(b, 0.5))",
        "sum(<odd>)",
    ),
    "by": (
        "a, c",
        "c, a",
        "rollup(c, a)",
        "cube(a, c)",
        "grouping sets ((a), (c), ())",
        "a, c, s.x, d",
    ),
    "having": ("", "", "having count(*) > 1"),
    "hinted": ("", "", "/*+ broadcast(r) */", "/*+ merge(r) */", "/*+ shuffle_hash(l) */"),
    "join": ("join", "left join", "right join", "full join"),
    "half": ("left semi join", "left anti join"),
    "any join": ("cross join", "join", "left join", "right join", "full join"),
    "on": (
        "l.a = r.a",
        "l.a = r.a and l.c = r.c",
        "l.c <=> r.c and l.b = r.b",
        "l.a = r.a and l.b < r.b",
        "l.s = r.s and l.d = r.d",
    ),
    "condition on both": ("<on>", "<on>", "l.b > r.b", "l.a = r.a or l.c = r.c"),
    "far": ("on l.b > r.b", "on l.a = r.a or l.c = r.c", "on true"),
    "found": (
        "max(i.b) b from <relation> i where i.a = o.a",
        "count(*) b from <relation> i where i.c = o.c",
        "sum(distinct i.b) b from <relation> i where i.a = o.a and i.b <= 50",
    ),
    "scalar": ("(select <found>)",),
    "lateral": (
        ", lateral (select <found>) x",
        "left join lateral (select <found>) x on x.b > o.b",
        "left join lateral"
        " (select i.b from <relation> i where i.a = o.a order by b desc limit 1) x",
    ),
    "ranked": (
        "count(d) over (<partition>)",
        "row_number() over (<partition> order by <order>)",
        "rank() over (<partition> order by b desc)",
        "dense_rank() over (<partition> order by c, a)",
        "ntile(3) over (<partition> order by <order>)",
        "lag(b) over (<partition> order by <order>)",
        "sum(b) over (<partition> order by <order> <frame>)",
        "nth_value(b, 2) over (<partition> order by <order> <frame>)",
        "max(b) over (<partition> order by b range between 20 preceding and 2 preceding)",
    ),
    "partition": ("", "partition by a", "partition by c, a", "partition by s.x"),
    "frame": (
        "",
        "rows between 2 preceding and 1 following",
        "rows between current row and unbounded following",
    ),
    "ranks": ("", "where n <= 2"),
    "view": ("lateral view", "lateral view outer"),
    "map": (
        "map(coalesce(b, 0) % 3, s.x)",
        "array(map(coalesce(b, 0) % 3, d), null)",
        "named_struct('m', map('u', s))",
        "map(named_struct('u', coalesce(b, 0) % 2, 'v', 1), array(d))",
        "map(1, map(coalesce(b, 0) % 2, 7), 2, map(0, b % 3))",
        "map('u', b % 2, 'v', b % 3)",
    ),
    "odd": (
        "length(cast(array(b, null) as string))",
        "length(cast(named_struct('u', b, 'v', s) as string))",
        "length(cast(map(coalesce(b, 0) % 2, array(null, d)) as string))",
        "pmod(hash(string(d)), 101)",
        "hour(timestamp_seconds(b % 50 * 1800))",
        "unix_seconds(try_to_timestamp(concat('2020-1-', b % 28 + 1, ' x'), 'yyyy-M-d'))",
        "unix_seconds(to_timestamp(concat('2020-', b % 12 + 1, '-7'), 'yyyy-M-d')) % 9973",
        "unix_date(to_date(concat('1999-', b % 12 + 1, '-07'), 'yyyy-M-dd'))",
        "length(date_format(timestamp_seconds(b % 50 * 2592000), 'MMMM yyyy h'))",
        "element_at(map_from_arrays(array(coalesce(b, 0) % 2, 1), array(b, 7)), 1)",
        "size(map_concat(map(1, b), map(coalesce(b, 0) % 2, b + 1)))",
        "size(if(b % 3 = 0, null, array(b)))",
        "length(string(decimal(b) / 3.000000000000000001))",
        "tinyint(b * 2)",
    ),
}


def tables(spark: SparkSession) -> None:
    """Create the tables, with nulls, NaN, and few values of keys, some of them equal but not
    identical."""
    for number, (a, c, d, x, *_) in enumerate(TYPES):
        for at, (name, (rows, parts, others)) in enumerate(_TABLES.items()):
            spark.sql(
                f"""create or replace temp view {name}{number} as select
                if(q % 13 = 0, null, {a}) as a, bigint(r % 101) as b,
                if(q % 17 = 0, null, {c}) as c, if(r % 11 = 0, null, {d}) as d,
                named_struct('x', if(r % 5 = 0, null, {x}), 'y', array(r % 4, null)) as s
                from (select r, if(r % {others} = 0, r, 7) as q
                from (select abs(hash(id, {number * 5 + at})) % 9973 as r
                from range(0, {rows}, 1, {parts})))"""
            )

"""Random queries over random tables: the same seed gives the same query, and what differs is made
smaller.

Every relation has the columns a, b, c, d, s, so that any can stand under any: a and c are keys, b
is a number, d a value, s is nested, and TYPES says of which types they are. What a query leaves
open, as which of some rows that tie comes first, is never asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from random import Random

import pyspark
from pyspark.sql import SparkSession

_TABLES = {"few": 9, "some": 60, "many": 200, "more": 150, "none": 0}
_CASED = "concat(if(r % 2 = 0, 'k', 'K'), r % 7)"
_MIXED = "elt(int(r % 5) + 1, 'k', '', '\uff5e', '\U0001f600', 'k ')"
_FLOAT = "case r % 8 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D else 1.5 end"
_SPACED = "concat('k', r % 7, repeat(' ', int(r % 3)))"
_TRIMMED = "UTF8_BINARY" if pyspark.__version__.startswith("4.0.") else "UTF8_BINARY_RTRIM"
# a, c, d and s.x of a number r; how a and c are shown, for of equal keys any may stand for all
TYPES = (
    ("int(r % 12)", "concat('k', r % 7)", "r % 60 / 8", "int(r % 3)", "a", "c"),
    ("decimal(r % 12) / 4", f"{_CASED} collate UTF8_LCASE", "timestamp_millis(r % 50 * 7919L)",
     "struct(r % 2 as u, 'v' as v)", "a", "lower(c)"),
    ("date_add(date'1999-12-28', int(r % 12))", _MIXED, "decimal(r % 50)", "int(r % 3)", "a", "c"),
    (_FLOAT, "binary(concat('k', r % 7))", "float(r % 60 / 8)", "array(struct(r % 2 as u))",
     "a + 0", "c"),
    ("struct(r % 12 as u, 'v' as v)", f"{_CASED} collate UNICODE_CI",
     "make_dt_interval(0, int(r % 50))", "decimal(r % 3)", "a", "lower(c)"),
    ("array(r % 12, null)", f"{_SPACED} collate {_TRIMMED}",
     "timestamp_ntz'2001-02-03' + make_dt_interval(int(r % 50))", "r % 2 = 0", "a",
     "rtrim(c)" if "RTRIM" in _TRIMMED else "c"),
    ("r % 2 = 0", "decimal(r % 7)", "date_add(date'1582-10-01', int(r % 30))", "r % 3", "a", "c"),
)  # fmt: skip


def _one_of(setting: str, *values: str) -> tuple[str, ...]:
    return tuple(f"set spark.sql.{setting}={value};" for value in values)


# What may stand for <name>, the simplest first; # is the number of the types. The rows of a limit
# may not come straight under a scalar subquery: Spark 4.3 forgets their order there.
RULES = {
    "query": tuple(
        "<adaptive> <broadcasts> <parts> <target> <least> <skew> <times> <spread> <fused> "
        f"select {a} a, b, {c} c, d, s from <relation> <end>"
        for *_, a, c in TYPES
    ),
    "adaptive": _one_of("adaptive.enabled", "true", "true", "false"),
    "broadcasts": _one_of("autoBroadcastJoinThreshold", "10MB", "-1", "-1", "4000"),
    "parts": _one_of("shuffle.partitions", "2", "3", "5"),
    "target": _one_of("adaptive.advisoryPartitionSizeInBytes", "64MB", "2KB"),
    "least": _one_of("adaptive.coalescePartitions.minPartitionSize", "1MB", "1KB"),
    "spread": _one_of("adaptive.coalescePartitions.parallelismFirst", "true", "false"),
    "skew": _one_of("adaptive.skewJoin.skewedPartitionThresholdInBytes", "256MB", "1KB"),
    "times": _one_of("adaptive.skewJoin.skewedPartitionFactor", "5.0", "1.1"),
    "fused": _one_of("codegen.wholeStage", "true", "false", "false"),
    "end": ("", "", "order by <order>", "order by <order>", "order by <order> limit 9 offset 2"),
    "relation": (
        *("<table>",) * 4,
        "(select * from <relation> o where <condition>)",
        "(select * from <relation> order by <order> <limit>)",
        "(select <hint> <distinct> * from <relation> <placed>)",
        "(select * from <relation> <set> select * from <relation>)",
        "(select a, <sum> b, c, max(d) d, min(s) s from <relation> group by <by> <having>)",
        *(
            "(select <hinted> coalesce(l.a, r.a) a, r.b, l.c, greatest(l.d, r.d) d,"
            " coalesce(r.s, l.s) s from <keyed> l <join> <relation> r on <on>)",
        )
        * 2,
        "(select <hinted> l.* from <relation> l <half> <relation> r on <condition on both>)",
        "(select r.a, r.b, l.c, l.d, r.s from <relation> l <any join>"
        " (select * from <relation> order by <order> limit 3) r <far>)",
        "(with w as (select * from <relation>) select l.a, r.b, l.c, l.d, l.s from w l"
        " <join> (select a, <sum> b from w group by a) r on l.a = r.a)",
        "(select a, bigint(n) b, c, d, s from (select *, <ranked> n from <relation>) <ranks>)",
        "(select a, <scalar> b, c, d, s from (select distinct * from <relation>) o)",
        "(select o.a, x.b, c, d, s from <relation> o <lateral>)",
        "(select a, coalesce(p0, p1 + 1) b, c, d, s from"
        " (select *, b % 3 p from <relation>) pivot (<plain>(b) for p in (0 p0, 1 p1)))",
        "(select a, bigint(e) b, c, d, s from <relation> <view> explode(s.y) g as e)",
        "(select a, m[1].b b, m[1].c c, m[1].d d, s from"
        " (select <hint> a, map(1, struct(b, c, d)) m, s from <relation>))",
    ),
    "table": ("few#", "some#", "many#", "more#", "some#", "many#", "more#", "none#"),
    "keyed": ("(select a, c, max(b) b, max(d) d, max(s) s from <relation> group by a, c)",),
    "condition": (
        "b % 3 = 0 or c is null",
        "b < 0",
        "a in (select a from <relation>)",
        "a not in (select a from <relation> where a is not null)",
        "(a, c) not in (select a, c from <relation> where a is not null and c is not null)",
        "b > (select avg(b) from <relation>)",
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
}
_NAME = re.compile("<([a-z ]+)>")


@dataclass(frozen=True)
class Tree:
    """A rule, which of its texts, and what stands for the names in it."""

    rule: str
    choice: int
    inner: tuple[Tree, ...]

    @cached_property
    def text(self) -> str:
        inner = iter(self.inner)
        text = _NAME.sub(lambda _: next(inner).text, RULES[self.rule][self.choice])
        return text.replace("#", str(self.choice)) if self.rule == "query" else text


def grow(rule: str, choose: Callable[[int], int], depth: int) -> Tree:
    """A tree with so many relations above each other at most."""
    texts = RULES[rule]
    if rule == "relation":
        texts = texts[: len(texts) if depth else 1]
        depth -= 1
    choice = choose(len(texts))
    inner = (grow(name, choose, depth) for name in _names(texts[choice]))
    return Tree(rule, choice, tuple(inner))


def simplest(rule: str) -> Tree:
    return grow(rule, lambda _: 0, 0)


def query(seed: int) -> Tree:
    random = Random(seed)
    return grow("query", random.randrange, random.choice((1, 1, 2, 2, 3)))


def smaller(tree: Tree) -> Iterator[Tree]:
    """A part of the same rule instead of the whole; a simpler choice; the same of each part."""
    yield from (part for part in _parts(tree) if part.rule == tree.rule)
    yield from (one for one in (simplest(tree.rule),) if one != tree)
    texts = RULES[tree.rule][: tree.choice + 1]
    alike = [at for at, text in enumerate(texts) if _names(text) == _names(texts[-1])]
    yield from (replace(tree, choice=at) for at in alike[:-1])
    for at, part in enumerate(tree.inner):
        before, behind = tree.inner[:at], tree.inner[at + 1 :]
        for less in smaller(part):
            yield replace(tree, inner=(*before, less, *behind))


def shrunk(tree: Tree, differs: Callable[[Tree], bool], tries: int = 300) -> Tree:
    """The smallest that still differs, as far as so many tries find it."""
    found: Tree | None = tree
    while found is not None:
        tree, found = found, None
        for less in islice(smaller(tree), tries):
            tries -= 1
            if differs(less):
                found = less
                break
    return tree


def _parts(tree: Tree) -> Iterator[Tree]:
    for part in tree.inner:
        yield part
        yield from _parts(part)


def _names(text: str) -> list[str]:
    return _NAME.findall(text)


def tables(spark: SparkSession) -> None:
    """Nulls, NaN and few values of keys, some of which are equal without being the same."""
    for number, (a, c, d, x, *_) in enumerate(TYPES):
        for at, (name, rows) in enumerate(_TABLES.items()):
            spark.sql(
                f"""create or replace temp view {name}{number} as select
                if(r % 13 = 0, null, {a}) as a, bigint(r % 101) as b,
                if(r % 17 = 0, null, {c}) as c, if(r % 11 = 0, null, {d}) as d,
                named_struct('x', if(r % 5 = 0, null, {x}), 'y', array(r % 4, null)) as s
                from (select abs(hash(id, {number * 5 + at})) % 9973 as r
                from range(0, {rows}, 1, 2))"""
            )

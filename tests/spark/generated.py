"""Random queries over random tables; the same seed gives the same query.

Every relation has the columns a, b, c, d, s, so that any can stand under any. What a query leaves
open, as which of some rows that tie comes first, is never asked for.
"""

from __future__ import annotations

from random import Random

from pyspark.sql import SparkSession

COLUMNS = "a, b, c, d, s"
_JOINS = ("join", "left join", "right join", "full join")
_TABLES = (("t0", 900, 40), ("t1", 300, 12), ("t2", 60, 200), ("t3", 0, 5))


def tables(spark: SparkSession) -> None:
    """Nulls, NaN and few values of keys; one table is empty, and s is nested."""
    for number, (name, rows, keys) in enumerate(_TABLES):
        spark.sql(
            f"""create or replace temp view {name} as select /*+ repartition(3) */
            if(r % 13 = 0, null, int(r % {keys})) as a, r * 7 % 1000 as b,
            if(r % 17 = 0, null, concat('k', r % 9)) as c,
            case when r % 11 = 0 then null when r % 19 = 0 then double('NaN') else r / 8 end as d,
            named_struct('x', if(r % 5 = 0, null, int(r % 3)), 'y', array(r % 4, null, r)) as s
            from (select abs(hash(id, {number})) % 10007 as r from range(0, {rows}, 1, 3))"""
        )


class Query:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._names = 0
        self.ordered = self._random.random() < 0.4
        text = f"select {COLUMNS} from {self._relation(3)}"
        self.text = f"{text} order by {self._order()}" if self.ordered else text

    def _relation(self, depth: int) -> str:
        if depth == 0 or self._random.random() < 0.1:
            return self._random.choice(_TABLES[: 4 if self._random.random() < 0.15 else 3])[0]
        kinds = (
            self._joined,
            self._grouped,
            self._sifted,
            self._united,
            self._ranked,
            self._cut,
            self._exploded,
            self._placed,
        )
        self._names += 1
        name = f"q{self._names}"
        return f"({self._random.choice(kinds)(depth - 1)}) {name}"

    def _joined(self, depth: int) -> str:
        left, right = self._relation(depth), self._relation(depth)
        on = self._random.choice(
            ("l.a = r.a", "l.a = r.a and l.c = r.c", "l.c <=> r.c and l.b = r.b")
        )
        if self._random.random() < 0.3:
            kind = self._random.choice(("left semi join", "left anti join"))
            return (
                f"select l.* from (select * from {left}) l {kind} (select * from {right}) r on {on}"
            )
        kind = self._random.choice(_JOINS)
        one = f"(select a, c, max(b) b, max(d) d, max(s) s from {left} group by a, c)"
        return (
            f"select coalesce(l.a, r.a) a, r.b, l.c, greatest(l.d, r.d) d, coalesce(r.s, l.s) s "
            f"from {one} l {kind} (select * from {right}) r on {on}"
        )

    def _grouped(self, depth: int) -> str:
        inner = self._relation(depth)
        by = self._random.choice(("a, c", "c, a", "cube(a, c)", "grouping sets ((a), (c), ())"))
        b = self._random.choice(("sum(b)", "count(distinct b)", "count(*)", "max(b) - min(b)"))
        return f"select a, {b} b, c, max(d) d, min(s) s from {inner} group by {by}"

    def _sifted(self, depth: int) -> str:
        inner, other = self._relation(depth), self._relation(depth)
        condition = self._random.choice(
            (
                f"b > (select avg(b) from {other})",
                f"a in (select a from {other})",
                f"a not in (select b from {other} where b is not null)",
                f"exists (select 1 from {other} where c = o.c and b < 500)",
                "a % 2 = 0 or c is null",
                "b < 0",
            )
        )
        return f"select {COLUMNS} from (select * from {inner}) o where {condition}"

    def _united(self, depth: int) -> str:
        kind = self._random.choice(("union all", "union", "intersect", "except", "except all"))
        left, right = self._relation(depth), self._relation(depth)
        return f"select {COLUMNS} from {left} {kind} select {COLUMNS} from {right}"

    def _ranked(self, depth: int) -> str:
        over = self._random.choice(
            ("partition by c order by b", "partition by a, c order by d desc, b", "order by a, b")
        )
        rank = self._random.choice(("rank()", "dense_rank()", "count(*)", "max(b)"))
        return f"select a, {rank} over ({over}) b, c, d, s from {self._relation(depth)}"

    def _cut(self, depth: int) -> str:
        number = self._random.choice((0, 1, 7, 50))
        return (
            f"select {COLUMNS} from {self._relation(depth)} order by {self._order()} limit {number}"
        )

    def _exploded(self, depth: int) -> str:
        view = self._random.choice(("lateral view", "lateral view outer"))
        return f"select a, e b, c, d, s from {self._relation(depth)} {view} explode(s.y) g as e"

    def _placed(self, depth: int) -> str:
        hint = self._random.choice(
            ("repartition(5)", "repartition(4, a)", "repartition_by_range(6, b)", "coalesce(2)")
        )
        return f"select /*+ {hint} */ distinct {COLUMNS} from {self._relation(depth)}"

    def _order(self) -> str:
        names = COLUMNS.split(", ")
        self._random.shuffle(names)
        ways = ("", " desc", " nulls last", " desc nulls first")
        return ", ".join(name + self._random.choice(ways) for name in names)

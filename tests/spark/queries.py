"""Many random queries: `python -m tests.spark.queries --queries 10000 --start 0`.

Prints queries a second and each query that differs from Spark, the first of them at their smallest;
at the end what the queries have reached. Ends with 1 when a query differs, or when too few have
reached a part of the product. `--planted NAME …` puts these bugs into the product, each by itself,
and tells for each the first query that shows it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql import SparkSession

from headgate import Headgate, attach
from headgate.control.clock import SYSTEM_CLOCK

from .asked import Outcome, ask, smallest
from .conftest import build_session, real_place
from .generated import query
from .grammar import tables
from .planted import PLANTED, Plant, check_nothing
from .watched import LEAST_PERCENT, Watched

SHOWN_S = 30.0
SHRUNK_MAX = 5
UNANSWERED_MAX_PERCENT = 5
REASON_CHARS = 80
LASTING = "-XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.queries", description=__doc__)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--shrunk", type=int, default=SHRUNK_MAX, help="queries made smaller")
    parser.add_argument("--planted", nargs="+", choices=[plant.__name__ for plant in PLANTED])
    given = parser.parse_args()
    seeds = range(given.start, given.start + given.queries)
    spark = build_session(real_place(), "local[2]", **{"spark.driver.extraJavaOptions": LASTING})
    try:
        tables(spark)
        with attach(spark) as hg:
            if given.planted:
                plants = [one for one in PLANTED if one.__name__ in given.planted]
                missed = [plant.__name__ for plant in find(spark, hg, plants, seeds)]
                print(f"not found: {missed or 'none'}")
                return 1 if missed else 0
            return report(spark, hg, seeds, given.shrunk)
    finally:
        spark.stop()


def find(
    spark: SparkSession, hg: Headgate, plants: Sequence[Plant], seeds: Iterable[int]
) -> Sequence[Plant]:
    """Print for each planted bug the first seed that has wrong rows of it and right ones without
    it; return those that no seed has found."""
    sought, reached = list(plants), Counter[str]()
    for tried, seed in enumerate(seeds, 1):
        tree = query(seed)
        with pytest.MonkeyPatch.context() as patch:
            watched = Watched(patch)
            outcome = ask(spark, hg, tree)
        reached.update(seen := watched.end())
        if not outcome.is_right:
            reason = outcome.said or f"Spark has no answer: {outcome.unanswered}"
            print(f"seed {seed} as it is: {reason}; {tree.text}", flush=True)
            continue
        for plant in [one for one in sought if PLANTED[one] in {"", *seen}]:
            with pytest.MonkeyPatch.context() as patch:
                check_nothing(patch)
                plant(patch)
                outcome = ask(spark, hg, tree)
            if outcome.are_rows_wrong:
                sought.remove(plant)
                print(f"{plant.__name__}: seed {seed}, query {tried}", flush=True)
                print(f"    {outcome.said}; {tree.text}", flush=True)
        if not sought:
            break
    show(reached)
    return sought


def show(reached: Counter[str]) -> None:
    for kind in LEAST_PERCENT:
        print(f"{reached[kind]:>10,} {kind}")


def report(spark: SparkSession, hg: Headgate, seeds: range, shrunk_max: int) -> int:
    with pytest.MonkeyPatch.context() as patch:
        watched, tally = Watched(patch), Tally(len(seeds))
        for seed in seeds:
            tree = query(seed)
            outcome = ask(spark, hg, tree)
            watched.end()
            tally.add(seed, outcome)
            if outcome.said:
                if len(tally.wrong) <= shrunk_max:
                    tree = smallest(spark, hg, tree)
                    watched.forget()
                print(f"seed {seed}: {outcome.said}; {tree.text}", flush=True)
    show(watched.reached)
    for reason, times in tally.unanswered.most_common():
        print(f"{times:>10,} were not answered by Spark: {reason}")
    lacking = list(watched.lacking(len(seeds)))
    if tally.unanswered.total() * 100 > UNANSWERED_MAX_PERCENT * len(seeds):
        lacking.append(f"{tally.unanswered.total()} were not answered by Spark")
    print(f"seeds that differ: {tally.wrong or 'none'}")
    print(*(f"too few or too many: {one}" for one in lacking), sep="\n")
    return 1 if tally.wrong or lacking else 0


class Tally:
    """Counts queries, and prints now and then how many there were."""

    def __init__(self, queries: int) -> None:
        self._queries = queries
        self._asked = self._exchanges = 0
        self._begun_s = self._shown_s = SYSTEM_CLOCK.monotonic_s()
        self.wrong: list[int] = []
        self.unanswered: Counter[str] = Counter()

    def add(self, seed: int, outcome: Outcome) -> None:
        self._asked += 1
        self._exchanges += outcome.exchanges
        self.wrong += [seed] if outcome.said else []
        self.unanswered.update([outcome.unanswered[:REASON_CHARS]] if outcome.unanswered else [])
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s - self._shown_s > SHOWN_S or self._asked == self._queries:
            self._shown_s = now_s
            print(
                f"{self._asked:,} of {self._queries:,} queries, "
                f"{self._asked / (now_s - self._begun_s):.1f} queries/s, "
                f"{self._exchanges:,} exchanges, {len(self.wrong)} differ",
                flush=True,
            )


if __name__ == "__main__":
    raise SystemExit(main())

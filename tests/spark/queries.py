"""Ask many random queries: `python -m tests.spark.queries --queries 10000 --start 0`.

As many processes as there are processors share the queries, each in a session of its own. Prints
queries a second and each query that differs from Spark; the first of those are shrunk. At the end
prints the parts of the product that the queries have reached. Ends with 1 if a query differs, if
too few queries have reached a part, or if anything is left of them. `--planted NAME …` plants these
bugs one by one, and prints for each the first query that shows it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import pytest
from pyspark.sql import SparkSession

from headgate import Headgate, attach
from headgate.control.clock import SYSTEM_CLOCK

from ..bench.measured import left
from . import pairs
from .asked import Outcome, ask, smallest
from .conftest import build_session, real_place
from .generated import query
from .grammar import tables
from .planted import PLANTED, Plant, check_nothing
from .watched import LEAST_PERCENT, Watched, lacks

SHOWN_S = 30.0
SHRUNK_MAX = 5
UNANSWERED_MAX_PERCENT = 5
REASON_CHARS = 80
SPAWN = multiprocessing.get_context("spawn")
# Each query has generated code of its own: keep it for the second answer. Nobody looks at plans.
LASTING = {
    "spark.sql.ui.explainMode": "simple",
    "spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=512m"
    " -XX:MetaspaceSize=1g -Xmn700m -XX:+UseSerialGC",
    "spark.sql.codegen.cache.maxEntries": "3000",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.queries", description=__doc__)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--shrunk", type=int, default=SHRUNK_MAX, help="queries made smaller, of a process"
    )
    parser.add_argument("--planted", nargs="+", choices=[plant.__name__ for plant in PLANTED])
    parser.add_argument(
        "--pairs", action="store_true", help="all actions under pairs of settings instead"
    )
    given = parser.parse_args()
    if given.pairs:
        return pairs.main()
    seeds = range(given.start, given.start + given.queries)
    if not given.planted:
        return report(seeds, given.shrunk, given.processes)
    with session() as (spark, hg):
        plants = [plant for plant in PLANTED if plant.__name__ in given.planted]
        missed = [plant.__name__ for plant in find(spark, hg, plants, seeds)]
    print(f"not found: {missed or 'none'}")
    return 1 if missed else 0


@contextmanager
def session() -> Iterator[tuple[SparkSession, Headgate]]:
    """Open a session on the real stack with the tables of random queries, and attach a headgate."""
    spark = build_session(real_place(), "local[2]", **LASTING)
    try:
        tables(spark)
        with attach(spark) as hg:
            yield spark, hg
    finally:
        spark.stop()


def find(
    spark: SparkSession, hg: Headgate, plants: Sequence[Plant], seeds: Iterable[int]
) -> Sequence[Plant]:
    """Print the first seed that finds each planted bug, and return the bugs that no seed finds.

    A seed finds a bug if its rows are wrong with the bug and right without it.
    """
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
        for plant in [bug for bug in sought if PLANTED[bug] in {"", *seen}]:
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A seed and its outcome, with the text of a query that differs."""

    seed: int
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message of a process: the parts that its queries reached, and the findings of
    fsck."""

    reached: Counter[str]
    fsck: str


def answer_all(seeds: range, shrunk_max: int, writer: Connection) -> None:
    """Ask the queries of one process, in a session of its own, and send each outcome."""
    with session() as (spark, hg), pytest.MonkeyPatch.context() as patch:
        watched, wrong = Watched(patch), 0
        for seed in seeds:
            tree = query(seed)
            outcome = ask(spark, hg, tree)
            watched.end()
            wrong += bool(outcome.said)
            if outcome.said and wrong <= shrunk_max:
                tree = smallest(spark, hg, tree)
                watched.forget()
            writer.send(Asked(seed, outcome, tree.text if outcome.said else ""))
        writer.send(Ended(watched.reached, left(hg) or fsck(hg)))


def fsck(hg: Headgate) -> str:
    """Compare the bucket with the log of a job, and return the findings as text."""
    conf, worker = real_place().conf, hg._services.worker
    where = ["--broker", conf["spark.headgate.broker"], "--store", worker.store]
    asked = subprocess.run(
        [sys.executable, "-m", "headgate", "fsck", "--job", hg.job, *where],
        env={**os.environ, "HEADGATE_S3_ENDPOINT": conf["spark.headgate.s3.endpoint"]},
        capture_output=True,
        text=True,
    )
    return asked.stdout + asked.stderr if asked.returncode else ""


def report(seeds: range, shrunk_max: int, processes: int) -> int:
    """Ask all queries in this many processes, and print the outcome."""
    readers = []
    for at in range(processes):
        reader, writer = SPAWN.Pipe(duplex=False)
        SPAWN.Process(target=answer_all, args=(seeds[at::processes], shrunk_max, writer)).start()
        writer.close()
        readers.append(reader)
    tally, ended = Tally(len(seeds)), list[Ended]()
    while readers:
        ready = wait(readers)
        for reader in [pipe for pipe in readers if pipe in ready]:
            try:
                answer = reader.recv()
            except EOFError:
                readers.remove(reader)
                continue
            if isinstance(answer, Ended):
                ended.append(answer)
            else:
                tally.add(answer)
    reached = sum((process.reached for process in ended), Counter[str]())
    show(reached)
    for reason, times in tally.unanswered.most_common():
        print(f"{times:>10,} were not answered by Spark: {reason}")
    lacking = list(lacks(reached, len(seeds)))
    if tally.unanswered.total() * 100 > UNANSWERED_MAX_PERCENT * len(seeds):
        lacking.append(f"{tally.unanswered.total()} were not answered by Spark")
    print(f"seeds that differ: {tally.wrong or 'none'}")
    for lack in lacking:
        print(f"too few or too many: {lack}")
    findings = [process.fsck for process in ended if process.fsck]
    print(f"fsck finds {findings or 'nothing'} behind {len(ended)} of {processes} processes")
    return 1 if tally.wrong or lacking or findings or len(ended) < processes else 0


class Tally:
    """The count of queries, which is printed now and then."""

    def __init__(self, queries: int) -> None:
        self._queries = queries
        self._asked = self._exchanges = 0
        self._begun_s = self._shown_s = SYSTEM_CLOCK.monotonic_s()
        self.wrong: list[int] = []
        self.unanswered: Counter[str] = Counter()

    def add(self, asked: Asked) -> None:
        outcome = asked.outcome
        self._asked += 1
        self._exchanges += outcome.exchanges
        if outcome.said:
            self.wrong.append(asked.seed)
            print(f"seed {asked.seed}: {outcome.said}; {asked.text}", flush=True)
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

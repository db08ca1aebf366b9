"""Simulate many seeds on all processors: `python -m tests.simulation --seeds 1000 --start 0`.

Prints seeds a second, the faults that struck, and the seeds with violations; ends with 1 if there
are any. `--trace SEED` prints one world line by line.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from unittest.mock import patch

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.snapshots import container

from .world import Outcome, simulate

SHOWN_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", type=int, metavar="SEED")
    parser.add_argument("--exchanges", type=int, default=0, help="of each job, else a few")
    parser.add_argument("--chained", action="store_true", help="each exchange reads the one before")
    given = parser.parse_args()
    logging.disable(logging.ERROR)  # faults log many errors and warnings
    run = partial(simulate, exchanges=given.exchanges, chained=given.chained)
    chunk = 1 if given.exchanges else 20
    if given.trace is not None:
        return tell(run(given.trace, tell=True))
    with multiprocessing.Pool(given.processes, hasten) as pool:
        seeds = range(given.start, given.start + given.seeds)
        return report(pool.imap_unordered(run, seeds, chunksize=chunk), given.seeds)


def hasten() -> None:
    """Collect garbage less often than Python would, because worlds are full of cycles. Read each
    snapshot record once, because the masters of a world take the same ones up again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    patch.object(container, "unpack", lru_cache(20_000)(container.unpack)).start()


def tell(outcome: Outcome) -> int:
    print(*outcome.told, sep="\n")
    print(*outcome.violations, sep="\n")
    return 1 if outcome.violations else 0


def report(outcomes: Iterable[Outcome], seeds: int) -> int:
    begun_s = shown_s = SYSTEM_CLOCK.monotonic_s()
    faults: Counter[str] = Counter()
    wrong: list[int] = []
    for number, outcome in enumerate(shown(outcomes, wrong), 1):
        faults += outcome.faults
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s - shown_s > SHOWN_S or number == seeds:
            shown_s = now_s
            rate = number / (now_s - begun_s)
            print(
                f"{number:,} of {seeds:,} seeds, {rate:.1f} seeds/s, "
                f"{faults.total():,} faults, {len(wrong)} violations",
                flush=True,
            )
    for kind, number in sorted(faults.items()):
        print(f"{number:>10,} {kind}")
    print(f"seeds of violations: {sorted(wrong) or 'none'}")
    return 1 if wrong else 0


def shown(outcomes: Iterable[Outcome], wrong: list[int]) -> Iterator[Outcome]:
    """Yield the outcomes as they come, and print each violation at once."""
    for outcome in outcomes:
        if outcome.violations:
            wrong.append(outcome.seed)
        for violation in islice(outcome.violations, 3):
            print(f"seed {outcome.seed}: {violation}", flush=True)
        yield outcome


if __name__ == "__main__":
    raise SystemExit(main())

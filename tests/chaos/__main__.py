"""Run rounds of chaos on services of its own: `python -m tests.chaos --rounds 15 --seed 1`.

Prints the faults and the outcome of each round. Ends with 1 if a round went wrong, and then keeps
the folder with all output.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp

from headgate.control.clock import SYSTEM_CLOCK
from tests.doubles.loads import HOURS, grown, loads

from .place import Place, open_place
from .plan import APPLICATIONS, FAULTS, plan
from .rounds import Outcome, run, undisturbed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=1, help="the first round, of those planned")
    parser.add_argument("--application", choices=APPLICATIONS, help="of one kind alone")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all started processes too
    folder = Path(mkdtemp(prefix="headgate-chaos-"))
    begun_s = SYSTEM_CLOCK.monotonic_s()
    with open_place(folder) as place:
        before = loads(place.masters.pids())
        outcomes = rounds(place, given)
        left = [place.ask("fsck"), place.ask("audit", "verify")]
        left += grown(before, place.masters.pids(), HOURS)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    for what, number in sorted(Counter(outcome.round.what for outcome in outcomes).items()):
        print(f"{number:>5} {what}")
    took_s = SYSTEM_CLOCK.monotonic_s() - begun_s
    print(f"{len(outcomes)} rounds of seed {given.seed} in {took_s:.0f} s, {wrong} went wrong")
    print(*filter(None, left), sep="\n")
    if wrong or any(left):
        print(f"what everybody said is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def rounds(place: Place, given: argparse.Namespace) -> list[Outcome]:
    among = (given.application,) if given.application else APPLICATIONS
    first = given.start - 1
    chosen = list(islice(plan(given.seed, among), first, first + given.rounds))
    applications = sorted({planned.work.application for planned in chosen})
    expected = {name: undisturbed(place, name) for name in applications}
    print(f"undisturbed: {expected}", flush=True)
    outcomes = []
    for planned in chosen:
        job, right = f"chaos-{given.seed}-{planned.number}", expected[planned.work.application]
        outcomes.append(run(place, planned, right, job))
        print(outcomes[-1], flush=True)
    return outcomes


if __name__ == "__main__":
    raise SystemExit(main())

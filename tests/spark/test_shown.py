"""A user at a terminal sees tables and the progress of exchanges; a file gets plain text."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest

from ..quick_java import QUICK_JAVA
from .conftest import Place, real_place

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

APPLICATION = Path(__file__).with_name("shown.py")
EXCHANGE = "shown.py:21: repartition(4, id)"
_numbers = count(1)


@pytest.fixture(scope="module")
def place() -> Place:
    return real_place()


def shown(place: Place, sparks_bar: bool, terminal: bool) -> tuple[str, str]:
    """Run the application, with its errors on a terminal or in a pipe. Return what it prints and
    what its errors are."""
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sparks_bar).lower(),
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.headgate.job.id": f"shown-{os.getpid()}-{next(_numbers)}",
        "spark.headgate.warm.up": "false",
        **place.conf,
    }
    pairs = " ".join(f"--conf '{key}={value}'" for key, value in conf.items())
    seen = bytearray()
    ours, theirs = pty.openpty() if terminal else os.pipe()

    def read() -> None:
        try:
            while text := os.read(ours, 4096):
                seen.extend(text)
        except OSError:  # a terminal ends like this
            pass

    reader = threading.Thread(target=read)
    running = subprocess.Popen(
        [sys.executable, str(APPLICATION)],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{pairs} pyspark-shell"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    with running:
        reader.start()
        out, _ = running.communicate()
    reader.join()
    os.close(ours)
    assert running.returncode == 0, seen.decode()
    return out, seen.decode()


def test_a_terminal_shows_progress(place: Place) -> None:
    """A line with growing numbers stands at the end of the terminal, and leaves nothing there."""
    out, err = shown(place, sparks_bar=False, terminal=True)
    line = f"\r1-0001 {EXCHANGE}  {{}}/8 partitions  "
    assert any(line.format(number) in err for number in range(1, 8))
    assert "[Stage" not in err
    *_, blank, end = err.split("\r")
    assert (blank.strip(" "), end) == ("", "")
    head, row = out.splitlines()
    assert head.split()[:4] == ["result", "what", "state", "size"]
    assert row.startswith(f"1-0001  {EXCHANGE}  complete  8 x 4    40  ")


def test_it_stands_back_for_sparks_own(place: Place) -> None:
    """A terminal with the bar of Spark has no second one."""
    _, err = shown(place, sparks_bar=True, terminal=True)
    assert "[Stage" in err
    assert "/8 partitions" not in err


def test_a_file_gets_no_progress(place: Place) -> None:
    """A pipe gets neither a line nor a code of terminals."""
    out, err = shown(place, sparks_bar=False, terminal=False)
    assert "/8 partitions" not in err
    assert "\r" not in err
    assert "\x1b" not in out + err

"""An application prints under Headgate what it prints in Spark alone, and one line at its end."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from ..quick_java import QUICK_JAVA

pytestmark = pytest.mark.timeout(600)

APPLICATION = Path(__file__).with_name("ordinary.py")
SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
RUN = (sys.executable, "-m", "headgate", "run")
HOOKED = """
import runpy, sys
from headgate.infra.start.session_hook import install
install(False)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "WARN",  # as in a Python shell: `spark-submit` logs each step of a job
}
_VARIES = re.compile(r"\d+")


def printed(words: tuple[str, ...], folder: Path, **more: str) -> list[str]:
    """Run the application by a command, and return the lines of its stderr: with `spark-submit`,
    which leads Python's to stdout, of both."""
    conf = {**CONF, **more}
    settings = [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
    folder.mkdir()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*settings, "pyspark-shell"]),
    }
    if SUBMIT in words:
        words = (*words, *settings)
        del environment["PYSPARK_SUBMIT_ARGS"]
    done = subprocess.run(
        [*words, str(APPLICATION), str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return (done.stderr + done.stdout * (SUBMIT in words)).splitlines()


def kinds(lines: list[str]) -> set[str]:
    """Return the lines without what differs from run to run: times, ports, ids."""
    return {_VARIES.sub("N", line) for line in lines}


@pytest.mark.parametrize(
    ("plain", "ours", "sockets"),
    [
        ((sys.executable,), RUN, "true"),
        ((SUBMIT,), (*RUN, SUBMIT), "false"),
        ((sys.executable,), (sys.executable, "-c", HOOKED), "false"),
    ],
    ids=["run", "submit", "hook"],
)
def test_no_line_that_spark_does_not_print(
    tmp_path: Path, plain: tuple[str, ...], ours: tuple[str, ...], sockets: str
) -> None:
    """`headgate run` adds its last line, and the start-up hook none."""
    more = {"spark.python.unix.domain.socket.enabled": sockets}
    expected = kinds(printed(plain, tmp_path / "plain", **more))
    given = printed(ours, tmp_path / "ours", **more, **{"spark.headgate.enabled": "true"})
    added = [line for line in given if kinds([line]) - expected]
    closing = [line for line in added if line.startswith("headgate: job ")]
    assert added == closing
    assert len(closing) == (ours[:4] == RUN)

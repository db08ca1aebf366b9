"""Applications that do not know Headgate, started by `headgate run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pyspark
import pytest

from headgate.control.errors import Invalid
from headgate.control.inquiry.reading import states
from headgate.control.kafka.log import KafkaEventLog
from headgate.control.kafka.settings import KafkaSettings
from headgate.control.model.state import JobState
from headgate.infra.start import commands

from ..bench import tpch, unchanged
from ..doubles.loads import grown_sessions
from ..quick_java import QUICK_JAVA
from .conftest import Place, real_place

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

APPLICATION = Path(__file__).with_name("started.py")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
NATIVE = {"spark.headgate.broker": "127.0.0.1:1", "spark.headgate.attach.ms": "1000"}
_numbers = count(1)


@pytest.fixture(scope="module")
def place() -> Place:
    return real_place()


@pytest.fixture
def job() -> str:
    return f"started-{os.getpid()}-{next(_numbers)}"


@contextmanager
def started(place: Place, job: str, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run an application with settings, and end it if it is still there."""
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.headgate.job.id": job,
        "spark.headgate.warm.up": "false",
        **place.conf,
        **more,
    }
    settings = [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    running = subprocess.Popen(
        [sys.executable, "-m", "headgate", "run", *settings, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=APPLICATION.parent,
    )
    with running:
        try:
            yield running
        finally:
            running.kill()


def state_of(place: Place, job: str) -> JobState:
    """Return the state of a job, as the log has it.

    Raises:
        Invalid: the log does not know the job.
    """
    with closing(KafkaEventLog(KafkaSettings(place.conf["spark.headgate.broker"]))) as log:
        (state,) = states(log, job)
        return state


def assert_closed(place: Place, job: str, epoch: int, exchanges: int) -> None:
    """Assert that each driver of a job has closed it, and that nothing of it is left."""
    state = state_of(place, job)
    assert (state.closed is not None, state.epoch) == (True, epoch)
    assert len(state.results) >= exchanges
    assert not any(result.doomed for result in state.results.values())


def test_an_application_runs_here(place: Place, job: str) -> None:
    """Its exchanges run in Headgate in each of its sessions. Its arguments, name and exit code are
    as without Headgate. Settings alone show the events of importance."""
    words = str(APPLICATION), "again", "--x", "exit"
    with started(place, job, *words, **{"spark.headgate.log.level": "Info"}) as running:
        out, err = running.communicate()
    assert running.returncode == 7, err
    assert out.splitlines() == ["sum 1000 ('again', '--x', 'exit') __main__", "sum 1000"]
    shown = re.findall(r"^\S+ \S+ INFO event=(\w+) job=(\S+) ", err, re.MULTILINE)
    assert {"JobAccepted", "ResultComplete", "Deleted"} <= {kind for kind, _ in shown}
    assert {job} == {name for _, name in shown}
    lines = re.findall(r"^headgate: job .*$", err, re.MULTILINE)
    assert 2 == len(lines)
    pattern = (
        rf"headgate: job {job}: \d exchanges?, .*, 0 shuffles in Spark; for more: headgate (.*)"
    )
    (more,) = {match[1] for line in lines if (match := re.fullmatch(pattern, line))}
    done = subprocess.run([sys.executable, "-m", "headgate", *more.split()], check=False)
    assert 0 == done.returncode
    assert_closed(place, job, 2, 1)


def test_a_module_that_fails(place: Place, job: str) -> None:
    """The error of a module is Python's own, and its job is closed. Workers of Spark that end
    with it may still write to the same stream."""
    with started(place, job, "-m", APPLICATION.stem, "child", "fail") as running:
        _, err = running.communicate()
    assert running.returncode == 1
    assert "\nValueError: the application has failed\n" in err
    assert_closed(place, job, 1, 2)


def test_sessions_that_nobody_keeps(place: Place, job: str) -> None:
    """Hundreds of sessions of one application share its job, and leave no thread, no descriptor and
    no memory behind, in the driver and in its JVM."""
    with started(place, job, str(APPLICATION), "sessions", "301") as running:
        out, err = running.communicate()
    assert running.returncode == 0, err
    assert [] == grown_sessions(out)
    assert_closed(place, job, 1, 8)


def test_an_application_that_is_interrupted(place: Place, job: str) -> None:
    with started(place, job, str(APPLICATION), "wait") as running:
        assert running.stdout is not None
        while running.stdout.readline() != "waits\n":
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert running.returncode in (-signal.SIGINT, 128 + signal.SIGINT), err
    assert_closed(place, job, 1, 1)


def test_an_application_that_attaches_its_session(place: Place, job: str) -> None:
    """Its own headgate replaces the first one."""
    with started(place, job, str(APPLICATION), "attach") as running:
        out, err = running.communicate()
    assert running.returncode == 0, err
    assert out.splitlines()[-1] == "sum 1000 epoch 2"
    assert_closed(place, job, 2, 1)


def test_spark_submit(place: Place, job: str) -> None:
    with started(place, job, str(SUBMIT), "--name", "x.py", str(APPLICATION), "exit") as running:
        out, err = running.communicate()
    assert running.returncode == 7, err
    line, summary = out.splitlines()  # spark-submit leads both streams of Python to one
    assert line == "sum 1000 ('exit',) __main__"
    assert summary.startswith(f"headgate: job {job}: ")
    assert_closed(place, job, 1, 1)


@pytest.mark.parametrize("on_failure", ["fail", "native"])
def test_a_broker_that_is_away(place: Place, job: str, on_failure: str) -> None:
    """The error is the last line, or the exchanges run in Spark and a warning says so."""
    more = {**NATIVE, "spark.headgate.on.failure": on_failure}
    with started(place, job, str(APPLICATION), **more) as running:
        out, err = running.communicate()
    if on_failure == "fail":
        assert (running.returncode, out) == (1, "")
        assert err.splitlines()[-1].startswith("headgate.control.errors.Unavailable: ")
    else:
        assert (running.returncode, out) == (0, "sum 1000 () __main__\n")
        assert "the exchanges of this session run in Spark: " in err


def test_a_session_that_says_no(place: Place, job: str) -> None:
    with started(place, job, str(APPLICATION), **{"spark.headgate.enabled": "FALSE"}) as running:
        out, err = running.communicate()
    assert (running.returncode, out) == (0, "sum 1000 () __main__\n"), err
    with pytest.raises(Invalid):
        state_of(place, job)


def plain_python(place: Place, job: str, line: str, **more: str) -> None:
    """Run the application by a plain start of Python, and check that its session is attached."""
    conf = {**place.conf, "spark.headgate.job.id": job, **more}
    pairs = " ".join(f"--conf {key}={value}" for key, value in conf.items())
    given = f"{pairs} --driver-java-options '{QUICK_JAVA}' pyspark-shell"
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": given}
    done = subprocess.run(
        [sys.executable, "-c", f"{line}; import started; started.main()"],
        cwd=APPLICATION.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "sum 1000 () started\n", done.stderr
    assert_closed(place, job, 1, 1)


def test_a_notebook(place: Place, job: str) -> None:
    """The extension attaches the session that is there already, gives a handle, and closes its
    headgate when the process ends."""
    session = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"
    handle = f"assert headgate.current().job == '{job}'"
    shell = "import headgate; headgate.load_ipython_extension(0)"
    plain_python(place, job, f"{session}; {shell}; {handle}")


def test_the_start_up_hook(
    place: Place, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hook, a plain start of Python attaches the sessions that say so."""
    monkeypatch.setattr(commands, "hook_file", lambda: tmp_path / "h.pth")
    assert commands.install_hook().exists()
    line = f"import site; site.addsitedir({str(tmp_path)!r})"
    plain_python(place, job, line, **{"spark.headgate.enabled": "true"})
    commands.remove_hook()
    assert list(tmp_path.iterdir()) == []


def test_queries_of_an_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of TPC-H have Spark's answers, and all of their exchanges are released."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    tables, texts = tpch.generated(tmp_path, 0.01), tpch.queries()
    texts = {number: texts[number] for number in (1, 3, 13, 18, 21)}
    expected = unchanged.ask("Spark alone", tables, texts)
    given = unchanged.ask("headgate run", tables, texts)
    assert unchanged.wrong(expected.rows, given.rows) == []
    assert given.exchanges > len(texts)
    assert given.left == 0

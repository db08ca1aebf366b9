"""`headgate run`: the command that it becomes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from headgate.control.errors import Invalid
from headgate.infra.start import commands
from headgate.infra.start.commands import command_of

APPLICATION = str(Path(__file__))
MODE = "spark.submit.deployMode"
SUBMITTED = str(Path(commands.__file__).with_name("submitted.py"))


def test_an_application_gets_its_arguments_and_settings() -> None:
    """Settings come before those that the environment has for `spark-submit`, and the workers'
    Python is this one."""
    environment = {"PYSPARK_SUBMIT_ARGS": "--master local pyspark-shell", "A": "b"}
    command = command_of([APPLICATION, "--x", "-m"], ["spark.a=b c"], False, environment)
    assert command.words == [sys.executable, "-m", "headgate.infra.start", APPLICATION, "--x", "-m"]
    assert command.environment["PYSPARK_SUBMIT_ARGS"] == (
        "--conf 'spark.a=b c' --master local pyspark-shell"
    )
    assert (command.environment["PYSPARK_PYTHON"], command.environment["A"]) == (
        sys.executable,
        "b",
    )


def test_a_module_may_have_any_name() -> None:
    command = command_of(["some.module", "x"], [], True, {})
    assert command.words[1:] == ["-m", "headgate.infra.start", "-m", "some.module", "x"]
    assert "PYSPARK_SUBMIT_ARGS" not in command.environment


@pytest.mark.parametrize("words", [[APPLICATION], ["spark-submit", APPLICATION]])
@pytest.mark.parametrize("chosen", ["environment", "conf", "both"])
def test_a_python_of_the_workers_that_somebody_has_chosen_stays(
    words: list[str], chosen: str
) -> None:
    """As with `spark-submit`, the setting wins over the environment."""
    of_environment = "python8" if chosen == "both" else "python9"
    environment = {} if chosen == "conf" else {"PYSPARK_PYTHON": of_environment}
    conf = [] if chosen == "environment" else ["spark.pyspark.python=python9"]
    command = command_of(words, conf, False, environment)
    assert "python9" == command.environment["PYSPARK_PYTHON"]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--master local[2] --name x.py -v",
        "--conf a=b --py-files a.py,b.py",
        "--name=x.py",
        "--name cluster",
    ],
)
def test_spark_submit_runs_our_file_before_the_application(options: str) -> None:
    words = ["/opt/spark/bin/spark-submit", *shlex.split(options), "job.py", "--deploy-mode", "x"]
    command = command_of(words, ["k=v"], False, {})
    given = ["--conf", "k=v", *shlex.split(options)]
    assert command.words == [words[0], *given, SUBMITTED, "job.py", "--deploy-mode", "x"]


@pytest.mark.parametrize(
    ("words", "conf", "message"),
    [
        (["nowhere.py"], [], "there is no application 'nowhere.py'"),
        ([APPLICATION], ["key"], "--conf 'key': use key=value"),
        (["spark-submit"], [], "needs a Python file"),
        (["spark-submit", "--class", "Main", "job.jar"], [], "needs a Python file"),
        (["spark-submit", "--deploy-mode", "cluster", "job.py"], [], "deploy mode client"),
        (["spark-submit", "--deploy-mode=cluster", "job.py"], [], "deploy mode client"),
        (["spark-submit", "--conf", f"{MODE}=cluster", "job.py"], [], "deploy mode client"),
        (["spark-submit", "job.py"], [f"{MODE}=cluster"], "deploy mode client"),
    ],
)
def test_a_command_that_cannot_run_says_why(
    words: list[str], conf: list[str], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        command_of(words, conf, False, {})


@pytest.mark.parametrize(
    "mechanism", [["PLAIN"], ["SCRAM-SHA-512"], ["OAUTHBEARER", "oauthbearer.method=oidc"], []]
)
def test_a_password_may_come_from_elsewhere(mechanism: list[str]) -> None:
    """A way to log in needs other options, which files of Spark or the application may give."""
    sasl = [f"sasl.{text}" for text in ("mechanism=", "")]
    options = [f"{begin}{text}" for begin, text in zip(sasl, mechanism, strict=False)]
    pairs = [f"spark.headgate.kafka.{it}" for it in ("security.protocol=SASL_SSL", *options)]
    command_of([APPLICATION], pairs, False, {})


@pytest.mark.parametrize("submit", [False, True])
@pytest.mark.parametrize(
    ("pair", "error"),
    [
        ("spark.headgate.brokr=b:1", "the nearest key is spark.headgate.broker"),
        ("spark.headgte.broker=b:1", "all keys of Headgate begin with spark.headgate"),
        ("headgate.broker=b:1", "all keys of Headgate begin with spark.headgate"),
        ("spark.headgate.codec=zip", "one of lz4, zstd, none"),
        ("spark.headgate.s3.regoin=x", "the nearest key is s3.region"),
        ("spark.headgate.s3.secret_key=x", "a secret would stand in the clear"),
        ("spark.headgate.kafka.acks=0", "a confirmed fact must survive"),
        ("spark.headgate.kafka.sasl.mechanim=PLAIN", "has no option sasl.mechanim"),
        ("spark.headgate.store=gs://bucket/root", "Headgate has no store for gs://"),
        ("spark.headgate.store=s3://a/root,b/root", "name"),
        ("spark.headgate.store=s3://a/root,b://root", "must be s3://bucket/root"),
    ],
)
def test_a_key_that_cannot_be_used_is_found_before_a_jvm_starts(
    pair: str, error: str, submit: bool
) -> None:
    """Both ways of giving a setting are looked at. A key that needs another one is left alone."""
    words = ["spark-submit", "-v", "--conf", pair, APPLICATION] if submit else [APPLICATION]
    with pytest.raises(Invalid, match=error):
        command_of(words, [] if submit else [pair], False, {})
    command_of(words[-1:], ["spark.headgate.topic.retention.ms=1h"], False, {})

"""The installed wheel: without extras, with those of README, and in executors that get their Python
from an archive."""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import headgate

from ..spark.conftest import Place, real_place
from .conftest import README, ROOT, CleanFolder, blocks

pytestmark = [pytest.mark.package, pytest.mark.timeout(600)]

NOWHERE = "--broker 127.0.0.1:1"
APPLICATION = "from pyspark.sql import SparkSession"
WITHOUT_EXTRAS = {
    "headgate --version": (0, f"headgate {headgate.__version__}"),
    "headgate --help": (0, ""),
    "headgate demo": (2, "pip install 'pyspark-headgate[spark,embedded]'"),
    "headgate stack up": (2, "pip install 'pyspark-headgate[stack]'"),
    "headgate stack status": (2, "pip install 'pyspark-headgate[stack]'"),
    "headgate doctor": (1, "pip install 'pyspark-headgate[spark]'"),
    "headgate run application.py": (1, "pip install 'pyspark-headgate[spark]'"),
    "headgate start-up-hook --remove": (0, " is gone"),
    "headgate exporter": (2, "error: the exporter needs prometheus_client: pip install"),
    "headgate events": (2, "error: no broker is set: give --broker"),
    f"headgate events {NOWHERE}": (2, "error: cannot reach Kafka with bootstrap 127.0.0.1:1, "),
    f"headgate state --job j {NOWHERE}": (
        2,
        "error: cannot reach Kafka with bootstrap 127.0.0.1:1, ",
    ),
    f"headgate audit verify {NOWHERE}": (
        2,
        "error: cannot reach Kafka with bootstrap 127.0.0.1:1, ",
    ),
    f"headgate fsck {NOWHERE} --store file://$PWD": (
        2,
        "error: cannot reach Kafka with bootstrap 127.0.0.1:1, ",
    ),
}
"""Commands without the packages of any extra, with their exit codes and a part of their last lines,
or of any line of a command with exit code 1."""
JOB = """
import sys
from importlib.util import find_spec

import pandas as pd
from pyspark.sql import SparkSession


def median(rows: pd.DataFrame) -> pd.DataFrame:
    import headgate
    from sortedcontainers import SortedList

    middle = SortedList(rows.v)[len(rows) // 2]
    return pd.DataFrame({"m": [middle], "python": sys.prefix, "headgate": headgate.__file__})


spark = SparkSession.builder.getOrCreate()
rows = spark.range(999).selectExpr("id % 3 as k", "id as v")
medians = rows.groupBy("k").applyInPandas(median, "m long, python string, headgate string")
print(*(value for row in medians.orderBy("m").collect() for value in row), sep="\\n")
print(find_spec("sortedcontainers"), sys.prefix, sep="\\n")
"""


@pytest.fixture(scope="module")
def place() -> Place:
    return real_place()


@pytest.fixture(scope="module")
def cluster(clean: CleanFolder, place: Place) -> dict[str, str]:
    """Write a job and the settings of a cluster, and return the variables that lead to them."""
    conf = {
        **place.conf,
        "spark.master": "local-cluster[1,1,1024]",
        "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "false",
        "spark.headgate.job.id": f"package-{os.getpid()}",
        "spark.headgate.warm.up": "false",
    }
    (clean.path / "conf").mkdir()
    lines = "".join(f"{key} {value}\n" for key, value in conf.items())
    (clean.path / "conf" / "spark-defaults.conf").write_text(lines)
    (clean.path / "my_job.py").write_text(JOB)
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    return {"SPARK_CONF_DIR": str(clean.path / "conf"), **aws}


def test_the_wheel_is_what_is_imported(clean: CleanFolder) -> None:
    for venv in ("executors", "users"):
        done = clean.run("python -c 'import headgate; print(headgate.__file__)'", venv)
        assert done.stdout.startswith(f"{clean.path / venv}/lib/"), done.stderr


def test_commands_without_extras(clean: CleanFolder) -> None:
    """A command that cannot work ends with one line, which names the extra that it lacks."""
    (clean.path / "application.py").write_text(APPLICATION)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda command: clean.run(command, "executors"), WITHOUT_EXTRAS))
    for command, answer in zip(WITHOUT_EXTRAS, done, strict=True):
        code, text = WITHOUT_EXTRAS[command]
        printed = (answer.stdout + answer.stderr).splitlines()
        assert answer.returncode == code, (command, printed)
        assert text in (" ".join(printed) if code == 1 else printed[-1]), (command, printed)
        assert code != 2 or len(printed) == 1, (command, printed)


def test_the_demo(clean: CleanFolder) -> None:
    done = clean.run("headgate demo", "users")
    assert (done.returncode, "all as promised" in done.stdout) == (0, True), done


def test_the_first_lines_of_readme(clean: CleanFolder) -> None:
    """The lines give the counts of 1000 customers, twenty of which are shown, from the embedded
    stack."""
    (clean.path / "first.py").write_text(blocks(README)[1])
    done = clean.run("python first.py", "users")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| 1000|") == 20
    assert "headgate" not in done.stderr


def test_executors_get_their_python_from_an_archive(
    clean: CleanFolder, cluster: dict[str, str], place: Place
) -> None:
    """An unchanged job runs by the lines of the page: its functions import a package that its
    driver does not have, its rows are exchanged here, and an operator sees that it ended."""
    to_pack, to_run = blocks((ROOT / "docs/executors.md").read_text())
    packed = clean.run(to_pack, "users")
    assert packed.returncode == 0, packed.stderr
    done = clean.run(to_run, "users", **cluster)
    assert done.returncode == 0, done.stderr
    *answers, spec, driver = done.stdout.splitlines()
    assert ["498", "499", "500"] == answers[::3]
    for python, module in zip(answers[1::3], answers[2::3], strict=True):
        assert python.endswith("/env")
        assert module.startswith(f"{python}/lib/")
    assert ("None", str(clean.path / "users")) == (spec, driver)
    broker, job = place.conf["spark.headgate.broker"], f"package-{os.getpid()}"
    log = clean.run(f"headgate events --json --job {job} --broker {broker}", "executors")
    kinds = Counter(json.loads(line)["kind"] for line in log.stdout.splitlines())
    assert kinds["ResultComplete"] >= 1
    assert kinds["JobUnregistered"] == 1

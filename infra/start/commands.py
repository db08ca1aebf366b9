"""`headgate run` replaces this process by an application whose sessions are attached; the start-up
hook does so for every application of a Python."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ...connectors.spark.settings import check_keys
from ...control.addresses import urls_of
from ...control.errors import Invalid
from ...control.kafka.clients import check_options
from ...storage.stores.open_store import parts_of

_SUBMIT = "spark-submit"
_SUBMIT_ARGS, _SHELL = "PYSPARK_SUBMIT_ARGS", "pyspark-shell"
_PYTHON, _PYTHON_KEY = "PYSPARK_PYTHON", "spark.pyspark.python"
_HOOK = (  # one line, which does nothing where headgate is no longer installed
    "import importlib.util as u; u.find_spec('headgate') and "
    f"__import__('{__package__}.session_hook', fromlist=['install']).install(False)\n"
)
_MODE_KEY = "spark.submit.deployMode"
_CLUSTER = {
    f"{option}=cluster" for option in ("--deploy-mode", f"--conf={_MODE_KEY}", f"-c={_MODE_KEY}")
}
_CONF = ("--conf", "-c")
_FLAGS = ("--verbose", "-v", "--supervise")  # the options of spark-submit without a value


@dataclass(frozen=True, slots=True)
class Command:
    """The command that runs an application."""

    words: list[str]
    environment: dict[str, str] = field(repr=False)

    def execute(self) -> None:
        """Run the command in place of this process, so that it gets its signals and gives its exit
        code."""
        sys.stdout.flush()
        os.execvpe(self.words[0], self.words, self.environment)


def command_of(
    words: list[str], conf: list[str], is_module: bool, environment: Mapping[str, str]
) -> Command:
    """Return the command for an application and its arguments, or for `spark-submit` and its own.

    Raises:
        Invalid: a setting is not `key=value`, a key of ours cannot be used, or there is no such
            application.
    """
    if wrong := next((pair for pair in conf if "=" not in pair), None):
        raise Invalid(f"--conf {wrong!r}: use key=value")
    submits = not is_module and Path(words[0]).name == _SUBMIT
    pairs = [*conf, *(_submitted_conf(words[1:]) if submits else ())]
    checked = check_keys(dict(pair.split("=", 1) for pair in pairs))
    check_options(checked.kafka)
    for url in filter(None, urls_of(checked.store)):
        parts_of(url)
    settings = [word for pair in conf for word in ("--conf", pair)]
    given = dict(environment)
    if python := dict(pair.split("=", 1) for pair in conf).get(_PYTHON_KEY):
        given[_PYTHON] = python  # only `spark-submit` does so by itself
    name_python(given)
    if submits:
        return Command([words[0], *_submitted([*settings, *words[1:]])], given)
    if not is_module and not os.path.exists(words[0]):
        raise Invalid(f"there is no application {words[0]!r}")
    if settings:
        before = given.get(_SUBMIT_ARGS, _SHELL)
        given[_SUBMIT_ARGS] = f"{shlex.join(settings)} {before}"
    module = ["-m"] if is_module else []
    return Command([sys.executable, "-m", __package__, *module, *words], given)


def name_python(environment: MutableMapping[str, str]) -> None:
    """Let Spark's workers run this Python, unless another is named already."""
    environment.setdefault(_PYTHON, sys.executable)


def _submitted_conf(words: list[str]) -> list[str]:
    """Return the settings among the arguments of `spark-submit`."""
    options, _ = _parted(words)
    apart = [value for option, value in pairwise(options) if option in _CONF and "=" in value]
    joined = [word.partition("=")[2] for word in options if word.startswith("--conf=")]
    return apart + [pair for pair in joined if "=" in pair]


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of `spark-submit`, and the application with its arguments."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 if words[at] in _FLAGS or "=" in words[at] else 2
    return words[:at], words[at:]


def _submitted(words: list[str]) -> list[str]:
    """Return the arguments of `spark-submit` with our file before the application's."""
    options, application = _parted(words)
    pairs = [f"{option}={value}" for option, value in pairwise(options)]
    is_cluster = not _CLUSTER.isdisjoint([*options, *pairs])
    if not application or not application[0].endswith(".py") or is_cluster:
        raise Invalid(
            "headgate run spark-submit needs a Python file and deploy mode client: for a driver on "
            "another machine install the start-up hook there, and set spark.headgate.enabled=true"
        )
    return [*options, str(Path(__file__).with_name("submitted.py")), *application]


def hook_file() -> Path:
    """Return the file in which this Python looks for the start-up hook."""
    return Path(sysconfig.get_path("purelib"), "headgate-start-up.pth")


def install_hook() -> Path:
    """Let every start of this Python watch for sessions with `spark.headgate.enabled=true`."""
    path = hook_file()
    path.write_text(_HOOK)
    return path


def remove_hook() -> Path:
    path = hook_file()
    path.unlink(missing_ok=True)
    return path

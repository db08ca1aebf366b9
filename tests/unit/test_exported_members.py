"""The front door stays small, and everything it names is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headgate

NAMES_MAX = 12


def test_the_front_door_is_small() -> None:
    """A user can learn every public name."""
    assert len(set(headgate.__all__)) == len(headgate.__all__)
    assert 0 < len(headgate.__all__) <= NAMES_MAX


@pytest.mark.parametrize("name", headgate.__all__)
def test_every_name_exists(name: str) -> None:
    """`from headgate import *` gives what it promises."""
    assert getattr(headgate, name).__name__ == name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """The names that are loaded late do not swallow typing errors."""
    with pytest.raises(AttributeError, match="atach"):
        headgate.atach  # noqa: B018


def test_importing_headgate_does_not_import_spark() -> None:
    """Executors and tools do not pay for PySpark, boto3 or pandas before they use them."""
    program = (
        "import sys, headgate; print(*{'pyspark', 'boto3', 'pandas', 'moto'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr

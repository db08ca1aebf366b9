"""Every option takes its sizes, times and words in all the spellings of Spark's users."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.spark.settings import OPTIONS
from headgate.control.errors import Invalid
from headgate.control.options import Option
from headgate.control.units import bytes_text, ms_text, read_bytes, read_ms
from headgate.storage.stores.s3.settings import OPTIONS as S3_OPTIONS

ALL = (*OPTIONS, *S3_OPTIONS)
AMOUNTS = st.integers(0, 1 << 40)


def named(*endings: str) -> list[Option]:
    return [option for option in ALL if option.name.endswith(endings)]


def units(option: Option) -> dict[str, int]:
    """Return the suffixes of an option, each in the unit of a number alone."""
    if option.name.endswith("bytes"):
        return {"b": 1} | {
            f"{letter}{rest}": 1024**power
            for power, letter in enumerate("kmgtp", 1)
            for rest in ("", "b", "ib")
        }
    seconds = {"s": 1, "m": 60, "min": 60, "h": 60 * 60, "d": 24 * 60 * 60}
    if option.name.endswith("_s"):
        return seconds
    return {"ms": 1} | {suffix: 1000 * size for suffix, size in seconds.items()}


def result(option: Option, text: str) -> object:
    """Return the value of a text, or the error without the text."""
    try:
        return option.value("p.", text)
    except Invalid as error:
        return str(error).replace(repr(text), "")


def capitals(text: str, which: list[bool]) -> str:
    return "".join(c.upper() if up else c for c, up in zip(text, which, strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("option", named("bytes", "ms", "_s"), ids=lambda option: option.name)
@given(amount=AMOUNTS, which=st.lists(st.booleans(), min_size=3, max_size=3))
def test_a_suffix_stands_for_its_number(option: Option, amount: int, which: list[bool]) -> None:
    """An amount with a suffix gives the value, or the error, of the number that it stands for."""
    for suffix, size in units(option).items():
        text = f" {amount}{capitals(suffix, which)} "
        assert result(option, f"{amount * size}") == result(option, text)


@given(amount=st.integers(1, 10_000))
def test_parts_of_a_second(amount: int) -> None:
    """A timeout in seconds takes smaller units, too."""
    for option in named("_s"):
        assert result(option, f"{amount / 1000}") == result(option, f"{amount}ms")
        assert result(option, f"{amount / 1_000_000:.6f}") == result(option, f"{amount}us")


@given(which=st.lists(st.booleans(), min_size=12, max_size=12))
def test_capitals_do_not_matter_in_a_choice(which: list[bool]) -> None:
    """`true`, `False` and any other word of a choice is taken in capitals, with its own value."""
    choices = {
        option.name: option.kind.wanted.removeprefix("one of ").removesuffix(", or empty")
        for option in ALL
        if option.kind.wanted.startswith("one of ")
    }
    assert {"enabled", "codec", "sql.enabled", "path_style"} <= choices.keys()
    for option in (option for option in ALL if option.name in choices):
        for word in choices[option.name].split(", "):
            assert result(option, word) == result(option, capitals(f"{word:12}", which))
            assert isinstance(option.value("p.", word), bool) or word == option.value("p.", word)


def test_every_default_can_be_typed() -> None:
    """The default that the pages show is read as the default."""
    for option in (option for option in ALL if option.default is not None):
        assert option.default == option.value("p.", option.kind.text_of(option.default))


@given(amount=AMOUNTS)
def test_a_value_is_shown_as_it_is_read(amount: int) -> None:
    assert amount == read_bytes(bytes_text(amount)) == read_ms(ms_text(amount))

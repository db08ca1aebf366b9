"""Options as texts: what their kinds accept, and what errors say and keep to themselves."""

from __future__ import annotations

import re

import pytest

from headgate.control.errors import Invalid
from headgate.control.options import (
    FLAG,
    SECONDS,
    TEXT,
    Option,
    OptionKind,
    one_of,
    read_options,
    refuse_unsafe,
    size,
    time_ms,
    whole,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TEXT, "", ""),
        (FLAG, " True ", True),
        (FLAG, "false", False),
        (FLAG, "TRUE", True),
        (SECONDS, "0.5", 0.5),
        (SECONDS, "1e1", 10.0),
        (SECONDS, "500ms", 0.5),
        (size(0), "64m", 64 << 20),
        (size(0), " 1GB ", 1 << 30),
        (size(-1), "-1", -1),
        (time_ms(0), "1d", 86_400_000),
        (time_ms(0), "1500000US", 1_500),
        (whole(0), "0", 0),
        (whole(1, 3), "3", 3),
        (whole(1), "9223372036854775807", (1 << 63) - 1),
        (one_of("a", "b"), "b", "b"),
        (one_of("a", "b"), " B", "b"),
    ],
)
def test_a_text_gives_a_value(kind: OptionKind, text: str, value: object) -> None:
    """A text within the limits is read; an option without a text has its default."""
    table = [Option("a", "default", kind, ""), Option("b", "default", kind, "")]
    assert {"a": value, "b": "default"} == read_options("p.", table, {"a": text})


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        (FLAG, "yes", "one of true, false"),
        (SECONDS, "0", "a time such as 60s or 500ms, above 0"),
        (SECONDS, "inf", "a time such as 60s or 500ms, above 0"),
        (SECONDS, "nan", "a time such as 60s or 500ms, above 0"),
        (SECONDS, "soon", "a time such as 60s or 500ms, above 0"),
        (SECONDS, "9" * 400 + "s", "a time such as 60s or 500ms, above 0"),
        (size(1 << 20), "64mm", "a size such as 64m or 1g, at least 1m"),
        (size(1 << 20), "1.5m", "a size such as 64m or 1g, at least 1m"),
        (size(1 << 20), "1 m", "a size such as 64m or 1g, at least 1m"),
        (size(1 << 20), "1023k", "a size such as 64m or 1g, at least 1m"),
        (size(1, 1 << 30), "1t", "a size such as 64m or 1g, at least 1 and at most 1g"),
        (size(0), "60s", "a size such as 64m or 1g, at least 0"),
        (size(0), "9223372036854775807p", "a size such as 64m or 1g, at least 0"),
        (time_ms(60_000), "59s", "a time such as 60s or 1d, at least 60s"),
        (time_ms(0), "1g", "a time such as 60s or 1d, at least 0"),
        (time_ms(0), "999us", "a time such as 60s or 1d, at least 0"),
        (whole(1), "0", "a whole number, at least 1"),
        (whole(1, 3), "4", "a whole number, at least 1 and at most 3"),
        (whole(1), "9223372036854775808", "a whole number, at least 1"),
        (whole(1), "1.5", "a whole number, at least 1"),
        (one_of("a", "b"), "c", "one of a, b"),
    ],
)
def test_a_text_that_cannot_be_used(kind: OptionKind, text: str, wanted: str) -> None:
    """An error names the option, its text, and the values that can be used."""
    says = f"p.a = {text!r} cannot be used: it must be {wanted}"
    with pytest.raises(Invalid, match=f"^{re.escape(says)}$"):
        read_options("p.", [Option("a", 0, kind, "")], {"a": text})


def test_an_unknown_name_does_not_show_its_text() -> None:
    """A misspelt name may be that of a secret: the error names the nearest and shows no text."""
    with pytest.raises(Invalid) as caught:
        read_options("p.", [Option("password", "", TEXT, "")], {"pasword": "hunter2"})
    assert "there is no p.pasword; the nearest key is p.password" == str(caught.value)


@pytest.mark.parametrize("options", [{"key": "hunter2"}, {"proxy_url": "http://me:hunter2@host"}])
def test_secrets_are_refused_and_not_shown(options: dict[str, str]) -> None:
    """A refused option and an address with a password are named, without their texts."""
    with pytest.raises(Invalid, match=f"^s3 option {next(iter(options))} ") as caught:
        refuse_unsafe("s3", options, {"it is secret": "other key"})
    assert "hunter2" not in str(caught.value)

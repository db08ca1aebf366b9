"""Show values to people as tables: plain text in a terminal, HTML in a notebook.

Guarantees: a value that is shown is still the tuple, the dataclass or the string that programs use.
Text of users is escaped, and no control character in it reaches a terminal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar, SupportsIndex, TypeVar, overload

from rich.cells import cell_len, set_cell_size

T = TypeVar("T")

_ROWS_SHOWN = 20
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"  # else a notebook reads one between two dollars


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, whose columns begin with words and end with numbers."""

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    heads: tuple[str, ...] = ()
    """Lines above the rows."""
    feet: tuple[str, ...] = ()
    """Lines below the rows."""
    cell_max: int = 32
    """The longest text of a cell in a terminal."""

    def text(self) -> str:
        """Return aligned lines of plain text. Long words are cut."""
        rows = [[shortened(cell, self.cell_max) for cell in row] for row in self._filled()]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                set_cell_size(cell, width) if left else " " * (width - cell_len(cell)) + cell
                for cell, width, left in zip(row, widths, self._lefts(), strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*map(_visible, self.heads), *lines, *map(_visible, self.feet)])

    def html(self) -> str:
        """Return a table of HTML that has the colours of its surroundings."""
        rows = []
        for number, row in enumerate(self._filled()):
            kind = "td" if number else "th"
            rows.append(
                "".join(
                    f'<{kind} style="text-align:{"left" if left else "right"}">'
                    f"{escape(_visible(cell))}</{kind}>"
                    for cell, left in zip(row, self._lefts(), strict=True)
                )
            )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        heads, feet = (
            "".join(f"<div>{escape(_visible(line))}</div>" for line in lines)
            for lines in (self.heads, self.feet)
        )
        table = f"<table>{body}</table>" if body else ""
        return f'<div class="{_NO_FORMULAS}">{heads}{table}{feet}</div>'

    def _shown(self) -> list[int]:
        """Return the columns that have text in a row."""
        return [
            at for at in range(len(self.words + self.numbers)) if any(row[at] for row in self.rows)
        ]

    def _filled(self) -> list[list[str]]:
        """Return the names of the columns that are shown, and their rows."""
        if not self.rows:
            return []
        return [
            [row[at] for at in self._shown()] for row in (self.words + self.numbers, *self.rows)
        ]

    def _lefts(self) -> list[bool]:
        return [at < len(self.words) for at in self._shown()]


class Shown(ABC):
    """A value that is shown as a table."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table: ...

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str | None:
        return self.table().html()


class ShownTuple(Shown, tuple[T, ...]):
    """A tuple that is shown as a table of its last items. A slice of it is one, too. With items of
    another kind, as `dataclasses.asdict` makes it, it is shown as any tuple."""

    __slots__ = ()
    kind: ClassVar[type]
    """The class of the items."""

    def __repr__(self) -> str:
        return super().__repr__() if self._is_table() else tuple.__repr__(self)

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self._is_table() else None

    def _is_table(self) -> bool:
        return all(isinstance(item, self.kind) for item in self)

    def table(self) -> Table:
        hint = self.hint("this") if self else ("none",)
        return self.table_of(self[-_ROWS_SHOWN:], hint)

    @abstractmethod
    def table_of(self, shown: Sequence[T], hint: tuple[str, ...]) -> Table:
        """Return the table of the items that are shown, with `hint` below it."""

    def hint(self, name: str) -> tuple[str, ...]:
        """Return a line that says how many items a table leaves out, and how `name` gives them."""
        cut = len(self) - _ROWS_SHOWN
        return (f"{cut} earlier ones are not shown: slice {name} with [:{cut}]",) * (cut > 0)

    @overload
    def __getitem__(self, at: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: SupportsIndex | slice) -> T | tuple[T, ...]:
        items = super().__getitem__(at)
        return type(self)(items) if isinstance(at, slice) and isinstance(items, tuple) else items


class Explanation(str):
    """A query's plan and lines about its exchanges. In a notebook the lines are a table, and the
    plan is folded below it."""

    _html: str

    def __new__(cls, plan: str, lines: str, table: Table) -> Explanation:
        page = super().__new__(cls, f"{plan.rstrip()}\n\n{lines}")
        folded = f"<details><summary>plan</summary><pre>{escape(plan.rstrip())}</pre></details>"
        page._html = table.html() + folded
        return page

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def _repr_html_(self) -> str:
        return self._html


def numbered(number: int, word: str) -> str:
    """Return a number of things in words."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def counted(number: int) -> str:
    """Return a number for a column that is left out where all are zero."""
    return f"{number:,}" if number else ""


def _visible(text: str) -> str:
    """Return a text without characters that change how others are shown."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shortened(text: str, most: int) -> str:
    """Return a text as it is printed on a terminal, at most so many cells of it."""
    shown = _visible(text)
    return shown if cell_len(shown) <= most else set_cell_size(shown, most - 1) + "…"

"""Random queries: a seed always gives the same query, and a query that differs is shrunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from random import Random

from .grammar import RULES, TYPES

_NAME = re.compile("<([a-z ]+)>")
_SETTING = re.compile("set ([^=]+)=([^;]+);")
SETTINGS = frozenset(
    key for texts in RULES.values() for text in texts for key, _ in _SETTING.findall(text)
)


@dataclass(frozen=True)
class Tree:
    """A choice of one text of a rule, and the subtrees that replace the names in it."""

    rule: str
    choice: int
    inner: tuple[Tree, ...]

    @cached_property
    def text(self) -> str:
        inner = iter(self.inner)
        text = _NAME.sub(lambda _: next(inner).text, RULES[self.rule][self.choice])
        if self.rule != "query":
            return text
        *_, a, c = TYPES[self.choice]
        text = text.replace("@a", a).replace("@c", c).replace("#", str(self.choice))
        return " ".join(text.split())

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings under which the query is run; all others are Spark's defaults."""
        return dict(_SETTING.findall(self.text))

    @property
    def statement(self) -> str:
        return _SETTING.sub("", self.text).strip()

    @property
    def is_ordered(self) -> bool:
        """Return True if the query asks for an order of its rows."""
        return any(part.rule == "end" and part.text for part in self.inner[-1].inner)


def grow(rule: str, choose: Callable[[int], int], depth: int) -> Tree:
    """Grow a tree with at most `depth` nested relations."""
    texts = RULES[rule]
    if rule == "relation":
        texts = texts[: len(texts) if depth else 1]
        depth -= 1
    choice = choose(len(texts))
    names = _names(texts[choice])
    if not names:  # of equal texts, which only raise a chance, take the first
        choice = texts.index(texts[choice])
    inner = (grow(name, choose, depth) for name in names)
    return Tree(rule, choice, tuple(inner))


def simplest(rule: str) -> Tree:
    return grow(rule, lambda _: 0, 0)


def query(seed: int) -> Tree:
    random = Random(seed)
    return grow("query", random.randrange, random.choice((1, 1, 1, 1, 2, 2, 3)))


def smaller(tree: Tree) -> Iterator[Tree]:
    """Yield smaller trees: a part of the same rule, a simpler choice, or a tree with one smaller
    part."""
    yield from (part for part in parts(tree) if part.rule == tree.rule)
    yield from (simple for simple in (simplest(tree.rule),) if simple != tree)
    texts = RULES[tree.rule][: tree.choice + 1]
    simpler = {texts.index(text) for text in texts if _names(text) == _names(texts[-1])}
    yield from (replace(tree, choice=at) for at in sorted(simpler - {tree.choice}))
    for at, part in enumerate(tree.inner):
        before, behind = tree.inner[:at], tree.inner[at + 1 :]
        for less in smaller(part):
            yield replace(tree, inner=(*before, less, *behind))


def shrunk(tree: Tree, differs: Callable[[Tree], bool], tries: int = 300) -> Tree:
    """Return the smallest tree that still differs, as far as this many tries find one."""
    best: Tree | None = tree
    while best is not None:
        tree, best = best, None
        for less in islice(smaller(tree), tries):
            tries -= 1
            if differs(less):
                best = less
                break
    return tree


def parts(tree: Tree) -> Iterator[Tree]:
    for part in tree.inner:
        yield part
        yield from parts(part)


def _names(text: str) -> list[str]:
    return _NAME.findall(text)

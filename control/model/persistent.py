"""A mapping and a set that never change: a changed one shares all but a few nodes with the old.

Guarantees what `dict` and `frozenset` do: the order of insertion in a mapping, equality with any
other mapping or set of the same content. A change takes the same time whatever the size; a walk
through a mapping sorts it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar, overload

from immutables import Map

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class PersistentMap(Mapping[K, V]):
    __slots__ = ("_next", "_placed")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        known = dict(entries)
        placed = {key: (place, value) for place, (key, value) in enumerate(known.items())}
        self._placed: Map[K, tuple[int, V]] = Map(placed)
        self._next = len(placed)

    @classmethod
    def of(cls, known: Mapping[K, V]) -> PersistentMap[K, V]:
        """The mapping itself where it is one of these."""
        return known if isinstance(known, PersistentMap) else cls(known)

    def having(self, key: K, value: V) -> PersistentMap[K, V]:
        """With this value under the key; a key that was there keeps its place."""
        before = self._placed.get(key)
        if before is not None:
            return _made(self._placed.set(key, (before[0], value)), self._next)
        return _made(self._placed.set(key, (self._next, value)), self._next + 1)

    def without(self, keys: Iterable[K]) -> PersistentMap[K, V]:
        """With none of the keys."""
        placed = self._placed.mutate()
        for key in keys:
            placed.pop(key, None)
        return _made(placed.finish(), self._next)

    def __getitem__(self, key: K) -> V:
        return self._placed[key][1]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        found = self._placed.get(key)
        return default if found is None else found[1]

    def __contains__(self, key: object) -> bool:
        return key in self._placed

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self._placed, key=lambda key: self._placed[key][0]))

    def __len__(self) -> int:
        return len(self._placed)

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)})"


def _made(placed: Map[K, tuple[int, V]], following: int) -> PersistentMap[K, V]:
    made: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
    made._placed, made._next = placed, following
    return made


class PersistentSet(Set[K]):
    __slots__ = ("_members",)

    def __init__(self, members: Iterable[K] = ()) -> None:
        self._members: Map[K, None] = Map((member, None) for member in members)

    @classmethod
    def of(cls, known: Set[K]) -> PersistentSet[K]:
        """The set itself where it is one of these."""
        return known if isinstance(known, PersistentSet) else cls(known)

    def having(self, members: Iterable[K]) -> PersistentSet[K]:
        """With all of the members."""
        new = [member for member in members if member not in self._members]
        return _made_set(self._members.update((one, None) for one in new)) if new else self

    def without(self, member: K) -> PersistentSet[K]:
        """With the member no longer in it."""
        return _made_set(self._members.delete(member)) if member in self._members else self

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[K]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"PersistentSet({set(self)})"


def _made_set(members: Map[K, None]) -> PersistentSet[K]:
    made: PersistentSet[K] = PersistentSet.__new__(PersistentSet)
    made._members = members
    return made

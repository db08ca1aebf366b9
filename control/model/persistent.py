"""A mapping and a set that never change. A changed copy shares all but a few nodes with the
original.

Guarantees the same as `dict` and `frozenset`: a mapping keeps the order of insertion, and is equal
to any other mapping of the same content, as a set is to any other set. A change takes about the
same time for any size. Iterating over a mapping sorts it first.
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
        content = dict(entries)
        placed = {key: (place, value) for place, (key, value) in enumerate(content.items())}
        self._placed: Map[K, tuple[int, V]] = Map(placed)
        self._next = len(placed)

    def having(self, key: K, value: V) -> PersistentMap[K, V]:
        """Return a mapping with this value under the key. An existing key keeps its place."""
        before = self._placed.get(key)
        if before is not None:
            return _made(self._placed.set(key, (before[0], value)), self._next)
        return _made(self._placed.set(key, (self._next, value)), self._next + 1)

    def without(self, keys: Iterable[K]) -> PersistentMap[K, V]:
        """Return a mapping without the keys."""
        placed = self._placed.mutate()
        for key in keys:
            placed.pop(key, None)
        return _made(placed.finish(), self._next)

    def missing(self, keys: Iterable[K]) -> set[K]:
        """Return the keys that the mapping does not have, in a fraction of the time that `in`
        takes for each."""
        placed = self._placed
        return {key for key in keys if key not in placed}

    def __getitem__(self, key: K) -> V:
        return self._placed[key][1]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        entry = self._placed.get(key)
        return default if entry is None else entry[1]

    def __contains__(self, key: object) -> bool:
        return key in self._placed

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self._placed, key=lambda key: self._placed[key][0]))

    def __len__(self) -> int:
        return len(self._placed)

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)})"


def _made(placed: Map[K, tuple[int, V]], following: int) -> PersistentMap[K, V]:
    new_map: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
    new_map._placed, new_map._next = placed, following
    return new_map


class PersistentSet(Set[K]):
    __slots__ = ("_members",)

    def __init__(self, members: Iterable[K] = ()) -> None:
        self._members: Map[K, None] = Map((member, None) for member in members)

    def having(self, members: Iterable[K]) -> PersistentSet[K]:
        """Return a set that has all of the members too."""
        new = [member for member in members if member not in self._members]
        return _made_set(self._members.update((key, None) for key in new)) if new else self

    def without(self, member: K) -> PersistentSet[K]:
        """Return a set without the member."""
        return _made_set(self._members.delete(member)) if member in self._members else self

    def missing(self, members: Iterable[K]) -> set[K]:
        """Return the members that the set does not have, as `PersistentMap.missing` does."""
        own = self._members
        return {member for member in members if member not in own}

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[K]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"PersistentSet({set(self)})"


def _made_set(members: Map[K, None]) -> PersistentSet[K]:
    new_set: PersistentSet[K] = PersistentSet.__new__(PersistentSet)
    new_set._members = members
    return new_set

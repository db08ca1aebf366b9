"""The attempts of a pipelined result that were whole together, by a naive model.

All partitions of the result are restarted together. Rows from before and after a restart must not
be mixed, neither by one reader nor by readers whose rows a driver uses together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.control.ids import AttemptId


class Generations:
    def __init__(self) -> None:
        self._whole: dict[str, list[Mapping[int, AttemptId]]] = {}
        self._restarted: set[str] = set()
        self._fits: dict[tuple[str, object], set[int]] = {}

    def register(self, result: str) -> None:
        self._whole.setdefault(result, [])

    def has(self, result: str) -> bool:
        return result in self._whole

    def of(self, result: str) -> list[Mapping[int, AttemptId]]:
        return self._whole[result]

    def complete(self, result: str, winners: Mapping[int, AttemptId]) -> None:
        self._whole[result].append(winners)

    def restart(self, result: str) -> None:
        self._restarted.add(result)

    def was_restarted(self, result: str) -> bool:
        return result in self._restarted

    def read(self, result: str, task: object, fits: set[int]) -> None:
        """Record the generations whose rows a reader may have got."""
        self._fits[result, task] = fits

    def is_one(self, result: str, tasks: Iterable[object]) -> bool:
        """Return True if these readers can have read the same generation."""
        return bool(set.intersection(*(self._fits[result, task] for task in tasks)))

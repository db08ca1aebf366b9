"""How a stage reads what exchanges have stored, by what is there and by Spark's own settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...storage.segment import Longs


@dataclass(frozen=True, slots=True)
class Adapting:
    """What `spark.sql.adaptive.*` says: whether neighbours are read together, and how much at once;
    up to which size one side of a join is sent to everybody, -1 for never."""

    coalesce: bool
    target_bytes: int
    least_bytes: int
    least_parts: int
    broadcast_bytes: int


def parts_of(sizes: Sequence[Longs], adapting: Adapting) -> tuple[range, ...]:
    """Neighbours that are read together, for exchanges that must be cut alike; nothing when each is
    read by itself."""
    total: Longs = np.sum(sizes, axis=0)
    if not adapting.coalesce or len(total) < 2:
        return ()
    spread = int(total.sum()) // adapting.least_parts
    target = min(adapting.target_bytes, max(spread, adapting.least_bytes))
    parts, start, held = [], 0, 0
    for at, size in enumerate(total.tolist()):
        if held and held + size > target:
            parts.append(range(start, at))
            start, held = at, 0
        held += size
    parts.append(range(start, len(total)))
    return tuple(parts) if len(parts) < len(total) else ()

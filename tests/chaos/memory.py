"""The memory, threads and descriptors of processes over hours: sampled, compared, and drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from headgate.control.clock import SYSTEM_CLOCK
from tests.doubles.loads import HOURS, Load, loads

SAMPLE_S = 5.0
_WIDTH, _HEIGHT, _EDGE, _LINE = 960, 360, 56, 16
_COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8e6c8a", "#b08900", "#2a9d8f", "#6c757d", "#d1495b")

Life = tuple[str, int]  # the owner of a process, and its pid


@dataclass
class Samples:
    """The load of each process by second."""

    pids: Callable[[], Mapping[str, int]]
    lives: dict[Life, list[tuple[float, Load]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._begun_s = SYSTEM_CLOCK.monotonic_s()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def growing(self) -> Iterator[str]:
        """Yield each process that lived through the last three quarters and did not stay flat."""
        end_s = max((points[-1][0] for points in self.lives.values()), default=0.0)
        for (name, pid), points in self.lives.items():
            if points[0][0] > end_s / 4 or points[-1][0] < end_s - 3 * SAMPLE_S:
                continue
            early = _usual([load for at_s, load in points if end_s / 4 <= at_s <= end_s / 2])
            late = _usual([load for at_s, load in points if at_s >= 3 * end_s / 4])
            if growth := late.growth(early, HOURS):
                yield f"{name} ({pid}) has grown: {growth}"

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            at_s = SYSTEM_CLOCK.monotonic_s() - self._begun_s
            for life, load in loads(self.pids()).items():
                self.lives.setdefault(life, []).append((at_s, load))


def _usual(samples: list[Load]) -> Load:
    return Load(
        round(median(load.threads for load in samples)),
        round(median(load.descriptors for load in samples)),
        median(load.mib for load in samples),
    )


def drawn(lives: Mapping[Life, list[tuple[float, Load]]]) -> str:
    """Return a picture of the memory with a line for each process, and a colour for each owner."""
    end_s = max(at_s for points in lives.values() for at_s, _ in points)
    top_mib = max(load.mib for points in lives.values() for _, load in points)
    names = sorted({name for name, _ in lives})
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}
    x_of = (_WIDTH - 2 * _EDGE) / end_s
    y_of = (_HEIGHT - 2 * _EDGE) / top_mib
    height = _HEIGHT + _LINE * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for part in range(5):
        y = _HEIGHT - _EDGE - part * top_mib / 4 * y_of
        parts.append(f'<path d="M{_EDGE} {y:.0f}H{_WIDTH - _EDGE}" stroke="#ddd"/>')
        parts.append(f'<text x="4" y="{y + 4:.0f}">{part * top_mib / 4:.0f} MiB</text>')
        x = _EDGE + part * end_s / 4 * x_of
        at_min = f"{part * end_s / 240:.0f} min"
        parts.append(f'<text x="{x:.0f}" y="{_HEIGHT - _EDGE + 20}">{at_min}</text>')
    for (name, _), points in lives.items():
        places = [(_EDGE + s * x_of, _HEIGHT - _EDGE - load.mib * y_of) for s, load in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colours[name]}"/>')
    for at, name in enumerate(names):
        y = _HEIGHT + at * _LINE
        parts.append(f'<text x="{_EDGE}" y="{y}" fill="{colours[name]}">{name}</text>')
    return "\n".join((*parts, "</svg>", ""))

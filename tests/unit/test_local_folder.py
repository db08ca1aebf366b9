"""The local folder of an executor: one that has room."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.connectors.spark.tasks.local_folder import local_folder

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "size_bytes", "chosen"),
    [
        ((9 * GIB, 66 * GIB), 0, "a"),
        ((0, 66 * GIB), 0, "b"),
        ((2 * GIB, 66 * GIB), 3 * GIB, "b"),
        ((5_000, 9_000), 0, "b"),
        ((None, 9_000), 0, "b"),
        ((None, None), 0, None),
    ],
)
def test_a_full_folder_is_passed_over(
    free: tuple[int | None, int | None],
    size_bytes: int,
    chosen: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first folder with room is taken, so that processes share it; if none has room, the one
    with the most. A folder that is gone counts for nothing."""
    folders = {str(tmp_path / name): room for name, room in zip("ab", free, strict=True)}
    for path, room in folders.items():
        if room is not None:
            Path(path).mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(folders))
    usage = {path: SimpleNamespace(free=room) for path, room in folders.items()}
    monkeypatch.setattr(shutil, "disk_usage", usage.__getitem__)
    expected = None if chosen is None else str(tmp_path / chosen)
    assert expected == local_folder(size_bytes)

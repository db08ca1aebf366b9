"""Local files: in a folder that has room, and in the next one when a folder is full."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pyarrow as pa
import pytest

from headgate.connectors.spark.tasks.grouped.external_groups import Side, gathered
from headgate.connectors.spark.tasks.local_folders import local_folders
from headgate.storage.local_file import LocalFile, by_room

from ..doubles.full_folders import fill_up

GIB = 1 << 30


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Make two folders, and name them as Spark does, with one that is gone."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, [tmp_path / "gone", *paths])))
    return paths


def test_folders_that_cannot_be_written_are_left_out(folders: list[Path]) -> None:
    assert folders == local_folders()


@pytest.mark.parametrize(
    ("free", "size_bytes", "first"),
    [
        ((9 * GIB, 66 * GIB), 0, "a"),
        ((0, 66 * GIB), 0, "b"),
        ((2 * GIB, 66 * GIB), 3 * GIB, "b"),
        ((5_000, 9_000), 0, "b"),
    ],
)
def test_a_full_folder_is_passed_over(
    free: tuple[int, int],
    size_bytes: int,
    first: str,
    folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first folder with room is taken, so that processes share it; if none has room, the one
    with the most."""
    usage = {path: SimpleNamespace(free=room) for path, room in zip(folders, free, strict=True)}
    monkeypatch.setattr(shutil, "disk_usage", usage.__getitem__)
    chosen, other = by_room(folders, size_bytes)
    assert (first, {*folders}) == (chosen.name, {chosen, other})


def write(body: bytes, file: BinaryIO) -> int:
    """Write bytes in small parts, and return where they end."""
    for at in range(0, len(body), 100):
        file.write(body[at : at + 100])
    return file.tell()


def test_a_file_goes_on_in_another_folder(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that do not fit are written to the next folder, whole; earlier ones stay."""
    fill_up(monkeypatch, 50_000, 1 << 40)
    with LocalFile(folders) as files:
        bodies = [bytes([at]) * 20_000 for at in range(5)]
        written = [files.write(len(body), partial(write, body)) for body in bodies]
        assert bodies == [
            os.pread(file.fileno(), len(body), end - len(body))
            for body, (file, end) in zip(bodies, written, strict=True)
        ]
        opened = [file for file, _ in written]
        assert (opened[0], opened[2]) == (opened[1], opened[4]) != (opened[2], opened[1])
    assert all(file.closed for file in opened)


def test_a_file_that_no_folder_has_room_for(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names each folder, and the room that is left there. A file that is given up takes
    no room."""
    fill_up(monkeypatch, 30_000, 50_000)
    with LocalFile(folders) as files:
        with pytest.raises(OSError, match="room for 60,000 bytes") as caught:
            files.write(60_000, partial(write, bytes(60_000)))
        for folder in folders:
            assert f"{folder} has " in str(caught.value)
    with LocalFile(folders) as files:
        assert 50_000 == files.write(50_000, partial(write, bytes(50_000)))[1]
    with pytest.raises(OSError, match="there is none"):
        LocalFile([]).write(1, partial(write, b"1"))


def test_a_full_folder_is_logged_once(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process logs a full folder once, however many files it makes."""
    fill_up(monkeypatch, 0, 1 << 40)
    for _ in range(5):
        with LocalFile(folders) as files:
            files.write(60_000, partial(write, bytes(60_000)))
    assert 1 == caplog.text.count(f"{folders[0]} has ")


@pytest.mark.parametrize("room_bytes", [(0, 1 << 40), (60_000, 1 << 40), (60_000, 60_000)])
def test_groups_go_on_in_another_folder(
    room_bytes: tuple[int, int], folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a function for groups may fill a folder while they are written. If they fill the
    last one, the error names all."""
    fill_up(monkeypatch, *room_bytes)
    rows = pa.table({"k": [at % 1_000 for at in range(20_000)], "v": range(20_000)})
    side = Side(rows.schema, (0,), rows.to_batches(max_chunksize=500))

    def counted() -> int:
        return sum(len(each.sides[0].rows) for each in gathered([side], 40_000, streams=False))

    if sum(room_bytes) > rows.nbytes:
        assert len(rows) == counted()
    else:
        with pytest.raises(OSError, match=f"{folders[0]} has .*, {folders[1]} has "):
            counted()

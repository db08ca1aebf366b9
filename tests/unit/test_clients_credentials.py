"""Credentials that somebody renews while a process runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.errors import HeadgateError
from headgate.storage.stores.port import ByteRange
from headgate.storage.stores.s3 import clients
from headgate.storage.stores.s3.settings import S3Settings
from headgate.storage.stores.s3.store import S3BlobStore

from ..doubles.s3 import MINE, StillClock, scripted

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
GETS = 30


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder where the process looks for credentials."""
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


def store_keys(folder: Path, name: str) -> None:
    text = f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n"
    (folder / "credentials").write_text(text)


def store_program(folder: Path, **more: str) -> None:
    """Let a program give the credentials, which notes each of its starts."""
    program = folder / "give"
    keys = {"Version": 1, "AccessKeyId": "GIVEN", "SecretAccessKey": "s", **more}
    says = f"echo x >> {folder}/started; sleep 0.1; echo '{json.dumps(keys)}'"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o700)
    (folder / "config").write_text(f"[default]\ncredential_process = {program}\n")


def test_a_file_of_credentials_is_read_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The client gets the credentials of the file as it is now, and reads it again only when it
    has changed, or after some minutes."""
    read: list[int] = []
    session = clients._session

    def counted() -> Any:
        read.append(1)
        return session()

    monkeypatch.setattr(clients, "_session", counted)
    clock = StillClock()
    credentials = clients.CredentialLookup(clock)
    for name in ("FIRST", "THIRDLY"):
        store_keys(folder, name)
        assert {name} == {credentials()["access_key_id"] for _ in range(GETS)}
    assert 2 == len(read)
    clock.sleep_s(clients.CREDENTIALS_TTL_S)
    credentials()
    assert 3 == len(read)


@pytest.mark.parametrize(("lifetime_s", "kept_s"), [(7200, 300), (120, 60), (40, 10), (5, 0)])
def test_credentials_are_not_kept_beyond_their_end(
    folder: Path, lifetime_s: int, kept_s: int
) -> None:
    """A source may give credentials for less time than they are usually kept."""
    end = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000 + lifetime_s, UTC)
    store_program(folder, Expiration=end.isoformat())
    clock = StillClock()
    credentials = clients.CredentialLookup(clock)
    for _ in range(2):
        credentials()
        assert kept_s == credentials._expires_s - clock.monotonic_s()
        clock.sleep_s(kept_s)


def test_thirty_gets_need_one_look_up(folder: Path) -> None:
    """A process that gives credentials is started once, whatever the number of requests, stores
    and threads."""
    store_program(folder)
    with scripted(MINE) as server, ThreadPoolExecutor(8) as pool:
        stores = [S3BlobStore(S3Settings(f"bucket{n}", server.endpoint)) for n in range(3)]
        asked = [pool.submit(stores[n % 3].get, "a", ByteRange(0, 5)) for n in range(GETS)]
        for each in asked:
            with suppress(HeadgateError):
                each.result()
        for store in stores:
            store.close()
        assert GETS <= len(server.seen)
    assert ["x"] == (folder / "started").read_text().split()


def test_the_models_of_s3_are_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second client of botocore reads no model again."""
    settings = S3Settings("bucket", endpoint="http://127.0.0.1:1")
    clients._cold_client(settings)
    read: list[str] = []
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: read.append(path))
    clients._cold_client(settings)
    assert [] == read

"""Credentials that somebody renews while a process runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader

from headgate.control.clock import SYSTEM_CLOCK
from headgate.storage.stores.s3 import clients
from headgate.storage.stores.s3.settings import S3Settings


def test_a_file_of_credentials_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The client asks for credentials every few minutes, and then gets those of the file as it is
    now."""
    file = tmp_path / "credentials"
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    credentials = clients._chain(SYSTEM_CLOCK)
    for name in ("FIRST", "SECOND"):
        file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")
        assert name == credentials()["access_key_id"]


def test_the_models_of_s3_are_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second client of boto3 reads no model again."""
    settings = S3Settings("bucket", endpoint="http://127.0.0.1:1")
    clients._cold_client(settings)
    read: list[str] = []
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: read.append(path))
    clients._cold_client(settings)
    assert [] == read

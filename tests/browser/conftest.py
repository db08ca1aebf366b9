"""Chromium without a window, and a server of the live page."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from headgate.control.log import EventLog
from headgate.infra.serving import ServerSettings
from headgate.infra.ui.bucket_check import BucketCheck
from headgate.infra.ui.log_reader import LogReader
from headgate.infra.ui.server import UiServer
from headgate.storage.stores.memory import MemoryBlobStore, Objects

if find_spec("playwright") is None:  # `make test-ui` brings it
    collect_ignore_glob = ["test_*.py"]

Browser: TypeAlias = Any  # Playwright's: it is no dependency of the other tests
Page: TypeAlias = Any

SCREENSHOT_BYTES_MAX = 200_000
SIZE = {"width": 1280, "height": 860}
STORE = "s3://b/r"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return an empty tab; whatever goes wrong in a script fails the test."""
    context = browser.new_context(viewport=SIZE, color_scheme="light")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if "Policy" in line.text else None)
    yield page
    context.close()
    assert [] == errors


@contextmanager
def serving(
    log: EventLog, settings: ServerSettings, objects: Objects | None = None
) -> Iterator[UiServer]:
    """Serve the log, and the objects as the store of its jobs if they are given."""
    with closing(LogReader(log)) as reader:
        store = "" if objects is None else STORE
        bucket = BucketCheck(log, store, lambda: (MemoryBlobStore(objects or {}), "r"))
        server = UiServer(reader, settings, bucket)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.end()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("pictures"))


def shoot(page: Page, pictures: Path, name: str, *schemes: str) -> None:
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1_200)
        path = pictures / f"watching-{name}-{scheme}.png"
        page.screenshot(path=path, full_page=True)
        assert path.stat().st_size < SCREENSHOT_BYTES_MAX
    page.emulate_media(color_scheme="light")

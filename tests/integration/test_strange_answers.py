"""Answers that are not the store's: pages of proxies, or nothing, and listings without an end."""

from __future__ import annotations

from itertools import islice

import pytest

from headgate.control.errors import Lost, Unavailable
from headgate.storage.stores.port import PendingUpload
from headgate.storage.stores.retries import RetrySettings

from ..doubles.s3 import (
    ACTS,
    MISSING,
    MULTIPART,
    Act,
    Scripted,
    failure,
    scripted,
    store_at,
)

LARGE = bytes(MULTIPART.threshold_bytes)
ONCE = RetrySettings(tries_max=1, limit_s=0.0)
PROXYS = Scripted(404, body=b"404 page not found\n")
UPLOAD = Scripted(
    200,
    body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
)
PAGES = {
    "list": ("ListBucketResult", "Contents", ("ContinuationToken",)),
    "uploads": ("ListMultipartUploadsResult", "Upload", ("KeyMarker", "UploadIdMarker")),
}
READS: dict[str, Act] = {
    "list": lambda store: list(islice(store.list(""), 9)),
    "uploads": lambda store: list(islice(store.uploads(""), 9)),
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")


@pytest.mark.parametrize("act", ["get", "range"])
def test_a_404_without_a_code_is_a_proxys(act: str) -> None:
    """A proxy that knows no way to the store for a moment is asked again. The store itself names
    what is missing."""
    partial = {"content-range": "bytes 0-3/5"} if act == "range" else {}
    answer = Scripted(206 if partial else 200, body=b"1234", headers=partial)
    with scripted(Scripted(404, body=b"404 page not found\n"), answer) as server:
        assert ACTS[act](store_at(server.endpoint)) == b"1234"
    with scripted(MISSING, answer) as server:
        assert Lost is type(failure(store_at(server.endpoint), ACTS[act]))


@pytest.mark.parametrize("act", ["put", "delete", "list", "uploads"])
def test_a_proxys_404_loses_nothing_else(act: str) -> None:
    """A put, a deletion or a listing names no object that is lost: it is sent again."""
    roots = "<ListBucketResult/><ListMultipartUploadsResult/><DeleteResult/>"
    listed = Scripted(200, body=f"<All>{roots}</All>".encode())
    with scripted(PROXYS, listed) as server:
        (READS | ACTS)[act](store_at(server.endpoint))
        assert 2 <= len(server.seen)


@pytest.mark.parametrize("answer", [PROXYS, Scripted(404, "NoSuchUpload")])
def test_an_upload_that_goes_while_it_is_filled(answer: Scripted) -> None:
    """A put begins another upload when a part of the first one finds none any more."""
    with scripted(UPLOAD, answer) as server:
        error = failure(store_at(server.endpoint, retries=ONCE), lambda it: it.put("a", LARGE, "w"))
    assert Unavailable is type(error), str(error)


def _page(act: str, key: str, following: str) -> Scripted:
    """Return a page of one entry that says that another page follows, and where."""
    root, entry, marks = PAGES[act]
    places = "".join(f"<Next{mark}>{following}</Next{mark}>" for mark in marks if following)
    entries = f"<{entry}><Key>{key}</Key><UploadId>u</UploadId><Size>1</Size></{entry}>"
    content = f"<IsTruncated>true</IsTruncated>{places}{entries}"
    return Scripted(200, body=f"<{root}>{content}</{root}>".encode())


@pytest.mark.parametrize("act", list(READS))
@pytest.mark.parametrize(
    ("pages", "requests", "says"),
    [
        (["a>"], 1, "has no Next"),
        (["a>t"], 2, "come again"),
        (["a>t", "b>u", "c>t"], 3, "come again"),
        (["a>t", "b>u", "a>v"], 3, "come again"),
    ],
)
def test_a_listing_that_does_not_end(act: str, pages: list[str], requests: int, says: str) -> None:
    """A page that promises another one, and names none, or one that was there before, ends the
    listing with an error. So does a page that begins as another one."""
    script = [_page(act, *page.split(">")) for page in pages]
    with scripted(*script) as server:
        with pytest.raises(Unavailable, match=says):
            READS[act](store_at(server.endpoint, retries=ONCE))
        assert requests == len(server.seen)


@pytest.mark.slow
@pytest.mark.parametrize("act", [*READS, "delete", "abort"])
@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b""), (200, b"<html>Welcome</html>"), (200, b"<Other/>"), (203, b"<html/>"), (204, b"")],
)
def test_an_answer_without_the_documents_root(act: str, status: int, body: bytes) -> None:
    """An empty answer, or a proxy's page, is no empty listing, and deletes nothing. The answer to
    an abort is empty."""
    acts = READS | ACTS | {"abort": lambda store: store.abort(PendingUpload("a", "u"))}
    with scripted(Scripted(status, body=body)) as server:
        if act == "abort" and not body:
            acts[act](store_at(server.endpoint, retries=ONCE))
            return
        error = failure(store_at(server.endpoint, retries=ONCE), acts[act])
    assert (Unavailable, True) == (type(error), "502" in str(error)), str(error)


@pytest.mark.parametrize(
    ("act", "body"),
    [
        ("list", b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>"),
        ("delete", b"<DeleteResult><Error><Key>a</Key></Error></DeleteResult>"),
        ("uploads", b"<ListMultipartUploadsResult><Upload/></ListMultipartUploadsResult>"),
    ],
)
def test_an_entry_that_lacks_something(act: str, body: bytes) -> None:
    with scripted(Scripted(200, body=body)) as server, pytest.raises(Unavailable, match="has no "):
        (READS | ACTS)[act](store_at(server.endpoint, retries=ONCE))

"""The S3 door when answers are lost, refused or cut: it retries only what is safe to send again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice

import pytest

from headgate.control.errors import (
    Conflict,
    Corrupt,
    Invalid,
    Lost,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from headgate.infra.devstack import stack
from headgate.storage.stores.port import ByteRange, PendingUpload
from headgate.storage.stores.retries import RetrySettings
from headgate.storage.stores.s3.settings import S3Settings
from headgate.storage.stores.s3.store import S3BlobStore

from ..doubles.s3 import (
    ACTS,
    DROP,
    HANG,
    MIB,
    MINE,
    MISSING,
    MULTIPART,
    OTHER,
    SLOW_DOWN,
    STORED,
    Scripted,
    StillClock,
    failure,
    losing,
    moto_server,
    scripted,
    store_at,
)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "embedded")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "embedded-local")


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server() as endpoint:
        yield endpoint


def test_a_404_is_told_from_a_503(clock: StillClock) -> None:
    """A missing object is `Lost` at once; a throttled request is retried, for as long as the limit
    says."""
    with scripted(MISSING) as server:
        assert Lost is type(failure(store_at(server.endpoint, clock), ACTS["get"]))
        assert server.seen == ["GET"]
    with scripted(SLOW_DOWN) as server:
        assert Throttled is type(failure(store_at(server.endpoint, clock), ACTS["get"]))
        assert len(clock.slept_s) + 1 == len(server.seen) == server.seen.count("GET")
    assert 110.0 < clock.monotonic_s() <= RetrySettings().limit_s


@pytest.mark.parametrize("act", ["get", "range"])
def test_slow_down_then_success(clock: StillClock, act: str) -> None:
    """A throttled read waits longer each time, and then succeeds."""
    partial = {"content-range": "bytes 0-3/5"} if act == "range" else {}
    answer = Scripted(206 if partial else 200, body=b"1234", headers=partial)
    with scripted(SLOW_DOWN, SLOW_DOWN, answer) as server:
        store = store_at(server.endpoint, clock)
        assert ACTS[act](store) == b"1234"
        assert store.requests.gets == 3
    assert len(clock.slept_s) == 2
    assert 0 < clock.slept_s[0] < clock.slept_s[1]


def test_a_throttled_put_is_sent_again_without_looking(clock: StillClock) -> None:
    """A throttled put is sent again without a HEAD, because SlowDown means that nothing was
    written."""
    with scripted(SLOW_DOWN, STORED) as server:
        store_at(server.endpoint, clock).put("a", b"12345", "w")
        assert server.seen == ["PUT", "PUT"]


THROTTLED = {"get": "gets", "range": "gets", "put": "puts", "delete": "deletes", "list": "lists"}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_a_throttled_answer_is_counted_by_its_kind(clock: StillClock, act: str) -> None:
    """Each try that is answered with SlowDown counts as a request and as throttled."""
    with scripted(SLOW_DOWN) as server:
        store, kind = store_at(server.endpoint, clock), THROTTLED[act]
        assert Throttled is type(failure(store, ACTS[act]))
        counts, tries = asdict(store.requests), len(clock.slept_s) + 1
        assert (tries, tries) == (counts[kind], counts[f"throttled_{kind}"])


def test_a_busy_name_is_tried_again(clock: StillClock) -> None:
    """A put is sent again after 409, which says that another write is under way, not that it
    won."""
    busy = Scripted(409, "ConditionalRequestConflict")
    with scripted(busy, busy, STORED) as server:
        store_at(server.endpoint, clock).put("a", b"12345", "w")
        assert server.seen == ["PUT", "PUT", "PUT"]


@pytest.mark.parametrize("lost", [DROP, Scripted(500, "InternalError"), Scripted(503), HANG])
def test_a_lost_answer_is_looked_for(clock: StillClock, lost: Scripted) -> None:
    """After a lost answer a put looks at the stored write id, and is not sent twice."""
    with scripted(lost, MINE) as server:
        store = store_at(server.endpoint, clock)
        if lost == HANG:
            store = S3BlobStore(S3Settings("bucket", server.endpoint, request_timeout_s=0.5), clock)
        store.put("a", b"12345", "w")
        assert server.seen == ["PUT", "HEAD"]


@pytest.mark.parametrize("first", [DROP, Scripted(412, "PreconditionFailed")])
def test_another_write_id_is_a_conflict(clock: StillClock, first: Scripted) -> None:
    """An object with another write id is a `Conflict`."""
    with scripted(first, OTHER) as server, pytest.raises(Conflict, match="other"):
        store_at(server.endpoint, clock).put("a", b"12345", "w")


def test_a_lost_request_is_sent_again(clock: StillClock) -> None:
    """A put without an answer is sent again when its object is not there."""
    with scripted(DROP, MISSING, Scripted(412, "PreconditionFailed"), MINE) as server:
        store_at(server.endpoint, clock).put("a", b"12345", "w")
        assert server.seen == ["PUT", "HEAD", "PUT", "HEAD"]


def test_no_answer_to_the_look_leaves_the_outcome_unknown(clock: StillClock) -> None:
    """A put is `OutcomeUnknown` when neither the put nor the looks are answered."""
    with scripted(DROP) as server:
        error = failure(store_at(server.endpoint, clock), ACTS["put"])
        assert ["PUT"] + ["HEAD"] * RetrySettings().tries_max == server.seen
    assert OutcomeUnknown is type(error)


def test_answers_lost_to_the_end_leave_the_outcome_unknown(clock: StillClock) -> None:
    """A put whose every answer was lost is `OutcomeUnknown`, even if the last look found no
    object."""
    tries = RetrySettings().tries_max
    with (
        scripted(*[DROP, MISSING] * tries) as server,
        pytest.raises(OutcomeUnknown, match=f"{tries} tries"),
    ):
        store_at(server.endpoint, clock).put("a", b"12345", "w")


def test_a_short_range_is_corrupt() -> None:
    """An answer with fewer bytes than the range is `Corrupt`."""
    short = Scripted(206, body=b"123", headers={"content-range": "bytes 0-2/3"})
    with scripted(short) as server, pytest.raises(Corrupt, match="expected 4 bytes, found 3"):
        store_at(server.endpoint).get("a", ByteRange(0, 4))


def test_a_body_cut_off_is_read_again(clock: StillClock) -> None:
    """A read whose connection breaks within the body is retried."""
    cut = Scripted(200, body=b"123", headers={"content-length": "5", "connection": "close"})
    with scripted(cut, Scripted(200, body=b"12345")) as server:
        assert bytes(store_at(server.endpoint, clock).get("a")) == b"12345"


def test_a_store_without_ranges_is_refused() -> None:
    """A store that answers a range with the whole object is `Invalid`."""
    with scripted(Scripted(200, body=b"12345")) as server:
        error = failure(store_at(server.endpoint), ACTS["range"])
    assert (Invalid, True) == (type(error), "ignores byte ranges" in str(error))


def test_the_budget_is_shared_by_all_requests(clock: StillClock) -> None:
    """All requests share a budget of retries; once it is spent, each request gets one try."""
    with scripted(Scripted(500, "InternalError")) as server:
        store = store_at(server.endpoint, clock, RetrySettings(tries_max=5, budget_tokens=7.0))
        for _ in range(4):
            with pytest.raises(Unavailable):
                store.get("a")
        assert len(server.seen) == 4 + 7


def test_a_partly_failed_delete_is_told(clock: StillClock) -> None:
    """A refusal in the body of a DeleteObjects answer is an error, although the status is 200."""
    denied = b"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    with scripted(Scripted(200, body=denied)) as server:
        store = store_at(server.endpoint, clock)
        with pytest.raises(Invalid, match=r"object a, .*s3:DeleteObject"):
            store.delete(["a"])
        store.close()


def put_through(endpoint: str, bucket: str) -> S3BlobStore:
    """Put a small and a large object while the first answer of every write is lost."""
    direct = S3BlobStore(S3Settings(bucket, endpoint, multipart=MULTIPART))
    with losing(endpoint) as proxy:
        store = S3BlobStore(S3Settings(bucket, proxy.endpoint, multipart=MULTIPART))
        for number in range(10):
            store.put(f"lost/{number}", bytes([number]) * 1_000, f"w{number}")
        store.put("lost/big", bytes(11 * MIB), "big")
        store.close()
        assert len(proxy.lost) == 10 + 3 + 1
    assert store.requests.puts - 1 - 2 * 3 - 1 == 10, "nothing but parts is sent twice"
    return direct


def check_put_through(direct: S3BlobStore) -> None:
    """Assert that all objects are there once and right, and that no upload is left."""
    for number in range(10):
        assert bytes([number]) * 1_000 == direct.get(f"lost/{number}")
    assert bytes(11 * MIB) == direct.get("lost/big")
    assert list(direct.uploads("")) == []
    direct.delete([stat.name for stat in direct.list("lost/")])
    assert list(direct.list("lost/")) == []
    direct.close()


def made_bucket(endpoint: str, bucket: str) -> str:
    store = S3BlobStore(S3Settings(bucket, endpoint))
    store._cold.ask("create_bucket")
    store.close()
    return bucket


def test_every_first_answer_lost_on_moto(moto: str) -> None:
    """Puts succeed, and write each object once, when the first answer of every write is lost."""
    check_put_through(put_through(moto, made_bucket(moto, "losing")))


@pytest.mark.real
def test_every_first_answer_lost_on_minio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts with lost answers succeed on a store that checks signatures and conditions too."""
    state = stack.status()
    assert state is not None, "the real stack does not run: make stack"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", state.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", state.secret_key)
    check_put_through(put_through(state.endpoint, state.bucket))


def test_the_beginning_of_an_upload_may_leave_one_for_the_sweep(moto: str) -> None:
    """An upload whose id was lost with the answer is found by listing, and can be aborted."""
    store = S3BlobStore(S3Settings(made_bucket(moto, "begun"), moto))
    begun = store._cold.ask("create_multipart_upload", "job/a")
    assert [PendingUpload("job/a", begun["UploadId"])] == list(store.uploads("job/"))
    for upload in list(store.uploads("job/")):
        store.abort(upload)
    assert list(store.uploads("")) == []
    store.close()


@pytest.mark.parametrize("markers", [0, 1])
def test_a_listing_of_uploads_that_does_not_go_on(markers: int) -> None:
    """A page of uploads that promises another one, and names none or itself, ends the listing."""
    upload = "<Upload><Key>a</Key><UploadId>u</UploadId></Upload>"
    following = "<NextKeyMarker>a</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
    page = f"<IsTruncated>true</IsTruncated>{following * markers}{upload}"
    answer = f"<ListMultipartUploadsResult>{page}</ListMultipartUploadsResult>"
    with scripted(Scripted(200, body=answer.encode())) as server:
        with pytest.raises(Unavailable, match="bucket"):
            list(islice(store_at(server.endpoint).uploads(""), 5))
        assert len(server.seen) == 1 + markers


def test_a_200_without_a_body() -> None:
    """An answer that lacks what it should have is an error of the store, and is tried again."""
    with (
        scripted(STORED) as server,
        closing(store_at(server.endpoint, retries=RetrySettings(tries_max=3))) as store,
    ):
        with pytest.raises(Unavailable, match="create_multipart_upload has no UploadId"):
            store.put("a", bytes(9 * MIB), "w")
        assert ["POST"] * 3 == server.seen

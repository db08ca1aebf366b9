"""The S3 door: the meaning of each answer, clear refusals, no secrets in errors, and options."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import botocore.exceptions
import obstore.exceptions
import pytest

from headgate.control.clock import SYSTEM_CLOCK, Deadline
from headgate.control.errors import HeadgateError, Invalid, Throttled, Unavailable
from headgate.storage.stores.retries import RetrySettings
from headgate.storage.stores.s3.errors import BOTOCORE, OBSTORE
from headgate.storage.stores.s3.settings import OPTIONS, S3Settings, s3_settings
from headgate.storage.stores.s3.store import S3BlobStore

from ..doubles.s3 import (
    ACTS,
    DROP,
    MINE,
    Scripted,
    failure,
    metadata_service,
    moto_server,
    scripted,
    store_at,
)

KEY_ID, SECRET, TOKEN = "AKIDOFTHETEST", "s3cr3t-of-the-test", "t0k3n-of-the-test"
CHECK_LIMIT_S = 15.0
# Raised for uses that the door does not make, or for arguments that botocore refuses: `Invalid`.
REVIEWED = frozenset(
    """
    AliasConflictParameterError ApiVersionNotFoundError AwsChunkedWrapperError
    BaseEndpointResolverError BotoCoreError CapacityNotAvailableError ChecksumError
    ConfigNotFound ConfigParseError DataNotFoundError EndpointProviderError
    EndpointResolutionError EndpointVariantError FlexibleChecksumError InfiniteLoopConfigError
    InvalidChecksumConfigError InvalidConfigError InvalidDNSNameError InvalidDefaultsMode
    InvalidEndpointConfigurationError InvalidEndpointDiscoveryConfigurationError
    InvalidExpressionError InvalidHostLabelError InvalidIMDSEndpointError
    InvalidIMDSEndpointModeError InvalidMaxRetryAttemptsError InvalidProxiesConfigError
    InvalidRegionError InvalidRetryConfigurationError InvalidRetryModeError
    InvalidS3AddressingStyleError InvalidS3UsEast1RegionalEndpointConfigError
    InvalidSTSRegionalEndpointsConfigError MD5UnavailableError MissingDependencyException
    MissingParametersError NoRegionError OperationNotPageableError PaginationError
    ParamValidationError RangeError ServiceNotInRegionError StubAssertionError
    StubResponseError UnStubbedResponseError UnknownClientMethodError UnknownCredentialError
    UnknownEndpointError UnknownEndpointResolutionBuiltInName UnknownFIPSEndpointError
    UnknownKeyError UnknownParameterError UnknownRegionError UnknownServiceError
    UnknownServiceStyle UnknownSignatureVersionError UnknownTokenProviderError
    UnseekableStreamError UnsupportedOutpostResourceError
    UnsupportedS3AccesspointConfigurationError UnsupportedS3ArnError
    UnsupportedS3ConfigurationError UnsupportedS3ControlArnError
    UnsupportedS3ControlConfigurationError UnsupportedServiceProtocolsError
    UnsupportedSignatureVersionError ValidationError WaiterConfigError WaiterError
    """.split()  # noqa: SIM905
)

ONCE = RetrySettings(tries_max=1, limit_s=0.0)
LISTED = Scripted(200, body=b"<ListBucketResult/>")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, credentials: None) -> None:
    """Leave nothing to the AWS chain but the machine's metadata service."""
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.mark.slow
@pytest.mark.parametrize("act", ["get", "range", "put", "delete", "list"])
@pytest.mark.parametrize(
    ("status", "code", "expected", "says"),
    [
        (503, "SlowDown", Throttled, "fewer requests"),
        (429, "TooManyRequests", Throttled, "fewer requests"),
        (403, "AccessDenied", Invalid, "s3:PutObject"),
        (403, "InvalidAccessKeyId", Invalid, "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", Invalid, "AWS_SECRET_ACCESS_KEY"),
        (403, "RequestTimeTooSkewed", Invalid, "clock"),
        (400, "ExpiredToken", Invalid, "expired"),
        (404, "NoSuchBucket", Invalid, "bucket does not exist"),
        (400, "AuthorizationHeaderMalformed", Invalid, "region"),
        (301, "PermanentRedirect", Invalid, "region"),
        (501, "NotImplemented", Invalid, "lacks this request"),
        (400, "EntityTooLarge", Invalid, "EntityTooLarge"),
    ],
)
def test_an_answer_has_one_meaning_for_both_clients(
    act: str, status: int, code: str, expected: type[HeadgateError], says: str
) -> None:
    """A refusal of the store becomes the same error in both clients."""
    with scripted(Scripted(status, code)) as server:
        error = failure(store_at(server.endpoint, retries=ONCE), ACTS[act])
    assert (expected, True) == (type(error), says in str(error)), str(error)


@pytest.mark.parametrize("act", ["get", "range", "delete", "list"])
@pytest.mark.parametrize(
    "answer", [Scripted(500, "InternalError"), Scripted(502), Scripted(504), DROP]
)
def test_a_store_in_trouble_is_unavailable(act: str, answer: Scripted) -> None:
    """A server error or a broken connection is `Unavailable` for repeatable requests."""
    with scripted(answer) as server:
        error = failure(store_at(server.endpoint, retries=ONCE), ACTS[act])
    assert Unavailable is type(error), str(error)


def _undeleted(code: str) -> Scripted:
    error = f"<Error><Key>a</Key><Code>{code}</Code></Error>"
    return Scripted(200, body=f"<DeleteResult>{error}</DeleteResult>".encode())


@pytest.mark.parametrize(
    ("code", "requests"),
    [
        ("InternalError", 2),
        ("InternalServerError", 2),
        ("ServiceUnavailable", 2),
        ("OperationAborted", 2),
        ("SlowDown", 2),
        ("NoSuchKey", 1),
    ],
)
def test_a_key_that_could_not_be_deleted_now(code: str, requests: int) -> None:
    """A key that the store failed to delete is deleted by another request; a key that is gone needs
    none."""
    with scripted(_undeleted(code), Scripted(200, body=b"<DeleteResult/>")) as server:
        store_at(server.endpoint).delete(["a", "b"])
        assert ["POST"] * requests == server.seen


def test_a_key_that_may_not_be_deleted() -> None:
    """A refusal to delete a key is an error at once, which says what to grant."""
    with scripted(_undeleted("AccessDenied")) as server:
        with pytest.raises(Invalid, match=r"object a, .*s3:DeleteObject"):
            store_at(server.endpoint).delete(["a", "b"])
        assert ["POST"] == server.seen


def test_a_session_that_expires_is_renewed() -> None:
    """A request that an expired token fails is sent once more, with credentials looked up anew."""
    done, expired = Scripted(200, body=b"<DeleteResult/>"), Scripted(400, "ExpiredToken")
    with scripted(done, expired, done) as server, closing(store_at(server.endpoint)) as store:
        store.delete(["a"])
        store.delete(["a"])
        assert ["POST"] * 3 == server.seen
    with scripted(done, expired, expired) as server, closing(store_at(server.endpoint)) as store:
        store.delete(["a"])
        with pytest.raises(Invalid, match="expired"):
            store.delete(["a"])
        assert ["POST"] * 3 == server.seen


@pytest.mark.parametrize("act", list(ACTS))
def test_no_connection_is_unavailable(act: str) -> None:
    """A refused connection is `Unavailable`, also for a put, because nothing was written."""
    error = failure(store_at("http://127.0.0.1:1", retries=ONCE), ACTS[act])
    assert (Unavailable, True) == (type(error), "check the endpoint" in str(error))


def test_every_exception_of_obstore_is_translated() -> None:
    """The door's table has every exception class of obstore."""
    names = {name for name in dir(obstore.exceptions) if name.endswith("Error")}
    assert set() == names - set(OBSTORE)


def test_every_exception_of_botocore_is_translated() -> None:
    """Every exception class of botocore is translated or reviewed."""
    root = {"BotoCoreError", "Exception", "BaseException", "object"}
    names = {
        name
        for name, cls in vars(botocore.exceptions).items()
        if isinstance(cls, type)
        and issubclass(cls, (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError))
        and not ({base.__name__ for base in cls.__mro__} - root) & set(BOTOCORE)
    }
    assert names == REVIEWED


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Scripted(403, "InvalidAccessKeyId"), "access key"),
        (Scripted(403, "SignatureDoesNotMatch"), "secret key"),
        (Scripted(404, "NoSuchBucket"), "bucket does not exist"),
    ],
)
def test_check_names_what_is_wrong(answer: Scripted, says: str) -> None:
    """Wrong credentials or a missing bucket give one error that names the endpoint and the
    bucket."""
    with scripted(answer) as server:
        error = failure(store_at(server.endpoint), lambda s: s.check(Deadline.after(CHECK_LIMIT_S)))
        for part in (says, "bucket bucket", server.endpoint):
            assert part in str(error)
    assert (Invalid, False) == (type(error), "\n" in str(error))


def test_check_of_a_missing_bucket_on_moto(moto: str) -> None:
    """A check against moto, a store of its own, names a missing bucket."""
    store = S3BlobStore(S3Settings("nowhere", moto))
    with pytest.raises(Invalid, match=r"bucket nowhere at .* does not exist"):
        store.check(Deadline.after(CHECK_LIMIT_S))


def test_check_of_a_refused_endpoint_keeps_its_deadline() -> None:
    """A check of an endpoint where nothing listens fails with one clear error at its deadline,
    because a store may be starting there."""
    started_s = SYSTEM_CLOCK.monotonic_s()
    store = S3BlobStore(S3Settings("bucket", "http://127.0.0.1:1"))
    with pytest.raises(Unavailable, match=r"bucket bucket at http://127.0.0.1:1.*check the end"):
        store.check(Deadline.after(2.0))
    assert 1.0 < SYSTEM_CLOCK.monotonic_s() - started_s < 4.0


def test_check_lists_only_what_it_was_told() -> None:
    """A check needs no right to list more than the root of the jobs."""
    with scripted(LISTED) as server, closing(store_at(server.endpoint)) as store:
        store.check(Deadline.after(CHECK_LIMIT_S), "jobs/of a team")
        (url,) = server.urls
    assert ["jobs/of a team/"] == parse_qs(urlsplit(url).query)["prefix"]


@pytest.mark.slow
def test_check_waits_for_a_store_that_starts() -> None:
    """A check outlives as many refusals and errors as its deadline has time for."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        store = S3BlobStore(S3Settings("bucket", f"http://127.0.0.1:{port}"))
        checked = pool.submit(store.check, Deadline.after(CHECK_LIMIT_S))
        SYSTEM_CLOCK.sleep_s(4.0)
        assert not checked.done()
        listed = Scripted(
            200, body=b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        )
        with scripted(*[Scripted(503, "SlowDown")] * 8, listed, port=port):
            checked.result(CHECK_LIMIT_S)


def test_check_of_a_silent_endpoint_keeps_its_deadline() -> None:
    """A check of an endpoint that never answers ends at its deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started_s = SYSTEM_CLOCK.monotonic_s()
        store = S3BlobStore(S3Settings("bucket", f"http://127.0.0.1:{port}"))
        with pytest.raises(Unavailable, match="did not answer"):
            store.check(Deadline.after(2.0))
    assert SYSTEM_CLOCK.monotonic_s() - started_s < 4.0


@pytest.mark.usefixtures("no_credentials")
def test_no_credentials_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing AWS credentials are an error before any request is sent."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with scripted(MINE) as server:
        for act in ("get", "list"):
            error = failure(store_at(server.endpoint), ACTS[act])
            assert (Invalid, True) == (type(error), "no AWS credentials" in str(error))
        assert server.seen == []


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize("act", ["get", "list"])
def test_credentials_that_come_later(monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    """A store that found no credentials looks for them again with its next request."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with scripted(LISTED) as server:
        store = store_at(server.endpoint)
        with pytest.raises(Invalid, match="no AWS credentials"):
            ACTS[act](store)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        ACTS[act](store)
        assert ["GET"] == server.seen


@pytest.mark.usefixtures("no_credentials")
@pytest.mark.parametrize("act", ["get", "list"])
@pytest.mark.parametrize("refusals", [1, 3])
def test_a_busy_metadata_service(monkeypatch: pytest.MonkeyPatch, act: str, refusals: int) -> None:
    """A metadata service that refuses requests of many workers at once is asked again."""
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    with metadata_service(refusals) as service, scripted(LISTED) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.endpoint)
        ACTS[act](store_at(server.endpoint))
        assert ["GET"] == server.seen
        assert {refusals + 1} == set(service.seen.values())


def test_both_clients_use_the_shared_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both clients use the keys of the shared profile when the environment has none."""
    file = tmp_path_factory.mktemp("aws") / "credentials"
    file.write_text("[default]\naws_access_key_id = AKPROFILE\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(key)
    with scripted(Scripted(403, "InvalidAccessKeyId")) as server:
        for act in ("get", "list"):
            error = failure(store_at(server.endpoint), ACTS[act])
            assert "does not know the access key" in str(error)
        assert server.seen == ["GET", "GET"]


@pytest.mark.parametrize("act", list(ACTS))
def test_secrets_stay_out_of_errors(act: str) -> None:
    """No error shows a secret as text or pickled, even if the store sends the signed headers
    back."""
    echo = f"<Error><Code>SignatureDoesNotMatch</Code><C>{KEY_ID}{SECRET}{TOKEN}</C></Error>"
    with scripted(Scripted(403, body=echo.encode())) as server:
        store = store_at(server.endpoint)
        error = failure(store, ACTS[act])
    texts = (
        *(repr(error), str(error), repr(pickle.dumps(error)), repr(store), repr(store._settings)),
        *("".join(traceback.format_exception(error)), repr(pickle.loads(pickle.dumps(error)))),
    )
    assert [text for text in texts if any(s in text for s in (KEY_ID, SECRET, TOKEN))] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpont": "x"}, r"nearest key is s3\.endpoint"),
        ({"access_key": "x"}, "AWS chain"),
        ({"secret_access_key": "x"}, "AWS chain"),
        ({"request_timeout_s": "soon"}, "must be a time such as 60s"),
        ({"request_timeout_s": "0"}, "above 0"),
        ({"part_bytes": "1"}, "part_bytes .* a size such as 64m or 1g, at least 5m"),
        ({"tries_max": "1.5"}, "whole number"),
        ({"proxy_url": "user:word@host:3128"}, "password in its address"),
        ({"proxy_url": "http:/user:word@host"}, "password in its address"),
        ({"endpoint": "http://token@host"}, "password in its address"),
    ],
)
def test_options_are_checked(options: dict[str, str], says: str) -> None:
    """A wrong option is an error that says what to change, before any connection is made."""
    with pytest.raises(Invalid, match=says):
        s3_settings("bucket", options)


@pytest.mark.parametrize(
    "options",
    [
        {"path_style": "maybe"},
        {"connect_timeout_s": "x"},
        {"root_certificate": "/nonexistent"},
        {"endpoint": "minio:9000"},
    ],
)
def test_options_that_the_client_refuses_are_invalid(options: dict[str, str]) -> None:
    """A value that only the client can judge is refused when the store is made."""
    with pytest.raises(Invalid):
        S3BlobStore(s3_settings("bucket", options))


def test_options_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options win over the environment, which wins over the defaults."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://two")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    settings = s3_settings("bucket", {"tries_max": "3", "proxy_excludes": "x"})
    assert (settings.endpoint, settings.region, settings.path_style) == (
        "http://two",
        "eu-west-1",
        True,
    )
    assert (settings.retries.tries_max, settings.client.passed) == (3, {"proxy_excludes": "x"})
    settings = s3_settings("bucket", {"endpoint": "http://three", "path_style": "false"})
    assert (settings.endpoint, settings.path_style) == ("http://three", False)


@pytest.mark.parametrize("name", [o.name for o in OPTIONS if o.default in ("", None)])
def test_an_empty_option_is_one_that_is_not_set(name: str) -> None:
    """An option whose default is empty may be given as an empty text."""
    settings = s3_settings("bucket", {name: ""})
    assert settings == s3_settings("bucket", {})
    S3BlobStore(settings).close()


@pytest.mark.parametrize(
    ("path_style", "expected"),
    [("true", "http://store.test/bucket"), ("false", "http://bucket.store.test/")],
)
def test_both_clients_go_to_the_same_place(path_style: str, expected: str) -> None:
    """Proxy and address style mean the same to both clients."""
    with scripted(Scripted(403, "AccessDenied")) as proxy:
        options = {"path_style": path_style, "proxy_url": proxy.endpoint}
        settings = s3_settings("bucket", {"endpoint": "http://store.test"} | options)
        for act in ("get", "list"):
            failure(S3BlobStore(settings), ACTS[act])
        assert [url.startswith(expected) for url in proxy.urls] == [True, True], proxy.urls


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "https://b.s3.eu-west-1.amazonaws.com"),
        ({"path_style": "true"}, "https://s3.eu-west-1.amazonaws.com"),
        ({"endpoint": "http://minio:9000"}, "http://minio:9000"),
        ({"endpoint": "https://r2.example", "path_style": "false"}, "https://b.r2.example"),
    ],
)
def test_the_url_of_a_bucket(options: dict[str, str], expected: str) -> None:
    """AWS has a host per bucket, and another endpoint has a path per bucket; both can be
    changed."""
    settings = s3_settings("b", {"region": "eu-west-1", **options})
    assert expected == settings.bucket_host_url


_LISTED = "ListMultipartUploadsResult"
_PAGE = f"<{_LISTED}><IsTruncated>false</IsTruncated>{{}}</{_LISTED}>"
_ONE = "<Upload><Key>root/job/o</Key><UploadId>u</UploadId></Upload>"


@pytest.mark.parametrize(
    ("server", "pages", "requests"),
    [
        ("AmazonS3", ["", _ONE], 1),
        ("nginx", ["", _ONE], 2),
        ("", ["", _ONE], 2),
        ("MinIO", ["", ""], 2),
        ("SeaweedFS", [_ONE, ""], 1),
    ],
)
def test_uploads_are_found_where_a_prefix_finds_none(
    server: str, pages: list[str], requests: int
) -> None:
    """An empty list of uploads is believed from Amazon only. Other stores are asked again without
    the prefix, even one that calls itself MinIO, because that may be a proxy's name."""
    script = [
        Scripted(200, body=_PAGE.format(page).encode(), headers={"server": server})
        for page in pages
    ]
    with scripted(*script) as store:
        uploads = list(store_at(store.endpoint).uploads("root/job/"))
        assert requests == len(store.urls)
        assert ("prefix=root" in store.urls[0], "prefix" in store.urls[-1]) == (True, requests == 1)
    assert (server not in ("AmazonS3", "MinIO")) == (len(uploads) == 1)

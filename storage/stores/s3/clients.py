"""The two S3 clients behind the door, set up to agree on endpoint and credentials.

obstore sends the frequent requests: it works outside the interpreter lock and imports in
milliseconds. botocore sends the requests that obstore cannot send or that nobody waits for. It is
imported at its first use, because the import and a first client cost every worker process a quarter
of a second. Neither client retries: the door decides.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from obstore.store import S3Store

from ....control.clock import SYSTEM_CLOCK, Clock
from ....control.errors import Closed, Invalid, Unavailable
from .errors import NO_CREDENTIALS, error_for, fault_of, translated
from .settings import CA, PROXY, S3Settings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential

DUMMY_KEY = "embedded"
CREDENTIALS_TTL_S = 300.0
_CLIENT_MARGIN_S = 300.0  # obstore asks again for credentials that end sooner
_ASKED_S = 10.0  # it gets known ones from us, unless a file has changed
_KEPT_S = (CREDENTIALS_TTL_S, 60.0, _ASKED_S)  # the first that ends before the credentials do
_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
_ATTEMPTS, _ATTEMPTS_MAX = "metadata_service_num_attempts", 4
_ROOTS = {
    "DeleteObjects": b"<DeleteResult",
    "ListObjectsV2": b"<ListBucketResult",
    "ListMultipartUploads": b"<ListMultipartUploadsResult",
}
_STALE = ("NoCredentials", "ExpiredToken")  # the cold client looks for credentials when it is made


def hot_client(settings: S3Settings, timeout_s: float | None = None) -> S3Store:
    """Return the client for put, get and look.

    Raises:
        Invalid: the client refuses an option.
    """
    dummies = partial(_credential, DUMMY_KEY, DUMMY_KEY)
    try:
        return S3Store(
            settings.bucket,
            endpoint=settings.bucket_host_url,  # obstore adds the bucket to a path only
            region=settings.region,
            virtual_hosted_style_request=not settings.path_style,
            unsigned_payload=True,
            client_options=_client_options(settings, timeout_s or settings.request_timeout_s),
            retry_config={"max_retries": 0},
            credential_provider=dummies if settings.client.dummy_credentials else credentials,
        )
    except Exception as error:
        raise Invalid(
            f"{settings.place}: the client refuses the s3 options {sorted(settings.client.passed)}"
        ) from error


class Answer(dict[str, Any]):
    """An answer of the store, or an entry of a list in it, which may lack what it should have, as a
    200 without a body does."""

    def __init__(self, parts: Mapping[str, Any], what: str) -> None:
        def checked(part: Any) -> Any:
            return Answer(part, what) if isinstance(part, dict) else part

        lists = {key: list(map(checked, it)) for key, it in parts.items() if isinstance(it, list)}
        super().__init__({**parts, **lists})
        self._what = what

    def __missing__(self, key: str) -> Any:
        raise Unavailable(f"{self._what} has no {key}")


class ColdClient:
    """Sends botocore's requests on one bucket, each of them once. Threads may share it."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False

    def ask(self, request: str, name: str | None = None, **options: Any) -> dict[str, Any]:
        """Send one request on the bucket, or on one of its objects, and return the answer.

        Raises:
            HeadgateError: botocore's error as `translated` returns it, with that as its cause.
        """
        key = {} if name is None else {"Key": name}
        is_new, client = self._client is None, self._ready()
        try:
            answer: dict[str, Any] = getattr(client, request)(
                Bucket=self._settings.bucket, **key, **options
            )
        except _cold_errors() as error:
            if fault_of(error).code in _STALE:
                self._forget(client)
                if not is_new:
                    return self.ask(request, name, **options)
            raise translated(error, self._settings.place, name or "") from error
        return Answer(answer, f"{self._settings.place}: the answer to {request}")

    def close(self) -> None:
        with self._lock:
            client, self._client, self._closed = self._client, None, True
        if client is not None:
            client.close()

    def _forget(self, client: Any) -> None:
        with self._lock:
            if self._client is client:
                self._client = None

    def _ready(self) -> Any:
        with self._lock:
            if self._closed:
                raise Closed(f"the object store for {self._settings.place} was closed")
            if self._client is None:
                self._client = _cold_client(self._settings)
            return self._client


def _credential(
    key: str, secret: str, token: str | None = None, expires_at: datetime | None = None
) -> S3Credential:
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": token,
        "expires_at": expires_at,
    }


class CredentialLookup:
    """Finds credentials by the ordinary AWS chain, for all clients of a process: one thread at a
    time, and again when they may have changed. It needs botocore only if the environment has none.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._source: Any = None
        self._frozen: Any = None
        self._places: object = None
        self._expires_s = 0.0

    def __call__(self) -> S3Credential:
        key, secret = map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        if key and secret:
            return _credential(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None)
        with self._lock:
            places, now_s = _places(), self._clock.monotonic_s()
            if places != self._places or now_s >= self._expires_s:
                self._expires_s = now_s + self._look(places)
                self._places = places
            it = self._frozen
        asked_again_ms = self._clock.now_ms() + round(1000 * (_ASKED_S + _CLIENT_MARGIN_S))
        asked_again = datetime.fromtimestamp(asked_again_ms / 1000, UTC)
        return _credential(it.access_key, it.secret_key, it.token, asked_again)

    def _look(self, places: object) -> float:
        """Ask the chain, and return the seconds for which its answer is kept. A source that renews
        its credentials by itself is kept, too, and knows when they end."""
        if self._source is None or places != self._places:
            self._source = _session().get_credentials()
        source = self._source
        if source is None:
            raise error_for(NO_CREDENTIALS, "s3")
        if not hasattr(source, "refresh_needed"):
            self._source = None  # somebody else renews what stands in a file
        self._frozen = source.get_frozen_credentials()
        if self._source is None:
            return CREDENTIALS_TTL_S
        return next((kept_s for kept_s in _KEPT_S if not source.refresh_needed(kept_s)), 0.0)


credentials = CredentialLookup(SYSTEM_CLOCK)


def _places() -> tuple[object, ...]:
    """Return what tells that credentials have changed: the environment's names of their places, and
    the state of the files."""
    names = sorted(each for each in os.environ.items() if each[0].startswith("AWS_"))
    return (tuple(names), *map(_state_of, _FILES.items()))


def _state_of(place: tuple[str, str]) -> tuple[int, int] | None:
    name, usual = place
    try:
        state = os.stat(os.path.expanduser(os.environ.get(name, usual)))
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


def _session() -> Any:
    """Return a botocore session that shares the models of the services with all others of the
    process, and that asks a machine's metadata service more than once, which refuses some requests
    when many workers start together."""
    import botocore.session

    session = botocore.session.Session()
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    if session.get_config_variable(_ATTEMPTS) == 1:
        session.set_config_variable(_ATTEMPTS, _ATTEMPTS_MAX)
    return session


@cache
def _models(folder: str | None) -> Any:
    """Return the loader of botocore's models. Reading those of S3 costs ten times as much CPU as
    the rest of a client."""
    from botocore.loaders import create_loader

    return create_loader(folder)


def _client_options(settings: S3Settings, timeout_s: float) -> ClientConfig:
    passed: dict[str, Any] = dict(settings.client.passed)
    if CA in passed:
        passed[CA] = _certificates(passed[CA])
    passed["allow_http"] = (settings.endpoint or "").startswith("http://")
    passed["timeout"] = timedelta(seconds=timeout_s)
    passed["connect_timeout"] = timedelta(seconds=min(settings.client.connect_timeout_s, timeout_s))
    options: ClientConfig = passed  # type: ignore[assignment]
    return options


def _certificates(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Invalid(f"s3 option {CA!r}: {path} cannot be read: {error.strerror}") from error


def _verify(settings: S3Settings) -> bool | str | None:
    if settings.client.passed.get("allow_invalid_certificates", "false").lower() == "true":
        return False
    return settings.client.passed.get(CA)


def _cold_client(settings: S3Settings) -> Any:
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    proxy = settings.client.passed.get(PROXY)
    try:
        key = DUMMY_KEY if settings.client.dummy_credentials else None
        client = _session().create_client(
            "s3",
            aws_access_key_id=key,
            aws_secret_access_key=key,
            endpoint_url=settings.service_url,
            region_name=settings.region,
            verify=_verify(settings),
            config=Config(
                connect_timeout=settings.client.connect_timeout_s,
                read_timeout=settings.request_timeout_s,
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=max(10, settings.multipart.threads),
                parameter_validation=False,
                proxies={"http": proxy, "https": proxy} if proxy else None,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={
                    "addressing_style": "path" if settings.path_style else "virtual",
                    "payload_signing_enabled": False,
                },
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise translated(error, settings.place) from error
    client.meta.events.register("before-call.s3", _stay)
    client.meta.events.register("before-parse.s3", _refuse_page)
    return client


def _stay(params: dict[str, Any], **_: Any) -> None:
    """Follow no redirect to another region. obstore cannot follow one, and botocore recurses
    without end if the store does not send the header that it looks for."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _refuse_page(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Take a good answer for a failure if it is not what was asked for, but nothing, or a page of a
    proxy. botocore finds nothing in it: an empty listing, or a deletion without an error."""
    name, body = operation_model.name, response_dict["body"]
    is_own = not body if name == "AbortMultipartUpload" else _ROOTS.get(name, b"") in body
    if response_dict["status_code"] < 300 and not is_own:
        response_dict.update(status_code=502, body=b"")


def _cold_errors() -> tuple[type[Exception], ...]:
    """Return the errors that botocore may raise. Python calls this only after an error, when
    botocore is imported already."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError

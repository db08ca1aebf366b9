"""The settings of a bucket, checked before anything connects.

They hold no credentials: both clients take these from the ordinary AWS chain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ....control.errors import Invalid
from ....control.options import (
    FLAG,
    SECONDS,
    TEXT,
    Option,
    OptionKind,
    has_password,
    read_options,
    refuse_unsafe,
    size,
    whole,
)
from ..retries import RetrySettings

CA, PROXY = "root_certificate", "proxy_url"
SECRET_OPTIONS = {
    "a secret would stand in the clear: use the AWS chain (environment, profile, web identity or "
    "instance role), in the driver and in every executor": (
        "access_key access_key_id secret_access_key secret_key session_token token"
    )
}
_CONNECT_S, _REQUEST_S = 5.0, 60.0
_MIB = 1 << 20
_PARTS_MAX = 10_000
_PART_BYTES_MIN = 5 * _MIB  # S3 refuses smaller parts, the last one excepted


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings that both clients are made with."""

    path_style: bool | None = None
    """True if URLs have the bucket in their path, False if in their host; None: True with an
    endpoint. AWS resolves a host for each bucket; the endpoint of another store rarely does."""
    connect_timeout_s: float = _CONNECT_S
    dummy_credentials: bool = False
    """True if requests are signed with invented keys, for the embedded store, which checks none."""
    passed: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options. obstore gets them as they are, botocore gets `CA` and `PROXY`."""


@dataclass(frozen=True, slots=True)
class MultipartSettings:
    threshold_bytes: int = 128 * _MIB
    """Bodies of this size and more are sent in parts."""
    part_bytes: int = 64 * _MIB
    threads: int = 4
    """Parts of one body that are sent at the same time."""

    def part_bytes_of(self, body_bytes: int) -> int:
        """Return the size of the parts of a body: S3 takes ten thousand at most."""
        return max(self.part_bytes, -(-body_bytes // _PARTS_MAX))

    def puts(self, body_bytes: int) -> int:
        """Return the number of requests that store a body if none is tried again."""
        if body_bytes < self.threshold_bytes:
            return 1
        return 2 + -(-body_bytes // self.part_bytes_of(body_bytes))


@dataclass(frozen=True, slots=True)
class S3Settings:
    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    client: ClientSettings = field(default_factory=ClientSettings)
    request_timeout_s: float = _REQUEST_S
    retries: RetrySettings = field(default_factory=RetrySettings)
    multipart: MultipartSettings = field(default_factory=MultipartSettings)

    def __post_init__(self) -> None:
        if "@" in self.bucket or has_password(self.service_url):
            raise Invalid("an s3 bucket or endpoint has a user or a password in its address")
        if not self.service_url.startswith(("http://", "https://")):
            raise Invalid("an s3 endpoint must begin with http:// or https://")

    @property
    def path_style(self) -> bool:
        """Return True if URLs have the bucket in their path."""
        wish = self.client.path_style
        return self.endpoint is not None if wish is None else wish

    @property
    def service_url(self) -> str:
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"

    @property
    def bucket_host_url(self) -> str:
        """Return the service's URL, with the bucket in its host unless `path_style` is set."""
        scheme, _, host = self.service_url.partition("://")
        return self.service_url if self.path_style else f"{scheme}://{self.bucket}.{host}"

    @property
    def place(self) -> str:
        """Return the name of the bucket and its endpoint for error messages."""
        return f"bucket {self.bucket} at {self.endpoint or 'AWS, region ' + self.region}"


_PARTS = MultipartSettings()
_FLAG_OR_EMPTY = OptionKind(
    "one of true, false, or empty", lambda text: FLAG.parse(text) if text else None
)
_OWN = (
    Option(
        "endpoint", "", TEXT, "empty: `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, else AWS's own"
    ),
    Option("region", "", TEXT, "empty: `AWS_REGION` or `AWS_DEFAULT_REGION`, else `us-east-1`"),
    Option(
        "path_style",
        None,
        _FLAG_OR_EMPTY,
        "`true`: URLs have the bucket in their path, `false`: in their host; empty: `true` with an "
        "endpoint, `false` for AWS",
    ),
    Option("connect_timeout_s", _CONNECT_S, SECONDS, "longest wait for a connection"),
    Option("request_timeout_s", _REQUEST_S, SECONDS, "longest wait for one answer"),
    Option(
        "tries_max",
        RetrySettings().tries_max,
        whole(1),
        "tries of one request, without those that the store answers by asking for fewer requests",
    ),
    Option(
        "multipart_bytes", _PARTS.threshold_bytes, size(1), "objects from this size on have parts"
    ),
    Option("part_bytes", _PARTS.part_bytes, size(_PART_BYTES_MIN), "size of a part"),
    Option("part_threads", _PARTS.threads, whole(1), "parts of an object on their way at once"),
    Option("dummy_credentials", False, FLAG, "`true`: invented keys, for a store that checks none"),
)
_PASSED = {
    CA: "file of the authorities whose certificates are trusted",
    PROXY: "address of a proxy; if it needs a password, name it in the environment, as HTTPS_PROXY",
    "proxy_excludes": "hosts that are reached without the proxy",
    "allow_invalid_certificates": "`true`: every certificate is trusted",
}
OPTIONS = (*_OWN, *(Option(name, "", TEXT, says) for name, says in _PASSED.items()))


def s3_settings(bucket: str, options: Mapping[str, str]) -> S3Settings:
    """Return the settings in `spark.headgate.s3.*` (without that prefix) and the AWS environment.

    Raises:
        Invalid: an option is unknown, holds a secret, or has a value that cannot be used.
    """
    refuse_unsafe("s3", options, SECRET_OPTIONS)
    values = read_options("s3.", OPTIONS, options)
    client = ClientSettings(
        values["path_style"],
        values["connect_timeout_s"],
        values["dummy_credentials"],
        {name: values[name] for name in _PASSED if values[name]},
    )
    return S3Settings(
        bucket,
        values["endpoint"] or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        values["region"] or _environment("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
        client,
        values["request_timeout_s"],
        RetrySettings(tries_max=values["tries_max"]),
        MultipartSettings(values["multipart_bytes"], values["part_bytes"], values["part_threads"]),
    )


def _environment(*names: str) -> str | None:
    return next((text for name in names if (text := os.environ.get(name))), None)

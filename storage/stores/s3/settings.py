"""The settings of a bucket, checked before anything connects.

They hold no credentials: both clients take these from the ordinary AWS chain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType

from ....control.errors import Invalid
from ....control.secrets import has_password
from ..retries import RetrySettings

MIB = 1 << 20
PART_BYTES_MIN = 5 * MIB  # S3 refuses smaller parts, the last one excepted

# obstore gets these options as they are; boto3 gets `CA` and `PROXY`, too.
CA, PROXY = "root_certificate", "proxy_url"
CLIENT_OPTIONS = frozenset(
    {
        CA,
        PROXY,
        "allow_invalid_certificates",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_excludes",
        "randomize_addresses",
        "user_agent",
    }
)
PASSED_OPTIONS = CLIENT_OPTIONS | {"connect_timeout_s", "dummy_credentials", "path_style"}
OWN_OPTIONS = frozenset(
    {
        "connect_timeout_s",
        "dummy_credentials",
        "endpoint",
        "multipart_bytes",
        "part_bytes",
        "part_threads",
        "path_style",
        "region",
        "request_timeout_s",
        "tries_max",
    }
)
SECRET_OPTIONS = frozenset(
    {"access_key", "access_key_id", "secret_key", "secret_access_key", "session_token", "token"}
)


@dataclass(frozen=True, slots=True)
class MultipartSettings:
    threshold_bytes: int = 128 * MIB
    """Bodies of this size and more are sent in parts."""
    part_bytes: int = 32 * MIB
    threads: int = 4
    """Parts of one body that are sent at the same time."""

    def __post_init__(self) -> None:
        if self.part_bytes < PART_BYTES_MIN or self.threads < 1 or self.threshold_bytes < 1:
            raise Invalid(
                f"multipart needs part_bytes >= {PART_BYTES_MIN}, part_threads >= 1 and "
                f"multipart_bytes >= 1, not {self}"
            )


@dataclass(frozen=True, slots=True)
class S3Settings:
    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    request_timeout_s: float = 60.0
    retries: RetrySettings = field(default_factory=RetrySettings)
    multipart: MultipartSettings = field(default_factory=MultipartSettings)

    def __post_init__(self) -> None:
        _refuse_unknown(self.options, PASSED_OPTIONS)
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        if not self.bucket or self.request_timeout_s <= 0:
            raise Invalid("s3 needs a bucket and a request_timeout_s above 0")
        if "@" in self.bucket or has_password(self.service_url):
            raise Invalid("an s3 bucket or endpoint has a user or a password in its address")
        if not self.service_url.startswith(("http://", "https://")):
            raise Invalid("an s3 endpoint must begin with http:// or https://")

    @property
    def path_style(self) -> bool:
        """Return True if URLs have the bucket in their path, False if in their host. AWS resolves
        a host for each bucket; the endpoint of another store rarely does."""
        option = self.options.get("path_style")
        return self.endpoint is not None if option is None else _flag("path_style", option)

    @property
    def dummy_credentials(self) -> bool:
        """Return True if requests are signed with invented keys, for the embedded store, which
        checks none."""
        return _flag("dummy_credentials", self.options.get("dummy_credentials", "false"))

    @property
    def service_url(self) -> str:
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"

    @property
    def bucket_host_url(self) -> str:
        """Return the service's URL, with the bucket in its host unless `path_style` is set."""
        scheme, _, host = self.service_url.partition("://")
        return self.service_url if self.path_style else f"{scheme}://{self.bucket}.{host}"

    @property
    def connect_timeout_s(self) -> float:
        return _number("connect_timeout_s", self.options.get("connect_timeout_s", "5"))

    @property
    def place(self) -> str:
        """Return the name of the bucket and its endpoint for error messages."""
        return f"bucket {self.bucket} at {self.endpoint or 'AWS, region ' + self.region}"


def s3_settings(bucket: str, options: Mapping[str, str]) -> S3Settings:
    """Return the settings in `spark.headgate.s3.*` (without that prefix) and the AWS environment.

    Raises:
        Invalid: an option is unknown, holds a secret, or has a value that cannot be used.
    """
    _refuse_unknown(options, CLIENT_OPTIONS | OWN_OPTIONS)
    parts = MultipartSettings()
    return S3Settings(
        bucket=bucket,
        endpoint=options.get("endpoint") or _from_environment("AWS_ENDPOINT_URL"),
        region=options.get("region") or _region(),
        options={key: value for key, value in options.items() if key in PASSED_OPTIONS},
        request_timeout_s=_number("request_timeout_s", options.get("request_timeout_s", "60")),
        retries=RetrySettings(tries_max=_count(options, "tries_max", RetrySettings().tries_max)),
        multipart=MultipartSettings(
            _count(options, "multipart_bytes", parts.threshold_bytes),
            _count(options, "part_bytes", parts.part_bytes),
            _count(options, "part_threads", parts.threads),
        ),
    )


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _from_environment(key: str) -> str | None:
    return os.environ.get(f"{key}_S3") or os.environ.get(key) or None


def _refuse_unknown(options: Mapping[str, str], allowed: frozenset[str]) -> None:
    for key in sorted(options):
        if key in SECRET_OPTIONS:
            raise Invalid(
                f"s3 option {key!r} would put a secret into the configuration: remove it and use "
                "the AWS chain (environment, profile, web identity or instance role)"
            )
        if key in ("endpoint", "proxy_url") and has_password(options[key]):
            raise Invalid(
                f"s3 option {key!r} has a password in its address, which Spark would show: leave "
                "it out, and name a proxy that needs one in the environment, as HTTPS_PROXY"
            )
        if key not in allowed:
            near = get_close_matches(key, sorted(allowed), n=1, cutoff=0.0)
            raise Invalid(f"unknown s3 option {key!r}; the nearest is {near[0]!r}")


def _flag(key: str, value: str) -> bool:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise Invalid(f"s3 option {key!r} must be true or false, not {value!r}")


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise Invalid(f"s3 option {key!r} must be a number, not {value!r}") from error
    if number <= 0:
        raise Invalid(f"s3 option {key!r} must be above 0, not {value!r}")
    return number


def _count(options: Mapping[str, str], key: str, default: int) -> int:
    number = _number(key, options.get(key, str(default)))
    if number != int(number):
        raise Invalid(f"s3 option {key!r} must be a whole number, not {options[key]!r}")
    return int(number)

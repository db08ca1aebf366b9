"""The settings of a user, `spark.headgate.*`, checked together when a session attaches.

`docs/configuration.md` is written from `Settings`. An unknown key is an error that names the
nearest key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from ...control.contract import PER_JOB, SESSION
from ...control.errors import Invalid
from ...control.kafka.settings import BEATS_MS
from ...storage.contract import SEGMENT_BYTES_MAX

PREFIX = "spark.headgate."
PASSED_ON = ("kafka.", "s3.")


def _at_least(low: int, high: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < low:
            raise ValueError(f"at least {low}")
        if high is not None and number > high:
            raise ValueError(f"at most {high}")
        return number

    return read


def _lease(text: str) -> int:
    number = int(text)
    if number and not _LEASE_MS_MIN <= number <= BEATS_MS:
        raise ValueError(f"0, or {_LEASE_MS_MIN} to {BEATS_MS}, for so long heartbeats are kept")
    return number


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return read


def _key(name: str, default: Any, read: Callable[[str], Any], doc: str) -> Any:
    return field(default=default, metadata={"key": name, "read": read, "doc": doc})


_MIB = 1 << 20
_DAY_MS = 86_400_000
_LEASE_MS_MIN = 3_000


@dataclass(frozen=True, slots=True)
class Settings:
    broker: str = _key("broker", "", str, "Kafka's bootstrap servers; empty: an embedded broker")
    store: str = _key(
        "store",
        "",
        str,
        "where results are stored, and by which shuffle service: `s3://bucket/root` is "
        "`object-store`; `file:///folder` is `local-files`, in a folder that driver and executors "
        "share, with or without a broker; empty: an embedded bucket",
    )
    job_id: str = _key("job.id", "", str, "name of the job; empty: the application's id")
    mode: str = _key(
        "mode",
        PER_JOB,
        _one_of(PER_JOB, SESSION),
        "who decides for the job: `per-job`: its driver; `session`: the processes of "
        "`headgate master`",
    )
    topic_prefix: str = _key("topic.prefix", "headgate", str, "first part of every topic's name")
    topic_partitions: int = _key(
        "topic.partitions", 16, _at_least(1), "partitions of a topic that Headgate creates"
    )
    topic_replication: int = _key(
        "topic.replication",
        -1,
        _at_least(-1),
        "replicas of a topic that Headgate creates; -1: the broker's default",
    )
    topic_retention_ms: int = _key(
        "topic.retention.ms",
        7 * _DAY_MS,
        _at_least(60_000),
        "how long events are kept, and so how far back an audit reaches",
    )
    lease_ms: int = _key(
        "lease.ms",
        _DAY_MS,
        _lease,
        "a driver that is silent for this long is taken for dead by `headgate sweep`, and after "
        "half as long again by session masters; everything of its job is then deleted; 0: never",
    )
    catalyst: str = _key(
        "catalyst",
        "auto",
        _one_of("auto", "off"),
        "`off` uses public PySpark only: the same rows, but Spark does not know their partitioning",
    )
    sql_enabled: bool = _key(
        "sql.enabled",
        False,
        lambda text: is_true(_one_of("true", "false")(text.strip().lower())),
        "`true`: actions on the session's DataFrames run their exchanges in Headgate automatically",
    )
    sql_from_bytes: int = _key(
        "sql.from.bytes",
        0,
        _at_least(-1),
        "a query's exchanges that are smaller by Spark's estimate run in Spark; 0: all run in "
        "Headgate, -1: none",
    )
    codec: str = _key("codec", "lz4", _one_of("lz4", "zstd", "none"), "compression of segments")
    batch_rows: int = _key(
        "batch.rows",
        32_768,
        _at_least(1, (1 << 31) - 1),
        "maximum rows of a batch between the JVM and Python",
    )
    segment_bytes: int = _key(
        "segment.bytes",
        64 * _MIB,
        _at_least(_MIB, SEGMENT_BYTES_MAX),
        "size of the segments that a map task stores, 1 GiB at most; a task holds about three",
    )
    fetch_bytes: int = _key(
        "fetch.bytes", 64 * _MIB, _at_least(_MIB), "bytes that a reader may fetch ahead"
    )
    fetch_parallel: int = _key(
        "fetch.parallel", 8, _at_least(1), "requests that a Python worker may have in flight"
    )
    join_bytes: int = _key(
        "join.bytes",
        2 * _MIB,
        _at_least(0),
        "neighbouring small slices are read together, up to this size",
    )
    cache_bytes: int = _key(
        "cache.bytes",
        64 * _MIB,
        _at_least(0),
        "bytes of neighbouring slices that a Python worker keeps for its next task",
    )
    group_bytes: int = _key(
        "group.bytes",
        512 * _MIB,
        _at_least(_MIB),
        "bytes of rows that a task holds in memory to call a function group by group; more rows "
        "wait in files, and one group must fit",
    )
    wait_ms: int = _key(
        "wait.ms", 60_000, _at_least(1_000), "longest wait for a decision or a confirmation"
    )
    request_ms: int = _key(
        "request.ms", 20_000, _at_least(1_000), "longest wait for one answer of the broker"
    )
    attach_ms: int = _key(
        "attach.ms", 10_000, _at_least(1_000), "longest wait for broker and store when attaching"
    )
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the Kafka client: keys of `spark.headgate.kafka.*` without the prefix."""
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store: keys of `spark.headgate.s3.*` without the prefix."""


def is_true(text: str | None) -> bool:
    """Return True if Spark takes a setting for true; Spark keeps the text that the user wrote."""
    return text is not None and text.strip().lower() == "true"


def keys() -> tuple[Field[Any], ...]:
    """Return the fields that are keys themselves, in the order of the documentation."""
    return tuple(f for f in fields(Settings) if "key" in f.metadata)


def read_settings(conf: Mapping[str, str]) -> Settings:
    """Return the settings in a Spark configuration.

    Raises:
        Invalid: a key is unknown or its value cannot be used.
    """
    ours = {k.removeprefix(PREFIX): v for k, v in conf.items() if k.startswith(PREFIX)}
    passed = {prefix: _passed(ours, prefix) for prefix in PASSED_ON}
    named = {k: v for k, v in ours.items() if not k.startswith(PASSED_ON)}
    field_of = {f.metadata["key"]: f for f in keys()}
    for name in sorted(named.keys() - field_of.keys()):
        raise Invalid(_unknown(name, sorted(field_of)))
    values = {
        field_of[name].name: _value(name, field_of[name], text) for name, text in named.items()
    }
    return _whole(Settings(**values, kafka=passed["kafka."], s3=passed["s3."]))


def _whole(settings: Settings) -> Settings:
    """Check settings against each other, and return them: a job must not outlive its log, and
    queries need the private door."""
    if settings.sql_enabled and settings.catalyst == "off":
        raise Invalid(
            f"{PREFIX}sql.enabled = true needs the plans of queries, which {PREFIX}catalyst = off "
            "keeps from: leave one of them out"
        )
    if settings.topic_retention_ms <= settings.lease_ms:
        raise Invalid(
            f"{PREFIX}topic.retention.ms = {settings.topic_retention_ms} must be longer than "
            f"{PREFIX}lease.ms = {settings.lease_ms}: the log would forget a job before its lease "
            "is over"
        )
    return settings


def _passed(ours: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    chosen = {k.removeprefix(prefix): v for k, v in ours.items() if k.startswith(prefix)}
    return MappingProxyType(chosen)


def _unknown(name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, 1, 0.0)
    return f"there is no {PREFIX}{name}; the nearest key is {PREFIX}{near[0]}"


def _value(name: str, key: Field[Any], text: str) -> Any:
    try:
        return key.metadata["read"](text)
    except ValueError as exc:
        raise Invalid(f"{PREFIX}{name} = {text!r} cannot be used: {exc}") from exc

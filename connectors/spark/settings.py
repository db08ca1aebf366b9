"""Everything that a user can set, `spark.headgate.*`, checked as a whole when a session attaches.

`docs/configuration.md` is written from this class; an unknown key is an error that names the
nearest.
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
        "which shuffle service, and where: `s3://bucket/root` is `object-store`, `file:///folder` "
        "is `local-files`, in a folder that driver and executors share, with or without a broker; "
        "empty: an embedded bucket",
    )
    job_id: str = _key("job.id", "", str, "name of the job; empty: the application's id")
    mode: str = _key(
        "mode",
        PER_JOB,
        _one_of(PER_JOB, SESSION),
        "who decides for the job: the driver, or `session`: the processes of `headgate master`",
    )
    topic_prefix: str = _key("topic.prefix", "headgate", str, "first part of every topic's name")
    topic_partitions: int = _key(
        "topic.partitions", 16, _at_least(1), "partitions of a topic that has to be created"
    )
    topic_replication: int = _key(
        "topic.replication",
        -1,
        _at_least(-1),
        "replicas of a topic that has to be created; -1: the broker's default",
    )
    topic_retention_ms: int = _key(
        "topic.retention.ms",
        7 * _DAY_MS,
        _at_least(60_000),
        "how long events are kept; the audit is as long",
    )
    lease_ms: int = _key(
        "lease.ms",
        _DAY_MS,
        _lease,
        "a driver silent for so long is taken for dead by `headgate sweep`, and half as long later "
        "by a session's masters; what is its job's is deleted; 0: never",
    )
    catalyst: str = _key(
        "catalyst",
        "auto",
        _one_of("auto", "off"),
        "`off` keeps to public PySpark: same rows, but Spark does not know the partitioning",
    )
    sql_enabled: bool = _key(
        "sql.enabled",
        False,
        lambda text: is_true(_one_of("true", "false")(text.strip().lower())),
        "`true`: the actions of the session's DataFrames run their exchanges here by themselves",
    )
    sql_from_bytes: int = _key(
        "sql.from.bytes",
        0,
        _at_least(-1),
        "an exchange of a query that looks smaller to Spark stays there; 0: all run here, -1: none",
    )
    codec: str = _key("codec", "lz4", _one_of("lz4", "zstd", "none"), "compression of segments")
    batch_rows: int = _key(
        "batch.rows",
        32_768,
        _at_least(1, (1 << 31) - 1),
        "most rows of a batch between the JVM and Python",
    )
    segment_bytes: int = _key(
        "segment.bytes",
        64 * _MIB,
        _at_least(_MIB, SEGMENT_BYTES_MAX),
        "a map task stores its rows in pieces of this size, 1 GiB at most; it holds about three",
    )
    fetch_bytes: int = _key(
        "fetch.bytes", 64 * _MIB, _at_least(_MIB), "bytes a reader may have fetched ahead"
    )
    fetch_parallel: int = _key(
        "fetch.parallel", 8, _at_least(1), "requests a Python worker has under way at once"
    )
    join_bytes: int = _key(
        "join.bytes",
        2 * _MIB,
        _at_least(0),
        "small neighbouring slices are read together up to this size",
    )
    cache_bytes: int = _key(
        "cache.bytes", 64 * _MIB, _at_least(0), "neighbours a Python worker keeps for its next task"
    )
    group_bytes: int = _key(
        "group.bytes",
        512 * _MIB,
        _at_least(_MIB),
        "rows that a task holds to call a function group by group; what is more waits in files, "
        "and one group must fit",
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
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)


def is_true(text: str | None) -> bool:
    """Return whether Spark takes a setting for true, which it keeps as the user wrote it."""
    return text is not None and text.strip().lower() == "true"


def keys() -> tuple[Field[Any], ...]:
    """The fields that are keys of their own, in the order of the documentation."""
    return tuple(f for f in fields(Settings) if "key" in f.metadata)


def read_settings(conf: Mapping[str, str]) -> Settings:
    """The settings in a Spark configuration.

    Raises:
        Invalid: a key is unknown or its value cannot be used.
    """
    ours = {k.removeprefix(PREFIX): v for k, v in conf.items() if k.startswith(PREFIX)}
    passed = {prefix: _passed(ours, prefix) for prefix in PASSED_ON}
    own = {k: v for k, v in ours.items() if not k.startswith(PASSED_ON)}
    known = {f.metadata["key"]: f for f in keys()}
    for name in sorted(own.keys() - known.keys()):
        raise Invalid(_unknown(name, sorted(known)))
    values = {known[name].name: _value(name, known[name], text) for name, text in own.items()}
    return _whole(Settings(**values, kafka=passed["kafka."], s3=passed["s3."]))


def _whole(settings: Settings) -> Settings:
    """Check what only holds between settings: a job must not outlive its log, and queries need the
    private door."""
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


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1, 0.0)
    return f"there is no {PREFIX}{name}; the nearest key is {PREFIX}{near[0]}"


def _value(name: str, known: Field[Any], text: str) -> Any:
    try:
        return known.metadata["read"](text)
    except ValueError as exc:
        raise Invalid(f"{PREFIX}{name} = {text!r} cannot be used: {exc}") from exc

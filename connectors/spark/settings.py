"""The settings of a user, `spark.headgate.*`, checked together when a session attaches.

`docs/configuration.md` is written from `OPTIONS`. An unknown key is an error that names the
nearest key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from ...control.contract import PER_JOB, SESSION, MasterSettings
from ...control.errors import Invalid
from ...control.kafka.settings import BEATS_MS, KafkaSettings, TopicSettings
from ...control.options import (
    FLAG,
    TEXT,
    TIME_SAMPLE,
    Option,
    OptionKind,
    one_of,
    read_options,
    size,
    time_ms,
    whole,
)
from ...control.units import ms_text, read_ms
from ...storage.contract import SEGMENT_BYTES_MAX
from ...storage.limits import Limits
from ...storage.stores.costs import COSTS
from ...storage.stores.s3.settings import s3_settings
from .exchanges.budget import NO_LIMIT, Cost, read_budget

T = TypeVar("T")

PREFIX = "spark.headgate."
ENCRYPTED = "spark.io.encryption.enabled"
PASSED_ON = ("kafka.", "s3.")

_MIB = 1 << 20
_DAY_MS = 86_400_000
_LEASE_MS_MIN = 3_000
_LEASE = OptionKind(
    f"0, or {TIME_SAMPLE}, at least {ms_text(_LEASE_MS_MIN)} and at most {ms_text(BEATS_MS)}, for "
    "so long heartbeats are kept",
    read_ms,
    lambda ms: ms == 0 or _LEASE_MS_MIN <= ms <= BEATS_MS,
    ms_text,
)
_TOPIC, _MASTER, _LIMITS = TopicSettings(), MasterSettings(), Limits()

_BUDGET = OptionKind("limits such as `$0.50, 100000 requests, 20g`", read_budget)

OPTIONS = (
    Option(
        "enabled",
        "auto",
        one_of("auto", "true", "false"),
        "`true`: a session is attached when it is made, where the start-up hook is installed; "
        "`auto`: so it is with `headgate run` and `%load_ext headgate` only; `false`: never",
    ),
    Option(
        "on.failure",
        "fail",
        one_of("fail", "native"),
        "if a session cannot be attached when it is made, `fail` raises the error; with `native` "
        "its exchanges run in Spark, and the driver's log has a warning",
    ),
    Option("broker", "", TEXT, "Kafka's bootstrap servers; empty: an embedded broker"),
    Option(
        "store",
        "",
        TEXT,
        "where results are stored: `s3://bucket/root`, or `file:///folder`, a folder that driver "
        "and executors share, with or without a broker; empty: an embedded bucket. Several URLs, "
        "with commas, such as `s3://a/root,s3://b/root`, share the requests: a hash of its name "
        "says where an object is, so their order and number must stay the same while a job has "
        "objects",
    ),
    Option("job.id", "", TEXT, "name of the job; empty: the application's id"),
    Option(
        "mode",
        PER_JOB,
        one_of(PER_JOB, SESSION),
        "who decides for the job: `per-job`: its driver; `session`: the processes of "
        "`headgate master`",
    ),
    Option("topic.prefix", "headgate", TEXT, "first part of every topic's name"),
    Option(
        "topic.partitions",
        _TOPIC.partitions,
        whole(1),
        "partitions of a topic that Headgate creates",
    ),
    Option(
        "topic.replication",
        _TOPIC.replication,
        whole(-1),
        "replicas of a topic that Headgate creates; -1: the broker's default",
    ),
    Option(
        "topic.retention.ms",
        _TOPIC.retention_ms,
        time_ms(60_000),
        "how long events are kept, and so how far back an audit reaches",
    ),
    Option(
        "lease.ms",
        _DAY_MS,
        _LEASE,
        "a driver that is silent for this long is taken for dead by `headgate sweep`, and after "
        "half as long again by session masters; everything of its job is then deleted; 0: never",
    ),
    Option(
        "catalyst",
        "auto",
        one_of("auto", "off"),
        "`off` uses public PySpark only: the same rows, but Spark does not know their "
        "partitioning, and runs the session's queries itself",
    ),
    Option(
        "sql.enabled",
        False,
        FLAG,
        "`true`: actions on the session's DataFrames run their exchanges in Headgate automatically",
    ),
    Option(
        "sql.from.bytes",
        0,
        size(-1),
        "a query's exchanges that are smaller by Spark's estimate run in Spark, where even a small "
        "one keeps the executors that hold it from being released; 0: all run in Headgate, -1: "
        "none",
    ),
    Option(
        "warm.up",
        True,
        FLAG,
        "`true`: a job that runs when the session is attached, in the background, prepares Python "
        "workers and the JVM for the first query",
    ),
    Option(
        "combine",
        True,
        FLAG,
        "`true`: where the readers of a wide exchange would send many requests for small slices, "
        "tasks combine the objects of its map stage first; `false`: never",
    ),
    Option(
        "budget",
        NO_LIMIT,
        _BUDGET,
        "limits of one exchange, such as `$0.50, 100000 requests, 20g` (dollars, requests, stored "
        "bytes). They are checked before its first task, by Spark's estimate of its size, and "
        "before its rows are read, when the size is known",
    ),
    Option("budget.job", NO_LIMIT, _BUDGET, "the same limits for all exchanges of the job"),
    Option(
        "budget.warn",
        False,
        FLAG,
        "`true`: an exchange that exceeds a limit runs, and the driver's log has a warning; "
        "`false`: it is refused",
    ),
    Option(
        "prices",
        "auto",
        one_of("auto", *COSTS),
        "costs by which ways are chosen and limits are checked: `s3-standard`, `s3-express`: list "
        "prices of us-east-1; `own`: a store without a bill; `auto`: by the store's URL and "
        "endpoint",
    ),
    Option("codec", "lz4", one_of("lz4", "zstd", "none"), "compression of segments"),
    Option(
        "segment.bytes",
        _LIMITS.segment_bytes,
        size(_MIB, SEGMENT_BYTES_MAX),
        "bytes of rows that a map task collects before it sorts and writes them, 1 GiB at most; it "
        "holds about three times as much",
    ),
    Option(
        "driver.read.bytes",
        128 << 10,
        size(0, _MIB),
        "results of at most so many stored bytes, and of four times as many without compression, "
        "are read by the driver as soon as they are complete; the tasks that use their rows need "
        "no Python worker and no request; 0: none, 1 MiB at most",
    ),
    Option("fetch.bytes", _LIMITS.fetch_bytes, size(_MIB), "bytes that a reader may fetch ahead"),
    Option(
        "fetch.parallel",
        _LIMITS.fetch_parallel,
        whole(1),
        "requests that a Python worker may have in flight",
    ),
    Option(
        "cache.bytes",
        _LIMITS.cache_bytes,
        size(0),
        "bytes of neighbouring slices that a Python worker keeps for its next task",
    ),
    Option(
        "group.bytes",
        _LIMITS.group_bytes,
        size(_MIB),
        "bytes of rows that a task holds in memory to call a function group by group; more rows "
        "wait in files, and one group must fit",
    ),
    Option(
        "wait.ms", _MASTER.wait_ms, time_ms(1_000), "longest wait for a decision or a confirmation"
    ),
    Option("request.ms", 20_000, time_ms(1_000), "longest wait for one answer of the broker"),
    Option("attach.ms", 10_000, time_ms(1_000), "longest wait for broker and store when attaching"),
    Option(
        "ui.port",
        None,
        whole(0, 65_535),
        "port at 127.0.0.1 where the driver serves the live page of its job; 0: any that is free; "
        "empty: no page",
    ),
    Option(
        "log.level",
        "application",
        one_of("application", "debug", "info", "warning", "error"),
        "the driver's lines from this level on are shown, `info` with the events of importance; "
        "they go to stderr if the application has set up no logging. `application`: as its logging "
        "has it",
    ),
)


@dataclass(frozen=True, slots=True)
class AttachSettings:
    """The settings of the attaching itself."""

    catalyst: str
    """`off`: no private names of Spark are used."""
    warm_up: bool
    """True if a job prepares the session for its first query."""
    attach_ms: int
    """The longest wait for broker and store."""
    ui_port: int | None
    """The port of the job's live page; None for no page."""
    log_level: str
    """The level from which on lines go to stderr; `application`: as the application's logging has
    it."""


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """The settings of the driver's side of an exchange. Their keys hold for the next action, also
    when they change after the session was attached; all others hold from attach on."""

    sql_enabled: bool
    """True if actions run their exchanges in Headgate."""
    sql_from_bytes: int
    """A smaller exchange of a query runs in Spark; -1: every exchange."""
    combine: bool
    """True if the objects of wide exchanges are combined before they are read."""
    budget: Cost
    """The limits of one exchange."""
    budget_job: Cost
    """The limits of all exchanges of the job."""
    budget_warn: bool
    """True if an exchange that exceeds a limit runs."""
    prices: str
    """The kind of store by which costs are computed; `auto`: by its URL."""
    codec: str
    """The compression of segments."""
    driver_read_bytes: int
    """The driver reads results that have no more stored bytes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session. Each group is passed on as a whole to the part that uses it."""

    job_id: str
    """The name of the job; empty for the application's id."""
    store: str
    """The URL of the store; empty for an embedded bucket."""
    s3: Mapping[str, str] = field(repr=False)
    """Options of the object store: keys of `spark.headgate.s3.*` without the prefix."""
    kafka: KafkaSettings
    """No bootstrap servers stand for an embedded broker."""
    master: MasterSettings
    limits: Limits
    exchanges: ExchangeSettings
    attaching: AttachSettings


FOR_THE_NEXT_ACTION = frozenset(f.name.replace("_", ".") for f in fields(ExchangeSettings))
"""The keys, without the prefix, that are looked up for each action."""


def is_true(text: str | None) -> bool:
    """Return True if Spark takes a setting for true; Spark keeps the text that the user wrote."""
    return text is not None and text.strip().lower() == "true"


def read_settings(conf: Mapping[str, str]) -> Settings:
    """Return the settings in a Spark configuration.

    Raises:
        Invalid: a key is unknown, its value cannot be used, or two settings contradict each other.
    """
    ours = texts_of(conf)
    kafka, s3 = _passed_on(ours)
    settings = _grouped(_values(ours), kafka, s3)
    if settings.exchanges.sql_enabled and settings.attaching.catalyst == "off":
        raise Invalid(
            f"{PREFIX}sql.enabled = true needs the plans of queries, which {PREFIX}catalyst = off "
            "makes unavailable: remove one of the two"
        )
    retention_ms, lease_ms = settings.kafka.topic.retention_ms, settings.master.lease_ms
    if retention_ms <= lease_ms:
        raise Invalid(
            f"{PREFIX}topic.retention.ms = {ms_text(retention_ms)} must be longer than "
            f"{PREFIX}lease.ms = {ms_text(lease_ms)}: the log would forget a job before its lease "
            "is over"
        )
    return settings


def texts_of(conf: Mapping[str, str]) -> dict[str, str]:
    """Return Headgate's keys in a Spark configuration, without their prefix.

    Raises:
        Invalid: a key has a prefix that is almost ours.
    """
    for key in conf:
        first = key.removeprefix("spark.").partition(".")[0]
        if not key.startswith(PREFIX) and get_close_matches(first, ["headgate"], cutoff=0.8):
            raise Invalid(f"there is no {key}: all keys of Headgate begin with {PREFIX}")
    return {k.removeprefix(PREFIX): v for k, v in conf.items() if k.startswith(PREFIX)}


def check_keys(conf: Mapping[str, str]) -> Settings:
    """Return the settings in a part of a configuration, whose keys are checked each by itself.

    Raises:
        Invalid: a key is unknown or refused, or its value cannot be used.
    """
    ours = texts_of(conf)
    kafka, s3 = _passed_on(ours)
    settings = _grouped(_values(ours), kafka, s3)
    s3_settings("", s3)
    return settings


def read_exchange_settings(texts: Mapping[str, str]) -> ExchangeSettings:
    """Return the settings for the next action from the texts of all keys.

    Raises:
        Invalid: a key is unknown, or its value cannot be used.
    """
    return _group(ExchangeSettings, _values(texts))


def _passed_on(texts: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    return tuple(
        {k.removeprefix(prefix): v for k, v in texts.items() if k.startswith(prefix)}
        for prefix in PASSED_ON
    )


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    named = {k: v for k, v in texts.items() if not k.startswith(PASSED_ON)}
    return read_options(PREFIX, OPTIONS, named)


def _grouped(values: Mapping[str, Any], kafka: dict[str, str], s3: dict[str, str]) -> Settings:
    request_s, delivery_s = values["request.ms"] / 1000, values["wait.ms"] / 1000
    topic = _group(TopicSettings, values, "topic.")
    return Settings(
        values["job.id"],
        values["store"],
        s3,
        KafkaSettings(
            values["broker"], values["topic.prefix"], topic, request_s, delivery_s, kafka
        ),
        _group(MasterSettings, values),
        _group(Limits, values),
        _group(ExchangeSettings, values),
        _group(AttachSettings, values),
    )


def _group(group: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Return a group. A field is named after its key; a field without a key has its default."""
    keys = {f.name: prefix + f.name.replace("_", ".") for f in fields(cast(Any, group))}
    return group(**{name: values[key] for name, key in keys.items() if key in values})

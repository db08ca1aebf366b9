"""Run Apache Kafka (one or three nodes) and MinIO on this machine, without Docker.

Guarantees: a home folder has one stack, however many processes call. Everything listens on
loopback. Only programs that this stack started are signalled. State is never read from a folder
where other users may write. Ports and data survive `down` and `kill`, so that clients find a
restarted node where it was.

Assumes Linux, a JDK, and at first use Maven and Go.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...control.errors import Invalid
from . import daemons, kafka_node, minio_node
from .daemons import Daemon

_KAFKA = "kafka-"
_MINIO = "minio"
_LOCK = "stack.lock"
_NAME = re.compile(f"{_KAFKA}[1-9]|{_MINIO}")
_BOOT_S, _STOP_S = 120.0, 20.0  # of one program, of all before they are killed
FETCH_S = 1_200.0
"""The limit for fetching Kafka, and for building MinIO."""


def _default_home() -> Path:
    if named := os.environ.get("HEADGATE_STACK_HOME"):
        return Path(named).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "headgate", "stack").absolute()


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "headgate")


@dataclass(frozen=True, slots=True)
class StackSettings:
    """The folders of a stack, and its memory."""

    home: Path = field(default_factory=_default_home)
    """State and data; two homes are two stacks."""
    cache: Path = field(default_factory=_default_cache)
    """Programs, which all stacks of a user share."""
    heap_mib: int = 512
    """The heap of each Kafka node."""

    def __post_init__(self) -> None:
        if not self.home.is_absolute():
            raise Invalid(f"the stack's home must be an absolute path, not {self.home}")


@dataclass(frozen=True, slots=True)
class StackState:
    """The programs of a stack, with the addresses and keys that clients need."""

    nodes: tuple[Daemon, ...]
    """`kafka-1` …, and `minio` as the last."""
    bucket: ClassVar[str] = minio_node.BUCKET
    access_key: ClassVar[str] = minio_node.ACCESS_KEY
    secret_key: ClassVar[str] = minio_node.SECRET_KEY

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in _kafka_nodes(self.nodes))

    @property
    def endpoint(self) -> str:
        """Return the URL of MinIO."""
        return f"http://{self.nodes[-1].address}"

    def is_up(self) -> bool:
        return all(node.is_alive() for node in self.nodes)


def up(nodes: int = 1, settings: StackSettings | None = None) -> StackState:
    """Start the programs that do not run, wait until all of them serve, and make the bucket.

    Raises: Invalid when a stack with another number of Kafka nodes exists or a tool is missing,
        Unavailable when a program cannot be fetched or does not start.
    """
    settings = settings or StackSettings()
    if nodes not in (1, 3):
        raise Invalid(f"the stack can have 1 or 3 Kafka nodes, not {nodes}")
    with _locked(settings):
        configured = _load(settings) or _configure(nodes, settings)
        count = len(_kafka_nodes(configured))
        if count != nodes:
            raise Invalid(
                f"the stack in {settings.home} has {count} Kafka node(s), not {nodes}: "
                "run `headgate stack down --wipe` first"
            )
        _prepare(configured, settings)
        started = configured
        for node in configured:
            if not node.is_alive():
                started = _replaced(started, _start(node, settings))
                _save(started, settings)
        for node in started:
            _await_started(node, settings)
        state = StackState(started)
        minio_node.make_bucket(state.endpoint)
        return state


def status(settings: StackSettings | None = None) -> StackState | None:
    """Return the stack as it was last started, or None; its nodes tell if they still run.

    Raises: Invalid when another user could have written its state.
    """
    nodes = _load(settings or StackSettings())
    return StackState(nodes) if nodes else None


def down(wipe: bool = False, settings: StackSettings | None = None) -> None:
    """Stop every program; `wipe` also removes the ports and the data."""
    settings = settings or StackSettings()
    with _locked(settings):
        nodes = _load(settings) or ()
        daemons.stop(nodes, _STOP_S)
        if wipe:
            (settings.home / "state.json").unlink(missing_ok=True)
            for node in nodes:
                shutil.rmtree(settings.home / node.name)


def _locked(settings: StackSettings) -> AbstractContextManager[None]:
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_own(settings.home)
    # another process may run its first `up`
    return daemons.locked(settings.home / _LOCK, 2 * FETCH_S + _BOOT_S)


def _require_own(home: Path) -> None:
    """Refuse a folder that others may write to: its state says what is killed and deleted."""
    home_stat = home.stat()
    if home_stat.st_uid != os.geteuid() or home_stat.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Invalid(
            f"others may write to {home}, which has the stack's state: use another folder"
        )


def _configure(count: int, settings: StackSettings) -> tuple[Daemon, ...]:
    ports = daemons.free_ports(2 * count + 1, str(settings.home))
    brokers, controllers, minio_port = ports[:count], ports[count : 2 * count], ports[-1]
    names = [*(f"{_KAFKA}{i}" for i in range(1, count + 1)), _MINIO]
    nodes = tuple(
        Daemon(name, port, str(settings.home / name))
        for name, port in zip(names, [*brokers, minio_port], strict=True)
    )
    homes = [_kafka_home(node, settings) for node in _kafka_nodes(nodes)]
    kafka_node.configure(homes, list(zip(brokers, controllers, strict=True)))
    _save(nodes, settings)
    return nodes


def _prepare(nodes: tuple[Daemon, ...], settings: StackSettings) -> None:
    kafka_node.fetch_jars(settings.cache, FETCH_S)
    minio_node.fetch_binary(settings.cache, FETCH_S)
    cluster_id = kafka_node.cluster_id(str(settings.home))
    homes = [_kafka_home(node, settings) for node in _kafka_nodes(nodes)]
    with ThreadPoolExecutor(len(homes)) as pool:
        list(pool.map(lambda home: kafka_node.format_storage(home, cluster_id), homes))


def _start(node: Daemon, settings: StackSettings) -> Daemon:
    if node.name == _MINIO:
        return minio_node.start(node, settings.cache)
    return kafka_node.start(node, _kafka_home(node, settings))


def _await_started(node: Daemon, settings: StackSettings) -> None:
    home = _kafka_home(node, settings)
    if node.name == _MINIO:
        log, is_ready = minio_node.log(node), partial(minio_node.is_ready, node)
    else:
        log, is_ready = home.log, partial(kafka_node.is_ready, home)
    daemons.await_started(node, log, is_ready, _BOOT_S)


def _kafka_home(node: Daemon, settings: StackSettings) -> kafka_node.KafkaHome:
    return kafka_node.KafkaHome(Path(node.folder), settings.cache, settings.heap_mib)


def _kafka_nodes(nodes: tuple[Daemon, ...]) -> tuple[Daemon, ...]:
    return tuple(node for node in nodes if node.name.startswith(_KAFKA))


def _replaced(nodes: tuple[Daemon, ...], new: Daemon) -> tuple[Daemon, ...]:
    return tuple(new if node.name == new.name else node for node in nodes)


def _load(settings: StackSettings) -> tuple[Daemon, ...] | None:
    """Read the nodes from the state file, or return None if there is no such file.

    Raises: Invalid when another user could have written the file, or when a name or a folder in it
        is not of this stack.
    """
    try:
        text = (settings.home / "state.json").read_text()
        _require_own(settings.home)
    except FileNotFoundError:
        return None
    return tuple(_node(fields, settings.home) for fields in json.loads(text))


def _node(fields: dict[str, Any], home: Path) -> Daemon:
    """Return the node that the state file describes."""
    name = fields["name"]
    if not _NAME.fullmatch(name):
        raise Invalid(f"the state of the stack in {home} names {name!r}, which is no node of it")
    if os.path.realpath(fields["folder"]) != os.path.realpath(home / name):
        raise Invalid(f"the state of the stack in {home} names {fields['folder']}, outside of it")
    return Daemon(**fields)


def _save(nodes: tuple[Daemon, ...], settings: StackSettings) -> None:
    path = settings.home / "state.json"
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(json.dumps([asdict(node) for node in nodes], indent=1))
    unfinished.replace(path)

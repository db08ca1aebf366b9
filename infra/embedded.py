"""Run the embedded stack: librdkafka's mock cluster and moto's server in one child process.

Guarantees: both listen on 127.0.0.1 only. The child ends with its parent, however the parent
ends, and also when a fork of the parent keeps the pipe between them open.

Assumes that nothing in the stack is worth keeping: the stack lives in memory, and its broker
isolates, aborts and fences nothing.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from importlib.util import find_spec
from typing import Self

from ..control.errors import Invalid, Unavailable

_HOST = "127.0.0.1"
_BUCKET = "headgate"
_MODULE = "headgate.infra.embedded"
_METADATA_LIMIT_S = 10.0
_ORPHAN_CHECK_S = 1.0
_STOP_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class EmbeddedStack:
    """The addresses of the running child, which ends with `close` or with this process."""

    bootstrap: str
    endpoint: str
    """The URL of the object store."""
    bucket: str
    child: subprocess.Popen[bytes] = field(repr=False, compare=False)

    def close(self) -> None:
        """End the child, and with it all data; further calls do nothing."""
        _end(self.child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def start_embedded(limit_s: float = 30.0) -> EmbeddedStack:
    """Start a broker and an object store that live no longer than this process.

    Raises: Invalid when moto is not installed, Unavailable when the child does not come up.
    """
    if find_spec("moto") is None:
        raise Invalid(
            "the embedded stack needs moto: pip install 'pyspark-headgate[embedded]', "
            "or configure a broker and a bucket"
        )
    # A session of its own: Ctrl-C is for the driver, which may still need the stack to close.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], limit_s)[0]:
            raise Unavailable(f"waited {limit_s:g} s for the addresses of the embedded stack")
        line = child.stdout.readline()
        if not line:
            raise Unavailable("the embedded stack ended before it served; its error is on stderr")
        return EmbeddedStack(**json.loads(line), bucket=_BUCKET, child=child)
    except BaseException:
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(_STOP_LIMIT_S)


# The child's side. The functions import their libraries: the driver must not wait for moto.


def _serve(parent_pid: int) -> None:
    from confluent_kafka import Producer

    # The producer is only a handle: the cluster lives as long as its producer.
    cluster = Producer({"bootstrap.servers": _HOST, "test.mock.num.brokers": 1, "log_level": 0})
    endpoint = _start_store()
    brokers = cluster.list_topics(timeout=_METADATA_LIMIT_S).brokers.values()
    bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    print(json.dumps({"bootstrap": bootstrap, "endpoint": endpoint}), flush=True)
    # The parent reads one line: a library that prints more would fill the pipe and block.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # The parent never writes: readable means that it closed the pipe.
    while os.getppid() == parent_pid:
        if select.select([sys.stdin], [], [], _ORPHAN_CHECK_S)[0]:
            break
    os._exit(0)


def _start_store() -> str:
    import logging

    # Without this any web page in a browser on this machine could read the store.
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(_HOST, 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with closing(HTTPConnection(host, port, timeout=_METADATA_LIMIT_S)) as connection:
        connection.request("PUT", f"/{_BUCKET}")
        status = connection.getresponse().status
        assert status == 200, f"moto answered {status} when asked for a bucket"
    return f"http://{host}:{port}"


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

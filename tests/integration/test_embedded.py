"""The embedded stack serves other processes on loopback, and never outlives its parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.control.kafka.settings import KafkaSettings
from headgate.infra.embedded import EmbeddedStack, start_embedded

from ..doubles.real_masters import give_up_steps
from ..link import Link

LIMIT_S = 30.0
LOOPBACK = "0100007F"
LISTENING = "0A"

ROUND_TRIP = """
import sys, boto3
from botocore.config import Config
from confluent_kafka import Consumer, Producer, TopicPartition
bootstrap, endpoint, bucket = sys.argv[1:]

producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
producer.produce("facts", value=b"fact", partition=0)
assert producer.flush(20) == 0
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
consumer.assign([TopicPartition("facts", 0, 0)])
print(consumer.poll(20).value().decode())
consumer.close()

s3 = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="any", aws_secret_access_key="any",
                  region_name="us-east-1", config=Config(proxies={}))
s3.put_object(Bucket=bucket, Key="a/b", Body=b"segment", IfNoneMatch="*")
print(s3.get_object(Bucket=bucket, Key="a/b", Range="bytes=0-2")["Body"].read().decode())
"""

PARENT = """
from headgate.infra.embedded import start_embedded
stack = start_embedded()
print(stack.child.pid, flush=True)
input()
"""

FORKING_PARENT = """
import os, signal
from headgate.infra.embedded import start_embedded
stack = start_embedded()
if os.fork() == 0:
    signal.alarm(30)
    signal.pause()
print(stack.child.pid, flush=True)
input()
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with start_embedded() as started:
        yield started


@pytest.mark.slow
def test_an_executor_reaches_broker_and_store(stack: EmbeddedStack) -> None:
    """Another process reads back what it wrote to broker and store, without noise on stderr."""
    where = (stack.bootstrap, stack.endpoint, stack.bucket)
    done = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP, *where],
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["fact", "seg"]), done.stderr


def test_steps_that_are_given_up_leave_nothing(stack: EmbeddedStack) -> None:
    """A step whose broker does not answer leaves neither threads nor descriptors behind."""
    with closing(Link(stack.bootstrap, "127.0.0.4")) as link:
        give_up_steps(KafkaSettings(link.bootstrap, "given-up", embedded=True), link)


def test_listens_on_loopback_only(stack: EmbeddedStack) -> None:
    """The stack, which asks for no password, listens on loopback only."""
    ports = {int(place.rpartition(":")[2]) for place in (stack.bootstrap, stack.endpoint)}
    listeners = listening_addresses(stack.child.pid)
    assert {(LOOPBACK, port) for port in ports} == listeners


def test_close_ends_the_child() -> None:
    """Close ends the stack's process, and a second close is harmless."""
    stack = start_embedded()
    stack.close()
    stack.close()
    assert stack.child.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("program", [PARENT, FORKING_PARENT], ids=["alone", "forked"])
def test_dies_with_a_killed_parent(program: str) -> None:
    """The stack ends when its parent is killed by SIGKILL, even if a fork of the parent holds the
    pipe open."""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert ended(child, within_s=5.0)
        finally:
            os.close(child)
            os.killpg(parent.pid, signal.SIGKILL)


def ended(pidfd: int, within_s: float) -> bool:
    return bool(select.select([pidfd], [], [], within_s)[0])


def listening_addresses(pid: int) -> set[tuple[str, int]]:
    """Return the addresses, in the kernel's notation, on which the process accepts connections."""
    inodes = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    addresses = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in inodes:
                host, _, port = fields[1].partition(":")
                addresses.add((host, int(port, 16)))
    return addresses

"""The group of masters on three brokers whose coordinator dies and comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headgate.control.clock import SYSTEM_CLOCK
from headgate.infra import stack
from headgate.infra.stack import StackSettings, StackState

from .processes import ROOT
from .rounds import HEAP_MIB

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PREFIX = "test-coordinator"
LIMIT_S = 60.0
MOVED_S = 6.0  # the session of a killed broker, after which another one coordinates

# A member asks whether its partition is settled, and when told to, once more.
MEMBER = """
import sys
from confluent_kafka import KafkaException
from headgate.control.clock import Deadline
from headgate.control.kafka import KafkaEventLog, KafkaSettings, TopicSettings
class Holder:
    granted = revoked = lambda holder, partition: None
log = KafkaEventLog(KafkaSettings(sys.argv[1], sys.argv[2], TopicSettings(1, -1, 3_600_000)))
log.prepare(Deadline.after(60))
member = log.join("one", Holder())
def ask():
    deadline, settled = Deadline.after(60), False
    while not settled:
        assert not deadline.passed
        member.poll(1, 0.1)
        try:
            settled = member._ask_stable(0).result()[0].error is None
        except KafkaException as exc:
            print(exc, file=sys.stderr)
    print("settled", flush=True)
ask()
sys.stdin.readline()
ask()
member.close()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[StackSettings]:
    settings = StackSettings(home=tmp_path / "stack", heap_mib=HEAP_MIB)
    yield settings
    stack.down(wipe=True, settings=settings)


def coordinator(state: StackState) -> str:
    admin, group = AdminClient({"bootstrap.servers": state.bootstrap}), f"{PREFIX}-masters"
    found = admin.describe_consumer_groups([group])[group].result(LIMIT_S)
    return f"kafka-{found.coordinator.id}"


def test_a_member_survives_another_coordinator(settings: StackSettings) -> None:
    """A broker that coordinated the group is killed and started again, and coordinates it no more:
    a member that asks whether a partition is settled is told, and its process goes on."""
    state = stack.up(3, settings)
    command = [sys.executable, "-c", MEMBER, state.bootstrap, PREFIX]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as member:  # type: ignore[call-overload]
        try:
            assert "settled\n" == member.stdout.readline()
            before = coordinator(state)
            stack.kill(before, settings)
            SYSTEM_CLOCK.sleep_s(MOVED_S)
            stack.restart(before, settings)
            assert coordinator(state) != before
            told, _ = member.communicate("again\n", LIMIT_S)
            assert ("settled\n", 0) == (told, member.returncode)
        finally:
            member.kill()

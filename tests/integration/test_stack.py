"""The real stack: it is found again, not started twice, and survives the death of its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headgate.control.errors import Invalid
from headgate.infra.devstack import daemons, stack
from headgate.infra.devstack.stack import StackSettings, StackState

pytestmark = pytest.mark.real

LIMIT_S = 30.0
WRITERS = 8
KEYS = 25


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """Return the settings of a stack of its own: this suite kills nodes, and others share the
    default stack."""
    settings = StackSettings(home=tmp_path_factory.mktemp("stack"))
    yield settings
    stack.down(wipe=True, settings=settings)
    assert [path.name for path in settings.home.iterdir()] == ["stack.lock"]


@pytest.fixture(scope="module")
def state(settings: StackSettings) -> StackState:
    """Start the stack by two callers at once, as when two test runs begin together."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: stack.up(settings=settings), range(2))
    assert first == second
    return first


@pytest.fixture(scope="module")
def s3(state: StackState) -> Iterator[Any]:
    client = boto3.client(
        "s3",
        endpoint_url=state.endpoint,
        aws_access_key_id=state.access_key,
        aws_secret_access_key=state.secret_key,
        region_name="us-east-1",
        config=Config(proxies={}, retries={"total_max_attempts": 1}, max_pool_connections=WRITERS),
    )
    yield client
    client.close()


def test_up_finds_the_running_stack(settings: StackSettings, state: StackState) -> None:
    """A second `up` starts nothing, and `status` reports the same stack."""
    again = stack.up(settings=settings)
    assert state == again
    assert state == stack.status(settings)
    assert state.is_up()


def test_up_refuses_another_number_of_nodes(settings: StackSettings, state: StackState) -> None:
    """`up` with another number of nodes than the running stack has is refused."""
    with pytest.raises(Invalid, match="has 1 Kafka node"):
        stack.up(nodes=3, settings=settings)


def test_kafka_keeps_a_record_through_the_death_of_its_node(
    settings: StackSettings, state: StackState
) -> None:
    """A killed Kafka node comes back on its port with its data, as another process."""
    create_topic(state.bootstrap, "kept")
    produce(state.bootstrap, "kept", b"fact")

    daemons.kill(state.nodes[0])
    assert not state.is_up()
    restarted = stack.up(settings=settings)

    assert restarted.is_up()
    assert state.bootstrap == restarted.bootstrap
    assert state.nodes[0].pid != restarted.nodes[0].pid
    assert consume(state.bootstrap, "kept") == b"fact"


def test_minio_keeps_an_object_through_its_death(
    settings: StackSettings, state: StackState, s3: Any
) -> None:
    """A killed store comes back with every confirmed object when `up` restarts it."""
    s3.put_object(Bucket=state.bucket, Key="kept", Body=b"segment")
    daemons.kill(stack.up(settings=settings).nodes[-1])
    assert stack.up(settings=settings).is_up()
    assert s3.get_object(Bucket=state.bucket, Key="kept")["Body"].read() == b"segment"


def test_a_conditional_put_has_one_winner(state: StackState, s3: Any) -> None:
    """Exactly one of several racing writers of a name wins, and its bytes are stored."""
    for key in range(KEYS):
        winners = race(s3, state.bucket, f"race/{key}")
        assert len(winners) == 1
        stored = s3.get_object(Bucket=state.bucket, Key=f"race/{key}")["Body"].read()
        assert winners == [stored]


def create_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(LIMIT_S)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(topic, value=value)
    assert producer.flush(LIMIT_S) == 0


def consume(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "stack-test"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        record = consumer.poll(LIMIT_S)
        assert record is not None
        assert record.error() is None
        value: bytes | None = record.value()
        return value
    finally:
        consumer.close()


def race(s3: Any, bucket: str, key: str) -> list[bytes]:
    """Let all writers put at once, and return the bodies of those that were told that they won."""
    gate = Barrier(WRITERS)

    def write(body: bytes) -> bytes | None:
        gate.wait(LIMIT_S)
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] != "PreconditionFailed":
                raise
            return None
        return body

    with ThreadPoolExecutor(WRITERS) as pool:
        bodies = pool.map(write, [b"writer-%d" % i for i in range(WRITERS)])
        return [body for body in bodies if body is not None]

"""A session whose objects are spread over two buckets of a real store."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate import Invalid, attach
from headgate.control.clock import SYSTEM_CLOCK
from headgate.storage.stores.open_store import open_store

from .cluster import audited, findings, recorded, segments
from .conftest import READ_BY_TASKS, Place, build_session, real_place, setting

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

STORE, JOB, ENDPOINT = (f"spark.headgate.{key}" for key in ("store", "job.id", "s3.endpoint"))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Make a second bucket beside that of the stack."""
    real, second = real_place(), f"second-{SYSTEM_CLOCK.now_ms()}"
    client = boto3.client(
        "s3",
        endpoint_url=real.conf[ENDPOINT],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=second)
    spread = f"{real.conf[STORE]},s3://{second}/tests"
    yield Place(real.name, real.conf | READ_BY_TASKS | {STORE: spread, JOB: second})
    client.delete_bucket(Bucket=second)
    client.close()


@pytest.fixture(scope="module")
def spark(place: Place) -> Iterator[SparkSession]:
    session = build_session(place, "local[2]")
    yield session
    session.stop()


def stored(place: Place) -> list[int]:
    """Return the number of the job's objects in each bucket."""
    numbers = []
    for url in place.conf[STORE].split(","):
        store, root = open_store(url, {"endpoint": place.conf[ENDPOINT]})
        listed = store.list(f"{root}/{place.conf[JOB]}/")
        numbers.append(sum("/_driver/" not in stat.name for stat in listed))
        store.close()
    return numbers


def test_a_job_in_two_buckets(spark: SparkSession, place: Place) -> None:
    """Objects are in both buckets, are made again when they are lost, and none stays. Another order
    of the buckets is refused while the job has objects."""
    df = spark.range(0, 3000, 1, 20).select((F.col("id") % 31).alias("k"), "id")
    hg = attach(spark)
    out = hg.repartition(df, 4, "k")
    assert all(stored(place))
    assert 20 == sum(stored(place))
    hg._services.store.delete(segments(hg)[:2])
    assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
    assert findings(hg._services, recorded(hg)).clean
    turned = ",".join(reversed(place.conf[STORE].split(",")))
    with setting(spark, {STORE: turned}), pytest.raises(Invalid, match="has objects in"):
        attach(spark)
    assert sorted(map(tuple, df.collect())) == sorted(map(tuple, out.collect()))
    audited(recorded(hg))
    hg.close()
    assert not any(stored(place))

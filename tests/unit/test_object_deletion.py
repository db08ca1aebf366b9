"""The sweep after a job's end, and the deletion of attempts: the objects that are deleted, and the
objects of others that stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control.events.types import Produced, ResultRegistered
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.model.persistent import PersistentMap
from headgate.control.model.state import JobState, Production, ResultFate, ResultState
from headgate.storage.format.layout import Layout
from headgate.storage.stores.memory import MemoryBlobStore, Objects
from headgate.storage.upkeep.object_deletion import ObjectDeleter

JOB = JobId("job")
LAYOUT = Layout("root", JOB)
MINE, KEPT, NEWER = ResultId("mine"), ResultId("kept"), ResultId("newer")
REGISTERED = ResultState(ResultRegistered(MINE, 1, 1, "", ""))
CLOSED = JobState(
    JOB,
    2,
    PersistentMap(
        {
            MINE: replace(REGISTERED, fate=ResultFate(released="closed")),
            KEPT: replace(REGISTERED, fate=ResultFate(expires_ms=0)),
        }
    ),
    "closed",
)


def segment(result: ResultId, epoch: int, job: JobId = JOB) -> str:
    return Layout("root", job).segment(AttemptId(PartitionId(result, 0), epoch, 7), 0)


GONE = (
    segment(MINE, 2),
    segment(MINE, 1),
    segment(ResultId("never-registered"), 2),
    LAYOUT.manifest(MINE, 1, 0),
)
ATTEMPT = AttemptId(PartitionId(MINE, 0), 2, 7)
FOREIGN = (
    *(LAYOUT.attempt(ATTEMPT) + last for last in ("", "x.tmp$", "a b")),
    LAYOUT.manifests(MINE),
)
LEFT = (
    *FOREIGN,
    segment(NEWER, 3),
    LAYOUT.manifest(NEWER, 1, 0),
    segment(KEPT, 2),
    LAYOUT.manifest(KEPT, 1, 0),
    segment(MINE, 2, JobId("job-2")),
    "root/job/notes",
)


@pytest.mark.parametrize("name", GONE)
def test_what_the_job_left_behind_goes(name: str) -> None:
    """The sweep deletes every object of a released result, and every object of a former epoch."""
    objects: Objects = {name: (b"", "")}
    assert 1 == ObjectDeleter(MemoryBlobStore(objects), "root").sweep(CLOSED)
    assert {} == objects


@pytest.mark.parametrize("name", LEFT)
def test_what_others_need_stays(name: str) -> None:
    """The sweep keeps objects that a successor writes, and objects that outlive the job."""
    objects: Objects = {name: (b"", "")}
    assert 0 == ObjectDeleter(MemoryBlobStore(objects), "root").sweep(CLOSED)
    assert {name} == objects.keys()


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_name_among_an_attempts_stops_no_deletion(name: str) -> None:
    """An attempt that announced nothing loses its segments. Objects of others below its prefix,
    such as the markers of folders that some tools make, stay."""
    store = MemoryBlobStore(objects := {name: (b"", "")})
    for number in range(3):
        store.put(LAYOUT.segment(ATTEMPT, number), b"x", "w")
    attempts: PersistentMap[AttemptId, Produced | None] = PersistentMap({ATTEMPT: None})
    result = replace(REGISTERED, production=Production(attempts=attempts))
    assert 3 == ObjectDeleter(store, "root").delete(JOB, result, [ATTEMPT])
    assert {name} == objects.keys()

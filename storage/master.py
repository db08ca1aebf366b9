"""The shuffle master of both factories: decides over a log, and knows what bytes cost."""

from __future__ import annotations

from collections.abc import Collection

from ..control.contract import MasterSettings, ShuffleDescriptor, TaskInputsOutputsDescriptor
from ..control.errors import Invalid
from ..control.events.types import PromoteRequested, ReleaseRequested, StopTrackingRequested
from ..control.ids import JobId, ResultId
from ..control.inquiry import questions
from ..control.log import EventLog
from ..control.master.driver_master import DriverIdentity, DriverMaster
from .limits import Limits
from .upkeep.object_deletion import ObjectDeleter


class StorageMaster(DriverMaster):
    """Implements `ShuffleMaster`; owns its log and its store, and closes them."""

    def __init__(
        self,
        settings: MasterSettings,
        log: EventLog,
        storage: ObjectDeleter,
        me: DriverIdentity,
        limits: Limits,
    ) -> None:
        super().__init__(log, storage, settings, me)
        self._opened = (log, storage)
        self._limits = limits

    def close(self) -> None:
        super().close()
        for opened in self._opened:
            opened.close()

    def compute_shuffle_memory_size_for_task(self, task: TaskInputsOutputsDescriptor) -> int:
        return self._limits.task_bytes(task.inputs, task.outputs)

    def promote_partitions(self, descriptor: ShuffleDescriptor, expires_ms: int) -> None:
        asked = PromoteRequested(descriptor.result, expires_ms, self._epoch(descriptor.job))
        if not self._answer(descriptor.job, asked):
            raise Invalid(f"result {descriptor.result} is not complete, or was released")

    def stop_tracking_partitions(self, descriptor: ShuffleDescriptor, reason: str) -> None:
        asked = StopTrackingRequested(descriptor.result, reason, self._epoch(descriptor.job))
        if not self._answer(descriptor.job, asked):
            raise Invalid(f"result {descriptor.result} is not tracked any more, or was released")

    def cluster_partitions(self, job_id: JobId) -> tuple[ResultId, ...]:
        return questions.cluster_partitions(self.state(job_id))

    def may_release_executor(self, job_id: JobId, host: str) -> bool:
        return questions.may_be_released(self.state(job_id), host)

    def is_available(self, job_id: JobId, result: ResultId, partition: int | None = None) -> bool:
        return questions.is_available(self.state(job_id), result, partition)

    def remove_unused(self, job_id: JobId, in_use: Collection[ResultId]) -> tuple[ResultId, ...]:
        found = questions.unused(self.state(job_id), in_use)
        for result in found:
            self._answer(job_id, ReleaseRequested(result, "unused", self._epoch(job_id)))
        return found

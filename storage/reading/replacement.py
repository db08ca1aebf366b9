"""Replacement of lost bytes: read the log again, report the loss, wait, and read the new attempt.

Guarantees: no loss is reported before the log was read again. The slices that replace a part hold
the same rows. A reader that has handed out some of these may go on only if the bytes are the same,
too.
"""

from __future__ import annotations

from ...control.errors import Corrupt, Lost
from ...control.events.types import Lost as LostFact
from ...control.events.types import Produced
from ...control.ids import AttemptId
from ...control.inquiry.job_view import JobView
from ...control.master.announcer import Announcer
from ...control.model.state import JobState, ResultState
from ..contract import InputGateDeployment
from ..format.manifest import locate
from ..runtime import JobClients
from .read_plan import Slice, alone


class Replacement:
    """Replaces what the reader of a deployment has lost."""

    def __init__(
        self,
        deployment: InputGateDeployment,
        clients: JobClients,
        view: JobView,
        announcer: Announcer,
    ) -> None:
        self._deployment = deployment
        self._clients = clients
        self._view = view
        self._announcer = announcer

    def replace(self, piece: Slice, failure: Lost | Corrupt) -> list[Slice]:
        """Return all slices of the subpartition from the attempt that replaced the lost one. They
        hold the same rows, but perhaps in another order and with other cuts.

        Raises:
            Lost, Corrupt: the failure, if no attempt can replace the lost one or none did in time.
        """
        clients = self._clients
        state = self._view.state(clients.runtime.deadline())
        subpartitions = self._readable(state, failure).registered.subpartitions
        came = self.made_again(piece.source.attempt, piece.source.name, failure)
        slices: list[Slice] = []
        for segment in came.segments:
            source = locate(clients.layout, clients.store, came.attempt, segment, subpartitions)
            slices += alone(source, piece.subpartition, 1)
        return slices

    def made_again(self, attempt: AttemptId, name: str, failure: Lost | Corrupt) -> Produced:
        """State that an object of an attempt is lost, and wait for the attempt that replaces it.

        Raises:
            Lost, Corrupt: as for `replace`.
        """
        clients = self._clients
        result = self._readable(self._view.state(clients.runtime.deadline()), failure)
        offset = 0
        if result.production.winners.get(attempt.partition.index, attempt) == attempt:
            lost = LostFact(attempt, name, str(failure), self._deployment.task)
            receipt = clients.log.append(self._announcer.fact(lost))
            offset = receipt.offset(clients.runtime.deadline())
        if result.registered.pipelined:  # all its readers begin again together
            raise failure
        came = self._view.wait(
            self._deployment.manifest.result,
            lambda state: self._replacement(state, attempt, failure),
            clients.runtime.deadline,
        )
        if came is None:
            raise Lost(
                f"{failure}; it was reported as lost, but was not made again: "
                f"{clients.runtime.wait_s:g} s passed without news",
                (offset,),
            ) from failure
        return came

    def _readable(self, state: JobState, failure: Lost | Corrupt) -> ResultState:
        name = self._deployment.manifest.result
        result = state.results.get(name)
        if result is None:
            raise failure
        over = result.fate.released or state.closed or state.failed
        if over is not None and not (result.kept and state.failed is None):
            raise Lost(f"{failure}; it is not made again: {over}") from failure
        return result

    def _replacement(
        self, state: JobState, attempt: AttemptId, failure: Lost | Corrupt
    ) -> Produced | None:
        result = self._readable(state, failure)
        winner = result.production.winners.get(attempt.partition.index, attempt)
        return None if winner == attempt else result.production.attempts[winner]

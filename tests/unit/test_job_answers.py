"""The questions of a job while several threads ask, fail and end them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Event, Thread

import pytest

from headgate.control.errors import Closed, OutcomeUnknown, Unavailable
from headgate.control.events.types import Event as Stated
from headgate.control.log import Receipt
from headgate.control.master.announcer import Announcer
from headgate.control.master.driver_master import DriverIdentity, DriverMaster
from headgate.control.master.job_answers import JobAnswers
from headgate.control.memory.log import MemoryEventLog
from headgate.testing.faulty_log import NoAnswer

from ..doubles.jobs import JOB, REGISTERED, SETTINGS, Job, OrderedStorage
from ..doubles.logs import FaultyLog

pytestmark = pytest.mark.usefixtures("no_thread_stays")


class Away(FaultyLog):
    """A log that answers until it is told to be away."""

    is_away = False

    def append(self, fact: Stated) -> Receipt:
        receipt = super().append(fact)
        return NoAnswer(Unavailable("away")) if self.is_away else receipt


@pytest.fixture
def hurried() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def asking(log: Away) -> JobAnswers:
    return JobAnswers(Job(), log, Announcer(JOB, "driver"), SETTINGS)


@pytest.mark.usefixtures("hurried")
def test_questions_fail_while_a_master_starts_over() -> None:
    """A master that starts over reads the questions that wait, while others of them fail."""
    log, ended = Away(MemoryEventLog()), Event()
    answers = asking(log)
    for _ in range(300):
        answers.ask(REGISTERED)
    log.is_away = True

    def fail() -> None:
        while not ended.is_set():
            with suppress(Unavailable):
                answers.ask(REGISTERED)

    with ThreadPoolExecutor(2) as executor:
        failing = [executor.submit(fail) for _ in range(2)]
        try:
            assert 300 <= min(len(answers.waiting()) for _ in range(2_000))
        finally:
            ended.set()
    assert [None, None] == [each.result() for each in failing]


def test_questions_end_once() -> None:
    """A question that is lost while the master is closed gets one error."""
    answers = asking(Away(MemoryEventLog()))
    asked = [answers.ask(REGISTERED) for _ in range(2)]
    closing_thread = Thread(target=answers.fail, args=[Closed("closed")])

    class Place(int):
        """An offset at which another thread ends all questions, when it is first looked at."""

        def __gt__(self, at: int) -> bool:
            if not closing_thread.ident:
                closing_thread.start()
                closing_thread.join(0.1)
            return True

    answers.lose(answers.waiting(), Place(1))
    closing_thread.join()
    assert {OutcomeUnknown} == {type(question.exception(0)) for question in asked}


def test_a_master_that_is_closed_twice_stops_in_order() -> None:
    """A thread that closes a master which another one is closing ends no question before the
    master's thread has ended."""
    log = FaultyLog(MemoryEventLog())
    log.may_commit.clear()
    with closing(DriverMaster(log, OrderedStorage(log), SETTINGS, DriverIdentity("d", "0"))) as it:
        answers = it.start_job(Job())
        first = Thread(target=it.close)
        first.start()
        assert answers.stopping.wait(5.0)
        it.close()
        assert answers.works
        log.may_commit.set()
        first.join()
        assert not answers.works

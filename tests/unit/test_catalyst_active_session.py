"""The active session of a thread, which Spark's rules use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.clientserver import ClientServer

from headgate.connectors.spark.jvm.bridge import Jvm
from headgate.connectors.spark.jvm.catalyst import CatalystDoor
from headgate.connectors.spark.versions import VERSIONS


class Sessions:
    """The JVM's table of active sessions, for one of its threads."""

    def __init__(self) -> None:
        self.now: str | None = None

    def getActiveSession(self) -> SimpleNamespace:
        return SimpleNamespace(
            isEmpty=lambda now=self.now: now is None,
            contains=lambda session, now=self.now: now == session,
            get=lambda now=self.now: now,
        )

    def setActiveSession(self, session: str) -> None:
        self.now = session

    def clearActiveSession(self) -> None:
        self.now = None


def door(sessions: Sessions, gateway: object) -> CatalystDoor:
    spark: Any = SimpleNamespace(
        _jsparkSession="user's", sparkContext=SimpleNamespace(_gateway=gateway)
    )
    jvm = cast(Jvm, {"sessions": sessions, "list": list})
    return CatalystDoor(spark, jvm, next(iter(VERSIONS.values())), None)


PINNED = type("Pinned", (ClientServer,), {"__init__": lambda self: None, "entry_point": None})


@pytest.mark.parametrize("pinned", [True, False])
def test_sessions_nest(pinned: bool) -> None:
    """Inside, the session is the active one; afterwards, the one from before, also after an
    error."""
    sessions = Sessions()
    opened = door(sessions, PINNED() if pinned else object())
    with opened.active("one"):
        with opened.active("two"):
            assert sessions.now == "two"
        assert sessions.now == "one"
        with pytest.raises(KeyError), opened.active("one"):
            raise KeyError
        assert sessions.now == "one"
    assert sessions.now is None
    sessions.now = "outside"
    with opened.active("one"):
        assert sessions.now == "one"
    assert sessions.now == "outside"
    with opened.active("outside"), opened.active("one"):
        assert sessions.now == "one"
    assert sessions.now == "outside"


def test_a_session_is_set_again_where_threads_share() -> None:
    """Without a thread of the JVM for each of Python's, another thread's session may be active
    meanwhile."""
    for gateway, expected in ((PINNED(), "other"), (object(), "one")):
        sessions = Sessions()
        opened = door(sessions, gateway)
        with opened.active("one"):
            sessions.now = "other"
            with opened.active("one"):
                assert sessions.now == expected

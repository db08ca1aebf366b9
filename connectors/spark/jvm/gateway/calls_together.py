"""Send several calls to the JVM in one message.

py4j waits for the answer to each call, and most answers are only passed to the next call. Calls
that are written down here are made in their order, in the thread of the JVM that a single call
would use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import get_command_part, get_return_value


class LaterObject:
    """The result of a call that waits, or an object of the JVM whose methods are to be called
    together with other calls. It has no fields, and no value before `CallsTogether.now`."""

    __slots__ = ("_calls", "_known", "_message", "_place")

    def __init__(self, calls: CallsTogether, place: str, known: Any = None) -> None:
        self._calls = calls
        self._message = calls.message
        self._place = place
        self._known = known

    def __getattr__(self, method: str) -> Callable[..., LaterObject]:
        _require_there(self)
        return partial(self._calls.add, self._place, method)

    def __bool__(self) -> bool:
        raise TypeError("a call that waits has no value yet")

    def __str__(self) -> str:
        raise TypeError("a call that waits has no value yet")


class LaterClass:
    """A class of the JVM whose objects are made, and whose static methods are called, together with
    other calls."""

    __slots__ = ("_calls", "_path")

    def __init__(self, calls: CallsTogether, path: str) -> None:
        self._calls = calls
        self._path = path

    def __call__(self, *arguments: Any) -> LaterObject:
        return self._calls.add(self._path, "", *arguments)

    def __getattr__(self, method: str) -> Callable[..., LaterObject]:
        return partial(self._calls.add, f"z:{self._path}", method)


class CallsTogether:
    """Calls that wait to be sent. `send` is the method of the JVM that makes them all."""

    def __init__(self, send: Callable[[str], str], client: Any) -> None:
        self._send = send
        self._client = client
        self.message = 0
        """The number of the message that is being written."""
        self._lines: list[str] = []
        self._count = 0
        self._used: list[Any] = []  # an object that Python drops is gone in the JVM, too

    def on(self, target: Any) -> LaterObject:
        """Return an object of the JVM, for calls of its methods."""
        self._used.append(target)
        return LaterObject(self, target._target_id, target)

    def add(self, target: str, method: str, *arguments: Any) -> LaterObject:
        words = map(self._word, arguments)
        self._lines += [target, method, *words, "e"]
        self._count += 1
        return LaterObject(self, f"${self._count - 1}")

    def now(self, *wanted: Any) -> list[Any]:
        """Make the calls, and return what some of them have given. What the others have given is
        gone. Of other things than results, return each as it is.

        Raises:
            Py4JError: a call has failed. The calls after it are not made.
            TypeError: a result that was not wanted of an earlier message is gone.
        """
        for each in wanted:
            _require_there(each)
        self.message += 1
        lines, used = self._lines, self._used
        self._lines, self._used, self._count = [], [], 0
        places = [each._place if _waits(each) else "" for each in wanted]
        message = "\n".join([" ".join(filter(None, places)), *lines])
        answers = iter(self._send(message).split("\n") if lines else ())
        del used
        return [
            get_return_value(next(answers)[1:], self._client) if place else _known(each)
            for each, place in zip(wanted, places, strict=True)
        ]

    def _word(self, argument: Any) -> str:
        if isinstance(argument, LaterObject):
            _require_there(argument)
            return argument._place if _waits(argument) else f"r{argument._place}"
        if isinstance(argument, JavaObject):
            self._used.append(argument)
            return f"r{argument._target_id}"
        return str(get_command_part(argument)).removesuffix("\n")


def _waits(thing: Any) -> bool:
    return isinstance(thing, LaterObject) and thing._known is None


def _require_there(thing: Any) -> None:
    if _waits(thing) and thing._message != thing._calls.message:
        raise TypeError("the result of a call that was sent is gone: nobody wanted it")


def _known(thing: Any) -> Any:
    return thing._known if isinstance(thing, LaterObject) else thing


class CallsAtOnce:
    """Stands in for `CallsTogether` where each call is sent at once."""

    def on(self, target: Any) -> Any:
        return target

    def now(self, *wanted: Any) -> list[Any]:
        return list(wanted)

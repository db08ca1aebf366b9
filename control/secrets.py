"""The check that no address in a configuration, which Spark shows, has a password."""

from __future__ import annotations

import re

_WITH_USER = re.compile(r"[^?#]*@")


def has_password(address: str) -> bool:
    """Return whether a user or a password stands before the host: `http://user:word@host`."""
    return _WITH_USER.match(address) is not None

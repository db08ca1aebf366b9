"""A check for passwords in addresses: Spark shows its configuration to everybody."""

from __future__ import annotations

import re

_WITH_USER = re.compile(r"[^?#]*@")


def has_password(address: str) -> bool:
    """Return True if the address names a user or a password, as in `http://user:word@host`."""
    return _WITH_USER.match(address) is not None

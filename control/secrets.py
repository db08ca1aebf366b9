"""What must not stand in a configuration that Spark shows to whoever looks at a job."""

from __future__ import annotations

import re

_WITH_USER = re.compile(r"[^?#]*@")


def has_password(address: str) -> bool:
    """Whether an address has anything in front of its host, as in `http://user:word@host`."""
    return _WITH_USER.match(address) is not None

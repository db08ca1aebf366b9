"""What must not stand in a configuration that Spark shows to whoever looks at a job."""

from __future__ import annotations

import re

_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def has_password(text: str) -> bool:
    """Whether an address among the text names a password, as in `http://user:word@host`."""
    return _WITH_PASSWORD.search(text) is not None

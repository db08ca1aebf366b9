"""Write the reference page of the configuration from the code that reads the keys.

`python -m headgate.infra.reference` writes `docs/configuration.md`; a test fails when the page is
stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..connectors.spark.settings import OPTIONS, PREFIX
from ..control.kafka.settings import OWNED
from ..control.options import Option
from ..storage.stores.s3.settings import OPTIONS as S3_OPTIONS
from ..storage.stores.s3.settings import SECRET_OPTIONS

_PAGE = Path("docs/configuration.md")
_MIB = 1 << 20
_UNITS_MS = (("days", 86_400_000), ("hours", 3_600_000), ("seconds", 1_000))

_HEAD = f"""# Configuration

Written from the code by `python -m headgate.infra.reference`. Do not edit it by hand.

All keys start with `{PREFIX}` and are read from the Spark configuration when
`headgate.attach(spark)` is called. A key that does not exist is an error that names the nearest.

"""

_KAFKA = f"""
## `{PREFIX}kafka.*`

What follows the prefix goes to the Kafka client (librdkafka) as it is, for example
`{PREFIX}kafka.security.protocol`. These are refused, because Headgate's promises rest on them or
because a secret would stand in the Spark configuration:

"""

_S3 = f"""
## `{PREFIX}s3.*`

Options of the object store. Credentials are none of them: they come from the ordinary AWS chain.

"""


def options_table(prefix: str, options: Iterable[Option]) -> str:
    """Return every option with its default, as a Markdown table."""
    rows = [
        f"| `{prefix}{o.name}` | {_default(o.name, o.default)} | {o.meaning} |" for o in options
    ]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def configuration_page() -> str:
    """Return the text of the page."""
    return (
        f"{_HEAD}{options_table(PREFIX, OPTIONS)}"
        f"{_KAFKA}{_refused_table(OWNED)}"
        f"{_S3}{options_table(f'{PREFIX}s3.', S3_OPTIONS)}\n{_refused_table(SECRET_OPTIONS)}"
    )


def _refused_table(refused: Mapping[str, str]) -> str:
    rows = [f"| {why} | `{'` `'.join(names.split())}` |" for why, names in refused.items()]
    return "\n".join(["| why | refused |", "| --- | --- |", *rows]) + "\n"


def _default(key: str, value: Any) -> str:
    """Return a default as a user types it, and in a larger unit if that is easier to read."""
    if value is None or not str(value):
        return "(empty)"
    if key.endswith("bytes") and value >= _MIB:
        return f"`{value}` ({value // _MIB} MiB)"
    if key.endswith(".ms"):
        unit, size_ms = next((u for u in _UNITS_MS if value % u[1] == 0), ("ms", 1))
        return f"`{value}` ({value // size_ms} {unit})"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else _PAGE
    page.write_text(configuration_page())


if __name__ == "__main__":
    main()

"""Write the reference page of the configuration from the code that reads the keys.

`python -m headgate.infra.reference` writes `docs/configuration.md`; a test fails when the page is
stale.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..connectors.spark.settings import PREFIX, keys
from ..control.kafka.settings import OWNED
from ..storage.stores.s3.settings import OWN_OPTIONS, PASSED_OPTIONS, SECRET_OPTIONS

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

"""

_CREDENTIALS = """
Credentials are no options. They come from the ordinary AWS chain: environment, profile, web
identity or instance role, in the driver and in every executor. These are refused: """


def settings_table() -> str:
    """Return every key of Headgate with its default, as a Markdown table."""
    rows = [
        f"| `{PREFIX}{key.metadata['key']}` | {_default(key.metadata['key'], key.default)} "
        f"| {key.metadata['doc']} |"
        for key in keys()
    ]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def configuration_page() -> str:
    """Return the text of the page."""
    options = _names(OWN_OPTIONS | PASSED_OPTIONS)
    return (
        f"{_HEAD}{settings_table()}{_KAFKA}{_kafka_table()}"
        f"{_S3}Options of the object store: {options}.\n"
        f"{_CREDENTIALS}{_names(SECRET_OPTIONS)}.\n"
    )


def _kafka_table() -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in OWNED.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {reason} | {' '.join(names)} |" for reason, names in by_reason.items()]
    return "\n".join(["| why | refused |", "| --- | --- |", *rows]) + "\n"


def _names(options: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(options))


def _default(key: str, value: Any) -> str:
    """Return a default as a user types it, and in a larger unit if that is easier to read."""
    if value == "":
        return "(empty)"
    if key.endswith(".bytes") and value >= _MIB:
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

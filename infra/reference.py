"""Write the reference page of the configuration from the code that reads the keys.

`python -m headgate.infra.reference` writes `docs/configuration.md`; a test fails when the page is
stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..connectors.spark.settings import FOR_THE_NEXT_ACTION, OPTIONS, PREFIX
from ..control.kafka.settings import OWNED
from ..control.options import Option
from ..storage.stores.s3.settings import OPTIONS as S3_OPTIONS
from ..storage.stores.s3.settings import SECRET_OPTIONS

_PAGE = Path("docs/configuration.md")

_HEAD = f"""# Configuration

Written from the code by `python -m headgate.infra.reference`. Do not edit it by hand.

All keys start with `{PREFIX}` and are read from the Spark configuration of the session. A key that
does not exist is an error that names the nearest. The table says from when on a key holds:

- *next action*: a change, by `spark.conf.set` or SQL's `SET`, holds for the next action,
  `repartition` or `offload`. For a stream's batches, switching off holds at once, and all else from
  the stream's start;
- *attach*: read when `headgate.attach(spark)` is called. A later change is ignored, and the
  driver's log has a warning that names the key.

`with hg.paused():` lets Spark run the session's actions for a while without a change of a key.

Values are written as Spark's are:

- a size as `64m` or `1g`: a whole number with `b`, `k`, `m`, `g`, `t` or `p` (or `kb`, `kib`,
  …), in multiples of 1024;
- a time as `500ms`, `60s`, `30min`, `1h` or `1d`: a whole number with `us`, `ms`, `s`, `m` or
  `min`, `h`, `d`;
- a number alone is bytes in a key that ends in `bytes`, milliseconds in one that ends in `ms`,
  seconds in one that ends in `_s`;
- capitals do not matter in these, in `true` and `false`, and in a choice of words.

"""

_KAFKA = f"""
## `{PREFIX}kafka.*`

What follows the prefix goes to the Kafka client (librdkafka), for example
`{PREFIX}kafka.security.protocol`, and holds from attach on. `10s` for a key that ends in `.ms`, and
`1m` for one that ends in `.bytes`, become the numbers that the client takes. These are refused,
because Headgate's promises rest on them or because a secret would stand in the Spark configuration:

"""

_S3 = f"""
## `{PREFIX}s3.*`

Options of the object store. Credentials are none of them: they come from the ordinary AWS chain.

"""


def options_table(prefix: str, options: Iterable[Option]) -> str:
    """Return every option with its default and the time from which on it holds, as a Markdown
    table."""
    rows = [
        f"| `{prefix}{o.name}` | {_default(o)} | {_holds(prefix, o)} | {o.meaning} |"
        for o in options
    ]
    heads = ["| key | default | holds from | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*heads, *rows]) + "\n"


def _holds(prefix: str, option: Option) -> str:
    is_next = prefix == PREFIX and option.name in FOR_THE_NEXT_ACTION
    return "next action" if is_next else "attach"


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


def _default(option: Option) -> str:
    text = "" if option.default is None else option.kind.text_of(option.default)
    return f"`{text}`" if text else "(empty)"


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else _PAGE
    page.write_text(configuration_page())


if __name__ == "__main__":
    main()

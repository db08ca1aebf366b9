"""The addresses of stores: a URL, or several for a store that is spread over several buckets."""

from __future__ import annotations

import re

_COMMA = re.compile(r"\s*,\s*(?=\w+://)")  # other commas belong to a folder's name


def urls_of(address: str) -> tuple[str, ...]:
    """Return the URLs of an address, in their order. `s3a` is Spark's own name for `s3`."""
    urls = _COMMA.split(address.strip())
    return tuple(f"s3{url[3:]}" if url.lower().startswith("s3a://") else url for url in urls)


def is_same_place(first: str, second: str) -> bool:
    """Return True if both addresses name the same buckets in the same order, or if one of them is
    not known. With another order or number of buckets, objects would be looked for elsewhere."""
    places = [[url.rstrip("/") for url in urls_of(each)] for each in (first, second)]
    return [""] in places or places[0] == places[1]

"""The addresses of stores: a URL, or several for a store that is spread over several buckets."""

from __future__ import annotations

import re

_COMMA = re.compile(r"\s*,\s*(?=\w+://)")  # other commas belong to a folder's name


def urls_of(address: str) -> tuple[str, ...]:
    """Return the URLs of an address, in their order."""
    return tuple(_COMMA.split(address.strip()))


def is_same_place(first: str, second: str) -> bool:
    """Return True if both addresses name the same buckets in the same order, or if one of them is
    not known. With another order or number of buckets, objects would be looked for elsewhere."""
    places = [[url.rstrip("/") for url in urls_of(each)] for each in (first, second)]
    return [""] in places or places[0] == places[1]

"""The costs of requests and bytes, by kind of store.

The prices are the list prices of us-east-1 in US dollars. The times were measured on MinIO, and
estimated for S3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from ...control.addresses import urls_of
from .s3.settings import s3_settings

GIB = 1 << 30
_AMAZON = re.compile(r"(^|\.)(amazonaws\.com(\.cn)?|api\.aws)$")
_MONTH_HOURS = 730


@dataclass(frozen=True, slots=True)
class StoreCosts:
    """The costs of one kind of store."""

    put_usd: float
    get_usd: float
    put_gib_usd: float
    get_gib_usd: float
    gib_month_usd: float
    request_s: float
    """The time that a request takes of a reader that sends several at once."""

    def usd(self, puts: int, gets: int, put_bytes: float = 0, get_bytes: float = 0) -> float:
        """Return the price of requests and of the bytes that they move."""
        moved_usd = put_bytes / GIB * self.put_gib_usd + get_bytes / GIB * self.get_gib_usd
        return puts * self.put_usd + gets * self.get_usd + moved_usd

    def storage_usd(self, stored_bytes: float, hours: float = 1.0) -> float:
        return stored_bytes / GIB * self.gib_month_usd * hours / _MONTH_HOURS


COSTS: Mapping[str, StoreCosts] = MappingProxyType(
    {
        "s3-standard": StoreCosts(5e-6, 4e-7, 0.0, 0.0, 0.023, 4e-3),
        "s3-express": StoreCosts(1.13e-6, 3e-8, 0.0032, 0.0006, 0.11, 1.5e-3),
        "own": StoreCosts(0.0, 0.0, 0.0, 0.0, 0.0, 1.4e-3),
    }
)


def kind_of(address: str, options: Mapping[str, str]) -> str:
    """Return the kind of a store, the dearest one if it is spread over several."""
    kinds = {_kind_of(url, options) for url in urls_of(address)}
    return max(kinds, key=lambda kind: COSTS[kind].put_usd)


def _kind_of(url: str, options: Mapping[str, str]) -> str:
    """Return the kind of a store. A store in files, or with an endpoint that is not Amazon's, is a
    user's own. The environment may name the endpoint."""
    bucket = url.removeprefix("s3://").split("/")[0]
    if not url.startswith("s3://"):
        return "own"
    if not _AMAZON.search(urlsplit(s3_settings(bucket, options).service_url).hostname or ""):
        return "own"
    return "s3-express" if bucket.endswith("--x-s3") else "s3-standard"

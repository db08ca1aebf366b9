"""Limits on what exchanges may cost, and the check before the cost arises."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, fields
from math import inf

from ....control.errors import Invalid
from ....control.units import read_bytes
from ....storage.reading.ways import puts
from ....storage.stores.costs import StoreCosts
from ..report import JobReport

_LOG = logging.getLogger("headgate")
_USD = re.compile(r"\$(\d+(?:\.\d+)?)")
_REQUESTS = re.compile(r"(\d+) ?requests")
_BYTES = re.compile(r"(\d+) ?bytes")
_IN_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an exchange, or of all exchanges of a job."""

    usd: float = 0.0
    requests: float = 0
    stored_bytes: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.usd + other.usd,
            self.requests + other.requests,
            self.stored_bytes + other.stored_bytes,
        )

    def __str__(self) -> str:
        usd = f"${self.usd:,.9f}".rstrip("0").rstrip(".")
        amounts = usd, f"{self.requests:,} requests", f"{self.stored_bytes:,} bytes"
        names = [field.name for field in fields(self)]
        stated = [a for a, n in zip(amounts, names, strict=True) if getattr(self, n) < inf]
        return ", ".join(stated)


NO_LIMIT = Cost(inf, inf, inf)


def read_budget(text: str) -> Cost:
    """Return the limits in a text such as `$0.50, 100,000 requests, 20g`, also as `Cost` prints
    them. No text sets no limit.

    Raises:
        ValueError: a part of the text is no amount, or two are of the same kind.
    """
    limits: dict[str, float] = {}
    parts = _IN_THOUSANDS.sub(lambda match: match[0].replace(",", ""), text).split(",")
    for part in filter(None, (part.strip().lower() for part in parts)):
        name, amount = _amount(part)
        if name in limits:
            raise ValueError(f"{part!r} is the second limit of its kind")
        limits[name] = amount
    return Cost(**{f.name: limits.get(f.name, inf) for f in fields(Cost)})


def _amount(part: str) -> tuple[str, float]:
    if match := _USD.fullmatch(part):
        return "usd", float(match[1])
    if match := _REQUESTS.fullmatch(part):
        return "requests", int(match[1])
    if match := _BYTES.fullmatch(part):
        return "stored_bytes", int(match[1])
    if (size_bytes := read_bytes(part)) >= 0:
        return "stored_bytes", size_bytes
    raise ValueError(f"{part!r} is below 0")


def spent(report: JobReport, costs: StoreCosts) -> Cost:
    """Return the cost of a job so far, with the requests that the readers of its results are still
    expected to send."""
    unread = [
        each
        for each in report.results
        if each.released is None and each.consumed < each.subpartitions
    ]
    gets = report.gets + sum(max(0, each.predicted_gets - each.gets) for each in unread)
    usd = costs.usd(report.puts, gets, report.stored_bytes, report.read_bytes)
    return Cost(usd, report.puts + gets, report.stored_bytes)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a session, and the costs by which exchanges are chosen and checked."""

    exchange: Cost
    job: Cost
    warn: bool
    """True if an exchange that exceeds a limit runs."""
    costs: StoreCosts

    @property
    def is_limited(self) -> bool:
        return (self.exchange, self.job) != (NO_LIMIT, NO_LIMIT)

    def writing(self, objects: int, stored_bytes: int) -> Cost:
        """Return the cost of storing so many bytes in objects."""
        sent = puts(objects, stored_bytes)
        return Cost(self.costs.usd(sent, 0, stored_bytes), sent, stored_bytes)

    def check_least(self, label: str, spent: Cost, objects: int, stored_bytes: float) -> None:
        """Check what an exchange of about so many bytes costs at least: if all rows are of one
        subpartition, readers send one request for each object.

        Raises:
            Invalid: a limit would be exceeded, and the exchange is not to run then.
        """
        reading = Cost(self.costs.usd(0, objects, 0, stored_bytes), objects)
        cost = self.writing(objects, int(stored_bytes)) + reading
        self.check(label, cost, spent + cost)

    def check(self, label: str, cost: Cost, job_cost: Cost) -> None:
        """Check the predicted cost of an exchange, and that of its job with it.

        Raises:
            Invalid: a limit would be exceeded, and the exchange is not to run then.
        """
        for named, limit, total in (
            ("budget", self.exchange, cost),
            ("budget.job", self.job, job_cost),
        ):
            if any(getattr(total, f.name) > getattr(limit, f.name) for f in fields(Cost)):
                key = f"spark.headgate.{named}"
                text = f"{label} would bring the cost to {total}, over {key} = {limit}"
                if not self.warn:
                    raise Invalid(f"{text}: raise the limit, or set spark.headgate.budget.warn")
                _LOG.warning("%s", text)

"""The rights that the page of operations asks of a broker for a deployment."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from headgate.control.ids import JobId
from headgate.control.kafka.settings import KafkaSettings

NOWHERE = "127.0.0.1:1"
_NAMES = st.text("ab-._", min_size=1, max_size=4) | st.sampled_from(["jobs", "masters"])
_PAGE = Path(__file__).parents[2] / "docs/operations.md"
_PREFIXES = st.text("ab-._", min_size=1, max_size=4) | st.sampled_from(["team", "team-b"])


@given(_PREFIXES, st.sampled_from(["", "-jobs", "-masters", "-reader", "-b"]), _NAMES)
@example("team", "-b", "etl")
@example("team", "-masters", "etl")
def test_rights_of_one_deployment_cover_no_other(prefix: str, more: str, name: str) -> None:
    """The rights that the page of operations asks for cover every name of a deployment, and none of
    one whose prefix begins with the same characters."""
    page = _PAGE.read_text()
    literal, prefixed = (
        {
            pattern.replace("<prefix>", prefix)
            for pattern in re.findall(rf"`([^`]+)` \({kind}\)", page)
        }
        for kind in ("literal", "prefixed")
    )

    def is_covered(named: str) -> bool:
        return named in literal or any(named.startswith(pattern) for pattern in prefixed)

    def names(of: str) -> list[str]:
        settings = KafkaSettings(NOWHERE, of)
        jobs = [] if name == "masters" else [settings.group(JobId(name))]
        topics = [topic.name for topic in settings.topics]
        return [*jobs, *topics, settings.slot(name), settings.masters_group, settings.readers_group]

    assert all(map(is_covered, names(prefix)))
    if more:
        assert not any(map(is_covered, names(prefix + more)))

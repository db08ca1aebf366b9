"""Views of the log can be read by eye, at 100 columns, with nothing cut off."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

import pytest
from rich.console import Console, RenderableType

from headgate.control.events.types import (
    AttemptFailed,
    AttemptStarted,
    Body,
    Consumable,
    Consumed,
    Deleted,
    Event,
    JobRegistered,
    PartitionAccepted,
    PartitionRegistered,
    Produced,
    Recorded,
    Released,
    ResultRegistered,
    SegmentSummary,
)
from headgate.control.ids import AttemptId, JobId, PartitionId, ResultId
from headgate.control.inquiry.audit import Audit, fold
from headgate.infra.cli import fields, lives, views
from headgate.infra.doctor import CheckOutcome, CheckVerdict
from headgate.storage.stores.port import BlobStat
from headgate.storage.upkeep.fsck import Finding, Findings, Kind

JOB, RESULT = JobId("j"), ResultId("1-0001")
COLUMNS = 100
PARTITIONS, SUBPARTITIONS = 3, 5


def attempt(partition: int, task: int) -> AttemptId:
    return AttemptId(PartitionId(RESULT, partition), 1, task)


def produced(partition: int, task: int) -> Produced:
    segment = SegmentSummary(0, 1_200_000, 5_000, -7, b"\x00\xff")
    return Produced(attempt(partition, task), (segment,))


LIFE: tuple[tuple[int, Body], ...] = (
    (0, JobRegistered("per-job", "0.1.0", "tests")),
    (10, ResultRegistered(RESULT, PARTITIONS, SUBPARTITIONS, "", "repartition")),
    (20, PartitionRegistered(RESULT, 0, PARTITIONS)),
    (100, AttemptStarted(attempt(0, 1), "h")),
    (150, AttemptFailed(attempt(0, 1), "OSError")),
    (200, AttemptStarted(attempt(0, 2), "h")),
    (300, produced(0, 2)),
    (310, Consumable(attempt(0, 2))),
    (400, AttemptStarted(attempt(1, 3), "h")),
    (600, Consumed(RESULT, 0, 2, 9, 2_000, 480_000, 1)),
    (700, Consumed(RESULT, 1, 2, 9, 2_000, 480_000, 1)),
    (900, Released(RESULT, (attempt(0, 2), attempt(1, 3)), "closed")),
    (1000, Deleted(RESULT, (attempt(0, 2), attempt(1, 3)), 1)),
)


def records(life: Iterable[tuple[int, Body]] = LIFE) -> list[Recorded]:
    decisions = (Consumable, Released, PartitionAccepted)
    return [
        Recorded(at, Event(f"e{at}", JOB, "", ms, "t", 0 if isinstance(b, decisions) else None, b))
        for at, (ms, b) in enumerate(life)
    ]


def shown(*lines: RenderableType) -> list[str]:
    console = Console(width=COLUMNS, color_system=None)
    with console.capture() as capture:
        for line in lines:
            console.print(line, soft_wrap=not hasattr(line, "columns"))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_every_event_is_one_line_that_fits() -> None:
    """Each event takes one line of at most 100 columns, with its offset, kind and amount."""
    lines = shown(*(views.event_row(record, UTC) for record in records()))
    assert len(LIFE) == len(lines)
    assert max(map(len, lines)) <= COLUMNS
    assert (lines[6].split()) == [
        "6",
        "00:00:00.300",
        "Produced",
        "1-0001/0/1-2",
        "5,000",
        "rows",
        "1.2",
        "MB",
        "t",
    ]
    assert lines[7].endswith("←0")


def test_a_timeline_has_one_row_a_partition() -> None:
    """A timeline has a row per partition, with the winner's times since the job's start, and dashes
    for phases that were not reached."""
    rows = [line.split() for line in shown(lives.timeline(records()))[2:]]
    assert rows[0][:7] == ["1-0001/0", "1-2", "5,000", "1.2", "MB", "0.300", "0.310"]
    assert rows[0][7:12] == ["3", "of", "5", "0.900", "1.000"]
    assert rows[1][:6] == ["1-0001/1", "1-3", "-", "-", "-", "-"]
    assert rows[2][:6] == ["1-0001/2", "-", "-", "-", "-", "-"]
    assert len(rows) == PARTITIONS


def test_a_timeline_fits_and_shows_each_phase() -> None:
    """A bar shows the times of writing, consumable and released, and fits 100 columns."""
    lines = shown(lives.timeline(records()))
    assert max(map(len, lines)) <= COLUMNS
    assert not any("…" in line for line in lines)
    bar = lines[2].split()[-1]
    assert bar[0] == "░"
    assert sorted(bar, key="░█▒".index) == list(bar)
    assert {"░", "█", "▒"} == set(bar)


def test_many_partitions_are_summed_up() -> None:
    """Partitions beyond the shown ones are counted in a last row."""
    lines = shown(lives.timeline(records(), shown=1))
    assert lines[3].split()[:8] == ["and", "2", "0", "0", "bytes", "0", "of", "2"]
    assert len(lines) == 4


def test_an_empty_log_has_an_empty_timeline() -> None:
    """The timeline of a job without results is empty, not an error."""
    assert len(shown(lives.timeline(records(LIFE[:1])))) == 2
    assert len(shown(lives.timeline([]))) == 2


@pytest.mark.parametrize(
    ("partition", "kinds"),
    [
        ("1-0001/1", {"AttemptStarted"}),
        ("0", {"AttemptStarted", "AttemptFailed", "Produced", "Consumable"}),
    ],
)
def test_a_partition_has_its_own_events(partition: str, kinds: set[str]) -> None:
    """The events of a partition are those of its own attempts and those of its whole result, no
    others."""
    common = {
        "JobRegistered",
        "ResultRegistered",
        "PartitionRegistered",
        "Consumed",
        "Released",
        "Deleted",
    }
    assert common | kinds == {
        record.event.kind for record in records() if views.concerns(record.event.body, partition)
    }
    other = {o.event.kind for o in records() if views.concerns(o.event.body, "other/0")}
    assert {"JobRegistered"} == other


def test_an_event_as_json_keeps_everything() -> None:
    """The JSON form of an event holds envelope and body, with bytes as base64."""
    event = fields.event_fields(records()[6])
    assert tuple(event[name] for name in ("offset", "kind", "job", "time_ms")) == (
        6,
        "Produced",
        "j",
        300,
    )
    assert event["body"]["segments"][0]["index"] == "AP8="


def test_a_state_is_a_row_a_result() -> None:
    """The table of a state shows what was true at its offset, and nothing later."""
    facts = [r for r in records() if r.event.basis is None]
    (early,), (late,) = fold(facts[:5]), fold(facts[:-1])
    rows = [shown(views.state_table(state))[3] for state in (early, late)]
    expected = ["0 0 of 3 1 0 of 5 - -", "1 1 of 3 1 3 of 5 - -"]
    assert [f"1-0001 repartition 3 x 5 {rest}" for rest in expected] == [
        " ".join(row.split()) for row in rows
    ]


def test_findings_are_counted_beyond_the_first() -> None:
    """A bucket full of orphans does not push out other findings, and all findings are counted."""
    orphans = tuple(Finding(Kind.ORPHAN, f"o{n}", 5, "unknown") for n in range(25))
    missing = Finding(Kind.MISSING, "m", 5, "gone")
    lines = shown(*views.findings(Findings((*orphans, missing), (BlobStat("x", 9),))))
    assert lines[0].startswith("missing")
    assert lines[11] == "orphan            and 15 more"
    assert lines[-1] == "26 findings: 1 object (9 bytes) as the log says"


def test_an_audit_names_the_offset_of_a_violation() -> None:
    """Violations and logs without a head are listed job by job, followed by the totals."""
    audits = (
        Audit(JOB, 4, 2, 1),
        Audit(JobId("k"), 1, 0, 0, violation="differs", offset=7),
        Audit(JobId("l"), 0, 0, 0, whole=False),
        Audit(JobId("m"), 2, 0, 0, start=40),
    )
    lines = shown(*views.audit_rows(audits))
    assert lines[0] == "offset 7 of job k: differs"
    assert lines[1].startswith("job l: its first events and its snapshot are gone")
    assert lines[2].endswith("verified from the snapshot at offset 40")
    assert lines[3] == "4 jobs, 7 facts, 2 decisions: 1 violation, 1 decision still due"


def test_a_check_says_how_long_it_took() -> None:
    """A check is one line with its verdict, its name, its time and its advice."""
    (line,) = shown(views.check_row(CheckOutcome("java", CheckVerdict.WRONG, "install it", 1_200)))
    assert line.split() == ["✗", "wrong", "java", "1,200", "ms", "install", "it"]

"""Reports are shown as tables, and stay the tuples and dataclasses that they are."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pandas
import pytest

from headgate.connectors.spark.operations import Attempts
from headgate.connectors.spark.report import Hold, JobReport, ResultReport, Results
from headgate.connectors.spark.tables import Explanation, Shown
from headgate.control.ids import AttemptId, PartitionId, ResultId
from headgate.control.inquiry.history import Made
from headgate.control.model.state import Forgotten, Reads, Written
from headgate.storage.stores.request_meter import RequestCounts

FIRST = ResultReport(
    ResultId("1-0001"), "orders by customer", 8, 4, 8, 4, 1_234_567, 9_620, 0, 8, 8, 8, 4_656, None
)
SECOND = replace(
    FIRST, result=ResultId("1-0002"), consumable=3, predicted_gets=-1, superseded=2, rows=7
)
EVIL = "<script>alert(1)</script> \x1b[31mred\n\u202e" + "wide 表 " * 10


class Tags(HTMLParser):
    """The elements, texts and attributes of a page that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {f"{name}={value}" for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def html(value: Shown) -> str:
    """Return the HTML that a notebook shows."""
    page = value._repr_html_()
    assert page is not None
    return page


def job(results: Results) -> JobReport:
    forgotten = Forgotten(5, Written(1, 6, 7, 80), Reads(1, 2, 3, 4))
    return JobReport(
        "nightly", results, {"a cache <b>": 2, "x": 1}, forgotten, RequestCounts(puts=1)
    )


def test_results_in_a_terminal() -> None:
    """Text is left, numbers are right, and nothing but lines of plain text is printed."""
    assert str(Results([FIRST, SECOND])).splitlines() == [
        "result  what                state      size       rows  stored  PUT  GET  predicted"
        "    read  superseded",
        "1-0001  orders by customer  complete  8 x 4  1,234,567  9.6 kB    8    8          8"
        "  4.7 kB",
        "1-0002  orders by customer  3 of 8    8 x 4          7  9.6 kB    8    8           "
        "  4.7 kB           2",
    ]
    assert repr(Results([FIRST])) == str(Results([FIRST]))
    assert str(Results()) == "none"


def test_results_are_the_tuple_that_they_were() -> None:
    """They compare, hash, pickle and are taken apart as a tuple, and pandas takes them."""
    plain, results = (FIRST, SECOND), Results([FIRST, SECOND])
    assert (results, len(results), hash(results)) == (plain, 2, hash(plain))
    assert (results[-1], results[:1], [*results]) == (SECOND, (FIRST,), [FIRST, SECOND])
    assert isinstance(results, tuple)
    assert isinstance(results[:1], Results)
    copy = pickle.loads(pickle.dumps(results))
    assert (copy, type(copy)) == (plain, Results)
    assert pandas.DataFrame(results)["rows"].tolist() == [FIRST.rows, SECOND.rows]
    assert job(results) == job(Results(plain))
    fields = asdict(job(results))["results"]  # of the same class, with other items
    assert repr(fields) == repr((asdict(FIRST), asdict(SECOND)))
    assert fields._repr_html_() is None


def test_a_long_list_is_cut() -> None:
    """The newest rows are shown, with the number of the others and the slice that has them."""
    many = Results(replace(FIRST, result=ResultId(f"1-{n:04}")) for n in range(203))
    lines = str(many).splitlines()
    assert lines[-1] == "183 earlier ones are not shown: slice this with [:183]"
    assert (len(lines), lines[-2][:6]) == (22, "1-0202")
    assert str(many[:183]).splitlines()[-2][:6] == "1-0182"
    tags = Tags(html(many))
    assert (tags.tags.count("tr"), lines[-1] in tags.texts) == (21, True)
    assert "183 earlier ones are not shown: slice this.results with [:183]" in str(job(many))
    assert "not shown" not in str(many[:20])
    assert len(html(many)) < 20_000


def test_text_of_users_is_harmless() -> None:
    """Labels are escaped in HTML. In a terminal they are cut, and act on nothing."""
    results = Results([replace(FIRST, label=EVIL, released=EVIL), SECOND])
    tags = Tags(html(results))
    assert "script" not in tags.tags
    assert any(text.startswith("<script>alert(1)</script> \\x1b[31mred\\n") for text in tags.texts)
    lines = str(results).splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert "…" in lines[1]
    assert "b" not in Tags(html(job(results))).tags
    assert "script" not in Tags(Explanation(EVIL, EVIL, results.table())._repr_html_()).tags


def test_html_is_small_and_plain() -> None:
    """A notebook's theme gives the colours, and nothing is loaded."""
    page = html(job(Results([FIRST, SECOND])))
    tags = Tags(page)
    assert (
        {"table", "th", "td"}
        <= {*tags.tags}
        <= {"div", "table", "thead", "tbody"}
        | {
            "tr",
            "th",
            "td",
        }
    )
    assert tags.attributes == {
        "class=tex2jax_ignore mathjax_ignore",
        "style=text-align:left",
        "style=text-align:right",
    }
    assert len(page) < 3_000


def test_a_job_report() -> None:
    """The totals stand above the table. The dataclass is as it was."""
    report = job(Results([FIRST]))
    head, native, single, *table = str(report).splitlines()
    assert head == (
        "job nightly: 6 exchanges, 5 of them forgotten, 14 PUT, 11 GET, 9.7 kB stored, "
        "4.7 kB read, $0.0001"
    )
    assert single == "1 shuffle ran in Spark: x"
    assert native == "2 shuffles ran in Spark: a cache <b>"
    assert table == str(Results([FIRST])).splitlines()
    assert report == replace(report)
    assert report != job(Results([SECOND]))
    holds = (Hold("native shuffle", 2, "a.setting", None), Hold("cached partition", 1, "b", 600.0))
    assert str(replace(report, holds=holds)).splitlines()[3:5] == [
        "executors with 2 native shuffles stay for ever: a.setting",
        "executors with 1 cached partition stay 600 s after their last task: b",
    ]


def test_attempts() -> None:
    """The story of a partition has a row for each attempt."""
    attempt = AttemptId(PartitionId(ResultId("1-0001"), 0), 1, 7)
    story = Attempts([Made(attempt, "its map stage was run", "failed: x", (3, 4))])
    assert story == (Made(attempt, "its map stage was run", "failed: x", (3, 4)),)
    assert str(story).splitlines() == [
        "attempt       outcome    because                offsets",
        "1-0001/0/1-7  failed: x  its map stage was run     3, 4",
    ]
    assert str(Attempts()) == "none"


def test_an_explanation_is_its_text() -> None:
    """It is a string for programs and in a terminal; in a notebook it is a table, with the plan
    folded below it."""
    page = Explanation("Scan <x>", "(1) a: runs in Headgate", Results([FIRST]).table())
    assert page == "Scan <x>\n\n(1) a: runs in Headgate"
    assert (repr(page), page.count("runs in Headgate")) == (str(page), 1)
    tags = Tags(page._repr_html_())
    assert {"table", "details", "pre"} <= {*tags.tags}
    assert "Scan <x>" in tags.texts
    assert pickle.loads(pickle.dumps(page)) == page


@pytest.mark.parametrize("value", [Results([FIRST]), job(Results([FIRST]))])
def test_a_value_in_a_container(value: object) -> None:
    """In f-strings and lists a table is the same text."""
    assert f"{value}" == str(value)
    assert str([value]) == f"[{value}]"

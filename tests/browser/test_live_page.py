"""The live page in a real browser. `make test-ui` runs these tests.

With SCREENSHOTS=docs the pictures of `docs/watching.md` are taken anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from playwright.sync_api import expect

from headgate.control.clock import SYSTEM_CLOCK
from headgate.control.errors import Unavailable
from headgate.control.ids import JobId
from headgate.control.memory.log import MemoryFollower
from headgate.infra.serving import ServerSettings
from headgate.infra.ui.server import UiServer
from headgate.storage.stores.memory import Objects

from ..doubles.groups import JOBS, OPENING, Storage, drive, state_facts
from ..doubles.scripted_jobs import ScriptedJob, TimedLog
from ..doubles.watched_jobs import LOST, ORDERS, STRAGGLER, NightlyOrders, joined_by, other_jobs
from .conftest import Page, serving, shoot

MANY = 10_000


@pytest.fixture
def log() -> TimedLog:
    return TimedLog()


@pytest.fixture
def server(log: TimedLog) -> Iterator[UiServer]:
    with serving(log, ServerSettings()) as server:
        yield server


def colours(page: Page) -> set[str]:
    """Return the colours in the picture of partitions that are exactly of the legend."""
    script = """() => {
      const canvas = document.getElementById("lives"), seen = new Set();
      const style = getComputedStyle(document.documentElement);
      const { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      const hex = (n) => n.toString(16).padStart(2, "0");
      for (let at = 0; at < data.length; at += 4) {
        seen.add(`#${hex(data[at])}${hex(data[at + 1])}${hex(data[at + 2])}`);
      }
      const names = ["writing", "consumable", "lost", "released", "deleted"];
      return names.filter((name) => seen.has(style.getPropertyValue(`--${name}`).trim()));
    }"""
    return set(page.evaluate(script))


def known(page: Page, text: str) -> None:
    """Wait until the page of an exchange counts its partitions so."""
    expect(page.locator("#known")).to_have_text(text)


@pytest.fixture
def orders(page: Page, server: UiServer, log: TimedLog) -> NightlyOrders:
    """Return a job whose last exchange is open in the browser, with one partition being written."""
    orders = NightlyOrders(log, SYSTEM_CLOCK.now_ms())
    orders.begin()
    orders.write({STRAGGLER})
    page.goto(f"{server.url}#/job/{ORDERS}/1-0003")
    known(page, "23 consumable · 1 being written")
    expect(page.locator("#pulse")).to_have_text("live")
    return orders


def test_jobs_appear_and_open(page: Page, server: UiServer, log: TimedLog, pictures: Path) -> None:
    """A job appears in the list when it is registered, and grows. The keyboard alone leads to it,
    and to its exchanges."""
    now_ms = SYSTEM_CLOCK.now_ms()
    other_jobs(log, now_ms)
    page.goto(server.url)
    expect(page.locator("tbody tr")).to_have_count(5)
    expect(page.locator("#pulse")).to_have_text("live")
    orders = NightlyOrders(log, now_ms)
    orders_row = page.locator("tbody tr", has=page.get_by_role("link", name=ORDERS, exact=True))
    expect(orders_row).to_contain_text("running")
    orders.begin()
    orders.write({STRAGGLER})
    expect(orders_row).to_contain_text("886.0 MB")
    shoot(page, pictures, "jobs", "light")
    page.keyboard.press("/")
    page.keyboard.type("nightly")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_title(f"{ORDERS} · Headgate")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator(".graph a")).to_have_count(3)
    expect(page.locator(".graph")).to_contain_text(re.compile(r"written in \d.*, read in \d"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_title(f"1-0003 · {ORDERS} · Headgate")


def test_masters_come_and_go(page: Page, server: UiServer, log: TimedLog, pictures: Path) -> None:
    """The page of the masters says that there are none, shows those that join, what they decide,
    and that one of them is gone."""
    log.clock.at_ms = SYSTEM_CLOCK.now_ms()
    page.goto(server.url)
    page.locator("#masters").click()
    expect(page).to_have_title("Masters · Headgate")
    expect(page.locator("#group")).to_contain_text("No master belongs to the group")
    for job in JOBS:
        state_facts(log, job, *OPENING, clock=log.clock)
    expect(page.locator("#group")).to_contain_text("8 jobs of mode session, and no master")
    masters = [joined_by(log, f"headgate-masters-{number}") for number in range(2)]
    drive(log, Storage(), *masters)
    rows = page.locator("tbody tr", has_text="member")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("job-")
    expect(page.locator(".tile", has_text="partitions held")).to_contain_text("4 of 4")
    shoot(page, pictures, "masters", "light")
    log.evict("headgate-masters-1")
    expect(page.locator("#group")).to_contain_text("2 partitions without a master")
    expect(page.locator("tbody")).to_contain_text(["not in the group", "nobody"])
    page.keyboard.press("Escape")
    expect(page.locator("tbody tr")).to_have_count(8)


def test_a_loss_and_its_repair_show(page: Page, orders: NightlyOrders, pictures: Path) -> None:
    """A lost partition shows in the counts and in the picture at once, and so does its repair; the
    partition tells why it was made again."""
    assert {"writing", "consumable"} == colours(page)
    orders.lose(LOST)
    known(page, "22 consumable · 1 being written · 1 lost, made again")
    assert {"writing", "consumable", "lost"} == colours(page)
    page.locator("#lives").focus()
    for _ in range(LOST + 1):
        page.keyboard.press("ArrowDown")
    expect(page.locator("main")).to_contain_text("was superseded")
    orders.repair(LOST)
    known(page, "23 consumable · 1 being written")
    expect(page.locator("main")).to_contain_text("404 read twice by reader 31")
    orders.read()
    expect(page.locator("main")).to_contain_text("32 of 32")
    shoot(page, pictures, "exchange", "light", "dark")


def test_the_slider_goes_back(page: Page, orders: NightlyOrders, log: TimedLog) -> None:
    """The page goes back to any event, stays there while the job goes on, also when it is loaded
    again, and follows the log again when it is asked to."""
    lost = orders.lose(LOST)
    known(page, "22 consumable · 1 being written · 1 lost, made again")
    orders.repair(LOST)
    known(page, "23 consumable · 1 being written")
    slider, when = page.locator("#slider"), page.locator("#when")
    everything = int(slider.get_attribute("max"))
    page.locator("h2").first.click()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#pulse")).to_have_text("in the past")
    expect(when).to_contain_text(f"event {everything - 1} of {everything}")
    page.locator("#offset").fill(str(lost))
    page.keyboard.press("Enter")
    known(page, "22 consumable · 1 being written · 1 lost, made again")
    assert f"at={lost}" in page.url
    slider.fill("190")
    known(page, "13 consumable · 3 being written · 8 not begun")
    orders.finish(STRAGGLER)
    expect(slider).to_have_attribute("max", str(everything + 3))
    expect(when).to_contain_text("event 190 of")
    page.reload()
    expect(when).to_contain_text("event 190 of")
    slider.focus()
    page.keyboard.press("Home")
    known(page, "24 not begun")
    expect(slider).not_to_have_value("1")
    page.locator("#live").click()
    known(page, "24 consumable")


def test_a_job_ends_before_our_eyes(page: Page, orders: NightlyOrders, pictures: Path) -> None:
    """The end of a job shows: its results are deleted, and every decision is verified."""
    orders.lose(LOST)
    orders.repair(LOST)
    orders.finish(STRAGGLER)
    orders.read()
    known(page, "24 consumable")
    page.keyboard.press("Escape")
    expect(page).to_have_title(f"{ORDERS} · Headgate")
    shoot(page, pictures, "job", "dark")
    orders.end()
    expect(page.locator(".tile .state")).to_have_text("ended")
    page.locator("#verify").click()
    expect(page.locator("main")).to_contain_text("✓ every decision follows from its facts")
    offset = page.locator("#offset").input_value()
    expect(page.locator("main")).to_contain_text(f"none still due, up to offset {offset}")
    assert ["$0", "< $0.000001", "$0.000005", "$1.25"] == page.evaluate(
        "[0, 4e-7, 5e-6, 1.25].map(usd)"
    )
    page.locator("td").get_by_role("link", name="1-0003", exact=True).click()
    known(page, "24 deleted")
    assert "deleted" in colours(page)


def test_a_job_is_compared_with_the_bucket(page: Page, log: TimedLog) -> None:
    """A viewer has a job compared with its bucket, and sees what is wrong there; a page that has no
    store says how it gets one."""
    job = ScriptedJob(log, "j", start_ms=SYSTEM_CLOCK.now_ms())
    job.register("1-0001", 6, 4, "repartition")
    job.write_all("1-0001", range(4))
    objects: Objects = {"r/j/x/left-behind": (b"orphan", "w")}
    with serving(log, ServerSettings(), objects) as server:
        page.goto(f"{server.url}#/job/j")
        page.locator("#fsck").click()
        expect(page.locator("main pre")).to_contain_text("left-behind")
        expect(page.locator("main")).to_contain_text("5 findings: nothing is stored, compared at")
    with serving(log, ServerSettings()) as server:
        page.goto(f"{server.url}#/job/j")
        page.locator("#fsck").click()
        expect(page.locator("main")).to_contain_text("start `headgate ui` with --store")


def test_a_page_that_is_drawn_again_keeps_what_is_in_hand(
    page: Page, orders: NightlyOrders
) -> None:
    """Each second the page is drawn again. A link that is pressed for longer still opens, a table
    stays where it was scrolled to, and selected text stays selected while the page moves on."""
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 700, "height": 860})
    exchanges = page.locator(".scroll").first
    exchanges.evaluate("(box) => { box.scrollLeft = 50; }")
    age = page.locator(".tile", has_text="age").locator("b")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.tile > span'))")
    for _ in range(2):
        expect(age).not_to_have_text(age.text_content())
    assert 50 == exchanges.evaluate("(box) => box.scrollLeft")
    assert "decided by its driver, epoch 1" == page.evaluate("getSelection().toString()")
    page.get_by_role("link", name="1-0002", exact=True).last.hover()
    page.mouse.down()
    expect(age).not_to_have_text(age.text_content())
    page.mouse.up()
    expect(page).to_have_title(f"1-0002 · {ORDERS} · Headgate")


def test_text_of_users_is_shown_as_it_is(page: Page, server: UiServer, log: TimedLog) -> None:
    """Markup in names and reasons is shown as text on every page, and does nothing."""
    nasty = "<img src=x onerror=\"document.title='x'\"><b>bold"
    job = ScriptedJob(log, "j", nasty, SYSTEM_CLOCK.now_ms())
    job.register("r", 1, 1, nasty)
    job.register("s", 1, 1, nasty, "r")
    attempt = job.begin("r", 0, nasty)
    job.produce(attempt, 1, 1)
    job.lose(attempt, nasty)
    for place in ("", "#/job/j", "#/job/j/r?partition=0"):
        page.goto(server.url + place)
        page.reload()
        expect(page.locator("main")).to_contain_text(nasty)
        expect(page.locator("main img, main b >> text=bold")).to_have_count(0)
        assert "x" != page.title()


def test_a_quiet_job_is_alive_until_its_driver_is_silent(
    page: Page, server: UiServer, log: TimedLog
) -> None:
    """Heartbeats, and their end, show on the page of a job without an event."""
    ScriptedJob(log, "j", start_ms=SYSTEM_CLOCK.now_ms() - 52_000)
    page.goto(f"{server.url}#/job/j")
    heard = page.locator(".tile", has_text="driver heard before").locator("b")
    expect(heard).to_have_text(re.compile("5. s"))
    expect(page.locator(".tile .state")).to_contain_text("silent since")
    log.clock.at_ms = SYSTEM_CLOCK.now_ms()
    log.beat(JobId("j"))
    expect(heard).to_have_text(re.compile(r"^\d\.\d+ s"))
    log.clock.at_ms -= 57_000
    log.beat(JobId("j"))
    expect(page.locator(".tile .state")).to_have_text("neglected")


def test_a_broker_that_is_back_shows(
    page: Page, orders: NightlyOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log cannot be read, the page says so, and not any more when it can be read again,
    also if no event has come."""

    def away(follower: MemoryFollower) -> NoReturn:
        raise Unavailable("the broker is away")

    problem = page.locator("#problem")
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFollower, "end", away)
        expect(problem).to_have_text("the broker is away")
        expect(page.locator("#pulse")).to_have_text("no answer")
    expect(problem).to_be_hidden()
    expect(page.locator("#pulse")).to_have_text("live")


def test_the_slider_wins_over_news(page: Page, orders: NightlyOrders) -> None:
    """The last place that was asked for shows, also if events come before the answer. So does the
    end of the log, if that was asked for last."""
    waiting: list[Any] = []
    page.route(re.compile("event=100"), lambda route: waiting.append(route))
    slider, when = page.locator("#slider"), page.locator("#when")
    slider.fill("100")
    slider.fill("150")
    orders.finish(STRAGGLER)
    page.wait_for_timeout(1_500)
    waiting.pop().continue_()
    expect(when).to_contain_text("event 150 of")
    slider.fill("100")
    page.locator("#live").click()
    known(page, "24 consumable")
    waiting.pop().abort()


def test_narrow_windows_and_long_texts_fit(page: Page, server: UiServer, log: TimedLog) -> None:
    """No page is wider than its window, nor does one text fill it: the whole of a long one is in
    its hint. An address that is none is a job that is not there."""
    long = "W" * 10_000
    job = ScriptedJob(log, "j", long, SYSTEM_CLOCK.now_ms())
    job.register("r", 2, 1, long)
    job.register("s", 2, 1, long, "r")
    job.lose(job.begin("r", 0, long), long)
    page.set_viewport_size({"width": 400, "height": 800})
    for place in ("", "#/job/j", "#/job/j/r?partition=0", "#/masters"):
        page.goto("about:blank")
        page.goto(server.url + place)
        expect(page.locator("#pulse")).to_have_text("live")
        width, height = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        assert (400, True) == (width, height < 8_000), (place, height)
    page.goto(f"{server.url}#/job/j")
    expect(page.locator(f"td[title='{long}']").first).to_be_visible()
    page.goto(f"{server.url}#/job/%E0%A4%A")
    expect(page.locator("#problem")).to_contain_text("job id '%E0%A4%A'")


def test_a_lost_server_shows_and_comes_back(page: Page, server: UiServer, log: TimedLog) -> None:
    """A page whose server is gone says so, and is live again with the next server."""
    ScriptedJob(log, "j", start_ms=SYSTEM_CLOCK.now_ms())
    page.goto(f"{server.url}#/job/j")
    expect(page.locator("#pulse")).to_have_text("live")
    port = server.server_address[1]
    server.end()
    expect(page.locator("#pulse")).to_have_text("not connected")
    with serving(log, ServerSettings(port=port)):
        expect(page.locator("#pulse")).to_have_text("live")


def test_ten_thousand_partitions_are_drawn(page: Page, server: UiServer, log: TimedLog) -> None:
    """An exchange with 10,000 partitions is read, counted and drawn, and the slowest is on top."""
    job = ScriptedJob(log, "wide", start_ms=SYSTEM_CLOCK.now_ms() - 60_000)
    job.register("r", MANY, MANY, "repartition")
    job.write_all("r", range(1, MANY), 3)
    job.write_all("r", [0], 900)
    with server.reader.history("wide"):
        pass
    began_s = SYSTEM_CLOCK.monotonic_s()
    page.goto(f"{server.url}#/job/wide/r")
    expect(page.locator("#known")).to_have_text("10,000 consumable")
    took_s = SYSTEM_CLOCK.monotonic_s() - began_s
    print(f"10,000 partitions were drawn {took_s:.2f} s after the page was asked for")
    page.locator("#order").select_option("longest")
    page.locator("#lives").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("main h2", has_text=re.compile("^Partition 0 "))).to_be_visible()


def test_a_token_is_asked_for_once(page: Page, log: TimedLog) -> None:
    """The address with the token opens the page, and is not seen again."""
    ScriptedJob(log, "j", start_ms=SYSTEM_CLOCK.now_ms())
    with serving(log, ServerSettings(token="secret")) as server:
        plain = server.url.split("?")[0]
        page.goto(plain)
        expect(page.locator("body")).to_contain_text("the token is missing")
        page.goto(server.url)
        expect(page.locator("tbody tr")).to_have_count(1)
        assert plain == page.url.split("#")[0]
        page.close()

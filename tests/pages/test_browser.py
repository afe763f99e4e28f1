"""The pages of a night and of a fleet in a real browser: Chromium of the distribution, driven over its own protocol."""

from __future__ import annotations

import os
import re
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.pages.fleet_page import fleet_html_of
from ralph.pages.page import html_of
from tests.pages.contents import NIGHT, SEVERAL
from tests.pages.fleet_rows import night_of
from tests.pages.hostile_content import FULL, HOSTILE, Walk
from tests.pages.test_fleet_page import FULL_FLEET
from tests.patience import PATIENCE_S
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from ralph.pages.content import PageContent

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = program_or_skip("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to run as root.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield launched
        launched.close()


class Opened:
    """A page that the browser shows, with all that it asked for, complained about or ran."""

    def __init__(self, browser: Browser, file: Path, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})  # type: ignore[arg-type]
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.url = file.as_uri()
        self.page.goto(self.url)

    def _dismiss(self, dialog: object) -> None:
        self.complaints.append("a dialog: a script of the content ran")
        dialog.dismiss()  # type: ignore[attr-defined]

    def ends_quietly(self) -> None:
        self.context.close()
        assert (self.complaints, self.requests) == ([], [self.url])


@pytest.fixture
def opened(browser: Browser, tmp_path: Path):
    def show(content: PageContent, **options: object) -> Opened:
        file = tmp_path / "night.html"
        file.write_bytes(html_of(content, UTC))
        return Opened(browser, file, **options)

    return show


def test_nothing_of_the_content_runs_and_nothing_is_asked_for(opened) -> None:
    shown = opened(Walk(HOSTILE).over(FULL))
    page: Page = shown.page
    page.click("#unfold")
    page.fill("#find", "onerror")
    page.click("#next")
    assert re.fullmatch(r"1 of \d+\+?", page.inner_text("#found"))
    assert page.locator("img, iframe, object, embed, base, link, form:not(#search)").count() == 0
    # The whole page was parsed: its foot is outside everything that could have swallowed it.
    assert page.locator("body > footer").count() == 1
    shown.ends_quietly()


def test_a_reader_folds_searches_and_goes_to_the_moment_and_back(opened) -> None:
    shown = opened(NIGHT)
    page: Page = shown.page
    fifth = page.locator("details.part", has=page.locator(".no", has_text=re.compile("^5$")))
    assert not fifth.evaluate("part => part.open")
    page.click("text=Iteration 5: killed")
    assert fifth.evaluate("part => part.open")
    fifth.locator("> summary").click()
    assert not fifth.evaluate("part => part.open")
    # The word is in the results of folded calls alone.
    page.fill("#find", "specs/totals.md:31")
    page.press("#find", "Enter")
    first = page.inner_text("#found")
    number, found = re.fullmatch(r"(\d+) of (\d+)", first).groups()  # type: ignore[union-attr]
    assert number == "1"
    assert int(found) > 20
    hit = page.locator("details.e[open]")
    assert hit.count() == 1
    assert hit.locator("pre.r").is_visible()
    page.press("#find", "Shift+Enter")
    assert page.inner_text("#found") == f"{found} of {found}"
    # From the entry to its moment, and from a bar back to an entry.
    entry = page.locator("details.e[open]").first
    entry.locator("a").click()
    cursor = page.locator("#work0-time .cursor")
    assert cursor.get_attribute("x1") == entry.locator("a").get_attribute("data-x") + "%"  # type: ignore[operator]
    page.click("#fold")
    assert page.locator("main details[open]").count() == 0
    bar = page.locator("#work0-time .bars a").nth(40)
    bar.locator("rect").click()
    target = page.locator(f"details.e[id='{(bar.get_attribute('href') or '')[1:]}']")
    assert target.evaluate("entry => entry.open && entry.closest('.part').open")
    assert target.locator("pre").first.is_visible()
    narrow = page.locator("#work0-time .lanes").bounding_box()
    page.click("button[data-zoom='2']")
    wide = page.locator("#work0-time .lanes").bounding_box()
    assert narrow is not None
    assert wide is not None
    assert wide["width"] == pytest.approx(narrow["width"] * 2)
    shown.ends_quietly()


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light")]
)
def test_it_fits_the_screen_in_light_and_dark(opened, tmp_path, name: str, width: int, scheme: str) -> None:
    """Nothing but the page itself scrolls a phone: no line is wider than the screen, apart from those of a diff."""
    shown = opened(SEVERAL, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page: Page = shown.page
    folder = Path(os.environ.get("RALPH_PICTURES", tmp_path))
    page.screenshot(path=folder / f"{name}.png", full_page=True)
    page.click("#unfold") if width > 600 else page.evaluate(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    overview = page.locator(".wide")
    assert overview.evaluate("one => one.scrollWidth <= one.clientWidth")
    red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
    assert (red < 64) is (scheme == "dark")
    page.emulate_media(media="print")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    shown.ends_quietly()


def test_it_can_be_read_without_the_script(opened) -> None:
    shown = opened(NIGHT, java_script_enabled=False)
    page: Page = shown.page
    assert not page.locator("#tools").is_visible()
    assert not page.locator(".zoom").is_visible()
    part = page.locator("details.part").nth(2)
    part.locator("> summary").click()
    entry = part.locator("details.e").nth(1)
    entry.locator("> summary").click()
    assert entry.locator("pre").first.is_visible()
    shown.ends_quietly()


def test_the_page_of_a_fleet_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    file.write_bytes(fleet_html_of(Walk(HOSTILE).over(FULL_FLEET), UTC))
    hostile = Opened(browser, file)
    hostile.page.click("#unfold")
    assert hostile.page.locator("img, iframe, object, embed, base, link, form:not(#search)").count() == 0
    assert hostile.page.locator("body > footer").count() == 1
    hostile.ends_quietly()
    file.write_bytes(fleet_html_of(night_of(), UTC))
    shown = Opened(browser, file, viewport={"width": 390, "height": 844})
    page: Page = shown.page
    assert page.locator("table.jobs").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    shown.ends_quietly()

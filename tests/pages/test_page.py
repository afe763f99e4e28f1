"""The HTML page of a night, without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, timedelta, timezone
from html.parser import HTMLParser

from msgspec.structs import replace

from ralph.pages.content import CheckRun, Count, PageContent, Stretch, StretchKind, TranscriptEntry
from ralph.pages.page import html_of
from tests.pages.contents import BEGAN_S, NIGHT, SEVERAL, failed_session, loop_of_eight
from tests.pages.hostile_content import FULL, HOSTILE, Walk
from tests.rows import every_row


class Structure(HTMLParser):
    """The elements of a page in their order, with their attributes, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def refuse_actions(self) -> None:
        """Fails if an attribute runs something, loads something or leads out of the page."""
        for tag, attributes in self.elements:
            for name, value in attributes.items():
                assert not name.startswith("on"), (tag, name)
                assert name not in {"style", "src", "action", "xlink:href"}, (tag, name)
                if name == "href":
                    assert (value or "").startswith("#"), (tag, value)

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]


def test_texts_of_others_are_text_in_every_field() -> None:
    """The page has the same elements with the same attributes, whatever its texts say."""
    hostile, harmless = Walk(HOSTILE), Walk("harmless {}")
    page = html_of(hostile.over(FULL), UTC)
    structure = Structure(page)
    assert structure.shape == Structure(html_of(harmless.over(FULL), UTC)).shape
    own = {"html", "head", "meta", "title", "style", "script", "body", "header", "main", "article", "footer"}
    assert own <= {tag for tag, _ in structure.elements}
    structure.refuse_actions()
    # The style and the script are the first and the last of the texts with braces, and hold nothing of the night.
    (style,) = re.findall(rb"<style>(.*?)</style>", page, flags=re.DOTALL)
    (script,) = re.findall(rb"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert b"field" not in style.replace(b"field.", b"")
    assert b"alert" not in style + script


def test_every_text_of_a_night_is_on_the_page() -> None:
    walk = Walk("{}")
    page = html_of(walk.over(FULL), UTC).decode()
    missing = {name for name, number in walk.names.items() if number not in page}
    assert missing == set()


def test_hidden_characters_are_shown_by_name_and_colours_of_programs_are_left_out() -> None:
    place = "a\x1b[1;31mb\x1b[0m\x07\x85\u202e\ud800\U000e0041"
    page = html_of(PageContent(made_at_s=0.0, version="1", sections=(), place=place)).decode()
    assert "ab␇⟨U+0085⟩⟨U+202E⟩⟨U+D800⟩⟨U+E0041⟩" in page


def test_characters_that_make_other_code_look_the_same_are_named_and_those_that_scripts_need_stay() -> None:
    place = "a\u3164 is\u200dAdmin x\ufe01\ufe0f\U000e0101 \u0645\u06cc\u200c\u062e 1\ufe0f\u20e3 \U0001f469\u200d\U0001f680"
    page = html_of(PageContent(made_at_s=0.0, version="1", sections=(), place=place)).decode()
    assert (
        "a⟨U+3164⟩ is⟨U+200D⟩Admin x⟨U+FE01⟩⟨U+FE0F⟩⟨U+E0101⟩ \u0645\u06cc\u200c\u062e 1\ufe0f\u20e3" in page
    )
    assert "\U0001f469\u200d\U0001f680" in page


def test_the_policy_allows_the_own_style_and_script_and_nothing_else() -> None:
    page = html_of(NIGHT, UTC)
    assert b'<meta name="generator" content="ralph report">' in page[:2048]
    (policy,) = re.findall(rb'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    hashes = {
        name: base64.b64encode(
            hashlib.sha256(re.findall(rb"<%s>(.*?)</%s>" % (name, name), page, re.DOTALL)[0]).digest()
        )
        for name in (b"style", b"script")
    }
    assert policy == (
        b"default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; base-uri 'none'; form-action 'none'"
        % (hashes[b"style"], hashes[b"script"])
    )
    assert b"http://" not in page.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in page


def test_the_headline_has_the_answers_to_the_three_questions() -> None:
    texts = " ".join(" ".join(Structure(html_of(SEVERAL, UTC)).texts).split())
    for words in (
        "Done exit 0",
        "$15.61 of $20",
        "Iteration 5: killed (signal 9, perhaps for its memory; it was resumed)",
        "The loop waited 2 times for the API or the machine: 51m00s",
        "Stopped at a limit exit 3",
        "Continue with ralph --resume e2b94d10 --max-budget-usd 2",
        "Session 0aa1 could not be read",
    ):
        assert words in texts
    headline = texts.partition("Timeline")[0]
    assert "On the way:" in headline
    assert "waits of the loop" not in headline


def test_an_interruption_is_named_beside_what_happened_on_the_way() -> None:
    stopped = replace(
        failed_session(), outcome="interrupted", reason="SIGTERM", counts=(Count("retries", 2, ()),)
    )
    text = " ".join(Structure(html_of(replace(SEVERAL, sections=(stopped,)), UTC)).texts)
    wrong = " ".join(text.split("What went wrong")[1].split("Timeline")[0].split())
    assert wrong.startswith("The run ended early: interrupted (SIGTERM) On the way: retries (2)")


def test_a_run_that_a_fork_copied_is_shown_and_counts_nowhere() -> None:
    section = SEVERAL.sections[1]
    copied = replace(section.parts[0], number=7, is_copied=True, entries=())
    page = html_of(replace(NIGHT, sections=(replace(section, parts=(copied, *section.parts)),)), UTC)
    texts = " ".join(" ".join(Structure(page).texts).split())
    assert "Runs 1 14 turns" in texts
    assert "Stopped at a limit (copied)" in texts
    assert "It is not in the totals" in texts
    assert "model 11m09s" in texts
    assert "Run 7" not in texts


def test_times_are_in_the_zone_of_the_reader() -> None:
    page = html_of(NIGHT, timezone(timedelta(hours=5, minutes=30))).decode()
    assert "times in UTC+05:30" in page
    assert "24 Nov 2026 05:00" in page  # the loop began at 23:30 UTC


@every_row("at_s", [float("nan"), float("inf"), 1e300, -1e300])
def test_no_time_is_too_strange_for_a_page(at_s: float) -> None:
    part = replace(
        NIGHT.sections[0].parts[0],
        began_s=at_s,
        stretches=(Stretch(StretchKind.MODEL, at_s, at_s, "turn 1"), Stretch(StretchKind.TOOL, 0, at_s, "x")),
        entries=(replace(NIGHT.sections[0].parts[0].entries[0], at_s=at_s),),
    )
    section = replace(NIGHT.sections[0], parts=(part,), ended_s=at_s, costs=(), cost_usd=at_s)
    page = html_of(replace(NIGHT, sections=(section,), made_at_s=at_s), UTC)
    assert b"NaN" not in page
    assert b"nan%" not in page


def test_the_headline_counts_what_has_no_room_on_the_page() -> None:
    section = loop_of_eight()
    commit = replace(section.commits[0], more_files=99_900, more_added=7_000, shown_by="git show 1")
    page = html_of(
        replace(
            NIGHT, sections=(replace(section, commits=(commit,), more_commits=1_700, more_files=98_000),)
        ),
        UTC,
    ).decode()
    assert "<dt>Commits</dt><dd><b>1701</b>" in page
    assert f"{98_000 + len(section.files)} files" in page
    assert f"{99_900 + len(commit.files)} files" in page
    assert "99900 files more: <code>git show 1</code>" in page


def test_a_long_night_makes_a_small_page() -> None:
    """50 iterations with 1,250 stretches in all, and 5,000 entries with 150 characters each."""
    entries = tuple(
        TranscriptEntry(
            f"e{number}", NIGHT.sections[0].parts[0].entries[1].kind, BEGAN_S + number, "t" * 50, "x" * 100
        )
        for number in range(100)
    )
    parts = tuple(
        replace(
            NIGHT.sections[0].parts[0],
            number=number,
            began_s=BEGAN_S + number * 576,
            ended_s=BEGAN_S + (number + 1) * 576,
            entries=tuple(replace(entry, id=f"{entry.id}-{number}") for entry in entries),
            stretches=tuple(
                Stretch(StretchKind.MODEL, at_s, at_s + 5, f"turn {number}", "e1")
                for at_s in (BEGAN_S + number * 576 + step * 22.8 for step in range(25))
            ),
            check=CheckRun("failed (exit 1)", has_passed=False, output="1 failed", name="check"),
        )
        for number in range(50)
    )
    section = replace(loop_of_eight(), parts=parts, ended_s=BEGAN_S + 28_800)
    page = html_of(replace(NIGHT, sections=(section,)), UTC)
    texts = 5_000 * 150
    assert len(page) - texts < 300 * 5_000
    timeline = page[: page.index(b"What happened")]
    assert 200 < timeline.count(b'class="k-model"') <= 260

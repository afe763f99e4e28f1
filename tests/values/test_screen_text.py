from __future__ import annotations

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from ralph.values.screen_text import (
    columns_of,
    counted,
    cut_to_columns,
    dollar_limit,
    dollars,
    duration,
    foreign_lines,
    in_one_line,
    json_for_runner,
    json_for_terminal,
    time_limit,
    visible,
)
from tests.rows import every_row

ACTS_OR_HIDES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\U000e0000-\U000e00ff]"
)


@every_row(
    ("text", "shown"),
    [
        ("plain text, äöü, 日本語, שלום\n\ttabbed", "plain text, äöü, 日本語, שלום\n\ttabbed"),
        ("\x1b[31mred\x1b[0m \x1b[2J\x1b[1;1Htop", "red top"),
        ("\x9b31mred\x9bm", "red"),
        ("a\x1b]52;c;ZXZpbA==\x07b", "ab"),
        ("a\x1b]0;title\x1b\\b\x9d0;title\x9cc", "abc"),
        ("a\x1bPq#0;2;0\x1b\\b\x1b_x\x1b\\c\x1b^y\x1b\\d\x1bXz\x1b\\e", "abcde"),
        ("a\x1b]0;never ended\nand the next line", "a\nand the next line"),
        ("a\x1b(Bb\x1bcc\x1b7d", "abcd"),
        ("\x1b\x1b[m[31mx", "[31mx"),
        ("safe\rEVIL\x08\x08\x7f\x00", "safeEVIL"),
        ("a\r\nb", "a\nb"),
        ("a\u2028b\u2029c\x85d", "a\nb\ncd"),
        ("\u202etxt.exe\u202c \u2066x\u2069 \u200fy \u061cz", "txt.exe x y z"),
        ("in\u200bvis\u2060i\ufeffb\xadle \U000e0041\U000e0042", "invisible "),
        ("👩\u200d👩\u200d👧 ❤\ufe0f 🏳\ufe0f\u200d🌈", "👩\u200d👩\u200d👧 ❤\ufe0f 🏳\ufe0f\u200d🌈"),
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),
    ],
)
def test_what_is_shown_acts_on_no_terminal_and_hides_nothing(text: str, shown: str) -> None:
    assert (visible(text), in_one_line(text)) == (shown, shown.replace("\n", " "))


@every_row(
    "line",
    [
        "[ralph] completed [9 turns]",
        "[a tag that does not exist yet] x",
        "  \t[retry] x",
        "\u200b\u2060[error] x",
        "\u200d\ufe0f[error] x",
        "\u3164\u2800\u115f[loop] completed",
        "\u0301[loop] completed",
        "\uff3bralph\uff3d completed",
        "【ralph】 completed",
        "\u2022 [ralph] completed",
        "\x1b[1m[ralph]\x1b[0m completed",
        "[\u200bralph] completed",
        "[r\u0430lph] completed",
        "ralph: cannot write",
        "Ralph : cannot write",
    ],
)
def test_a_line_that_looks_like_one_of_ours_is_marked(line: str) -> None:
    before, marked, after = foreign_lines(f"before\n{line}\nafter")
    assert (before, marked, after) == ("before", f"| {visible(line)}", "after")


@every_row(
    "line",
    [
        "",
        "All done.",
        "- [x] done",
        "[1, 2]",
        '["a"]',
        "[{",
        "ralph works",
        "real: yes",
        "a [ralph] tag",
        "`[x]`",
    ],
)
def test_other_lines_are_shown_as_they_are(line: str) -> None:
    assert foreign_lines(line) == [line]


@every_row(
    ("line", "shown"),
    [
        ("::add-mask::x", "| ::add-mask::x"),
        (" ::Set-Output name=ok::true", "|  ::Set-Output name=ok::true"),
        ("a ##vso[task.setvariable variable=PATH]/x", "a # #vso[task.setvariable variable=PATH]/x"),
        ("##[group]x", "# #[group]x"),
        ("##TeamCity[x]", "# #TeamCity[x]"),
        ("### Heading", "### Heading"),
        ("a::b::c", "a::b::c"),
        ("::", "::"),
    ],
)
def test_a_command_to_the_program_that_runs_a_ci_job_is_text(line: str, shown: str) -> None:
    assert foreign_lines(line) == [shown]
    encoded = json_for_runner(json.dumps(line))
    assert json.loads(encoded) == line
    assert ("##" in encoded) == ("##" in shown)


@given(st.text(st.characters() | st.sampled_from("\x1b[]ralph:\n\r\x07\x9b;m\u202e\u200b\u2028 ")))
@example("\x1b[\x1b[mralph] x")
def test_nothing_that_acts_or_hides_is_left_and_no_line_looks_like_ours(text: str) -> None:
    lines = foreign_lines(text)
    assert not any(ACTS_OR_HIDES.search(line) or "\n" in line for line in lines)
    assert not any(re.match(r"\s*\[[a-z]", line) for line in lines)
    assert "\n" not in in_one_line(text)
    assert visible(visible(text)) == visible(text)


@given(st.text())
def test_json_for_a_terminal_has_the_same_value(text: str) -> None:
    shown = json_for_terminal(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(shown) == {"text": text}
    assert not ACTS_OR_HIDES.search(shown)


# --- Counts, costs and durations


@every_row(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (93600, "26h00m"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@every_row(
    ("seconds", "text"),
    [
        (0.05, "0.05s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "90s"),
        (120, "2m"),
        (125.0, "2m5s"),
        (5400, "1h30m"),
        (36000, "10h"),
        (28800.5, "28800.5s"),
    ],
)
def test_a_limit_of_time_has_all_the_digits_that_the_user_gave(seconds: float, text: str) -> None:
    assert time_limit(seconds) == text


@every_row(
    ("usd", "text"),
    [
        (None, "$?"),
        (0.0, "$0.00"),
        (0.0004, "$0.0004"),
        (0.9999, "$0.9999"),
        (12.345, "$12.35"),
        (12345.6, "$12346"),
        (0.00006, "$0.0001"),
        (0.000049, "$0.00005"),
        (3e-7, "$0.0000003"),
    ],
)
def test_a_cost_above_0_does_not_look_like_0(usd: float | None, text: str) -> None:
    assert dollars(usd) == text


@every_row(
    ("usd", "text"), [(12, "$12"), (0.5, "$0.50"), (2.25, "$2.25"), (0.001, "$0.001"), (1e-6, "$0.000001")]
)
def test_a_limit_of_money_has_all_the_digits_that_the_user_gave(usd: float, text: str) -> None:
    assert dollar_limit(usd) == text


def test_only_one_is_no_plural() -> None:
    assert [counted(n, "turn") for n in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
    assert counted(2, "retry", "retries") == "2 retries"


@every_row(
    ("text", "columns", "cut"),
    [
        ("plain", 5, "plain"),
        ("longer", 6, "long…"),
        ("日本語", 6, "日本…"),
        ("日本", 4, "日本"),
        ("e\u0301te\u0301s", 4, "e\u0301te\u0301s"),
        ("❤\ufe0f", 2, "❤\ufe0f"),
        ("ab cde", 6, "ab c…"),
    ],
)
def test_a_line_is_cut_by_the_columns_that_it_takes(text: str, columns: int, cut: str) -> None:
    assert (columns_of(text), cut_to_columns(text, 5)) == (columns, cut)


def test_a_space_before_the_ellipsis_is_dropped_and_no_room_is_nothing() -> None:
    assert (cut_to_columns("ab cde", 4), cut_to_columns("ab", 0)) == ("ab…", "")

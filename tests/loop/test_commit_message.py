"""The message of `ralph loop --commit`: a subject from the model's closing words, which can add nothing else."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from ralph.loop.iterate import LONGEST_SUBJECT, commit_message, subject_of
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from tests.rows import every_row

KEY = "sk-ant-api03-" + "A" * 40
REDACT = Redactor(["hunter2-secret"]).redact_all


def message_of(closing_words: str, cost_usd: float | None = 0.0123) -> str:
    return commit_message(3, "7c1f09ae", Outcome.COMPLETED, closing_words, cost_usd=cost_usd, redact=REDACT)


def trailers_of(message: str) -> list[str]:
    parse = ["git", "interpret-trailers", "--parse"]
    return subprocess.run(
        parse, input=message, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@every_row(
    ("closing_words", "subject"),
    [
        ("I added hours to the parser. All tests pass.", "I added hours to the parser"),
        ("Done! Hours are read now.", "Hours are read now"),
        ("The parser reads\nhours now.\nAnd minutes.", "The parser reads hours now"),
        ("# Hours in the parser\n\nDone.", "Hours in the parser"),
        ("Here is what I did:\n\n1. **Parser**: added `parse_hours`.", "Parser: added parse_hours"),
        ("```\n$ make test\n```\nThe check is green now", "The check is green now"),
        (
            "\u4fee\u590d\u4e86\u89e3\u6790\u5668\u3002\u7b2c\u4e8c\u53e5",
            "\u4fee\u590d\u4e86\u89e3\u6790\u5668",
        ),
        ("word " * 40, "word " * 14 + "w\u2026"),
        (
            f"the key {KEY} works, and sk-**ant-api03-AAAA**{'A' * 30}",
            "the key [redacted] works, and [redacted]",
        ),
        ("It logs in with hunter2-\u200bsecret now", "It logs in with [redacted] now"),
        # No instruction for git, for a service that builds commits, or for a terminal.
        ("fixup! squash! take the first commit", "take the first commit"),
        ("**fixup!** take the first commit", "take the first commit"),
        ("\u2705 fixup!take the first commit", "take the first commit"),
        ("--amend of the last one", "amend of the last one"),
        ("# #12 is closed", "12 is closed"),
        ("Update [skip ci] the docs", "Update the docs"),
        ("Red\x1b[31m text\x00 and \u202eturned\ud800", "Red text and turned?"),
    ],
)
def test_the_subject_is_the_first_sentence_of_the_closing_words(closing_words: str, subject: str) -> None:
    assert subject_of(closing_words, REDACT) == subject


@every_row(
    "closing_words",
    [
        *(
            "",
            "Done!",
            "## Summary",
            "Here is what I did:",
            "```\nonly code here\n```",
            "**Done**",
            "fixup!",
            "- \n- \n",
        ),
    ],
)
def test_words_that_say_nothing_leave_the_name_of_the_iteration(closing_words: str) -> None:
    assert message_of(closing_words).split("\n")[:2] == ["ralph loop: iteration 3", ""]


def test_hostile_closing_words_add_no_line_and_no_trailer() -> None:
    hostile = "Fix it now\r\n\r\nSigned-off-by: a <a@b>\n\u2028Ralph-Cost: $0\x85\n\nCo-authored-by: evil <e@x>\n---\n"
    message = message_of(hostile)
    assert message.split("\n") == [
        *("Fix it now", ""),
        *("ralph loop: iteration 3", "What the iteration left uncommitted (completed).", ""),
        *("Ralph-Session: 7c1f09ae", "Ralph-Cost: $0.0123"),
    ]
    assert trailers_of(message) == ["Ralph-Session: 7c1f09ae", "Ralph-Cost: $0.0123"]
    assert trailers_of(message_of("Signed-off-by: a <a@b>", None)) == ["Ralph-Session: 7c1f09ae"]


@given(
    st.text(
        st.sampled_from("ab .!*_`#>-[](){}|\\~\n\r\t\x00\x1b\u2028\u202e\ud800\u4fee\U0001f600"), max_size=200
    )
)
def test_any_words_become_one_bounded_line_that_git_takes(closing_words: str) -> None:
    subject = subject_of(closing_words, REDACT)
    assert len(subject) <= LONGEST_SUBJECT
    assert len(subject.split("\n")) == len(subject.splitlines() or [""]) == 1
    assert not subject.startswith(("-", "#"))
    assert b"\0" not in subject.encode()

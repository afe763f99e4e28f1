from __future__ import annotations

import base64
import json
import time
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

from hypothesis import assume, example, given
from hypothesis import strategies as st

from ralph.values.redaction import MARK, Redactor, cut_at, redacted, shown
from ralph.values.screen_text import in_one_line, visible
from tests.rows import every_row

SECRET = 'pä"ss/w+o rd\\1?'
# Few letters, so that secrets and texts meet; the mark's brackets, so that cuts can join to a new secret.
LETTERS = "ab[]d"
secret_lists = st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=4)


@given(secret_lists, st.lists(st.text(LETTERS, max_size=5), max_size=8), st.data())
@example(["ed]ab"], ["ed]ab", "ab"], None)
@example(["d][r"], ["d][r", "d][r"], None)
def test_no_known_secret_remains(secrets: list[str], pieces: list[str], data: st.DataObject | None) -> None:
    if data is not None:
        pieces = data.draw(st.permutations([*pieces, *secrets, *secrets]))
    text = "".join(pieces)
    redactor = Redactor(secrets)
    redacted = redactor.redact(text)
    for secret in secrets:
        if secret not in MARK:
            assert secret not in redacted


@given(st.lists(st.text(min_size=8), max_size=4), st.text())
def test_text_without_a_secret_is_unchanged(secrets: list[str], text: str) -> None:
    redactor = Redactor(secrets)
    assume(not any(form in text for form in redactor._forms))
    assert redactor.redact(text) == text


@given(st.lists(st.text(min_size=8), min_size=1, max_size=3), st.text(), st.text())
def test_random_secret_does_not_remain_between_random_texts(
    secrets: list[str], before: str, after: str
) -> None:
    redacted = Redactor(secrets).redact(before + secrets[0] + after)
    assert not any(secret in redacted for secret in secrets if secret not in MARK)


@every_row(
    "form",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote(SECRET),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
    ],
)
def test_every_form_of_a_secret_is_cut(form: str) -> None:
    redactor = Redactor([SECRET])
    assert redactor.redact(f"a {form} b") == f"a {MARK} b"
    assert redactor.longest_bytes >= len(form.encode())


@every_row(
    "form",
    [
        json.dumps(json.dumps(SECRET)[1:-1])[1:-1],
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        json.dumps(SECRET)[1:-1].replace("\\u00e4", "\\u00E4"),
        quote(SECRET, safe="!'()*"),
        quote(SECRET, safe=";,/?:@&=+$#!'()*"),
        quote(SECRET, safe="/").lower().replace("%20", "+"),
    ],
)
def test_forms_of_other_encoders_are_cut(form: str) -> None:
    assert Redactor([SECRET]).redact(f"a {form} b") == f"a {MARK} b"


@every_row(
    ("secret", "form"),
    [("a<secret>&more", r"a\u003csecret\u003e\u0026more"), ("a+sec'ret\"", r"a\u002Bsec\u0027ret\u0022")],
)
def test_encoders_that_escape_for_html_are_known(secret: str, form: str) -> None:
    assert Redactor([secret]).redact(form) == MARK


LONG = "sk-ant-api03-" + "".join(chr(97 + 7 * number % 26) for number in range(95))


@every_row("line_break", ["\n", "\r\n", "\n    ", "\\n"])
@every_row("width", [64, 76])
@every_row("before", ["", "user:", "x" * 40])
def test_base64_is_cut_wherever_its_lines_break(line_break: str, width: int, before: str) -> None:
    encoded = base64.b64encode(f"{before}{LONG}".encode()).decode()
    lines = [encoded[start : start + width] for start in range(0, len(encoded), width)]
    redactor = Redactor([LONG])
    left = redactor.redact(f"the key:\n{line_break.join(lines)}\nthat was it")
    assert len(left.replace(MARK, "")) <= len("the key:\n\nthat was it") + 8 + 4 * len(before) // 3 + 10
    assert redactor.longest_bytes >= len(line_break.join(lines)) - 4 * len(before) // 3 - 10


def test_what_hides_base64_with_written_line_breaks_is_seen_through() -> None:
    encoded = base64.b64encode(LONG.encode()).decode()
    text = f"{encoded[:20]}\\n{encoded[20:30]}\u200b{encoded[30:]}"
    assert Redactor([LONG]).redact(text) == MARK


@given(st.binary(max_size=9), st.binary(max_size=9))
def test_base64_of_a_text_that_holds_a_secret_is_cut(before: bytes, after: bytes) -> None:
    secret = "correct-horse-battery"
    encoded = base64.b64encode(before + secret.encode() + after).decode()
    left = Redactor([secret]).redact(encoded).replace(MARK, "")
    assert len(left) <= 8 + 4 * (len(before) + len(after)) / 3


def test_longest_secret_goes_first() -> None:
    assert (
        Redactor(["password", "password-and-more"]).redact("password-and-more, password") == f"{MARK}, {MARK}"
    )


def test_without_secrets_nothing_is_compiled_or_copied() -> None:
    redactor, text = Redactor(), "x" * 10
    assert redactor.redact(text) is text
    assert redactor.longest_bytes == 0


@every_row("secret", ["", "redacted", MARK])
def test_empty_text_and_the_mark_are_no_secrets(secret: str) -> None:
    assert Redactor([secret]).redact(f"was {MARK} and redacted") == f"was {MARK} and redacted"


def test_secret_bytes_that_are_no_utf8_are_cut() -> None:
    secret = b"p\xe4ssword1".decode("utf-8", "surrogateescape")
    text = b"a p\xe4ssword1 b".decode("utf-8", "surrogateescape")
    assert Redactor([secret]).redact(text) == "a [redacted] b"


def test_without_a_hit_no_expression_is_compiled() -> None:
    redactor = Redactor([SECRET, LONG])
    redactor.redact("some text\nand more " * 100)
    assert not {"_text_pattern", "_wrapped_pattern"} & set(vars(redactor))


def test_long_text_and_many_secrets_take_no_noticeable_time() -> None:
    redactor = Redactor([f"secret-number-{number:04}" for number in range(20)])
    started_s = time.process_time()
    redactor.redact("s" * 500_000)
    assert time.process_time() - started_s < 2  # 0.1 s is usual


@every_row(
    "hostile", ["-eyJ", "-sk-", "://", "://a:", "-----BEGIN ", "bearer ", "-----BEGIN PRIVATE KEY-----"]
)
def test_looking_for_shapes_is_linear_on_hostile_bodies(hostile: str) -> None:
    body = hostile * (200_000 // len(hostile))
    started_s = time.process_time()
    Redactor().redact_all(body)
    assert time.process_time() - started_s < 2  # 0.05 s is usual; quadratic would be minutes


@every_row(
    ("text", "expected"),
    [
        ("invalid x-api-key: sk-ant-api03-abcdefgh.", f"invalid x-api-key: {MARK}."),
        ('{"key":"ghp_abcdefghijklmnopqrstuvwxyz0123456789"}', f'{{"key":"{MARK}"}}'),
        ("proxy http://me:hunter2@proxy:3128 failed", f"proxy http://me:{MARK}@proxy:3128 failed"),
        ("the known-secret", f"the {MARK}"),
        ("nothing to see at https://example.com/a", "nothing to see at https://example.com/a"),
    ],
)
def test_redact_all_cuts_known_secrets_and_shapes(text: str, expected: str) -> None:
    assert Redactor(["known-secret"]).redact_all(text) == expected


def test_redact_leaves_shapes_alone() -> None:
    assert Redactor(["known-secret"]).redact("sk-ant-api03-abcdefgh") == "sk-ant-api03-abcdefgh"


HIDDEN = [
    "\r",
    "\x00",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\u200b",
    *"\u200c\u200d\u034f\u17b4\u180b\u3164\ufe0f\ufff0\U0001bca0\U000e0080\U000e0100\U000e0fff",
    "\u202e",
    "\ufeff",
    "\x9b1m",
    "\r\x1b[0m\u2060",
]


@every_row("secret", [SECRET, "hunter2hunter2", "sk-ant-api03-" + "a1B2" * 8])
@every_row("hidden", HIDDEN)
def test_what_a_reader_does_not_see_hides_no_secret(secret: str, hidden: str) -> None:
    for at in (1, len(secret) // 2, len(secret) - 1):
        text = f"\u00e4 a\x1b[1m b {secret[:at]}{hidden}{secret[at:]} c\r\nd"
        for redact in (Redactor([secret]).redact, Redactor([secret]).redact_all):
            assert redact(text) == f"\u00e4 a\x1b[1m b {MARK} c\r\nd"
        assert secret in Redactor([secret]).secrets_in(text)
        assert Redactor([secret]).spans(text) == [(text.index(secret[0], 9), text.index(" c\r"))]
        assert secret not in in_one_line(Redactor([secret]).redact(text))


@every_row("hidden", HIDDEN)
def test_what_a_reader_does_not_see_hides_no_key_of_a_known_form(hidden: str) -> None:
    for key in ("ghp_" + "A1b2" * 6, "https://me:pass" + "word@host", "https://tok" + "en@host/x"):
        at = len(key) // 2
        text = f"a {key[:at]}{hidden}{key[at:]} b"
        assert visible(Redactor().redact_all(text)) == Redactor().redact_all(f"a {key} b") != text
        assert Redactor().redact(text) == text


@given(secret_lists, st.lists(st.text(LETTERS + "\r\u200b", max_size=5), max_size=8), st.data())
def test_a_text_that_is_cut_at_the_spans_holds_no_secret(
    secrets: list[str], pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(data.draw(st.permutations([*pieces, *secrets])))
    redactor = Redactor(secrets)
    spans = redactor.spans(text)
    assert spans == sorted(spans)
    assert bool(spans) == bool(redactor.secrets_in(text))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    for rest in (cut_at(text, spans), visible(cut_at(text, spans)), visible(redactor.redact(text))):
        assert not [secret for secret in secrets if secret in rest and secret not in MARK]


def test_the_names_of_members_are_looked_at() -> None:
    value = {"a": {"x hunter2hunter2": 1}, "input": {"hunter2hunter2": [{"hunter2hunter2": 2}]}}
    redact = Redactor(["hunter2hunter2"]).redact
    for looked_at in (redacted(value, redact), shown(value, redact)):
        assert looked_at == {"a": {"x [redacted]": 1}, "input": {"[redacted]": [{"[redacted]": 2}]}}


def test_a_file_is_shown_as_it_is_and_an_error_is_not() -> None:
    redact = Redactor(["hunter2hunter2"]).redact
    file = {"type": "tool_result", "tool_use_id": "t", "content": "hunter2hunter2"}
    assert shown(file, redact) == file
    assert shown({**file, "is_error": True}, redact)["content"] == "[redacted]"


# --- Objects


def cut(value: Any, secret: str = "canary-123") -> Any:
    return shown(value, lambda text: text.replace(secret, "[redacted]"))


def test_every_string_at_any_depth_is_looked_at() -> None:
    value = {"a": ["canary-123", {"b": "x canary-123"}], "c": 1, "d": None}
    assert cut(value) == {"a": ["[redacted]", {"b": "x [redacted]"}], "c": 1, "d": None}


@every_row("secret", ["completed", "result", '"success"'])
def test_a_secret_that_is_one_of_our_own_words_breaks_nothing(secret: str) -> None:
    value = {"type": "result", "subtype": '"success"', "terminal_reason": "completed"}
    assert cut(value, secret) == value


@every_row("name", ["Read", "Edit", "Write"])
def test_what_file_tools_were_given_stays_as_it_is(name: str) -> None:
    block = {"type": "tool_use", "id": "a", "name": name, "input": {"old_string": "canary-123"}}
    assert cut(block) == block


def test_what_other_tools_were_given_does_not() -> None:
    block = {"type": "tool_use", "id": "a", "name": "Bash", "input": {"command": "echo canary-123"}}
    assert cut(block)["input"] == {"command": "echo [redacted]"}


def test_results_come_redacted_already_or_must_match_the_file() -> None:
    block = {"type": "tool_result", "tool_use_id": "a", "content": "canary-123"}
    assert cut(block) == block


@every_row("holder", ["input", "structured_output"])
@every_row("key", ["type", "session_id", "content", "plain"])
def test_in_somebody_elses_object_no_key_is_our_own(holder: str, key: str) -> None:
    theirs = {key: "canary-123", "inner": [{"type": "tool_result", key: "canary-123"}], "n": 1}
    shown_object = cut({"type": "result", holder: theirs})
    assert "canary-123" not in str(shown_object)
    assert (shown_object["type"], shown_object[holder]["n"]) == ("result", 1)

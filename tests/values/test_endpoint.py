from __future__ import annotations

import pytest

from ralph.values.servers import header_lines, header_value, is_default, is_loopback, normal_base_url
from tests.rows import every_row


@every_row(
    ("given", "normal"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com"),
        ("https://api.anthropic.com/", "https://api.anthropic.com"),
        ("https://api.anthropic.com/v1", "https://api.anthropic.com"),
        ("https://api.anthropic.com/v1//", "https://api.anthropic.com"),
        ("HTTPS://API.Anthropic.com/v1/", "https://api.anthropic.com"),
        ("http://localhost:8080/anthropic/v1/", "http://localhost:8080/anthropic"),
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com"),
        ("http://h/gateway//v1//messages/", "http://h/gateway"),
        ("http://h/v1/messages/v1/messages", "http://h"),
        ("http://h/messages", "http://h/messages"),
        ("http://h/v1/messages/x", "http://h/v1/messages/x"),
        ("http://h/xv1", "http://h/xv1"),
        ("http://h/V1x/v1", "http://h/V1x"),
        ("http://[::1]:1", "http://[::1]:1"),
        ("http://h:65535", "http://h:65535"),
    ],
)
def test_base_url_takes_one_form(given: str, normal: str) -> None:
    assert (normal_base_url(given), normal_base_url(normal)) == (normal, normal)


def test_a_path_of_slashes_costs_no_time() -> None:
    path = "/" * 100_000 + "x"
    assert normal_base_url(f"http://h{path}") == f"http://h{path}"


@every_row(
    "text",
    [
        *("", "localhost:8080", "api.anthropic.com", "ftp://h", "file:///etc/passwd", "http://", "http:///x"),
        *(
            "http://:80",
            "http://h:65536",
            "http://h:0",
            "http://h:x",
            "http://[::1",
            "https://a b",
            "http://h\\@e",
        ),
        *("http://h/?key=1", "http://h#f", "http://h\n", "https://user:pa55word@h", "https://user@h"),
    ],
)
def test_unusable_base_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|is) ") as caught:
        normal_base_url(text)
    assert "pa55word" not in str(caught.value)


@every_row(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://127.255.255.254", True),
        ("http://128.0.0.1", False),
        ("http://126.255.255.255", False),
        ("http://[::1]:80/x", True),
        ("http://[::2]", False),
        ("http://localhost", True),
        ("http://LOCALHOST.:1", True),
        ("http://api.localhost", True),
        ("http://notlocalhost", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("http://0.0.0.0:8000", True),
        ("http://[::]:8000", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("http://[::ffff:10.0.0.1]", False),
        ("http://127.0.0.1@example.com", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_loopback_is_told_by_host(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


@every_row(
    ("url", "expected"),
    [
        ("https://api.anthropic.com", True),
        ("http://API.anthropic.com:443/x", True),
        ("https://api.anthropic.com.evil.example", False),
        ("http://localhost", False),
    ],
)
def test_default_endpoint_is_told_by_host(url: str, expected: bool) -> None:
    assert is_default(url) is expected


@every_row("value", ["a\nb", "a\rb", "a\0b", "a\tb", "a\x7fb", "a\u0100b", "a\u2028b"])
def test_value_that_no_header_can_carry_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(ValueError, match=r"^must contain|^must not contain") as caught:
        header_value(value)
    assert value not in str(caught.value)


@every_row(("value", "kept"), [(" a b\r\n", "a b"), ("\xff", "\xff"), ("", "")])
def test_white_space_around_a_header_value_goes(value: str, kept: str) -> None:
    assert header_value(value) == kept


def test_header_lines_are_read_in_order() -> None:
    text = "X-A: 1\r\n\n  X-B :a: b  \nX-A:\n"
    assert header_lines(text) == (("X-A", "1"), ("X-B", "a: b"), ("X-A", ""))


@every_row(
    ("text", "line"),
    [("X-A pa55word", 1), ("X-A: 1\n: pa55word", 2), ("A B: pa55word", 1), ("A: 1\nB: pa\r55word", 2)],
)
def test_bad_header_line_is_named_by_its_number(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"line {line}") as caught:
        header_lines(text)
    assert "55word" not in str(caught.value)

from __future__ import annotations

import os
import re
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.places.gather import gather_places
from ralph.tools.edit import EditableText, plan_edit
from ralph.tools.path_guard import PathGuard
from ralph.tools.tool_context import Roots, SeenFiles
from ralph.values.answer import ToolError


def test_one_place_is_replaced_and_shown(tools, tmp_path) -> None:
    (tmp_path / "a.py").write_text("".join(f"line {number}\n" for number in range(1, 12)))
    text = tools.ok("Edit", file_path="a.py", old_string="line 6\n", new_string="six\nsix and a half\n")
    assert text == (
        "Edited a.py at line 6:\n     3\tline 3\n     4\tline 4\n     5\tline 5\n     6\tsix\n     7\tsix and a half\n"
        "     8\tline 7\n     9\tline 8\n    10\tline 9\n    11\tline 10"
    )
    assert "line 5\nsix\nsix and a half\nline 7\n" in (tmp_path / "a.py").read_text()


def test_all_places_are_replaced_on_request_and_where_nothing_is_left_nothing_is_shown(
    tools, tmp_path
) -> None:
    (tmp_path / "a").write_text("x = 1\ny = x\n")
    assert "at 2 places" in tools.ok("Edit", file_path="a", old_string="x", new_string="xx", replace_all=True)
    assert (tmp_path / "a").read_text() == "xx = 1\ny = xx\n"
    whole = (tmp_path / "a").read_text()
    assert tools.ok("Edit", file_path="a", old_string=whole, new_string="") == "Edited a at line 1:\n"


def test_t12_no_match_is_an_error_with_a_hint_and_the_file_untouched(tools, tmp_path) -> None:
    content = "def run():\n    if ready:\n        start(engine, 5)\n    return None\n"
    (tmp_path / "a").write_text(content)

    def hint(old: str) -> str:
        text: str = tools.error("Edit", file_path="a", old_string=old, new_string="new")
        assert text.startswith("old_string does not occur in a (0 matches). ")
        assert (tmp_path / "a").read_text() == content
        return text.partition("matches). ")[2]

    assert hint("  if ready:\n    start(engine, 5)") == (
        "It would match at line 2 if white space were ignored: copy the indentation exactly."
    )
    assert hint("     2\t    if ready:\n     3\t        start(engine, 5)").startswith(
        "Leave out the line numbers"
    )
    assert hint("        start(engine, 5)\n    return True").startswith("Its longest line is at line 3")
    assert hint("start(engines, 6)") == "The most similar line is 3: start(engine, 5)"
    assert hint("zzz") == "Read the file again."


@pytest.mark.parametrize(
    ("text", "old", "why"),
    [
        (
            "x\n" * 3 + "y\nx\n",
            "x\n",
            "old_string occurs 4 times in a, at lines 1, 2, 3, 5. Add lines around it to make it unique, or set replace_all.",
        ),
        ("x\n" * 100, "x", "occurs 100 times"),
        ("}\n}\n}\n", "}\n}", "overlapping itself at line 1"),
    ],
)
def test_t12_several_matches_are_an_error_with_count_and_lines(tools, tmp_path, text, old, why) -> None:
    (tmp_path / "a").write_text(text)
    assert why in tools.error("Edit", file_path="a", old_string=old, new_string="z")


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        ("a", "x", "x", "changes nothing"),
        ("a", "", "x", "use Write"),
        ("a", "x", "\ud800", "surrogate"),
        ("A", "x", "y", "does not exist. Similar names there: a."),
        (".", "x", "y", "is a directory"),
        ("/dev/zero", "x", "y", "is a character device"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(tools, tmp_path, path, old, new, why) -> None:
    (tmp_path / "a").write_text("x")
    assert why in tools.error("Edit", file_path=path, old_string=old, new_string=new)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param(b"a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc\r\n", id="CRLF"),
        pytest.param(b"a\r\n\r\nb\r\n", "\n\nb", "\nb", b"a\r\nb\r\n", id="an empty line"),
        pytest.param(b"a\r\nb\nc\r\n", "b", "b\nb2", b"a\r\nb\nb2\nc\r\n", id="mixed, at an LF line"),
        pytest.param(b"a\r\nb\nc\r\n", "c", "c\nc2", b"a\r\nb\nc\r\nc2\r\n", id="mixed, at a CRLF line"),
        pytest.param(b"a\r\nb", "b", "b\nc", b"a\r\nb\r\nc", id="CRLF, last line without an end"),
        pytest.param(b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n", id="line breaks spelled out are meant"),
        pytest.param(b"a\nb\n", "a\nb", "a\r\nb", b"a\r\nb\n", id="from LF to CRLF"),
        pytest.param(b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n", id="BOM"),
        pytest.param(
            "a\u00e9b".encode("utf-16"), "\u00e9", "\u20ac", "a\u20acb".encode("utf-16"), id="UTF-16"
        ),
        pytest.param(b"gr\xfcn\n", "gr\u00fcn", "sch\u00f6n", b"sch\xf6n\n", id="Latin-1"),
        pytest.param(
            "ein Täst, ölig\n".encode() + b"\xff",
            "Täst",
            "Tüst",
            "ein Tüst, ölig\n".encode() + b"\xff",
            id="damaged UTF-8",
        ),
        pytest.param(b"a\rb", "a\rb", "c", b"c", id="lone CR"),
        pytest.param(b"no end", "end", "END", b"no END", id="no final newline"),
    ],
)
def test_t13_only_the_matched_bytes_change(tools, tmp_path, before, old, new, after) -> None:
    path = tmp_path / "a"
    path.write_bytes(before)
    path.chmod(0o751)
    tools.ok("Edit", file_path="a", old_string=old, new_string=new)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (after, 0o751)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x7fELF\0abc", "ELF program or library"),
        (b"%PDF-1.7 abc", "PDF document"),
        (b"\x89PNG\r\n\x1a\n\0abc", "image/png"),
        (b"\0abc", "unknown type"),
    ],
)
def test_a_binary_file_is_refused_by_its_type(tools, tmp_path, data, kind) -> None:
    (tmp_path / "a").write_bytes(data)
    assert tools.error("Edit", file_path="a", old_string="abc", new_string="x") == (
        f"a is a binary file: {kind}; Edit changes text only"
    )
    assert (tmp_path / "a").read_bytes() == data


def test_a_character_the_files_encoding_lacks_is_an_error(tools, tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"gr\xfcn\n")
    assert "latin-1, which has no '€'" in tools.error("Edit", file_path="a", old_string="n", new_string="€")
    assert (tmp_path / "a").read_bytes() == b"gr\xfcn\n"


line = st.text(st.sampled_from("abc é€\t日"), max_size=6)
ending = st.sampled_from(["\n", "\r\n", "\r"])
codecs = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])


GUARD = PathGuard(lambda: gather_places([tempfile.gettempdir()], {}), own_files=lambda: None)


class Context:
    """The parts of a tool context that Edit needs."""

    def __init__(self) -> None:
        self.roots = Roots(Path(tempfile.gettempdir()), ())
        self.seen = SeenFiles()
        self.guard = GUARD

    def resolve(self, path: str) -> Path:
        return Path(path)


@settings(max_examples=30)
@given(st.lists(st.tuples(line, ending)), line, codecs, st.binary(max_size=4), st.data())
def test_t13_bytes_outside_the_edit_are_identical(lines, last, codec, noise, data) -> None:
    """The property holds for any file, any part of its visible text, and any replacement."""
    text = "".join(part for pair in lines for part in pair) + last
    before = text.encode(codec, "replace") + (noise if codec == "latin-1" else b"")
    start = data.draw(st.integers(0, len(text)))
    old = text[start : data.draw(st.integers(start, len(text)))].replace("\r\n", "\n")
    new = data.draw(st.text(st.sampled_from("xyz\n"), max_size=5))
    handle, name = tempfile.mkstemp()
    context = Context()
    try:
        os.write(handle, before)
        os.close(handle)
        try:
            plan_edit({"file_path": name, "old_string": old, "new_string": new}, context).execute()  # type: ignore[arg-type]
        except ToolError:
            assert Path(name).read_bytes() == before
            return
        after = Path(name).read_bytes()
    finally:
        Path(name).unlink()
        context.roots.close()
    unit = "utf-16-le" if codec == "utf-16" else "utf-8" if codec.startswith("utf-8") else "latin-1"
    searched = (old, old.replace("\r\n", "\n"))  # the model may write CRLF where the file has LF
    assert any(is_edit(before, after, one, new, encoding) for one in searched for encoding in (unit, "utf-8"))


def is_edit(before: bytes, after: bytes, old: str, new: str, encoding: str) -> bool:
    """Whether exactly one occurrence of `old` has become `new`, with line ends of either kind, and nothing else has
    changed.
    """
    old_bytes, new_bytes = (re.compile(with_any_line_ends(part, encoding)) for part in (old, new))
    found = [old_bytes.match(before, at) for at in range(len(before))]
    return any(
        after.startswith(before[: one.start()])
        and after.endswith(before[one.end() :])
        and new_bytes.fullmatch(after, one.start(), len(after) - len(before) + one.end())
        for one in found
        if one is not None
    )


def with_any_line_ends(text: str, encoding: str) -> bytes:
    line_end = b"(?:%b|%b)" % tuple(re.escape(end.encode(encoding)) for end in ("\n", "\r\n"))
    return line_end.join(re.escape(part.encode(encoding, "replace")) for part in text.split("\n"))


@given(st.text(st.sampled_from("ab\r\n")), st.text(st.sampled_from("ab\n"), min_size=1))
def test_spans_never_overlap_and_read_as_what_was_wanted(text, wanted) -> None:
    spans = EditableText(text).places(wanted).spans()
    assert all(text[span.start : span.end].replace("\r\n", "\n") == wanted for span in spans)
    assert all(one.end <= two.start for one, two in pairwise(spans))

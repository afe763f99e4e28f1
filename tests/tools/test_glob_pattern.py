from __future__ import annotations

import fnmatch
import time

from hypothesis import given
from hypothesis import strategies as st

from ralph.tools.glob_pattern import GlobPattern
from tests.rows import every_row


@every_row(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "py"]),
        ("src/*.py", ["src/a.py"], ["x/src/a.py", "src/x/a.py", "a.py"]),
        ("/a.py", ["a.py"], []),
        ("./src/a", ["src/a"], ["a"]),
        ("**/a", ["a", "x/a", "x/y/a"], ["xa", "a/b"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("a/", ["a/b", "a/b/c"], ["a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["z", "a/b"]),
        ("**/a/**/b/**/c", ["a/b/c", "x/a/x/b/x/c", "a/a/b/b/c"], ["a/c/b", "b/c"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[!a-c]x", ["dx"], ["ax", "x"]),
        ("[^a]", ["b"], ["a"]),
        ("[]]", ["]"], ["["]),
        ("[", ["["], ["a"]),
        ("[z-a]", ["[z-a]"], ["z"]),
        ("app/[id]/page.tsx", ["app/[id]/page.tsx", "app/i/page.tsx"], ["app/id/page.tsx"]),
        ("**/[slug]/**", ["a/[slug]/b", "[slug]/b/c", "s/b"], ["slug/b"]),
        ("app/[[...slug]]/*.tsx", ["app/[[...slug]]/p.tsx"], ["app/slug/p.tsx"]),
        ("[id]-*.[tj]s", ["[id]-x.[tj]s", "i-x.ts"], ["[id]-x.xs"]),
        ("{{name}}/*.py", ["{{name}}/a.py"], ["{name}/a.py"]),
        ("[[:x]", ["[", ":", "x"], ["y"]),
        ("{a,b{c,d}}.x", ["a.x", "bc.x", "bd.x"], ["b.x", "c.x"]),
        ("{a,}b", ["ab", "b"], ["aab"]),
        ("a{b", ["a{b"], ["ab"]),
        ("{src,lib}/*.c", ["src/a.c", "lib/b.c"], ["x/a.c"]),
        (r"\*", ["*"], ["a"]),
        ("a**b", ["ab", "axxb"], ["a"]),
        ("!*.md", ["a.py"], ["a.md", "x/a.md"]),
        ("a.b+c", ["a.b+c"], ["aXbbc"]),
    ],
)
def test_a_pattern_matches_what_it_says(pattern, yes, no) -> None:
    glob = GlobPattern(pattern)
    assert [path for path in yes if not glob.matches(path)] == []
    assert [path for path in no if glob.matches(path)] == []


@every_row(
    ("pattern", "path"),
    [("*a" * 100 + "b", "a" * 250), ("**/a/" * 30 + "b", "a/" * 1000 + "c"), ("*?" * 60 + "z", "x" * 250)],
)
def test_no_pattern_takes_long(pattern, path) -> None:
    started_s = time.process_time()
    assert not GlobPattern(pattern).matches(path)
    assert time.process_time() - started_s < 5


# Without `[`, and without `!` at the beginning: there, the standard library differs.
PATTERNS = st.text(st.sampled_from("ab*?]!-"), min_size=1).filter(lambda pattern: pattern[0] != "!")


@given(PATTERNS, st.text(st.sampled_from("ab[]!-"), min_size=1))
def test_a_name_matches_as_in_the_standard_library(pattern, name) -> None:
    assert GlobPattern(pattern).matches(name) == fnmatch.fnmatchcase(name, pattern)


@given(st.text(), st.text())
def test_any_pattern_can_be_asked(pattern, path) -> None:
    GlobPattern(pattern).matches(path)

"""The Glob and Grep tools."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import ripgrep
from ralph.tools import search
from ralph.values.answer import ToolCall
from ralph.values.ports import Interrupted
from tests.patience import PATIENCE_S
from tests.processes.children import children
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

TREE = {
    ".gitignore": "*.log\n/build/\nnode_modules\n!keep.log\n",
    "a.py": "import os\nimport sys\n\nclass Engine:\n    pass\n",
    "a/b.py": "engine = Engine()\n",
    "a-b.py": "Engine\n",
    ".github/ci.yml": "run: Engine\n",
    ".git/config": "Engine\n",
    "noise.log": "Engine\n",
    "keep.log": "Engine\n",
    "build/out.py": "Engine\n",
    "node_modules/x/index.js": "Engine\n",
    "src/.gitignore": "generated/\n*.tmp\n!important.tmp\n",
    "src/app.ts": "new Engine(1)\r\nnew Engine(2)\r\nlast\r\n",
    "src/build/real.py": "Engine\n",
    "src/generated/g.ts": "Engine\n",
    "src/x.tmp": "Engine\n",
    "src/important.tmp": "Engine\n",
    "src/deep/er/z.tsx": "no such thing\n",
    "sub/.git/HEAD": "ref\n",
    "sub/own.log": "Engine\n",
}
ALL = """
.github/ci.yml .gitignore a/b.py a-b.py a.py keep.log src/.gitignore src/app.ts src/build/real.py src/deep/er/z.tsx
src/important.tmp sub/own.log
""".split()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode())
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "src/up").symlink_to("..")
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "binary.bin").write_bytes(b"Engine\0Engine")
    (tmp_path / "utf16.txt").write_bytes("Engine in UTF-16\n".encode("utf-16"))
    (tmp_path / "latin.txt").write_bytes(b"Engine f\xfcr alle\n")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


NONE_SEARCHED = "No matches found: no file was searched"
CONTENT = {"output_mode": "content"}
MORE = "are shown; narrow the pattern or the path to see more"
SPECIAL = ["binary.bin", "latin.txt", "utf16.txt"]


@every_row(
    ("pattern", "path", "expected"),
    [
        ("**", None, sorted(ALL + SPECIAL, key=lambda path: path.split("/"))),
        ("*.py", None, ["a/b.py", "a-b.py", "a.py", "src/build/real.py"]),
        ("*.{ts,tsx}", None, ["src/app.ts", "src/deep/er/z.tsx"]),
        ("src/**/*.tsx", None, ["src/deep/er/z.tsx"]),
        ("src/*", None, ["src/.gitignore", "src/app.ts", "src/important.tmp"]),
        ("**/build/*.py", None, ["src/build/real.py"]),
        ("*.ts", "src", ["src/app.ts"]),
        ("app.?s", "./src/", ["src/app.ts"]),
        ("/src/[ab]*.ts", None, None),
        (".github/**", None, [".github/ci.yml"]),
        ("*.js", "node_modules", ["node_modules/x/index.js"]),
        ("*.nothing", None, []),
    ],
)
def test_glob_finds_what_git_sees_in_the_order_of_the_paths(
    search_tools, tree, pattern, path, expected
) -> None:
    if expected is None:  # an absolute pattern
        pattern, expected = f"{tree}{pattern}", ["src/app.ts"]
    arguments = {"pattern": pattern} | ({} if path is None else {"path": path})
    assert search_tools.ok("Glob", **arguments).split("\n") == (expected or ["No files found"])


@every_row(
    ("tool", "arguments", "expected"),
    [
        ("Glob", {"pattern": "build/*.py"}, "1 ignored file matches, such as build/out.py: "),
        ("Glob", {"pattern": "noise.*"}, "1 ignored file matches, such as noise.log: "),
        ("Glob", {"pattern": "*.tmp", "path": "src/deep"}, "No files found"),
        ("Glob", {"pattern": "g.ts", "path": "src"}, "1 ignored file matches, such as src/generated/g.ts: "),
        ("Glob", {"pattern": "config"}, "No files found"),  # .git is not looked into
        (
            "Grep",
            {"pattern": "Engine", "glob": "node_modules/**/*.js"},
            f"{NONE_SEARCHED}; 1 ignored file matches, such as node_modules/x/index.js: ",
        ),
        ("Grep", {"pattern": "Engine", "glob": "*.rs"}, f"{NONE_SEARCHED}; none matches the glob"),
    ],
)
def test_where_only_ignored_files_match_the_result_says_how_many(
    search_tools, tree, tool, arguments, expected
) -> None:
    said = search_tools.ok(tool, **arguments)
    assert said == expected or (
        expected.endswith(": ")
        and said == f"{expected}name the ignored directory in path, or read the file by its name"
    )


@pytest.mark.parametrize(
    ("rules", "path", "is_whole"),
    [
        ({".gitignore": "out/*\n!out/.gitkeep\n"}, "out", True),
        ({".gitignore": "out/\n*.js\n"}, "out", True),
        ({".gitignore": "/out/**\n"}, "out/sub", True),
        ({".gitignore": "**/sub/**\n"}, "out/sub", True),
        ({".gitignore": "o?t/su[a-c]/*\n"}, "out/sub", True),
        ({"out/.gitignore": "*\n!.gitignore\n"}, "out", True),
        ({"out/.gitignore": "/sub/*\n"}, "out/sub", True),
        ({".gitignore": "*.js\n"}, "out", False),
        ({".gitignore": "*\n!*/\n!*.txt\n"}, "out", False),
        ({".gitignore": "out/*\n!out/*\n*.js\n"}, "out", False),
        ({".gitignore": "*.js\n{out,x}/*\n"}, "sub", False),
        ({".gitignore": "# out/*\nother/*\n*.js\n"}, "out", False),
    ],
)
def test_a_directory_that_path_names_is_searched_however_it_is_ignored(
    search_tools, tmp_path, rules, path, is_whole
) -> None:
    for directory in ("", "sub/", "out/", "out/sub/"):
        for name in (".gitkeep", "a.js", "a.txt"):
            (tmp_path / directory).mkdir(exist_ok=True)
            (tmp_path / directory / name).write_text("needle\n")
    (tmp_path / ".git").mkdir()
    for name, lines in rules.items():
        (tmp_path / name).write_text(lines)
    js = f"{path}/a.js"
    assert (js in search_tools.ok("Glob", pattern="*", path=path).split("\n")) is is_whole
    assert (js in search_tools.ok("Grep", pattern="needle", path=path).split("\n")) is is_whole
    assert f"{path}/a.txt" in search_tools.ok("Glob", pattern="*", path=path).split("\n")
    assert js not in search_tools.ok("Glob", pattern="**").split("\n")


def test_a_file_is_searched_up_to_its_first_nul_byte_in_all_three_modes(search_tools, tmp_path) -> None:
    start = "needle\nno\nneedle\n" + "y\n" * 60_000
    for name, text in {
        "text": start,
        "late": f"{start}\0\nneedle\n",
        "only-late": "y\n" * 60_000 + "\0\nneedle\n",
        "early": "needle\n\0\nneedle\n",
    }.items():
        (tmp_path / name).write_text(text)
    note = "[searched only up to a NUL byte: late]"
    for path, others in ((".", ["text"]), ("late", [])):
        arguments = {"pattern": "needle", "path": path}
        assert search_tools.ok("Grep", **arguments).split("\n") == ["late", *others]
        assert search_tools.ok("Grep", **arguments, output_mode="count").split("\n") == [
            *(f"{name}:2" for name in ("late", *others)),
            note,
        ]
        assert search_tools.ok("Grep", **arguments, output_mode="content").split("\n") == [
            *(f"{name}:{line}:needle" for name in ("late", *others) for line in (1, 3)),
            note,
        ]
    for mode in ("files_with_matches", "count", "content"):
        said = search_tools.ok("Grep", pattern="needle", path="only-late", output_mode=mode)
        assert said == "No matches found\n[searched only up to a NUL byte: only-late]"
        assert "binary file" in search_tools.error("Grep", pattern="needle", path="early", output_mode=mode)


def test_glob_reaches_outside_the_working_directory(search_tools, tree) -> None:
    other = tree.parent / f"{tree.name}-other"
    other.mkdir()
    (other / "x.py").touch()
    assert search_tools.ok("Glob", pattern="*.py", path=f"../{other.name}") == f"../{other.name}/x.py"
    assert search_tools.ok("Glob", pattern=f"{other}/**/*.py") == f"{other}/x.py"


@every_row(
    ("arguments", "expected"),
    [
        (
            {"pattern": "Engine"},
            """
            .github/ci.yml a/b.py a-b.py a.py keep.log latin.txt src/app.ts src/build/real.py src/important.tmp
            sub/own.log utf16.txt
            """.split(),
        ),
        ({"pattern": "Engine", "glob": "*.py"}, ["a/b.py", "a-b.py", "a.py", "src/build/real.py"]),
        ({"pattern": "Engine", "glob": "src/**/*.py"}, ["src/build/real.py"]),
        ({"pattern": "Engine", "glob": "!*.py", "path": "src"}, ["src/app.ts", "src/important.tmp"]),
        ({"pattern": "engine", "-i": True, "glob": "a*"}, ["a-b.py", "a.py", "src/app.ts"]),
        ({"pattern": "engine", "output_mode": "content"}, ["a/b.py:1:engine = Engine()"]),
        (
            {"pattern": "Engine", "output_mode": "count", "path": "src"},
            ["src/app.ts:2", "src/build/real.py:1", "src/important.tmp:1"],
        ),
        (
            {"pattern": r"new \w+", **CONTENT, "path": "src/app.ts"},
            ["src/app.ts:1:new Engine(1)", "src/app.ts:2:new Engine(2)"],
        ),
        ({"pattern": "class", "output_mode": "content", "-n": False}, ["a.py:class Engine:"]),
        (
            {"pattern": "class", **CONTENT, "-B": 1, "-A": 1},
            ["a.py-3-", "a.py:4:class Engine:", "a.py-5-    pass"],
        ),
        ({"pattern": "import sys|own|pass", **CONTENT, "-C": 0}, ["a.py:2:import sys", "a.py:5:    pass"]),
        (
            {"pattern": "sys|pass", **CONTENT, "-B": 1},
            ["a.py-1-import os", "a.py:2:import sys", "--", "a.py-4-class Engine:", "a.py:5:    pass"],
        ),
        ({"pattern": "alle$", "output_mode": "content"}, ["latin.txt:1:Engine f\ufffdr alle"]),
        ({"pattern": "UTF", "output_mode": "content"}, ["utf16.txt:1:Engine in UTF-16"]),
        ({"pattern": "Engine", "head_limit": 2}, [".github/ci.yml", "a/b.py", f"[only the first 2 {MORE}]"]),
        ({"pattern": "Engine", "path": "node_modules"}, ["node_modules/x/index.js"]),
        ({"pattern": "-e"}, ["No matches found"]),
        ({"pattern": "Absent"}, ["No matches found"]),
    ],
)
def test_grep_finds_lines_files_and_counts(search_tools, tree, arguments, expected) -> None:
    assert search_tools.ok("Grep", **arguments).split("\n") == expected


def test_rules_count_outside_of_a_repository_too_but_not_those_above(search_tools, tmp_path) -> None:
    (tmp_path / ".gitignore").write_text("*.py\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/.gitignore").write_text("*.js\n")
    for name in ("a.py", "a.js", "a.c"):
        (tmp_path / "in" / name).touch()
    assert search_tools.ok("Glob", pattern="a.*", path="in") == "in/a.c\nin/a.py"
    assert search_tools.ok("Glob", pattern="a.*") == "in/a.c"


RULES = [
    "*\n!*/\n!*.py\n",
    "*\n!src/\n!*.py\n",
    "/*\n!/src\n",
    "# all\n\n**/x.txt\nout/**\n",
    "x.txt  \n[ab].c\n\\!odd\n",
    "src/deep\n*/x.txt\n",
    "deep/\nsrc/*.py\n!a.py\n",
    "src/**/y.py\r\n?.c\r\n",
    "**\n!src/\n!src/**\n",
    "out\n!out/o.py\n",
    "/src/a.py\n/deep\n",
]


@pytest.mark.parametrize("lines", RULES)
def test_unusual_rules_mean_what_git_means(search_tools, tmp_path, lines) -> None:
    (tmp_path / ".gitignore").write_text(lines)
    for name in ("src/a.py", "src/x.txt", "src/deep/y.py", "out/o.py", "x.txt", "b.c", "!odd", "c.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    listed = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=tmp_path, text=True
    ).split()
    found = search_tools.ok("Glob", pattern="**").split("\n")
    assert sorted(found) == sorted(listed) or (found == ["No files found"] and not listed)


def test_names_that_are_no_text_do_no_harm(search_tools, tmp_path) -> None:
    for name in (b"caf\xe9.py", b"-rf.py", b"two\nlines.py"):
        (tmp_path / os.fsdecode(name)).write_bytes(b"needle\n")
    assert search_tools.ok("Glob", pattern="*.py").split("\n") == ["-rf.py", "caf?.py", "two", "lines.py"]
    assert search_tools.ok("Grep", pattern="needle", glob="-rf.py") == "-rf.py"


def test_credentials_are_redacted_before_lines_are_cut(search_tools, tmp_path) -> None:
    secret = "sk-ant-0123456789"
    (tmp_path / "env").write_text(f"A={secret}\n" + "x" * 490 + f"{secret} A=\n")
    text = search_tools.ok("Grep", pattern="A=", output_mode="content")
    assert "A=[redacted]" in text
    assert "sk-ant-" not in text


def test_t16_a_hopeless_expression_is_answered_like_any_other(search_tools, tmp_path) -> None:
    (tmp_path / "evil").write_text("a" * 60 + "!\n")
    assert search_tools.ok("Grep", pattern="(a+)+$") == "No matches found"


def test_t16_a_search_that_comes_to_no_end_ends_at_the_time_limit(make_tools, tmp_path) -> None:
    os.mkfifo(tmp_path / ".gitignore")
    tools = make_tools(search_timeout_s=0.3)
    assert "[stopped after 0.3 s" in tools.error("Grep", pattern="x")
    assert "[stopped after 0.3 s" in tools.error("Glob", pattern="*")


def test_a_search_gets_no_variables(monkeypatch) -> None:
    """Some of them would make it load a library that a command made."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "x")
    with ripgrep.Ripgrep("/usr/bin/env", [], cwd=None, is_over=lambda: False) as search:
        assert [*search.records(b"\n")] == []


def test_what_a_search_has_found_when_its_time_is_up_is_taken() -> None:
    """As after a suspended machine. A search that still prints is cut short all the same."""
    for command, is_cut_short in (("echo found", False), ("yes found", True)):
        search = ripgrep.Ripgrep("/bin/sh", ["-c", command], cwd=None, is_over=lambda: True)
        with search:
            assert search._process.stdout is not None
            assert select.select([search._process.stdout], [], [], PATIENCE_S)[0]
            if not is_cut_short:
                search._process.wait()
            found = {record for record, _size in search.records(b"\n")}
        assert b"found" in found
        assert search.is_cut_short is is_cut_short


def test_t16_rules_without_end_cost_no_memory(make_tools, tmp_path, monkeypatch) -> None:
    assert ripgrep._MOST_MEMORY_BYTES == 1024**3  # as docs/tools.md says
    monkeypatch.setattr(
        ripgrep, "_MOST_MEMORY_BYTES", 150_000_000
    )  # a larger limit is met in the same way, but later
    with (tmp_path / ".gitignore").open("wb") as rules:
        rules.truncate(20_000_000_000)
    tools = make_tools(search_timeout_s=300.0)
    assert "ended by signal" in tools.error("Glob", pattern="*")


def test_t16_many_results_are_capped_in_a_fixed_order(search_tools, tmp_path) -> None:
    (tmp_path / "0000.txt").write_text("x\nx\n")
    for number in range(1, 1100):  # a link is a file as well, and much cheaper to make
        (tmp_path / f"{number:04}.txt").hardlink_to(tmp_path / "0000.txt")
    for arguments in ({"pattern": "*.txt"}, {"pattern": "x"}):
        tool = "Glob" if "*" in arguments["pattern"] else "Grep"
        *shown, note = search_tools.ok(tool, **arguments).split("\n")
        assert shown == [f"{number:04}.txt" for number in range(1000)]
        assert note.startswith("[only the first 1,000 are shown")


def test_t16_links_that_loop_and_fifos_are_harmless(search_tools, tree) -> None:
    assert "loop" not in search_tools.ok("Glob", pattern="**")
    assert "fifo is a FIFO" in search_tools.error("Grep", pattern="x", path="fifo")
    assert search_tools.ok("Glob", pattern="*.ts", path="loop/src") == "loop/src/app.ts"


@pytest.mark.ordinary_user
def test_t16_what_cannot_be_read_is_skipped_and_counted(search_tools, tmp_path) -> None:
    (tmp_path / "open").write_text("x")
    (tmp_path / "closed").mkdir(mode=0o000)
    try:
        assert search_tools.ok("Grep", pattern="x") == "open\n[1 could not be read and were skipped]"
        assert search_tools.ok("Glob", pattern="*") == "open\n[1 could not be read and were skipped]"
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_t16_long_lines_and_large_outputs_are_bounded(search_tools, tmp_path) -> None:
    (tmp_path / "one-line.js").write_text("needle " + "x" * 5_000_000 + "\nneedle\n")
    first, second = search_tools.ok("Grep", pattern="needle", output_mode="content").split("\n")
    assert len(first) < 600
    assert "[line cut: " in first
    assert second == "one-line.js:2:needle"
    (tmp_path / "many").write_text(("needle " + "y" * 200 + "\n") * 900)
    text = search_tools.ok("Grep", pattern="needle", path="many", output_mode="content")
    assert len(text) < 30_200
    assert "are shown; narrow" in text


def test_a_bad_expression_is_an_error_that_says_why(search_tools, tree) -> None:
    assert "regex parse error" in search_tools.error("Grep", pattern="(unclosed")
    assert "missing: No such file or directory" in search_tools.error("Glob", pattern="*", path="missing")
    assert "is a file" in search_tools.error("Glob", pattern="*", path="a.py")
    assert "binary file" in search_tools.error("Grep", pattern="x", path="binary.bin")
    assert "alternatives" in search_tools.error("Glob", pattern="{a,b}" * 12)


@pytest.mark.parametrize("place", [".", "..", "deep/er", "link"])
def test_a_search_names_the_file_that_it_would_read_for_ever(
    make_tools, tmp_path, monkeypatch, place
) -> None:
    """Ripgrep waits for a pipe, and reads a device until its memory is full."""
    monkeypatch.setattr(search, "_LOOKS_AFTER_S", 0.5)
    work, below = tmp_path / "work", tmp_path / "work/deep/er"
    below.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    ignore = (work if place == "link" else work / place) / ".gitignore"
    if place == "link":
        ignore.symlink_to("/dev/zero")
    else:
        os.mkfifo(ignore)
    tools = make_tools(cwd=work, search_timeout_s=300.0)
    for name in ("Grep", "Glob"):
        shown = ignore.resolve() if place == ".." else ignore.relative_to(work)
        why = "which is a pipe, a device or a socket: remove it, or search elsewhere"
        assert f"the search would read {shown} for ever, {why}" in tools.error(name, pattern="x")


def test_a_signal_ends_a_running_search(make_tools, tmp_path) -> None:
    before = children()
    tools = make_tools(search_timeout_s=300.0)
    os.mkfifo(tmp_path / ".gitignore")
    threading.Timer(0.4, tools.waiter.inbox.note_signal, [signal.SIGINT]).start()
    calls = [ToolCall("1", "Grep", {"pattern": "a"}), ToolCall("2", "Glob", {"pattern": "*"})]
    with pytest.raises(Interrupted):
        tools.box.run(calls)
    assert children() <= before
    (tmp_path / ".gitignore").unlink()
    assert tools.ok("Glob", pattern="*") == "No files found"


def test_a_search_uses_all_processors_and_is_repeated_in_order_only_where_it_finds_much(
    search_tools, tmp_path, monkeypatch
) -> None:
    """Ripgrep sorts with one thread."""
    started: list[bool] = []

    class Counted(search.Search):
        def __init__(self, arguments: list[str], *more: Any) -> None:
            started.append("--sort" in arguments)
            super().__init__(arguments, *more)

    monkeypatch.setattr(search, "Search", Counted)
    for number in range(40):
        (tmp_path / f"{number:02}").write_text("first\n\n\nx\n" * 3)
    assert search_tools.ok("Grep", pattern="no such thing") == "No matches found"
    few = search_tools.ok("Grep", pattern="x", output_mode="content", **{"-B": 1})
    assert started == [False, False, False]  # the second one asks whether there was a file to search
    monkeypatch.setattr("ralph.tools.search._MOST_SORTED_BYTES", 100)
    many = search_tools.ok("Grep", pattern="x", output_mode="content", **{"-B": 1})
    assert (started, few) == ([False] * 4 + [True], many)
    assert few.startswith("00-3-\n00:4:x\n--\n00-7-\n")
    assert few.count("--\n") == 3 * 40 - 1

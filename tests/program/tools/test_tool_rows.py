"""Unusual files, commands and directories that the tools meet, tested with the whole program."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest

from ralph.mock_api import Fault, ToolUse, Turn
from ralph.tools.tool_context import MOST_IMAGES
from tests.tools.image_files import png

HELLO = Turn(content="Done.")
Use = tuple[str, dict[str, Any]]


def calls(*uses: Use) -> Turn:
    return Turn(content=[ToolUse(name, arguments) for name, arguments in uses])


def write(path: object, content: str = "new\n") -> Use:
    return "Write", {"file_path": str(path), "content": content}


def bash(command: str) -> Use:
    return "Bash", {"command": command}


def edit(path: object, old: str, new: str) -> Use:
    return "Edit", {"file_path": str(path), "old_string": old, "new_string": new}


def results(server, index=-1) -> list[tuple[Any, bool]]:
    """The results of the tools for the calls before this request."""
    blocks = json.loads(server.requests[index].body)["messages"][-1]["content"]
    return [(block["content"], block.get("is_error", False)) for block in blocks]


GONE = {
    "moved": 'mv "$PWD" "$PWD.moved"',
    "replaced": 'rm -rf "$PWD" && mkdir "$PWD"',
}


@pytest.mark.parametrize("how", GONE)
def test_t8_a_command_that_takes_the_working_directory_away_has_its_result_and_the_next_call_exits_74(
    ralph, serve, how
) -> None:
    server = serve(
        calls(bash(f"{GONE[how]}; cd /; echo {how}")), calls(write("deep/a"), bash("touch b")), HELLO
    )
    ran = ralph("go", "--output-format", "stream-json", "--sandbox", "off")
    assert ran.code == 74
    assert results(server) == [(how, False)]
    said = f"the working directory {ralph.cwd} is gone: it was removed, moved or replaced"
    assert said in ran.last_line
    assert ran.stderr.splitlines()[-2].startswith("[hint] go on with: ralph --resume ")
    assert ran.result["terminal_reason"] == "io_error"
    last = [entry for entry in ran.objects if entry["type"] == "user"][-1]["message"]["content"]
    assert [(block["content"], block["is_error"]) for block in last] == [
        (f"This call was not run: {said}.", True)
    ] * 2
    assert not ralph.cwd.exists() or list(ralph.cwd.iterdir()) == []
    assert not (ralph.cwd / "deep").exists()
    assert len(server.requests) == 2


def test_t8_a_call_of_the_same_answer_is_not_run_exits_74(ralph, serve) -> None:
    server = serve(calls(bash('rm -rf "$PWD"; echo removed'), write("a")), HELLO)
    ran = ralph("go", "--output-format", "stream-json", "--sandbox", "off")
    assert ran.code == 74
    [answered] = [entry for entry in ran.objects if entry["type"] == "user"]
    assert [block.get("is_error", False) for block in answered["message"]["content"]] == [False, True]
    assert "removed" in answered["message"]["content"][0]["content"]
    assert not ralph.cwd.exists()
    assert len(server.requests) == 1


def test_t8_a_run_whose_last_call_removes_the_directory_is_completed_exits_0(ralph, serve) -> None:
    serve(calls(bash('rm -rf "$PWD"')), HELLO)
    assert ralph("remove it all", "--sandbox", "off").code == 0
    assert not ralph.cwd.exists()


def test_t10_files_outside_are_read_and_not_written_exits_0(ralph, serve, tmp_path) -> None:
    (tmp_path / "outside").write_text("old\n")
    (ralph.cwd / "link").symlink_to("../outside")
    server = serve(
        calls(
            ("Read", {"file_path": "../outside"}),
            write("../outside"),
            edit("link", "old", "new"),
            write(tmp_path / "made"),
            write("inside"),
        ),
        HELLO,
    )
    assert ralph("go").code == 0
    outputs = results(server)
    assert [is_error for _, is_error in outputs] == [False, True, True, True, False]
    assert all("--add-dir" in text for text, is_error in outputs if is_error)
    assert (tmp_path / "outside").read_text() == "old\n"
    assert not (tmp_path / "made").exists()


def test_t10_directories_that_were_added_are_written_exits_0(ralph, serve, tmp_path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (ralph.cwd / "sub").mkdir()
    # From where ralph is called, not from --cd.
    options = ("--add-dir", "../one", "--add-dir", str(tmp_path / "two"), "-C", "sub")
    paths = [tmp_path / "one/deep/a", tmp_path / "two/a", ralph.cwd / "a"]
    server = serve(calls(*map(write, paths)), HELLO)
    assert ralph("go", *options).code == 0
    assert [is_error for _, is_error in results(server)] == [False, False, True]
    assert [path.exists() for path in paths] == [True, True, False]


def test_t10_a_directory_to_add_that_is_none_exits_2(ralph, ralph_here) -> None:
    (ralph.cwd / "file").touch()
    for name, problem in (("nowhere", "does not exist"), ("file", "is no directory")):
        ran = ralph_here("go", "--add-dir", name)
        assert ran.code == 2
        assert len(ran.stderr.splitlines()) == 1
        assert f"{name} {problem}" in ran.stderr
        assert "--add-dir" in ran.stderr


def test_t14_a_file_that_a_command_changed_has_to_be_read_again_exits_0(ralph, serve) -> None:
    (ralph.cwd / "a").write_text("one\ntwo\n")
    read: Use = ("Read", {"file_path": "a"})
    server = serve(
        calls(read, bash("touch a; chmod 600 a"), edit("a", "one", "1")),
        calls(bash("echo three >> a"), edit("a", "two", "2"), write("a")),
        calls(read, edit("a", "two", "2")),
        HELLO,
    )
    assert ralph("go").code == 0
    changed = ("a changed on disk since it was read; read it again. Nothing was written", True)
    assert [is_error for _, is_error in results(server, 1)] == [False] * 3
    assert results(server, 2)[1:] == [changed, changed]
    assert [is_error for _, is_error in results(server, 3)] == [False] * 2
    assert (ralph.cwd / "a").read_text() == "1\n2\nthree\n"


def test_t15_a_killed_write_is_done_once_when_the_run_goes_on_and_leaves_nothing_beside_it_exits_0(
    ralph, serve
) -> None:
    """The power fails during a write: its intent is in the journal, but its result is not."""
    (ralph.cwd / "a").write_text("old")
    serve(calls(write("a", "new")), HELLO, HELLO)
    assert ralph("go").code == 0
    [journal] = (ralph.cwd.parent / "home").rglob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    intent = next(number for number, line in enumerate(lines) if b'"tool_intent"' in line)
    journal.write_bytes(b"".join(lines[: intent + 1]))
    (ralph.cwd / "a").write_text("old")
    (ralph.cwd / ".ralph-0123456789ab.tmp").write_text("ne")
    assert ralph("--continue").code == 0
    assert [(path.name, path.read_text()) for path in ralph.cwd.iterdir()] == [("a", "new")]


def git(directory, command: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *shlex.split(command)],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_t18_a_lock_that_somebody_left_is_the_models_to_judge_exits_0(ralph, serve) -> None:
    git(ralph.cwd, "init -q")
    lock = ralph.cwd / ".git/index.lock"
    lock.touch()
    server = serve(calls(write("a"), bash("git add a")), HELLO)
    assert ralph("go").code == 0
    [(_, wrote_badly), (said, is_error)] = results(server)
    assert (wrote_badly, is_error) == (False, True)
    assert "index.lock': File exists" in said
    assert lock.exists()


@pytest.mark.parametrize("kind", ["worktree", "bare"])
def test_t18_work_goes_on_in_a_worktree_and_in_a_bare_repository_exits_0(
    ralph, serve, tmp_path, kind
) -> None:
    git(ralph.cwd, "init -q")
    (ralph.cwd / "AGENTS.md").write_text("the rule")
    git(ralph.cwd, "add .")
    git(ralph.cwd, "commit -qm first")
    git(ralph.cwd, "worktree add -q ../odd" if kind == "worktree" else "clone -q --bare . ../odd")
    server = serve(calls(write("b"), bash("git log --oneline")), HELLO)
    assert ralph("go", "-C", "../odd").code == 0
    assert [is_error for _, is_error in results(server)] == [False, False]
    system = json.loads(server.requests[0].body)["system"][0]["text"]
    assert ("the rule" in system) == (kind == "worktree")


SEEN_BY = {
    "Read": ("Read", {"file_path": "notes.txt"}),
    "Write": write("notes.txt", "seen\n"),
    "Edit": edit("notes.txt", "first", "seen"),
}
REFUSED = "notes.txt changed on disk since it was read; read it again. Nothing was written"


RESUMED, FORKED = ("-c",), ("-c", "--fork-session")


@pytest.mark.parametrize(("tool", "goes_on"), [("Read", FORKED), ("Write", RESUMED), ("Edit", RESUMED)])
def test_t14_what_somebody_wrote_between_two_runs_is_not_written_over_exits_75_or_0(
    ralph, serve, tool, goes_on
) -> None:
    notes = ralph.cwd / "notes.txt"
    notes.write_text("first\n")
    server = serve(
        calls(SEEN_BY[tool]),
        Fault(status=529),
        calls(write("notes.txt", "of the model\n")),
        HELLO,
    )
    assert ralph("go", "--retry", "off").code == 75
    notes.write_text("of somebody\n")
    assert ralph(*goes_on).code == 0
    assert notes.read_text() == "of somebody\n"
    assert results(server) == [(REFUSED, True)]
    assert not [request for request in server.requests if b'"seen":' in request.body]


def test_t11_images_never_outgrow_what_a_request_may_have_not_even_over_two_runs_exits_0(
    ralph, serve
) -> None:
    """A conversation may have 100 images, or 16 MB of them (tests/tools/test_images.py)."""
    (ralph.cwd / "a.png").write_bytes(png(10, 10))
    looks: list[Use] = []
    for number in range(MOST_IMAGES + 1):
        (ralph.cwd / f"{number}.png").hardlink_to(ralph.cwd / "a.png")
        looks.append(("Read", {"file_path": f"{number}.png"}))
    server = serve(calls(*looks[:-2]), HELLO, calls(*looks[-2:]), HELLO)
    assert ralph("go").code == 0
    assert ralph("-c", "and again").code == 0
    # They run side by side: whichever comes first takes the context.
    (last, was_error), (above, is_error) = sorted(results(server), key=lambda result: result[1])
    assert (last[0]["type"], was_error, is_error) == ("image", False, True)
    assert f"holds {MOST_IMAGES} images" in above
    assert server.request_count == 4


def test_write_keeps_the_mark_and_line_breaks_of_the_old_file_and_tells_the_model(ralph, serve) -> None:
    server = serve(calls(("Read", {"file_path": "b.cs"}), write("b.cs", "two\nthree\n")), HELLO)
    (ralph.cwd / "b.cs").write_bytes(b"\xef\xbb\xbfone\r\n")
    assert ralph("go").code == 0
    assert (ralph.cwd / "b.cs").read_bytes() == b"\xef\xbb\xbftwo\r\nthree\r\n"
    said, is_error = results(server)[1]
    assert not is_error
    assert said.splitlines() == [
        "Replaced b.cs (2 lines, 15 bytes; it had 8 bytes)",
        "[kept of the old file: byte order mark (UTF-8) and CRLF line breaks; Bash can change that]",
    ]


@pytest.mark.sandboxed
def test_searches_tell_of_what_is_ignored_and_a_command_of_what_it_left_running_exits_0(
    ralph, serve, checkout
) -> None:
    for name in ("out/.gitkeep", "out/a.js", "app/[id]/page.tsx", "app/i/page.tsx"):
        (ralph.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (ralph.cwd / name).write_text("needle\n")
    (ralph.cwd / ".gitignore").write_text("out/*\n!out/.gitkeep\n")
    (ralph.cwd / "late.log").write_text("needle\n" + "y\n" * 60_000 + "\0\nneedle\n")
    grep = {"pattern": "needle", "path": "late.log"}
    server = serve(
        calls(
            ("Glob", {"pattern": "app/[id]/page.tsx"}),
            ("Glob", {"pattern": "**/*.js"}),
            ("Glob", {"pattern": "*", "path": "out"}),
            ("Grep", {**grep, "output_mode": "count"}),
            ("Grep", {"pattern": "needle", "glob": "*.js"}),
            bash("sleep 600 & echo started"),
        ),
        HELLO,
    )
    assert ralph("go").code == 0
    advice = "name the ignored directory in path, or read the file by its name"
    assert results(server) == [
        ("app/[id]/page.tsx\napp/i/page.tsx", False),
        (f"1 ignored file matches, such as out/a.js: {advice}", False),
        ("out/.gitkeep\nout/a.js", False),
        ("late.log:1\n[searched only up to a NUL byte: late.log]", False),
        (
            f"No matches found: no file was searched; 1 ignored file matches, such as out/a.js: {advice}",
            False,
        ),
        (
            "started\n[1 process that this command started was stopped; run_in_background keeps a server]",
            False,
        ),
    ]

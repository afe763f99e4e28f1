"""Unusual files, commands and directories that the tools meet, tested with the whole program."""

from __future__ import annotations

import pytest

from ralph.mock_api import Fault
from ralph.tools.tool_context import MOST_IMAGES
from tests.program.model_answers import DONE, bash, calls, results, write
from tests.tools.image_files import png

GONE = {"moved": 'mv "$PWD" "$PWD.moved"', "replaced": 'rm -rf "$PWD" && mkdir "$PWD"'}


@pytest.mark.parametrize("how", GONE)
def test_t8_a_command_that_takes_the_working_directory_away_has_its_result_and_the_next_call_exits_74(
    ralph, serve, how
) -> None:
    server = serve(
        bash(f"{GONE[how]}; cd /; echo {how}"),
        calls(("Write", {"file_path": "deep/a", "content": "x"}), ("Bash", {"command": "touch b"})),
        DONE,
    )
    ran = ralph("go", "--output-format", "stream-json", "--sandbox", "off", code=74)
    assert results(server) == [(how, False)]
    said = f"the working directory {ralph.cwd} is gone: it was removed, moved or replaced"
    assert said in ran.last_line
    assert ran.stderr.splitlines()[-2].startswith("[hint] continue with: ralph --resume ")
    assert ran.result["terminal_reason"] == "io_error"
    last = [entry for entry in ran.objects if entry["type"] == "user"][-1]["message"]["content"]
    assert [(block["content"], block["is_error"]) for block in last] == [
        (f"This call was not run: {said}.", True)
    ] * 2
    assert not ralph.cwd.exists() or list(ralph.cwd.iterdir()) == []
    assert not (ralph.cwd / "deep").exists()
    assert len(server.requests) == 2


def test_t8_a_run_whose_last_call_removes_the_directory_is_completed_exits_0(ralph, serve) -> None:
    serve(bash('rm -rf "$PWD"'), DONE)
    assert ralph("remove it all", "--sandbox", "off").code == 0
    assert not ralph.cwd.exists()


def test_t10_a_directory_to_add_that_is_none_exits_2(ralph, ralph_here) -> None:
    (ralph.cwd / "file").touch()
    for name, problem in (("nowhere", "does not exist"), ("file", "is not a directory")):
        ran = ralph_here("go", "--add-dir", name, code=2)
        assert len(ran.stderr.splitlines()) == 1
        assert f"{name} {problem}" in ran.stderr
        assert "--add-dir" in ran.stderr


def test_t15_a_killed_write_is_done_once_when_the_run_continues_and_leaves_nothing_beside_it_exits_0(
    ralph, serve
) -> None:
    """The power fails during a write: its intent is in the journal, but its result is not."""
    (ralph.cwd / "a").write_text("old")
    serve(write("a", "new"), DONE, DONE)
    assert ralph("go").code == 0
    [journal] = (ralph.cwd.parent / "home").rglob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    intent = next(number for number, line in enumerate(lines) if b'"tool_intent"' in line)
    journal.write_bytes(b"".join(lines[: intent + 1]))
    (ralph.cwd / "a").write_text("old")
    (ralph.cwd / ".ralph-0123456789ab.tmp").write_text("ne")
    assert ralph("--continue").code == 0
    assert [(path.name, path.read_text()) for path in ralph.cwd.iterdir()] == [("a", "new")]


SEEN_BY: dict[str, dict[str, str]] = {
    "Read": {},
    "Write": {"content": "seen\n"},
    "Edit": {"old_string": "first", "new_string": "seen"},
}
REFUSED = "notes.txt changed on disk since it was read; read it again. Nothing was written"


RESUMED, FORKED = ("-c",), ("-c", "--fork-session")


@pytest.mark.parametrize(("tool", "continues"), [("Read", FORKED), ("Write", RESUMED), ("Edit", RESUMED)])
def test_t14_what_somebody_wrote_between_two_runs_is_not_written_over_exits_75_or_0(
    ralph, serve, tool, continues
) -> None:
    notes = ralph.cwd / "notes.txt"
    notes.write_text("first\n")
    seen = calls((tool, {"file_path": "notes.txt", **SEEN_BY[tool]}))
    server = serve(seen, Fault(status=529), write("notes.txt", "of the model\n"), DONE)
    assert ralph("go", "--retry", "off").code == 75
    notes.write_text("of somebody\n")
    assert ralph(*continues).code == 0
    assert notes.read_text() == "of somebody\n"
    assert results(server) == [(REFUSED, True)]
    assert not [request for request in server.requests if b'"seen":' in request.body]


def test_t11_images_never_outgrow_what_a_request_may_have_not_even_over_two_runs_exits_0(
    ralph, serve
) -> None:
    """A conversation may have 100 images, or 16 MB of them (tests/tools/test_images.py)."""
    (ralph.cwd / "a.png").write_bytes(png(10, 10))
    names = [f"{number}.png" for number in range(MOST_IMAGES + 1)]
    for name in names:
        (ralph.cwd / name).hardlink_to(ralph.cwd / "a.png")
    looks = [("Read", {"file_path": name}) for name in names]
    server = serve(calls(*looks[:-2]), DONE, calls(*looks[-2:]), DONE)
    assert ralph("go").code == 0
    assert ralph("-c", "and again").code == 0
    # They run side by side: whichever comes first takes the context.
    (last, was_error), (above, is_error) = sorted(results(server), key=lambda result: result[1])
    assert ("'type': 'image'" in str(last), was_error, is_error) == (True, False, True)
    assert f"holds {MOST_IMAGES} images" in above
    assert server.request_count == 4

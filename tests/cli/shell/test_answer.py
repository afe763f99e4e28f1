"""Tests what `ralph --complete` finds on the user's machine, and that it is silent if anything is wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ralph.cli.shell.answer import answer_shell
from ralph.sessions.places import directory_name
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

ID, OTHER, TWIN = (f"{head}-0000-4000-8000-000000000000" for head in ("0a1b2c3d", "ffffffff", "0a1b2c3e"))
HOSTILE = "a $(touch x) `touch x` \x1b[31m\u202e\n\tend"


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "RALPH_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the system's may hold sessions of the user
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep(home: Path, session_id: str, *lines: str, cwd: Path | None = None, age_s: float = 0.0) -> None:
    folder = home / ".local/state/ralph/sessions" / directory_name(cwd or home)
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f"{session_id}.jsonl"
    journal.write_text("".join(f"{line}\n" for line in lines))
    at_s = journal.stat().st_mtime - age_s
    os.utime(journal, (at_s, at_s))


def answered(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    code = answer_shell([*arguments])
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    return out.splitlines()


RUN = '{"seq":1,"kind":"run","title":"The title","head":"x"}'
USER = '{"seq":2,"kind":"user","content":[{"type":"text","text":"# The  task\\n\\nMore."}]}'


def test_sessions_are_offered_by_id_with_age_and_title_the_newest_first(home, capfd) -> None:
    keep(home, ID, '{"seq":0,"kind":"session"}', RUN, USER, age_s=7200)
    keep(home, OTHER, '{"seq":0,"kind":"session"}', RUN.replace('"The title"', "null"), USER, age_s=150)
    assert answered(capfd, "zsh", "--resume", "") == [
        "words",
        "ffffffff\t2 min ago: The task",
        "0a1b2c3d\t2 h ago: The title",
    ]
    assert answered(capfd, "bash", "ralph -r 0", "0") == ["words", "0a1b2c3d"]
    assert answered(capfd, "bash", f"ralph -r {ID[:9]}", ID[:9]) == ["words", ID]


def test_sessions_of_other_directories_are_offered_where_none_of_this_one_fits(home, capfd) -> None:
    keep(home, ID)
    keep(home, OTHER, cwd=home / "other")
    assert answered(capfd, "zsh", "-r", "") == ["words", "0a1b2c3d\t0 s ago:"]
    assert answered(capfd, "bash", "ralph -r f", "f") == ["words", "ffffffff"]
    assert answered(capfd, "bash", "ralph -C other -r ", "") == ["words", "ffffffff"]


def test_a_short_id_that_two_sessions_share_is_whole(home, capfd) -> None:
    keep(home, ID)
    keep(home, ID.replace("-0000-", "-1111-"))
    assert set(answered(capfd, "bash", "ralph -r ", "")[1:]) == {ID, ID.replace("-0000-", "-1111-")}


@every_row("name", ["$(touch x)", "-x y", "a;b", "notes"])
def test_a_file_that_is_no_session_is_not_offered(name, home, capfd) -> None:
    keep(home, name)
    assert answered(capfd, "bash", "ralph -r ", "") == ["words"]


@every_row(
    "line", ["", "{", '{"seq":1,"kind":"user","content":[]}', '{"seq":1,"kind":"run","title":7}', "\x00"]
)
def test_a_damaged_journal_is_offered_without_words(line, home, capfd) -> None:
    keep(home, ID, line)
    assert answered(capfd, "zsh", "-r", "")[1].split("\t")[0] == "0a1b2c3d"


def test_a_hostile_title_is_one_line_of_printable_text(home, capfd) -> None:
    keep(
        home,
        ID,
        RUN.replace("The title", HOSTILE.encode("unicode_escape").decode().replace("\\x1b", "\\u001b")),
        USER,
    )
    [_, line] = answered(capfd, "fish", "-r", "")
    assert line == "0a1b2c3d\t0 s ago: a $(touch x) `touch x` [31m end"


TARGETS = """
[[targets]]
name = "it's $(touch x) \\"a\\" b"
model = "m"
[[targets]]
name = "qwen3:8b"
model = "m"
[[targets]]
name = "two\\nlines"
model = "m"
"""


def test_targets_are_offered_and_quoted_as_the_line_needs_it(home, capfd) -> None:
    settings = home / ".config/ralph/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(TARGETS)
    assert answered(capfd, "zsh", "--model", "") == [
        "words",
        *("opus\t", "sonnet\t", "haiku\t"),
        'it\'s $(touch x) "a" b\ttarget: m',
        "qwen3:8b\ttarget: m",
    ]
    assert answered(capfd, "bash", "ralph --model i", "i") == [
        "words",
        'it\\\'s\\ \\$\\(touch\\ x\\)\\ \\"a\\"\\ b',
    ]
    assert answered(capfd, "bash", 'ralph --model "i', "i") == ["words", 'it\'s \\$(touch x) \\"a\\" b']
    # bash replaces only what follows `=` and `:`.
    assert answered(capfd, "bash", "ralph --model=qwen3:8", "8") == ["words", "8b"]
    assert answered(capfd, "bash", "ralph --fallback-model opus,q", "opus,q") == ["words", "opus,qwen3:8b"]


def test_a_broken_settings_file_takes_nothing_away(home, capfd) -> None:
    (home / "mine.toml").write_text("[[targets")
    assert answered(capfd, "bash", "ralph --config mine.toml --model o", "o") == ["words", "opus"]


def test_loops_of_this_directory_are_offered_by_number(home, capfd) -> None:
    for number in ("0003", "0012", "log"):
        (home / ".local/state/ralph/loops" / directory_name(home) / number).mkdir(parents=True)
    from ralph.cli.shell.answer import Completion
    from ralph.cli.shell.found import loops

    assert [word for word, _ in loops(Completion(""))] == ["12", "3"]


def test_files_are_left_to_the_shell(home, capfd) -> None:
    assert answered(capfd, "bash", "ralph -f ", "") == ["files"]
    assert answered(capfd, "fish", "loop", "--cd", "") == ["directories"]


@every_row("arguments", [(), ("tcsh", "x"), ("bash",), ("bash", "ralph -r")])
def test_a_call_that_no_script_makes_is_answered_by_silence(arguments, home, capfd) -> None:
    assert answer_shell([*arguments]) == 1
    assert capfd.readouterr() == ("", "")

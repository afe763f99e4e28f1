"""A rules file that is none. What the rules of good ones mean is in `test_search.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.tools.search import ignore_rules
from ralph.tools.search.ignore_rules import LONGEST_RULE, MOST_IGNORE_BYTES, MOST_RULES, walk

WALK = "from ralph.tools.search.ignore_rules import walk; print(*walk(None, print))"


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "directory", "link to nothing"])
def test_what_is_no_file_has_no_rules_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    rules = tmp_path / "in/.gitignore"
    rules.parent.mkdir()
    (rules.parent / "a.py").touch()
    match kind:
        case "fifo":
            os.mkfifo(rules)
        case "link to a fifo":
            os.mkfifo(tmp_path / "fifo")
            rules.symlink_to("../fifo")
        case "directory":
            rules.mkdir()
        case "link to nothing":
            rules.symlink_to("no/such")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WALK]  # a process, as one that waits could not be stopped here
    walked = subprocess.check_output(command, cwd=rules.parent, env=environment, timeout=60)
    assert walked == b"a.py\n"


def walked(directory: Path, monkeypatch) -> tuple[list[str], list[str]]:
    """What is there, and what was reported."""
    monkeypatch.chdir(directory)
    reported: list[str] = []
    return list(walk(None, lambda path, error: reported.append(f"{path}: {error.strerror}"))), reported


TOO_MUCH = {
    "bytes": ("a\n" + "#" * MOST_IGNORE_BYTES, "it has more than 524,288 bytes"),
    "rules": ("a\n" * (MOST_RULES + 1), "with it there are more than 5,000 rules"),
    "a long rule": ("a\n" + "b" * (LONGEST_RULE + 1), "a rule has more than 4,096 characters"),
}


@pytest.mark.parametrize(("text", "why"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_file_of_too_many_rules_is_reported_and_none_of_them_is_followed(
    tmp_path: Path, monkeypatch, text: str, why: str
) -> None:
    (tmp_path / ".gitignore").write_text(text)
    (tmp_path / "a").touch()
    paths, [reported] = walked(tmp_path, monkeypatch)
    assert paths == [".gitignore", "a"]
    assert reported.startswith(f".gitignore: {why}")
    assert reported.endswith("not followed")


@pytest.mark.parametrize(
    "text", ["a\n" * MOST_RULES, "a\n" + "#" * (MOST_IGNORE_BYTES - 2), "a\n" + "b" * LONGEST_RULE]
)
def test_the_most_that_is_allowed_is_followed(tmp_path: Path, monkeypatch, text: str) -> None:
    (tmp_path / ".gitignore").write_text(text)
    (tmp_path / "a").touch()
    assert walked(tmp_path, monkeypatch) == ([".gitignore"], [])


def test_rules_of_several_files_count_together_and_those_that_fit_stay(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / ".gitignore").write_text("a\n" * MOST_RULES)
    (tmp_path / "in" / ".gitignore").write_text("b\n")
    for name in "ab":
        (tmp_path / "in" / name).touch()
    paths, reported = walked(tmp_path, monkeypatch)
    assert paths == [".gitignore", "in/.gitignore", "in/b"]
    assert [one.partition(":")[0] for one in reported] == ["in/.gitignore"]


def test_a_link_in_the_place_of_rules_is_not_followed_as_by_git(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "rules").write_text("a\n")
    (tmp_path / ".gitignore").symlink_to("rules")
    (tmp_path / "a").touch()
    assert walked(tmp_path, monkeypatch) == (["a", "rules"], [])


def test_a_directory_with_too_many_entries_is_reported_in_their_place(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ignore_rules, "MOST_ENTRIES", 3)
    for directory, count in (("few", 3), ("many", 4)):
        (tmp_path / directory).mkdir()
        for number in range(count):
            (tmp_path / directory / str(number)).touch()
    paths, reported = walked(tmp_path, monkeypatch)
    assert paths == ["few/0", "few/1", "few/2"]
    assert reported == ["./many: it has more than 3 entries"]


class Left(Exception):  # noqa: N818 - it is no error
    """Raised by the step of a walk."""


def fill_with_rules(place: Path) -> None:
    (place / ".gitignore").write_text("a\n" * 101)


def fill_with_directories(place: Path) -> None:
    for number in range(101):
        (place / f"d{number}").mkdir()


def fill_with_entries(place: Path) -> None:
    for number in range(101):
        os.mkfifo(place / f"p{number}")


@pytest.mark.parametrize("fill", [fill_with_rules, fill_with_directories, fill_with_entries])
def test_a_walk_can_be_left_within_a_hundred_steps_of_any_kind(tmp_path: Path, monkeypatch, fill) -> None:
    def leave() -> None:
        raise Left

    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Left):
        list(walk(None, print, leave))

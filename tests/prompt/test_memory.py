"""Tests which files for models are read, in which order, how much of each, and what they may import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ralph.prompt import judged_file, memory
from ralph.prompt.judged_file import user_folder
from ralph.prompt.memory import MOST_MEMORY_BYTES, read_memory, shown_paths


def texts(directory) -> list[str]:
    return [found.text for found in read_memory(directory, None).files]


def test_from_the_repository_root_inwards_and_nothing_above_it(repository) -> None:
    (repository / "AGENTS.md").write_text("root")
    (repository / "sub" / "CLAUDE.md").write_text("sub")
    assert texts(repository / "sub") == ["root", "sub"]


def test_the_four_files_of_a_directory_in_the_order_of_their_weight(repository) -> None:
    (repository / ".claude").mkdir()
    for name in ("CLAUDE.local.md", "CLAUDE.md", ".claude/CLAUDE.md", "AGENTS.md"):
        (repository / name).write_text(name)
    assert texts(repository) == ["AGENTS.md", "CLAUDE.md", ".claude/CLAUDE.md", "CLAUDE.local.md"]


@pytest.mark.parametrize("how", ["link", "import", "copy", "hard link"])
def test_agents_md_and_claude_md_are_read_once_where_they_are_one(repository, how: str) -> None:
    (repository / "AGENTS.md").write_text("Be brief.")
    claude = repository / "CLAUDE.md"
    match how:
        case "link":
            claude.symlink_to("AGENTS.md")
        case "import":
            claude.write_text("@AGENTS.md")
        case "copy":
            claude.write_text("Be brief.\n")
        case _:
            os.link(repository / "AGENTS.md", claude)
    assert [text for text in texts(repository) if "Be brief." in text] == [
        "Be brief." + ("\n" if how == "copy" else "")
    ]


SOURCES = {
    "project": ["project"],
    "local": ["local"],
    "user": ["user"],
    "": [],
    "user,project,local": ["user", "project", "local"],
}


@pytest.mark.parametrize("chosen", SOURCES)
def test_sources_select_files(repository, home, chosen: str) -> None:
    (repository / "CLAUDE.md").write_text("project")
    (repository / "CLAUDE.local.md").write_text("local")
    (home / "CLAUDE.md").write_text("user")
    found = read_memory(repository, str(home), frozenset(filter(None, chosen.split(","))))
    assert [file.text for file in found.files] == SOURCES[chosen]


def imported(directory, **files: str) -> list[str]:
    """Writes `CLAUDE.md` and other files of the directory, and returns the texts of those that were read."""
    for name, text in files.items():
        (directory / f"{name}.md").write_text(text)
    return texts(directory)


def test_imports_follow_the_file_that_names_them_relative_to_its_own_directory(repository) -> None:
    (repository / "docs").mkdir()
    (repository / "docs/style.md").write_text("style, see @more.md.")
    (repository / "docs/more.md").write_text("more")
    found = imported(repository, CLAUDE="Read @docs/style.md first.\n- and @other.md#part", other="other")
    assert found == [
        "Read @docs/style.md first.\n- and @other.md#part",
        "style, see @more.md.",
        "more",
        "other",
    ]
    headings = [file.heading for file in read_memory(repository, None).files]
    assert headings[1] == (
        f"# Project instructions ({repository}/docs/style.md, imported by {repository}/CLAUDE.md)"
    )


CODE = {
    "span": "`@a.md`",
    "span with spaces": "`see @a.md there`",
    "double span": "`` a ` @a.md ``",
    "fence": "```\n@a.md\n```",
    "longer fence": "````sh\n```\n@a.md\n````",
    "tildes": "~~~\n@a.md\n~~~",
    "open fence": "```\n@a.md",
    "address": "me@a.md",
}


@pytest.mark.parametrize("text", CODE.values(), ids=CODE)
def test_text_in_code_imports_nothing(repository, text: str) -> None:
    assert imported(repository, CLAUDE=text, a="imported") == [text]


def test_behind_code_imports_count_again(repository) -> None:
    text = "```\nx\n```\n`y` @a.md, an open ` and\n\nanother ` paragraph @b.md"
    assert imported(repository, CLAUDE=text, a="a", b="b") == [text, "a", "b"]


def test_a_circle_of_imports_ends(repository) -> None:
    assert imported(repository, CLAUDE="1 @a.md", a="2 @CLAUDE.md @a.md @b.md", b="3 @a.md") == [
        "1 @a.md",
        "2 @CLAUDE.md @a.md @b.md",
        "3 @a.md",
    ]


def test_a_file_that_was_cut_and_imports_itself_is_named_once(repository) -> None:
    (repository / "CLAUDE.md").write_text("@CLAUDE.md " + "x" * MOST_MEMORY_BYTES)
    found = read_memory(repository, None)
    assert found.notices == (f"{repository}/CLAUDE.md was cut: only 32 KB of instructions are read",)


def test_imports_are_five_deep_and_the_sixth_is_named(repository) -> None:
    chain = {f"f{number}": f"{number} @f{number + 1}.md" for number in range(1, 8)}
    assert len(imported(repository, CLAUDE="0 @f1.md", **chain)) == 6
    (notice,) = read_memory(repository, None).notices
    assert notice == f"{repository}/f5.md imports f6.md, which is left out: at most imports 5 deep are read"


def test_the_hundred_and_first_import_is_left_out(repository, monkeypatch) -> None:
    assert memory._MOST_IMPORTS == 100
    monkeypatch.setattr(memory, "_MOST_IMPORTS", 4)  # each takes 30 ms
    files = {f"f{number}": f"text {number}" for number in range(7)}
    text = " ".join(f"@{name}.md" for name in files)
    assert len(imported(repository, CLAUDE=text, **files)) == 5
    assert len(read_memory(repository, None).notices) == 3


def test_imports_share_the_32_kb(repository) -> None:
    (repository / "a.md").write_text("a" * MOST_MEMORY_BYTES)
    (repository / "CLAUDE.md").write_text("@a.md @b.md")
    (repository / "b.md").write_text("b")
    found = read_memory(repository, None)
    assert [len(file.text) for file in found.files] == [11, MOST_MEMORY_BYTES - 11]
    assert found.notices == (
        f"{repository}/b.md is left out: nearer instruction files already use 32 KB",
        f"{repository}/a.md was cut: only 32 KB of instructions are read",
    )


def test_an_import_that_is_not_there_is_named_where_it_must_be_a_file(repository) -> None:
    (repository / "CLAUDE.md").write_text("@someone wrote @types/node and @docs/gone.md and @./gone")
    assert read_memory(repository, None).notices == (
        f"{repository}/CLAUDE.md imports docs/gone.md, which cannot be opened",
        f"{repository}/CLAUDE.md imports ./gone, which cannot be opened",
    )


def planted(repository, home) -> dict[str, tuple[str, str]]:
    """Imports that must not be read, each with what its notice says."""
    return {
        "above": ("@../CLAUDE.md", "is outside the repository"),
        "absolute": (f"@{repository.parent}/CLAUDE.md", "is outside the repository"),
        "the user's": ("@~/.claude/notes.md", "is outside the repository"),
        "a link": ("@link.md", f"it is {repository.parent}/CLAUDE.md, which is outside the repository"),
        "a linked directory": ("@linked/CLAUDE.md", "is outside the repository"),
        "the environment": ("@/proc/self/environ", "is made up by the kernel"),
        "a linked environment": ("@environ", "is made up by the kernel"),
        "git's own": ("@.git/config", "git's own"),
        "a key": ("@home/.ssh/id", "holds SSH keys"),
        "a key by another name": (
            "@known.md",
            f"it is a hard link, and the same file as {home.parent}/.ssh/known",
        ),
    }


@pytest.mark.parametrize("case", planted(Path("/r"), Path("/h")))
def test_no_import_leads_out_of_the_repository_or_to_a_secret(
    repository, home, monkeypatch, case: str
) -> None:
    (repository / ".git/config").write_text("secret")
    (repository / "link.md").symlink_to("../CLAUDE.md")
    (repository / "linked").symlink_to("..")
    (repository / "environ").symlink_to("/proc/self/environ")
    (home / "notes.md").write_text("secret")
    (home.parent / ".ssh").mkdir()
    (home.parent / ".ssh/known").write_text("secret")
    (repository / "known.md").hardlink_to(home.parent / ".ssh/known")
    monkeypatch.setenv("HOME", str(home.parent))
    if case == "a key":
        (repository / "home/.ssh").mkdir(parents=True)
        (repository / "home/.ssh/id").write_text("secret")
        monkeypatch.setenv("HOME", str(repository / "home"))
    text, says = planted(repository, home)[case]
    (repository / "CLAUDE.md").write_text(text)
    found = read_memory(repository, None)
    assert [file.text for file in found.files] == [text]
    (notice,) = found.notices
    assert " is left out: " in notice
    assert says in notice


def test_a_hard_link_is_read_unless_it_is_a_secret_or_cannot_be_compared(
    repository, home, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(home.parent))
    (home.parent / ".ssh").mkdir()
    (home.parent / ".ssh/key").write_text("secret")
    (home / "notes.md").write_text("some notes")
    (repository / "CLAUDE.md").hardlink_to(home / "notes.md")
    assert [file.text for file in read_memory(repository, None).files] == ["some notes"]
    monkeypatch.setattr(judged_file, "_MOST_COMPARED", 0)
    assert "too many files to compare" in read_memory(repository, None).notices[0]
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(home.parent))
    (repository / "CLAUDE.md").unlink()
    (repository / "CLAUDE.md").hardlink_to(home.parent / ".ssh/key")
    found = read_memory(repository, None)
    assert found.files == ()
    assert "it is a hard link, and the same file as" in found.notices[0]


def test_what_the_user_denies_is_not_imported(repository) -> None:
    (repository / "CLAUDE.md").write_text("@private/a.md")
    (repository / "private").mkdir()
    (repository / "private/a.md").write_text("secret")
    assert len(read_memory(repository, None).files) == 2
    found = read_memory(repository, None, denied=[str(repository / "private")])
    assert [file.text for file in found.files] == ["@private/a.md"]
    assert "private/a.md is left out" in found.notices[0]


def test_a_linked_claude_directory_leads_nowhere_outside(repository) -> None:
    (repository / ".claude").symlink_to("..")
    found = read_memory(repository, None)
    assert found.files == ()
    assert "which is outside the repository" in found.notices[0]


def test_the_users_own_file_comes_first_and_imports_from_its_folder_alone(
    repository, home, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(home.parent))
    (home.parent / "notes.md").write_text("notes")
    (home / "taste.md").write_text("taste")
    (home / ".credentials.json").write_text("secret")
    (home / "CLAUDE.md").write_text("mine @taste.md @~/notes.md @.credentials.json")
    (repository / "CLAUDE.md").write_text("project")
    found = read_memory(repository, str(home))
    assert [file.text for file in found.files][1:] == ["taste", "project"]
    assert [file.is_users for file in found.files] == [True, True, False]
    outside, credentials = found.notices
    assert "notes.md is left out: it is outside the user's own folder" in outside
    assert "credentials" in credentials
    assert list(shown_paths(found, repository, str(home.parent)).values()) == [
        "CLAUDE.md",
        "~/.claude/CLAUDE.md",
        "~/.claude/taste.md (imported)",
    ]


def test_the_user_may_link_their_own_file(repository, home) -> None:
    (home.parent / "dotfiles.md").write_text("mine")
    (home / "CLAUDE.md").symlink_to("../dotfiles.md")
    assert [file.text for file in read_memory(repository, str(home)).files] == ["mine"]
    (home / "CLAUDE.md").unlink()
    (home / "CLAUDE.md").symlink_to("/proc/self/environ")
    assert read_memory(repository, str(home)).files == ()


def test_a_home_in_the_working_directory_is_not_the_users(repository, home) -> None:
    environment = {"HOME": str(home.parent)}
    assert user_folder(environment, repository) == str(home)
    assert user_folder(environment, home.parent) is None
    assert user_folder(environment, home) is None
    assert user_folder({"HOME": "relative"}, repository) is None
    assert user_folder({}, repository) is None


def test_paths_outside_of_the_working_directory_are_shown_relative_to_it(repository) -> None:
    (repository / "AGENTS.md").write_text("root")
    found = read_memory(repository / "sub", None)
    assert shown_paths(found, repository / "sub", "/h") == {str(repository / "AGENTS.md"): "../AGENTS.md"}


def test_outside_a_repository_only_the_directory_itself_counts(tmp_path) -> None:
    (tmp_path / "CLAUDE.md").write_text("above")
    (tmp_path / "work").mkdir()
    assert texts(tmp_path / "work") == []
    assert texts(tmp_path) == ["above"]


def test_a_worktree_whose_git_is_a_file_is_a_repository(repository) -> None:
    (repository / "sub" / ".git").write_text("gitdir: elsewhere")
    (repository / "CLAUDE.md").write_text("root")
    assert texts(repository / "sub") == []


@pytest.mark.parametrize(("extra", "was_cut"), [(-1, False), (0, False), (1, True)])
def test_32_kb_at_most_and_the_cut_is_known(repository, extra: int, was_cut: bool) -> None:
    (repository / "CLAUDE.md").write_text("x" * (MOST_MEMORY_BYTES + extra))
    (found,) = read_memory(repository, None).files
    assert len(found.text) == MOST_MEMORY_BYTES + min(extra, 0)
    assert found.was_cut is was_cut


def test_the_nearest_file_is_kept_when_all_do_not_fit(repository) -> None:
    (repository / "CLAUDE.md").write_text("r" * MOST_MEMORY_BYTES)
    (repository / "sub" / "CLAUDE.md").write_text("s" * 1000)
    outer, inner = read_memory(repository / "sub", None).files
    assert (len(inner.text), inner.was_cut) == (1000, False)
    assert (len(outer.text), outer.was_cut) == (MOST_MEMORY_BYTES - 1000, True)


def test_a_file_that_finds_no_room_at_all_is_named(repository) -> None:
    (repository / "CLAUDE.md").write_text("r")
    (repository / "sub" / "CLAUDE.md").write_text("s" * MOST_MEMORY_BYTES)
    found = read_memory(repository / "sub", None)
    assert [one.path for one in found.files] == [str(repository / "sub" / "CLAUDE.md")]
    assert found.notices == (
        f"{repository}/CLAUDE.md is left out: nearer instruction files already use 32 KB",
    )
    (repository / "CLAUDE.md").write_text("")
    assert read_memory(repository / "sub", None).notices == ()


def test_a_cut_inside_a_character_leaves_no_half_of_it(repository) -> None:
    (repository / "CLAUDE.md").write_text("x" + "ü" * MOST_MEMORY_BYTES)
    (found,) = read_memory(repository, None).files
    assert "\ufffd" not in found.text


def test_a_fifo_or_directory_of_that_name_does_not_block(repository) -> None:
    os.mkfifo(repository / "CLAUDE.md")
    (repository / "sub" / "CLAUDE.md").mkdir()
    (repository / "sub" / "AGENTS.md").write_text("agents")
    told = read_memory(repository / "sub", None)
    assert [found.text for found in told.files] == ["agents"]
    assert sorted(told.notices) == [
        f"{path} is left out: it is not a regular file"
        for path in (repository / "CLAUDE.md", repository / "sub" / "CLAUDE.md")
    ]


@pytest.mark.ordinary_user
def test_a_file_that_may_not_be_opened_and_a_link_to_nowhere_are_named(repository) -> None:
    (repository / "CLAUDE.md").write_text("secret")
    (repository / "CLAUDE.md").chmod(0)
    (repository / "AGENTS.md").symlink_to("nowhere.md")
    assert sorted(read_memory(repository, None).notices) == [
        f"{repository / name} is left out: it cannot be opened" for name in ("AGENTS.md", "CLAUDE.md")
    ]


@pytest.mark.ordinary_user
def test_t18_a_directory_above_that_may_not_be_looked_into_ends_nothing(repository) -> None:
    (repository / "sub" / "deep").mkdir()
    (repository / "sub").chmod(0)
    try:
        assert texts(repository / "sub" / "deep") == []
    finally:
        (repository / "sub").chmod(0o700)


UNREADABLE = {
    "UTF-16 with a mark": ("Be brief.".encode("utf-16"), "`iconv -f UTF-16 -t UTF-8`"),
    "binary": (b"Be\0brief.", "this looks like binary data"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_is_no_text_is_left_out_with_advice(repository, case: str) -> None:
    data, advice = UNREADABLE[case]
    (repository / "CLAUDE.md").write_bytes(data)
    (repository / "AGENTS.md").write_bytes(b"\xef\xbb\xbfMark and \xff.")
    found = read_memory(repository, None)
    assert [file.text for file in found.files] == ["Mark and \ufffd."]
    (notice,) = found.notices
    assert notice.startswith(f"{repository}/CLAUDE.md is left out: it is not UTF-8 text: byte ")
    assert advice in notice

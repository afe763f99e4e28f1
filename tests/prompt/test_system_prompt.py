"""Tests which instruction files are used, in which order, and how much of each."""

from __future__ import annotations

import os

import pytest

from ralph.prompt.system_prompt import MOST_INSTRUCTION_BYTES, read_project_instructions


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "outside" / "root"
    (root / ".git").mkdir(parents=True)
    (root / "sub").mkdir()
    (root.parent / "CLAUDE.md").write_text("not ours")
    return root


def texts(directory) -> list[str]:
    return [found.text for found in read_project_instructions(directory)[0]]


def test_from_the_repository_root_inwards_and_nothing_above_it(repository) -> None:
    (repository / "AGENTS.md").write_text("root")
    (repository / "sub" / "CLAUDE.md").write_text("sub")
    assert texts(repository / "sub") == ["root", "sub"]


def test_claude_md_wins_over_agents_md(repository) -> None:
    (repository / "AGENTS.md").write_text("agents")
    (repository / "CLAUDE.md").write_text("claude")
    assert texts(repository) == ["claude"]


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
    (repository / "CLAUDE.md").write_text("x" * (MOST_INSTRUCTION_BYTES + extra))
    (found,), _ = read_project_instructions(repository)
    assert len(found.text) == MOST_INSTRUCTION_BYTES + min(extra, 0)
    assert found.was_cut is was_cut


def test_the_nearest_file_is_kept_when_all_do_not_fit(repository) -> None:
    (repository / "CLAUDE.md").write_text("r" * MOST_INSTRUCTION_BYTES)
    (repository / "sub" / "CLAUDE.md").write_text("s" * 1000)
    (outer, inner), _ = read_project_instructions(repository / "sub")
    assert (len(inner.text), inner.was_cut) == (1000, False)
    assert (len(outer.text), outer.was_cut) == (MOST_INSTRUCTION_BYTES - 1000, True)


def test_a_file_that_finds_no_room_at_all_is_named(repository) -> None:
    (repository / "CLAUDE.md").write_text("r")
    (repository / "sub" / "CLAUDE.md").write_text("s" * MOST_INSTRUCTION_BYTES)
    found, notices = read_project_instructions(repository / "sub")
    assert [one.path for one in found] == [str(repository / "sub" / "CLAUDE.md")]
    assert notices == (f"{repository}/CLAUDE.md is left out: nearer instruction files use up 32 KB",)
    (repository / "CLAUDE.md").write_text("")
    assert read_project_instructions(repository / "sub")[1] == ()


def test_a_cut_inside_a_character_leaves_no_half_of_it(repository) -> None:
    (repository / "CLAUDE.md").write_text("x" + "ü" * MOST_INSTRUCTION_BYTES)
    (found,), _ = read_project_instructions(repository)
    assert "\ufffd" not in found.text


def test_a_fifo_or_directory_of_that_name_does_not_block(repository) -> None:
    os.mkfifo(repository / "CLAUDE.md")
    (repository / "sub" / "CLAUDE.md").mkdir()
    (repository / "sub" / "AGENTS.md").write_text("agents")
    assert texts(repository / "sub") == ["agents"]


@pytest.mark.ordinary_user
def test_t18_a_directory_above_that_may_not_be_looked_into_ends_nothing(repository) -> None:
    (repository / "sub" / "deep").mkdir()
    (repository / "sub").chmod(0)
    try:
        assert texts(repository / "sub" / "deep") == []
    finally:
        (repository / "sub").chmod(0o700)

"""Tests which files define commands and skills, and which prompts call a command."""

from __future__ import annotations

import pytest

from ralph.prompt.commands import MOST_COMMAND_BYTES, find_commands, read_command


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (root / "sub").mkdir()
    return root


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "home" / ".claude"
    folder.mkdir(parents=True)
    return folder


def write(folder, name: str, text: str = "x"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_folders_are_parts_of_a_name(repository) -> None:
    for name in ("fix.md", "git/push.md", "a/b/c.md", "notes.txt", ".hidden.md", "odd name.md", "odd\x1b.md"):
        write(repository / ".claude/commands", name)
    assert find_commands(repository, None).names == ("a:b:c", "fix", "git:push")


@pytest.mark.parametrize("name", ["project:hld", "fix+", "speckit.plan", "Fix", "2do", "a@b", "größe", "_x"])
def test_what_a_file_may_be_called_is_what_a_prompt_can_call(repository, name: str) -> None:
    write(repository / ".claude/commands", f"{name}.md")
    library = find_commands(repository, None)
    call = library.called(f"/{name} it")
    assert call is not None
    assert (call.file.name, call.arguments) == (name, "it")
    assert library.why_unknown(f"/{name} it") is None
    assert f"no command is called /{name}x: did you mean /{name}? (" in str(
        library.why_unknown(f"/{name}x it")
    )


def test_the_user_then_the_nearest_and_a_skill_before_a_command(repository, own) -> None:
    for folder in (repository / ".claude", repository / "sub/.claude", own):
        write(folder, "commands/both.md")
    write(repository / "sub/.claude", "commands/near.md")
    write(repository / ".claude", "commands/near.md")
    skill = write(repository / ".claude", "skills/method/SKILL.md")
    write(repository / ".claude", "commands/method.md")
    write(repository / ".claude", "skills/empty/README.md")
    library = find_commands(repository / "sub", str(own))
    assert library.files["both"].path == str(own / "commands/both.md")
    assert library.files["near"].path == str(repository / "sub/.claude/commands/near.md")
    assert library.files["method"].path == str(skill)
    assert [file.name for file in library.skills] == ["method"]
    assert library.names == ("both", "method", "near")


@pytest.mark.parametrize(
    ("sources", "names"), [({"user"}, ("mine",)), ({"project"}, ("theirs",)), ({"local"}, ()), (set(), ())]
)
def test_sources_select_commands(repository, own, sources, names) -> None:
    write(own, "commands/mine.md")
    write(repository, ".claude/commands/theirs.md")
    assert find_commands(repository, str(own), frozenset(sources)).names == names


def test_folders_are_bounded(repository) -> None:
    write(repository / ".claude/commands", "a/b/c/d/e/five.md")
    write(repository / ".claude/commands", "a/b/c/d/e/f/six.md")
    assert find_commands(repository, None).names == ("a:b:c:d:e:five",)


CALLS = {
    "/fix": ("fix", ""),
    "/fix  a b\n c ": ("fix", "a b\n c"),
    "/git:push\nnow": ("git:push", "now"),
    "/fixes": None,
    "fix": None,
    " /fix": None,
    "/ fix": None,
    "": None,
}


@pytest.mark.parametrize("prompt", CALLS)
def test_a_prompt_that_begins_with_a_name_calls_it(repository, prompt: str) -> None:
    write(repository / ".claude/commands", "fix.md")
    write(repository / ".claude/commands", "git/push.md")
    call = find_commands(repository, None).called(prompt)
    assert (call and (call.file.name, call.arguments)) == CALLS[prompt]


@pytest.mark.parametrize(
    ("prompt", "is_refused"),
    [
        ("/fxi", True),
        ("/a:b-c_1 x", True),
        ("/tmp\nx", True),
        ("/Fix", True),
        ("/speckit.plann x", True),
        ("/fix+", True),
        ("/1 of 2", True),
        ("/fix", False),
        ("/tmp/x", False),
        ("/fix/ it", False),
        ("/* a comment */", False),
    ],
)
def test_a_prompt_that_names_no_command_is_told_which_there_are(
    repository, prompt: str, is_refused: bool
) -> None:
    write(repository / ".claude/commands", "fix.md")
    why = find_commands(repository, None).why_unknown(prompt)
    assert (why is not None) is is_refused
    assert why is None or "(commands: /fix)" in why


def test_without_any_command_the_places_are_named(repository) -> None:
    assert "there is none in .claude/commands or ~/.claude/commands" in str(
        find_commands(repository, None).why_unknown("/fix")
    )


def test_a_file_is_bounded_and_its_line_ends_and_mark_do_not_matter(repository) -> None:
    path = write(repository / ".claude/commands", "fix.md")
    library = find_commands(repository, None)
    path.write_bytes(b"\xef\xbb\xbf---\r\ndescription: x\r\n---\r\nFix.\r\n")
    command = read_command(library.files["fix"])
    assert (command.fields, command.body) == ({"description": "x"}, "Fix.")
    path.write_text("x" * (MOST_COMMAND_BYTES + 1))
    with pytest.raises(ValueError, match="more than 262,144 bytes"):
        read_command(library.files["fix"])
    path.unlink()
    with pytest.raises(ValueError, match="cannot be opened"):
        read_command(library.files["fix"])


def test_a_linked_folder_of_a_repository_has_no_commands(repository, tmp_path) -> None:
    write(tmp_path / "outside", "secret.md")
    (repository / ".claude/commands").mkdir(parents=True)
    (repository / ".claude/commands/dir").symlink_to(tmp_path / "outside")
    write(repository / "tools", "inner.md")
    (repository / ".claude/commands/own").symlink_to(repository / "tools")
    assert find_commands(repository, None).names == ("own:inner",)


def test_the_user_may_link_a_folder_of_their_own(repository, own, tmp_path) -> None:
    write(tmp_path / "dotfiles", "mine.md", "Mine.")
    (own / "commands").symlink_to(tmp_path / "dotfiles")
    library = find_commands(repository, str(own))
    assert read_command(library.files["mine"]).body == "Mine."

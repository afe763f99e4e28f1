"""Which files define commands and skills, which prompts call a command, and what a command's file says."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.prompt.commands import (
    MOST_COMMAND_BYTES,
    Command,
    CommandFile,
    as_names,
    as_text,
    find_commands,
    read_command,
    split_frontmatter,
)
from ralph.prompt.judged_file import Place
from ralph.prompt.memory import imported_paths
from ralph.run.command_prompt import Expansion, ShellLine, expand
from tests.rows import every_row


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
    assert f"there is no command /{name}x: did you mean /{name}? (" in str(
        library.why_unknown(f"/{name}x it")
    )


def test_the_user_then_the_nearest_and_a_skill_before_a_command(repository, home) -> None:
    for folder in (repository / ".claude", repository / "sub/.claude", home):
        write(folder, "commands/both.md")
    write(repository / "sub/.claude", "commands/near.md")
    write(repository / ".claude", "commands/near.md")
    skill = write(repository / ".claude", "skills/method/SKILL.md")
    write(repository / ".claude", "commands/method.md")
    write(repository / ".claude", "skills/empty/README.md")
    library = find_commands(repository / "sub", str(home))
    assert library.files["both"].path == str(home / "commands/both.md")
    assert library.files["near"].path == str(repository / "sub/.claude/commands/near.md")
    assert library.files["method"].path == str(skill)
    assert [file.name for file in library.skills] == ["method"]
    assert library.names == ("both", "method", "near")


@pytest.mark.parametrize(
    ("sources", "names"), [({"user"}, ("mine",)), ({"project"}, ("theirs",)), ({"local"}, ()), (set(), ())]
)
def test_sources_select_commands(repository, home, sources, names) -> None:
    write(home, "commands/mine.md")
    write(repository, ".claude/commands/theirs.md")
    assert find_commands(repository, str(home), frozenset(sources)).names == names


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
    assert "there are no commands in .claude/commands or ~/.claude/commands" in str(
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


def test_the_user_may_link_a_folder_of_their_own(repository, home, tmp_path) -> None:
    write(tmp_path / "dotfiles", "mine.md", "Mine.")
    (home / "commands").symlink_to(tmp_path / "dotfiles")
    library = find_commands(repository, str(home))
    assert read_command(library.files["mine"]).body == "Mine."


# --- The head of a command's file: the fields that are read, and the errors for all others


HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "a text": ("description: Fix it: now", {"description": "Fix it: now"}),
    "single quotes": ("a: 'it''s # no comment'", {"a": "it's # no comment"}),
    "double quotes": ('a: "x\\n: y"', {"a": "x\n: y"}),
    "a comment": ("# first\na: b # rest\n", {"a": "b"}),
    "nothing": ("a:", {"a": ""}),
    "a list in brackets": (
        "a: [Read, 'Write', Bash(git add:*, x)]",
        {"a": ("Read", "Write", "Bash(git add:*, x)")},
    ),
    "a list in brackets below": (
        "a:\n  ['Read', Bash(git *)]\nb: c",
        {"a": ("Read", "Bash(git *)"), "b": "c"},
    ),
    "a list in brackets over lines": (
        "a: [\n  Read,\n  'Write'\n]\nb: c",
        {"a": ("Read", "Write"), "b": "c"},
    ),
    "such a list below": ("a:\n  [\n    Read,\n    Write,\n  ]", {"a": ("Read", "Write")}),
    "a list in lines": ("a:\n  - Read\n  - Bash(git *)\nb: c", {"a": ("Read", "Bash(git *)"), "b": "c"}),
    "a list without indent": ("a:\n- Read\nb: c", {"a": ("Read",), "b": "c"}),
    "a folded block": ("a: >-\n  one\n  two\nb: c", {"a": "one two", "b": "c"}),
    "a kept block": ("a: |\n  one\n  two", {"a": "one\ntwo"}),
    "a long line": ("a: one\n  two", {"a": "one two"}),
    "a nested block": ("hooks:\n  Stop:\n    - x", {"hooks": "Stop:\n    - x"}),
}


@every_row("case", HEADS)
def test_a_head_is_read(case: str) -> None:
    head, expected = HEADS[case]
    fields, body = split_frontmatter(f"---\n{head}\n---\nbody\n---\nmore")
    assert fields == expected
    assert body == "body\n---\nmore"


@every_row("text", ["body", "", "---\nno end", "x\n---\na: b\n---\n", " ---\na: b\n---\n"])
def test_a_text_without_a_head_is_all_body(text: str) -> None:
    assert split_frontmatter(text) == ({}, text)


@every_row(
    ("head", "line"),
    [("a: b\nallowed-tools Read", 3), ("a: b\na: c", 3), ("&anchor", 2), ("? a\n: b", 2), ("a:b", 2)],
)
def test_a_line_that_is_not_understood_is_named(head: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"line {line} of its head is not understood"):
        split_frontmatter(f"---\n{head}\n---\n")


@every_row(
    ("text", "says"),
    [
        ("---\nallowed-tools: Read\nDo it", "its head has no end: no line is ---"),
        ("---\na: b\n- Read\n---\n", "the value of a in its head is not understood"),
    ],
)
def test_a_head_in_which_a_guard_could_be_lost_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split_frontmatter(text)


@every_row(
    "field",
    [
        "Read, Bash(git add:*, x)  Edit",
        ("Read", "Bash(git add:*, x)", "Edit"),
        "Read,Bash(git add:*, x),Edit",
    ],
)
def test_names_are_separated_by_commas_and_spaces_but_not_in_a_pattern(field: Any) -> None:
    assert as_names(field) == ("Read", "Bash(git add:*, x)", "Edit")


def test_a_field_as_text_is_one_line() -> None:
    assert as_text("a\n b") == "a b"
    assert as_text(("a", "b")) == "a, b"


# --- The places in a command's text, and the texts that replace them


FILE = CommandFile("fix", "/r/.claude/commands/fix.md", Place("/r"))


def expanded(body: str, typed: str = "", **fields: str) -> Expansion:
    return expand(Command(FILE, dict(fields), body), typed, {"CLAUDE_SESSION_ID": "s1"})


def text(body: str, typed: str = "", **fields: str) -> str:
    (part,) = expanded(body, typed, **fields).parts
    assert isinstance(part, str)
    return part


PLACES = {
    "all": ("x $ARGUMENTS y", "a 'b c'", "x a 'b c' y"),
    "all in braces": ("${ARGUMENTS}!", "a", "a!"),
    "none given": ("x $ARGUMENTS y", "", "x  y"),
    "numbers count from 0": ("$0, $1", "a 'b c'", "a, b c"),
    "also without a 0": ("$1", "a b", "b"),
    "an index counts from 0": ("$ARGUMENTS[0], $1", "a b", "a, b"),
    "a missing number stays": ("$0 $1 $ARGUMENTS[2]", "a", "a $1 $ARGUMENTS[2]"),
    "missing numbers alone are no place": ("Fix $1.", "a", "Fix $1.\n\nARGUMENTS: a"),
    "ten is not one": ("$10 $1", "a b", "$10 b"),
    "no place": ("Fix.", "a b", "Fix.\n\nARGUMENTS: a b"),
    "no place and nothing": ("Fix $HOME for $5", "", "Fix $HOME for $5"),
    "an open quote": ("$0 $1", "don't stop", "don't stop"),
    "a place in an argument": ("$ARGUMENTS", "$1 ${CLAUDE_SESSION_ID}", "$1 ${CLAUDE_SESSION_ID}"),
    "a fact": ("${CLAUDE_SESSION_ID} ${CLAUDE_OTHER}", "", "s1 ${CLAUDE_OTHER}"),
}


@every_row("case", PLACES)
def test_places_are_filled(case: str) -> None:
    body, arguments, expected = PLACES[case]
    said = "".join(part for part in expanded(body, arguments).parts if isinstance(part, str))
    assert said == expected


def test_named_arguments_stand_where_the_head_declares_them() -> None:
    assert text("$issue on $branch, $other", "7 main", arguments="issue branch") == "7 on main, $other"
    assert text("$issue on $branch", "7", arguments="issue, branch") == "7 on "


SHELL = {
    "a line": ("x !`git log -1` y", ("x ", ShellLine("git log -1"), " y")),
    "at the beginning": ("!`a`", (ShellLine("a"),)),
    "not inside a word": ("x!`a`", ("x!`a`",)),
    "a block": ("```!\na\nb\n```\nz", (ShellLine("a\nb"), "\nz")),
    "a block of code": ("```sh\n!x\n```", ("```sh\n!x\n```",)),
    "two": ("!`a` !`b`", (ShellLine("a"), " ", ShellLine("b"))),
    "empty": ("!``", ("!``",)),
}


@every_row("case", SHELL)
def test_shell_lines_are_found(case: str) -> None:
    body, expected = SHELL[case]
    assert expanded(body).parts == expected


def test_arguments_are_in_shell_lines_and_make_none() -> None:
    assert expanded("!`log $0` $0", "!`x`").parts == (ShellLine("log !`x`"), " !`x`")


def test_files_are_those_of_the_text_and_of_its_arguments() -> None:
    expansion = expanded("See @a.py, `@code.py`, @$0 and !`cat @b.py`", "dir/c.py")
    assert tuple(imported_paths(expansion.own_text)) == ("a.py", "dir/c.py")

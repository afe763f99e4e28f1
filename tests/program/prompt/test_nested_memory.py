"""Instructions for parts of a repository in whole runs: nested files of memory, and rules that name files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.mock_api import Turn
from tests.program.conftest import KEY, first_prompt
from tests.program.model_answers import DONE, calls
from tests.program.prompt.test_commands import OUTPUT, notices, of_user, write
from tests.program.prompt.test_memory import system_of


def results(server: Any, request: int) -> list[str]:
    """The texts of the tool results in the last message of a request."""
    blocks = json.loads(server.requests[request].body)["messages"][-1]["content"]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


def read(*paths: str) -> Any:
    return calls(*(("Read", {"file_path": path}) for path in paths))


@pytest.fixture
def parts(ralph) -> None:
    """A repository with two packages, each with instructions."""
    (ralph.cwd / ".git").mkdir()
    write(ralph.cwd / "CLAUDE.md", "Root.")
    write(ralph.cwd / "a/AGENTS.md", "Part A.")
    write(ralph.cwd / "a/b/CLAUDE.md", f"Part B. @notes.md {KEY}")
    write(ralph.cwd / "a/b/notes.md", "Imported.")
    for name in ("top.py", "a/one.py", "a/b/two.py", "a/b/three.py"):
        write(ralph.cwd / name, "x\n")


def test_nested_instructions_come_with_the_first_call_that_touches_their_folder(ralph, serve, parts) -> None:
    server = serve(read("top.py"), read("a/b/two.py", "a/b/three.py"), read("a/one.py"), DONE)
    ran = ralph("go", *OUTPUT, code=0)
    assert results(server, 1) == ["     1\tx"]
    first, second = results(server, 2)
    at = ralph.cwd
    assert first.startswith("     1\tx\n\n# Project instructions (")
    assert [line for line in first.splitlines() if line.startswith("#")] == [
        f"# Project instructions ({at}/a/AGENTS.md)",
        f"# Project instructions ({at}/a/b/CLAUDE.md)",
        f"# Project instructions ({at}/a/b/notes.md, imported by {at}/a/b/CLAUDE.md)",
    ]
    assert "Part A." in first
    assert "Imported." in first
    assert KEY not in first
    assert second == "     1\tx"
    assert results(server, 3) == ["     1\tx"]
    assert "read a/AGENTS.md, a/b/CLAUDE.md, a/b/notes.md (imported) for a/b/two.py" in notices(ran)
    assert {system_of(server, index) for index in range(4)} == {system_of(server)}
    assert {first_prompt(request) for request in server.requests} == {"go"}
    assert "Part A." not in system_of(server)


# name: tool, arguments in a folder of its own, whether its instructions are told
TOUCHES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "a": ("Write", {"file_path": "a/new.py", "content": "x"}, True),
    "b": ("Edit", {"file_path": "b/x.py", "old_string": "x", "new_string": "y"}, True),
    "c": ("Grep", {"pattern": "x", "path": "c"}, True),
    "d": ("Glob", {"pattern": "*.py", "path": "d"}, True),
    "e": ("Read", {"file_path": "{cwd}/e/x.py"}, True),
    "the instructions themselves": ("Read", {"file_path": "the instructions themselves/AGENTS.md"}, False),
    "a call that failed": ("Read", {"file_path": "a call that failed/gone.py"}, False),
    "node_modules/p": ("Read", {"file_path": "node_modules/p/x.py"}, False),
    ".tox": ("Read", {"file_path": ".tox/x.py"}, False),
}


def test_what_touches_a_folder(ralph, serve) -> None:
    asked = []
    for folder, (tool, arguments, _) in TOUCHES.items():
        write(ralph.cwd / folder / "AGENTS.md", f"Part {folder}.")
        write(ralph.cwd / folder / "x.py", "x")
        asked.append(
            (tool, {key: value.replace("{cwd}", str(ralph.cwd)) for key, value in arguments.items()})
        )
    server = serve(*map(calls, asked), DONE)
    assert ralph("go").code == 0
    for number, (folder, (*_, is_told)) in enumerate(TOUCHES.items(), 1):
        assert ("# Project instructions (" in results(server, number)[0]) is is_told, folder


@pytest.mark.parametrize("options", [["--setting-sources", "user"], ["--bare"]])
def test_sources_select_nested_instructions(ralph, serve, parts, options: list[str]) -> None:
    server = serve(read("a/one.py"), DONE)
    assert ralph("go", *options).code == 0
    assert results(server, 1) == ["     1\tx"]


def test_nested_instructions_that_must_not_be_read_are_left_out_and_named(ralph, serve, parts) -> None:
    server = serve(read("a/b/two.py"), DONE)
    settings = json.dumps({"permissions": {"deny": ["Read(a/AGENTS.md)"]}})
    ran = ralph("go", "--settings", settings, *OUTPUT)
    (result,) = results(server, 1)
    assert "Part A." not in result
    assert "Part B." in result
    said = "\n".join(notices(ran))
    assert f"{ralph.cwd}/a/AGENTS.md is left out: the rule Read(a/AGENTS.md)" in said


def test_a_file_that_the_prompt_names_touches_its_folder(ralph, serve, parts) -> None:
    server = serve(DONE)
    assert ralph("See @a/one.py").code == 0
    assert "Part A." in str(server.requests[0].body)


def test_a_new_context_gets_the_instructions_again(ralph, serve, parts) -> None:
    nearly_full = {"input_tokens": 900_000, "output_tokens": 50}
    one = calls(("Read", {"file_path": "a/one.py"}), usage=nearly_full)
    server = serve(one, Turn("The summary."), read("a/one.py"), read("a/one.py"), DONE)
    assert ralph("go").code == 0
    assert ["Part A." in str(request.body).rpartition("tool_result")[2] for request in server.requests] == [
        *(False, True, False, True, False)
    ]


def test_nested_instructions_have_32_kb_together(ralph, serve, parts) -> None:
    server = serve(read("a/b/two.py"), read("c/x.py"), DONE)
    write(ralph.cwd / "a/AGENTS.md", "Part A. " + "x" * 20_000)
    write(ralph.cwd / "a/b/CLAUDE.md", "Part B. " + "y" * 20_000)
    write(ralph.cwd / "c/CLAUDE.md", "Part C.")
    write(ralph.cwd / "c/x.py", "x")
    ran = ralph("go", *OUTPUT)
    result = results(server, 1)[0]
    assert result.index("x\n[cut after 32 KB]") < result.index("Part B. " + "y" * 20_000)
    assert "Part C." not in results(server, 2)[0]
    said = notices(ran)
    assert f"{ralph.cwd}/a/AGENTS.md was cut: only 32 KB of instructions are read" in said
    assert f"{ralph.cwd}/c/CLAUDE.md is left out: nearer instruction files already use 32 KB" in said


def test_rules_hold_for_all_files_or_for_those_that_they_name(ralph, serve, parts) -> None:
    server = serve(read("top.py"), read("a/one.py"), read("a/b/two.py"), read("web/x.tsx"), DONE)
    rules = ralph.cwd / ".claude/rules"
    write(rules / "all.md", "---\ndescription: x\n---\nFor all.")
    write(rules / "deep/my own.md", "Also for all.")
    write(rules / "py.md", "---\npaths:\n  - 'a/*.py'\n---\nFor Python.")
    write(rules / "web.md", '---\npaths: "lib/**, web/**/*.{ts,tsx}"\n---\nFor the web.')
    write(rules / "never.md", "---\npaths: '*.rs'\n---\nFor Rust.")
    write(rules / "odd.md", "---\npaths *.rs\n---\nOdd.")
    write(ralph.cwd / "a/b/.claude/rules/b.md", "For B.")
    of_user(ralph, "rules/mine.md", "Mine.")
    of_user(ralph, "rules/mine-tsx.md", "---\npaths: ['*.tsx']\n---\nMine for TSX.")
    write(ralph.cwd / "web/x.tsx", "x\n")
    ran = ralph("go", *OUTPUT, code=0)
    system = system_of(server)
    said = [text for text in ("For all.", "Also for all.", "Mine.", "Root.") if text in system]
    assert said == ["For all.", "Also for all.", "Mine.", "Root."]
    assert system.index("Mine.") < system.index("For all.") < system.index("Root.")
    assert "description" not in system
    for text in ("For Python.", "For the web.", "For Rust.", "Odd.", "Mine for TSX."):
        assert text not in system
    assert results(server, 1) == ["     1\tx"]
    assert "For Python." in results(server, 2)[0]
    assert f"# Project instructions ({rules}/py.md, for a/*.py)" in results(server, 2)[0]
    assert "For B." in results(server, 3)[0]
    assert "For Python." not in results(server, 3)[0]
    assert "For the web." in results(server, 4)[0]
    assert "Mine for TSX." in results(server, 4)[0]
    assert f"{rules}/odd.md is left out: line 2 of its head is not understood" in notices(ran)
    assert "For Rust." not in str([request.body for request in server.requests])

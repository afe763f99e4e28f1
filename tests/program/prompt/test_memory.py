"""Files with instructions for models, in whole runs: their text in requests, the notices, and that no file is
changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program.model_answers import DONE


def system_of(server: Any, index: int = 0) -> str:
    blocks = json.loads(server.requests[index].body)["system"]
    return blocks if isinstance(blocks, str) else "\n".join(block["text"] for block in blocks)


def about_memory(ran: Any) -> list[str]:
    return [line for line in ran.stderr.splitlines() if line.startswith("[ralph] read ")]


@pytest.fixture
def remembered(ralph: Any) -> dict[str, Path]:
    """Instruction files of the project and of the user. CLAUDE.md imports a file of the project and a missing file."""
    user = Path(ralph.environment["HOME"], ".claude")
    files = {
        ralph.cwd / "CLAUDE.md": "Rule one. See @docs/style.md and @docs/gone.md.",
        ralph.cwd / "docs/style.md": "Rule two.",
        ralph.cwd / "CLAUDE.local.md": "Rule three.",
        user / "CLAUDE.md": "Rule four.",
    }
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return {path.name: path for path in files} | {"user": user / "CLAUDE.md"}


def test_one_line_and_init_say_what_was_read(ralph, serve, remembered) -> None:
    server = serve(DONE)
    ran = ralph("go", "--output-format", "stream-json")
    assert about_memory(ran) == [
        "[ralph] read CLAUDE.md, docs/style.md (imported), CLAUDE.local.md, ~/.claude/CLAUDE.md"
    ]
    assert f"[notice] {ralph.cwd}/CLAUDE.md imports docs/gone.md, which cannot be opened" in ran.stderr
    init = next(one for one in ran.objects if one.get("subtype") == "init")
    assert init["memory_paths"] == [
        f"{ralph.cwd}/CLAUDE.md",
        f"{ralph.cwd}/docs/style.md",
        f"{ralph.cwd}/CLAUDE.local.md",
        str(remembered["user"]),
    ]
    rules = [line for line in system_of(server).splitlines() if line.startswith("Rule ")]
    assert [rule.split()[1].rstrip(".") for rule in rules] == ["four", "one", "two", "three"]


def test_a_run_without_such_files_says_nothing_and_sends_nothing_of_them(ralph, serve) -> None:
    server = serve(DONE)
    ran = ralph("go", "--output-format", "stream-json")
    assert about_memory(ran) == []
    assert "memory_paths" not in next(one for one in ran.objects if one.get("subtype") == "init")
    assert "instructions" not in system_of(server)


def test_a_resumed_session_keeps_its_instructions_and_does_not_say_that_it_read_them(
    ralph, serve, remembered
) -> None:
    server = serve(DONE, DONE)
    ralph("go")
    remembered["style.md"].write_text("Rule changed.")
    ran = ralph("more", "--continue", code=0)
    assert about_memory(ran) == []
    assert system_of(server, 1) == system_of(server)


def test_an_unknown_source_is_refused_exits_2(ralph_here) -> None:
    for command in ("run", "loop"):
        ran = ralph_here(command, "go", "--setting-sources", "user,team", code=2)
        assert (
            "--setting-sources takes local, project, user, separated by commas, not 'team'" in ran.stderr
        ), ran.stderr


def test_instructions_that_are_no_text_are_not_sent_and_named_with_advice(ralph, serve, remembered) -> None:
    server = serve(DONE)
    (ralph.cwd / "CLAUDE.md").write_bytes("Rule one.".encode("utf-16"))
    ran = ralph("go", code=0)
    assert "\0" not in system_of(server)
    assert "Rule three." in system_of(server)
    (said,) = [line for line in ran.stderr.splitlines() if "is left out" in line]
    assert said.startswith(
        f"[notice] {ralph.cwd}/CLAUDE.md is left out: it is not UTF-8 text: byte 1 (0xff, in line 1)"
    )
    assert said.endswith("convert it with `iconv -f UTF-16 -t UTF-8`")

"""Finds the sessions that runs have stored in the home directory of a `Ralph`, and makes some with a scripted server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.mock_api import Text, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program.conftest import Finished, Ralph

HELLO = Turn(content="Hello there.")
LOOKS = Turn(content=[Text("I look."), ToolUse("Bash", {"command": "echo found; exit 3"})])


def journals(ralph: Ralph) -> list[Path]:
    return sorted(Path(ralph.environment["HOME"]).glob(".local/state/ralph/sessions/*/*.jsonl"))


def only_journal(ralph: Ralph) -> Path:
    [path] = journals(ralph)
    return path


def listed(ralph: Callable[..., Finished], *arguments: str) -> list[dict[str, object]]:
    ran = ralph("sessions", "ls", "--format", "json", *arguments)
    assert ran.code == 0
    sessions: list[dict[str, object]] = json.loads(ran.stdout)
    return sessions

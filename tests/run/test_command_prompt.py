"""Tests the prompt that is made from a command's file, with scripted rules and tools."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.agent.tool_turn import PromptCalls, PromptRefusedError
from ralph.permissions.gate import CallGate, RulesInForce
from ralph.prompt.commands import find_commands
from ralph.run.command_prompt import CommandPrompt
from ralph.values.answer import Runnable, ToolCall, ToolOutput
from ralph.values.controls import RunControls
from ralph.values.events import Notice, PromptCalled
from tests.fakes import RecordingEvents

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


class Rules:
    """Refuses each call whose first argument contains `bad`."""

    def ruling(self, call: ToolCall) -> ToolOutput | Runnable:
        is_bad = "bad" in str(next(iter(call.arguments.values())))
        return ToolOutput("a rule says no", is_error=True) if is_bad else Runnable(call, ("noted",))


class Tools:
    """Answers each call with its argument, and a call for a `.png` with an image."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, calls: Any) -> list[tuple[ToolOutput, float]]:
        (call,) = calls
        argument = str(next(iter(call.arguments.values())))
        self.ran.append(argument)
        return [(ToolOutput((IMAGE,) if argument.endswith(".png") else f"<{argument}>"), 0.1)]


@pytest.fixture
def make(tmp_path):
    """Makes the prompt from a command's text. Returns it with the tools and the events."""

    def made(text: str, prompt: str = "/fix", below: str = "") -> tuple[Any, Tools, list[Any]]:
        folder = tmp_path / ".claude/commands"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fix.md").write_text(text)
        call = find_commands(tmp_path, None).called(prompt)
        assert call is not None
        tools, events = Tools(), RecordingEvents()
        command = CommandPrompt(
            call,
            below=below,
            cwd=tmp_path,
            home="",
            session_id="s1",
            rules=RulesInForce(),
            events=events,
        )
        gate = CallGate(RunControls(), events)
        calls = PromptCalls(tools, Rules, gate, events)  # type: ignore[arg-type]
        try:
            return command.make(calls), tools, events.events
        except PromptRefusedError as error:
            return error, tools, events.events

    return made


def test_no_shell_line_runs_if_a_later_one_is_refused(make) -> None:
    error, tools, events = make("!`good` and !`bad one`")
    assert str(error) == "/fix needs Bash bad one: a rule says no"
    assert tools.ran == []
    assert not [event for event in events if isinstance(event, PromptCalled)]


def test_an_image_becomes_a_block(make, tmp_path) -> None:
    (tmp_path / "a.png").write_text("x")
    prompt, _, _ = make("See @a.png", below="\n\npiped")
    noted = {"type": "text", "text": "noted"}
    assert prompt == [{"type": "text", "text": "See @a.png\n\npiped"}, IMAGE, noted]


def test_twenty_files_at_most(make, tmp_path) -> None:
    names = [f"f{number}.txt" for number in range(22)]
    for name in names:
        (tmp_path / name).write_text("x")
    words = " ".join(f"@word{number}" for number in range(30))
    _, tools, events = make(f"{words} {' '.join(f'@{name}' for name in names)}")
    assert len(tools.ran) == 20
    assert Notice("/fix names 22 files: only the first 20 are in the prompt") in events

"""Runs the hooks of the user's settings, which are commands, and reads their answers. `ralph/permissions/gate.py` decides
when they run and what their answers lead to.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.permissions.gate import HookFailedError
from ralph.permissions.hook_answers import (
    AFTERWARDS,
    GUARDED,
    PROMPT,
    HookAnswer,
    context_answer,
    hook_answer,
)
from ralph.values.events import HookEnded, HookStarted, Notice
from ralph.values.ports import Interrupted
from ralph.values.strict_json import unambiguous_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.permissions.claude_settings import HookCommand
    from ralph.tools.hook_command import HookEnding
    from ralph.values.ports import Events

_BLOCKED = 2
"""The exit code of a hook's command that refuses the call, the task or the end. Claude Code uses the same code."""

_BLANK = " \t\r\n\ufeff"
"""White space, and the byte order mark that some programs print, may surround an answer."""


class CommandHooks:
    """Implements the port `Hooks`."""

    def __init__(
        self,
        hooks: Sequence[HookCommand],
        run: Callable[[str, bytes, float, str], HookEnding],
        events: Events,
        *,
        is_told: bool,
    ) -> None:
        """`run` executes the command of a hook. Its arguments are the command, the bytes for standard input, the time
        limit in seconds, and the text that heartbeats show. If `is_told` is True, an event is emitted for each command.
        """
        self._hooks = hooks
        self._run = run
        self._events = events
        self._is_told = is_told
        self._called = 0
        """The number of hook commands that were started. The id of a command in events contains this number."""
        self._told: set[tuple[str, str]] = set()
        """The notices that people got once, each with the command that it is about."""

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[str | None], bool]
    ) -> Sequence[HookAnswer]:
        """Runs the commands of all hooks for an event, one after another, and returns the answers. Raises
        HookFailedError for one that fails before what it is asked about, and Interrupted.
        """
        given = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        # Claude Code starts equal commands once per event. A shorter time limit would refuse what the longest allows.
        found: dict[str, HookCommand] = {}
        for hook in self._hooks:
            if hook.event == event and covers(hook.matcher):
                known = found.get(hook.command, hook)
                found[hook.command] = max(known, hook, key=lambda one: one.timeout_s)
        tool = fields.get("tool_name", "")
        waiting_for = f"the {event} hook" + (f" of {tool}" if tool else "")
        name = f"{event}:{tool}" if tool else event
        endings = [(hook, self._ending(hook, name, given, waiting_for)) for hook in found.values()]
        return [self._answer(hook, ending, event) for hook, ending in endings]

    def _answer(self, hook: HookCommand, ending: HookEnding, event: str) -> HookAnswer:
        try:
            answer = answer_of(ending, event)
        except HookFailedError as error:
            if event not in AFTERWARDS:
                raise HookFailedError(f"{hook.name}: {error}") from error
            self._events.emit(Notice(f"the {event} hook failed: {hook.name}: {error}", is_vital=True))
            return HookAnswer()
        if answer is None and event in GUARDED:
            self._tell_once(hook, "printed text, and no answer: that is no opinion")
        if ending.status == 0 and ending.denied:
            self._tell_once(hook, f"says no failure, but {ending.denied}")
        return replace(answer or HookAnswer(), hook=f"({hook.name})")

    def _tell_once(self, hook: HookCommand, told: str) -> None:
        if (hook.command, told) not in self._told:
            self._told.add((hook.command, told))
            self._events.emit(Notice(f"the {hook.event} hook ({hook.name}) {told}"))

    def _ending(self, hook: HookCommand, name: str, given: bytes, waiting_for: str) -> HookEnding:
        self._called += 1
        hook_id = f"hook_{self._called}"
        if self._is_told:
            self._events.emit(HookStarted(hook_id, name, hook.event))
        try:
            ending = self._run(hook.command, given, hook.timeout_s, waiting_for)
        except Interrupted as stop:
            self._tell_undone(hook, stop.undone)
            raise
        self._tell_undone(hook, ending.undone)
        if self._is_told:
            errors = ending.errors or ending.problem
            self._events.emit(HookEnded(hook_id, name, hook.event, ending.output, errors, ending.status))
        return ending

    def _tell_undone(self, hook: HookCommand, undone: str) -> None:
        if undone:
            self._events.emit(Notice(f"the {hook.event} hook: {undone}", is_vital=True))


def answer_of(ending: HookEnding, event: str) -> HookAnswer | None:
    """Converts the exit code and the output of a hook's command to the hook's answer. Returns None for text that contains
    no answer. Raises HookFailedError if the hook failed.

    Where the hook can refuse something, output with a `{` must hold exactly one answer: an object that begins a line
    and ends the output. So a refusal behind a line of a log is not lost.
    """
    if ending.status is None:
        raise HookFailedError(ending.problem)
    if ending.status == _BLOCKED:
        return HookAnswer(decision="block", reason=ending.errors or "no reason was given")
    if ending.status != 0:
        said = f": {ending.last_line}" if ending.last_line else ""
        denied = f"; {ending.denied}" if ending.denied else ""
        raise HookFailedError(f"it ended with exit {ending.status}{said}{denied}")
    text = ending.output.strip(_BLANK)
    if not text:
        return HookAnswer()
    before, brace, _ = text.partition("{")
    if not brace or (before and event not in GUARDED):
        return context_answer(text) if event == PROMPT else None
    if before.rpartition("\n")[2].strip(_BLANK):
        raise HookFailedError("its answer is not valid: something stands before it in its line")
    try:
        return hook_answer(unambiguous_json(text.removeprefix(before)))
    except (ValueError, RecursionError) as error:
        raise HookFailedError(f"its answer is not valid: {error}") from error

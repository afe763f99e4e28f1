"""Tells the model of a resumed session that the sandbox of its commands has changed. No I/O happens here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.sandbox.box_plan import SANDBOX_WORDS

if TYPE_CHECKING:
    from ralph.agent.task import Prompt
    from ralph.conversation.session import Session

_CHANGED = "(Changed since then: "
"""The beginning of the note."""


def changed_sandbox_note(
    old: Session, about_sandbox: str, system_prompt: str, *, has_prompt: bool
) -> str | None:
    """The note about the sandbox that a resumed session needs, or None. `about_sandbox` is the sentence about the
    sandbox of this run; it is empty if commands have no sandbox.

    A note is needed if `about_sandbox` differs from the last sentence that the model got, in the system prompt or in
    an earlier note. No note is needed if the run only delivers an old result.
    """
    if not has_prompt and _is_only_retold(old):
        return None
    note = f"{_CHANGED}{about_sandbox or 'commands run without a sandbox.'})"
    is_true = about_sandbox in system_prompt if about_sandbox else SANDBOX_WORDS not in system_prompt
    last = _last_note(old)
    return None if last == note or (is_true and not last) else note


def with_note(prompt: Prompt | None, note: str) -> Prompt:
    """Returns the prompt with the note at its end. If there is no prompt, returns the note alone."""
    if prompt is None:
        return note
    return f"{prompt}\n\n{note}" if isinstance(prompt, str) else [*prompt, {"type": "text", "text": note}]


def _is_only_retold(old: Session) -> bool:
    """Whether a run without a prompt only delivers a result that the session already contains: an answer or an
    accepted report.
    """
    return old.awaits_delivery or (old.report is not None and old.pending is None)


def _last_note(old: Session) -> str:
    """The last note about a changed sandbox in a session. Empty if there is none."""
    for message in reversed(old.conversation.messages):
        for block in reversed(message.content):
            text = str(block.get("text", "")) if message.role == "user" else ""
            if _CHANGED in text and text.endswith(")"):
                return text[text.rindex(_CHANGED) :]
    return ""

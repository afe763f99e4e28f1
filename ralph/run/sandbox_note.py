"""Tells the model of a resumed session that the sandbox of its commands has changed. Pure."""

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
    """A note for the model if it was told something else about the sandbox than is true in this run: by the system prompt,
    which a resumed session keeps, or by the last such note. None if nothing needs to be said, also if only the end of the
    last task is to be told again.

    `about_sandbox` is the sentence that is true now. It is empty if commands have no sandbox.
    """
    if not has_prompt and _is_only_retold(old):
        return None
    note = f"{_CHANGED}{about_sandbox or 'commands run without a sandbox.'})"
    is_true = about_sandbox in system_prompt if about_sandbox else SANDBOX_WORDS not in system_prompt
    last = _last_note(old)
    return None if last == note or (is_true and not last) else note


def with_note(prompt: Prompt | None, note: str) -> Prompt:
    """The prompt with the note at its end. Unfinished work that is resumed without a prompt gets the note alone."""
    if prompt is None:
        return note
    return f"{prompt}\n\n{note}" if isinstance(prompt, str) else [*prompt, {"type": "text", "text": note}]


def _is_only_retold(old: Session) -> bool:
    """Whether a run without a prompt only delivers what the session already has: an answer or an accepted report."""
    return old.awaits_delivery or (old.report is not None and old.pending is None)


def _last_note(old: Session) -> str:
    """The last note about a changed sandbox in a session. Empty if there is none."""
    for message in reversed(old.conversation.messages):
        for block in reversed(message.content):
            text = str(block.get("text", "")) if message.role == "user" else ""
            if _CHANGED in text and text.endswith(")"):
                return text[text.rindex(_CHANGED) :]
    return ""

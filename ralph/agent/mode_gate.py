"""The gate of a run without hooks. It decides about a tool call by the permission mode alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.agent.ports import Permission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.values.tool_calls import Block, ToolCall, ToolOutput


class ModeGate:
    def __init__(self, why_refused: Callable[[str], str | None]) -> None:
        """`why_refused` returns the reason why a tool may not be used now, or None if the tool may be used."""
        self._why_refused = why_refused

    def before_task(self, _prompt: Sequence[Block]) -> Sequence[str]:
        return ()

    def judge(self, call: ToolCall, asks: str | None = None) -> Permission:
        refused = self._why_refused(call.name)
        if refused is None and asks is not None:
            refused = (
                f"This call was not run: a hook wants somebody to be asked, and nobody is asked here (no driver answers "
                f"can_use_tool): {asks}"
            )
        return Permission(refused)

    def observe(self, _call: ToolCall, output: ToolOutput, _took_s: float) -> ToolOutput:
        return output

    def before_end(self, _text: str, *, was_held: bool) -> str | None:  # noqa: ARG002 - the port names it
        return None

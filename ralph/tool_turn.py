"""One answer's tool calls: check, run, collect the results in order. It decides what may run, never how."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from ralph.core.answer import MalformedCall
from ralph.core.events import ToolFinished, ToolStarted
from ralph.core.tool_arguments import check_arguments
from ralph.core.tool_calls import ToolCall, ToolOutput, ToolResult
from ralph.ports import Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.ports import Events, Toolbox

# More at once than cores gain nothing but memory.
MOST_PARALLEL_CALLS = 8

INTERRUPTED = (
    "This call was interrupted while it ran; its effects are unknown. Look at the state of things before you "
    "repeat it."
)


def run_tool_turn(
    calls: Sequence[ToolCall | MalformedCall],
    finished: dict[str, ToolResult],
    *,
    toolbox: Toolbox,
    events: Events,
) -> tuple[ToolResult, ...]:
    """One result per call, in the order of the calls.

    `finished` is filled as results come, so that what a tool did is known even when `Interrupted` ends the
    turn in the middle; the calls under way then have an error result that says their effects are unknown.
    """
    for batch in _batches(calls, toolbox):
        _run_batch(batch, finished, toolbox, events)
    return tuple(finished[call.id] for call in calls)


def _run_batch(
    batch: Sequence[ToolCall | MalformedCall],
    finished: dict[str, ToolResult],
    toolbox: Toolbox,
    events: Events,
) -> None:
    runnable: list[tuple[ToolCall, tuple[str, ...]]] = []
    for call in batch:
        shown = (
            call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, {"INVALID_JSON": call.raw})
        )
        events.emit(ToolStarted(shown))
        checked = _checked(call, toolbox)
        if isinstance(checked, str):
            finished[call.id] = ToolResult(call.id, ToolOutput(checked, is_error=True))
            events.emit(ToolFinished(shown, finished[call.id], 0.0))
        else:
            runnable.append((shown, checked))
    if not runnable:
        return
    try:
        outputs = toolbox.run([call for call, _ in runnable])
    except Interrupted:
        for call, _ in runnable:
            finished[call.id] = ToolResult(call.id, ToolOutput(INTERRUPTED, is_error=True))
        raise
    for (call, ignored), (output, took_s) in zip(runnable, outputs, strict=True):
        finished[call.id] = ToolResult(call.id, _with_note(output, ignored))
        events.emit(ToolFinished(call, finished[call.id], took_s))


def _batches(
    calls: Sequence[ToolCall | MalformedCall], toolbox: Toolbox
) -> Iterator[Sequence[ToolCall | MalformedCall]]:
    """Neighbouring read-only calls together, every other call alone: order of effects is the model's order."""
    read_only = {tool.name for tool in toolbox.definitions if tool.is_read_only}
    for is_parallel, group in groupby(calls, key=lambda call: call.name in read_only):
        members = list(group)
        size = MOST_PARALLEL_CALLS if is_parallel else 1
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _checked(call: ToolCall | MalformedCall, toolbox: Toolbox) -> str | tuple[str, ...]:
    """Why this call does not run, as the model is told; or, when it may, the arguments nobody knows."""
    tools = {tool.name: tool for tool in toolbox.definitions}
    if call.name not in tools:
        return f"There is no tool {call.name!r}. The tools are: {', '.join(sorted(tools))}."
    if isinstance(call, MalformedCall):
        return f"This call was not run: {call.reason}. Send it again, whole and as valid JSON."
    check = check_arguments(call.name, tools[call.name].input_schema, call.arguments)
    return check.ignored if check.error is None else f"This call was not run. {check.error}."


def _with_note(output: ToolOutput, ignored: tuple[str, ...]) -> ToolOutput:
    if not ignored:
        return output
    note = f"(ignored arguments that the tool does not have: {', '.join(ignored)})"
    if isinstance(output.content, str):
        return replace(output, content=f"{output.content}\n{note}")
    return replace(output, content=(*output.content, {"type": "text", "text": note}))

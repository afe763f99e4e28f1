"""The present moment of a run, as a value: its turn, the tools that run, a wait, and the totals so far. `live_after`
makes it from the events of the run. No I/O happens here: the caller says what time it is, on a clock of its choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.output.narration import describe_call
from ralph.values import events as ev
from ralph.values.screen_text import duration, in_one_line
from ralph.values.usage import cost_usd, total_usd

if TYPE_CHECKING:
    from collections.abc import Callable


class RunningTool(Struct, frozen=True):
    id: str
    text: str
    """The name of the tool and its most important argument, in one line. Known credentials are removed."""
    since_s: float


class LiveWait(Struct, frozen=True):
    """A wait before a request is sent again."""

    reason: str
    """The HTTP status of the failed request, or the name of the error's class."""
    until_s: float


class LiveRun(Struct, frozen=True):
    since_s: float
    """The time when ralph began to wait for the model, or to wait before it sends a request again."""
    model: str = ""
    turn: int = 0
    """The number of the turn within the run, counted from 1. 0 before the first turn."""
    answered: int = 0
    """The number of turns in which the model has answered."""
    tools: tuple[RunningTool, ...] = ()
    """The tools that are running, the oldest first."""
    background: tuple[RunningTool, ...] = ()
    """The commands that run in the background, the oldest first."""
    wait: LiveWait | None = None
    """The present or last wait. It is over when its `until_s` has passed."""
    cost_usd: float | None = 0.0
    """The cost of this run so far in US dollars, or None if it is unknown."""
    tokens_in: int = 0
    tokens_out: int = 0
    has_ended: bool = False


def live_after(live: LiveRun, event: ev.Event, at_s: float, redact: Callable[[str], str]) -> LiveRun:
    """The present moment after an event at the time `at_s`. `redact` removes credentials from texts. If the event
    changes nothing, as parts of an answer do, `live` itself is returned.
    """
    match event:
        case ev.StreamReceived():
            return live
        case ev.RunStarted(model=model):
            return replace(live, model=model, since_s=at_s)
        case ev.TurnStarted(turn=turn):
            return replace(live, turn=turn, tools=(), wait=None, since_s=at_s, has_ended=False)
        case ev.ToolStarted(call=call):
            tool = RunningTool(call.id, redact(in_one_line(describe_call(call, redact))), at_s)
            return replace(live, tools=(*live.tools, tool), wait=None)
        case ev.ToolFinished(call=call):
            left = tuple(tool for tool in live.tools if tool.id != call.id)
            return replace(live, tools=left, since_s=live.since_s if left else at_s)
        case ev.BackgroundStarted(id=command_id, command=command):
            started = RunningTool(command_id, redact(in_one_line(command)), at_s)
            return replace(live, background=(*live.background, started))
        case ev.BackgroundEnded(id=command_id):
            return replace(live, background=tuple(one for one in live.background if one.id != command_id))
        case ev.AttemptEnded():
            return _after_attempt(live, event)
        case ev.RetryScheduled(wait_s=wait_s):
            reason = event.error_class if event.status is None else str(event.status)
            return replace(live, wait=LiveWait(reason, at_s + wait_s), since_s=at_s)
        case ev.RunEnded():
            return replace(live, tools=(), wait=None, has_ended=True)
        case _:
            return live


def _after_attempt(live: LiveRun, event: ev.AttemptEnded) -> LiveRun:
    return replace(
        live,
        answered=event.turn if event.kind is None else live.answered,
        wait=None,
        cost_usd=total_usd((live.cost_usd, cost_usd(event.facts, event.tokens))),
        tokens_in=live.tokens_in + event.tokens.prompt,
        tokens_out=live.tokens_out + event.tokens.output,
    )


def doing(live: LiveRun, at_s: float) -> tuple[str, str]:
    """Two texts: what the run does at the time `at_s`, and for how long, such as `42s`. During a wait, the second
    text is the rest of the wait.
    """
    if live.wait is not None and live.wait.until_s > at_s:
        return f"waiting after {live.wait.reason}", f"{duration(live.wait.until_s - at_s)} left"
    if live.tools:
        first, *others = live.tools
        more = f" (and {len(others)} more)" if others else ""
        return f"{first.text}{more}", duration(max(at_s - first.since_s, 0.0))
    since_s = live.since_s if live.wait is None else live.wait.until_s
    return "the model works", duration(max(at_s - since_s, 0.0))

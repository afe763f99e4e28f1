"""The records that a run writes into its session's journal, one function for each kind. Pure.

`conversation/session.py` leads them back to a state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.conversation.journal_lines import FORMAT
from ralph.conversation.notices import LIMIT_LIFTED
from ralph.values.answer import MalformedCall
from ralph.values.outcome import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ralph.conversation.journal_lines import Record
    from ralph.conversation.messages import Message, RequestShape
    from ralph.values.answer import Answer
    from ralph.values.events import ContextCompacted, RunEnded
    from ralph.values.tool_calls import Block, FileChange, ToolCall, ToolResult

Entry = tuple[str, dict[str, Any]]
"""A record's kind and fields, before it has a number."""


def session_entry(
    session_id: str, cwd: str, created_at: str, version: str, forked_from: str | None = None
) -> Entry:
    fields: dict[str, Any] = {
        "format": FORMAT,
        "ralph": version,
        "id": session_id,
        "cwd": cwd,
        "created_at": created_at,
    }
    return "session", fields if forked_from is None else {**fields, "forked_from": forked_from}


def fork_entries(records: Iterable[Record], session_id: str, created_at: str, version: str) -> list[Entry]:
    """A new session that begins with everything of an old one."""
    opening, *rest = records
    first = session_entry(session_id, opening.fields["cwd"], created_at, version, opening.fields["id"])
    return [first, *((record.kind, dict(record.fields)) for record in rest)]


def run_entry(
    shape: RequestShape,
    started_at: str,
    process_id: int,
    *,
    target: str | None = None,
    writable: Iterable[str] = (),
    again: Mapping[str, str] | None = None,
) -> Entry:
    """`head` is every request's beginning, kept whole: what a model is sent must not change under it.

    `target`: the name of the first one; None: the model's. `writable`: what file tools may change besides.
    `again`: options of the command line that the next run needs too.
    """
    fields = {"started_at": started_at, "pid": process_id, **_asked(target or shape.model, shape)}
    more = {"writable": list(writable), "again": dict(again or {})}
    return "run", {**fields, **{name: value for name, value in more.items() if value}}


def target_entry(target: str, shape: RequestShape | None, cooling: Mapping[str, str], first: str) -> Entry:
    """Who is asked from here on. `shape`: None where the run has named it already.

    `cooling`: whose cooldown ends when, RFC 3339. `first`: who is preferred.
    """
    asked = {"target": target} if shape is None else _asked(target, shape)
    return "target", {**asked, "cooling": dict(cooling), "first": first}


def queued_entry(content: Iterable[Block]) -> Entry:
    """The entry of a message that the user sent while calls were pending: it follows their results."""
    return "queued", {"content": list(content)}


def _asked(target: str, shape: RequestShape) -> dict[str, Any]:
    return {
        "target": target,
        "model": shape.model,
        "endpoint": shape.endpoint,
        "head": shape.head().decode() + "}",
    }


def user_entry(message: Message, *, amends: bool = False, task: int = 0) -> Entry:
    """The entry of a user message. `amends`: it replaces the last user message, which nothing has answered
    yet. `task`: how many of its last blocks are the user's prompt; 0: ralph itself speaks.
    """
    fields: dict[str, Any] = {"content": list(message.content), "task": task}
    return "user", {**fields, "amends": True} if amends else fields


def users_own(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The user's own words in a task's opening message, without ralph's notices."""
    return tuple(block for block in blocks if block.get("text") != LIMIT_LIFTED)


def tasks_after(
    tasks: Iterable[tuple[Block, ...]], old: Sequence[Block], new: Sequence[Block]
) -> list[tuple[Block, ...]]:
    """The tasks, where a message takes another's place: an image that it leaves out must not come back with them."""
    gone = [block for block in old if block.get("type") == "image" and block not in new]
    kept = (tuple(block for block in task if block not in gone) for task in tasks)
    return [task for task in kept if task]


def compacted_entry(message: Message, summary: str, event: ContextCompacted) -> Entry:
    """A fresh context begins with this message."""
    return "compacted", {
        "content": list(message.content),
        "summary": summary,
        "trigger": event.trigger,
        "source": event.source,
        "pre_tokens": event.pre_tokens,
        "post_tokens": event.post_tokens,
    }


def assistant_entry(answer: Answer) -> Entry:
    malformed = {call.id: [call.raw, call.reason] for call in answer.calls if isinstance(call, MalformedCall)}
    runnable = [call.id for call in answer.calls]
    return "assistant", {
        "message": answer.message,
        "request_id": answer.request_id,
        "calls": runnable,
        "malformed": malformed,
    }


def intent_entry(call: ToolCall, change: FileChange | None) -> Entry:
    fields: dict[str, Any] = {"id": call.id, "name": call.name}
    if change is not None:
        fields["change"] = {"path": change.path, "before": change.before, "after": change.after}
    return "tool_intent", fields


def result_entry(result: ToolResult) -> Entry:
    """The block as the API gets it, and beside it what files were seen to hold."""
    seen = result.output.seen
    return "tool_result", {**result.as_block(), **({"seen": dict(seen)} if seen else {})}


def event_entry(fields: Mapping[str, Any]) -> Entry:
    """One of `stream-json`'s, in a room of its own: its `kind` is not the record's."""
    return "event", {"event": dict(fields)}


def ended_entry(ended: RunEnded) -> Entry:
    """How the work ended. It is written before anybody is told: that the result was delivered, another record says."""
    return "ended", {
        "outcome": ended.outcome.value,
        "exit_code": ended.exit_code,
        "result": ended.result,
        "errors": list(ended.errors),
        "num_turns": ended.num_turns,
        "duration_s": round(ended.duration_s, 3),
        "cost_usd": ended.usage.cost_usd,
        "delivered": False,
    }


def delivery_entry(delivery: Delivery, ended: RunEnded) -> Entry:
    """The entry of a result's delivery. `ended`: how the process ended, which the delivery itself may have
    decided.
    """
    fields: dict[str, Any] = {"state": delivery.value}
    if delivery is Delivery.FAILED:
        fields |= {"exit_code": ended.exit_code, "errors": list(ended.errors)}
    return "delivery", fields

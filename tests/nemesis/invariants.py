"""Checks what must hold for a session however often it was killed. Each function yields one sentence for each
violation.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Thinking
from ralph.mock_api.plan import ANTHROPIC, BY_API, RESPONSES
from tests.campaigns.engine import without_markers
from tests.nemesis import vendors
from tests.nemesis.journal_text import lines_of, messages_of, readable_lines, unanswered, whole_lines
from tests.nemesis.process import has_message
from tests.nemesis.task import EFFECTS_FILE, LOG_FILE, SHARED_FILE, call_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.mock_api import ToolUse
    from tests.nemesis.journal_text import Line
    from tests.nemesis.plan import SessionPlan
    from tests.nemesis.process import Life, Observed
    from tests.nemesis.vendors import Outage

_UNKNOWN_EFFECTS = "interrupted"


def violations(plan: SessionPlan, seen: Observed) -> list[str]:
    try:
        if found := [*_ends(seen)]:
            return found
        lines = lines_of(seen.lives[-1].journal)
        return [
            *_prefixes(seen),
            *_records(lines),
            *_what_was_told(seen),
            *_effects(plan, seen, lines),
            *_requests(plan, seen, lines),
            *(f"left behind: {what}" for what in seen.left),
            *(f"a guess: {what}" for what in seen.guesses),
        ]
    except Exception as error:  # noqa: BLE001 - what cannot even be read is a breach like any other
        return [f"what it left cannot be read: {error!r}"]


def interrupted(lines: list[Line]) -> set[str]:
    """The ids of calls whose result says that their effects are unknown."""
    return {
        line["tool_use_id"]
        for line in lines
        if line["kind"] == "tool_result" and line.get("is_error") and _UNKNOWN_EFFECTS in str(line["content"])
    }


def _ends(seen: Observed) -> Iterator[str]:
    """Each process must exit with 0, or with 2 if nothing is left to do because the kill came after the delivery or
    before the first message.
    """
    for number, life in enumerate(seen.lives):
        if life.exit_code in (None, 0):
            continue
        previous = readable_lines(life.journal)
        is_over = bool(previous) and previous[-1]["kind"] == "delivery"
        if life.exit_code != 2 or (has_message(life.journal) and not is_over):
            yield f"process {number} ended with {life.exit_code}: {life.stderr[-300:]}"
    end = [
        (line["kind"], line.get("outcome", line.get("state"))) for line in readable_lines(_last(seen))[-2:]
    ]
    if end != [("ended", "completed"), ("delivery", "delivered")]:
        yield f"the last records do not say that it is completed and delivered, but {end}"


def _last(seen: Observed) -> bytes:
    return seen.lives[-1].journal


def _prefixes(seen: Observed) -> Iterator[str]:
    """The content of the journal at a kill must stay unchanged. An incomplete last line must be cut off and kept in
    another file.
    """
    torn: list[bytes] = []
    for number, (life, following) in enumerate(zip(seen.lives, seen.lives[1:], strict=False), 1):
        left = life.journal + life.added
        if following.journal == left:
            continue  # killed before it had opened the journal
        if life.session_id != following.session_id:
            torn = []
            if any(line["kind"] == "tool_intent" for line in readable_lines(life.journal)):
                yield f"process {number} did something in a session without a message"
            continue
        # Without its checksum, a line that ends like a whole one is torn.
        kept = left + b"\n" if re.search(rb',"crc":"[0-9a-f]{8}"}\Z', left) else whole_lines(left)
        if left[len(kept) :]:
            torn.append(left[len(kept) :])
        if not following.journal.startswith(kept):
            yield f"process {number} changed what was in the journal before it"
    # If a process is killed after it has kept a torn line and before it has cut it off, the next one keeps it again.
    if [piece for piece, _ in groupby(torn)] != [piece for piece, _ in groupby(seen.torn)]:
        yield f"{seen.torn!r} was kept beside the journal instead of {torn!r}"


def _records(lines: list[Line]) -> Iterator[str]:
    if [line["seq"] for line in lines] != list(range(len(lines))):
        yield "the numbers of the records have a gap or come twice"
    for kind, name in (("assistant", "message"), ("tool_result", "tool_use_id")):
        counts = Counter(
            line[name]["id"] if kind == "assistant" else line[name] for line in lines if line["kind"] == kind
        )
        yield from (f"{what} is recorded {count} times" for what, count in counts.items() if count > 1)
    yield from (f"{call} has no result" for call in sorted(unanswered(lines)))


def _what_was_told(seen: Observed) -> Iterator[str]:
    """Everything that standard output said must be in the journal, even if the process was killed right after
    it.
    """
    for number, life in enumerate(seen.lives):
        lines = readable_lines(life.journal)
        answers = {line["message"]["id"] for line in lines if line["kind"] == "assistant"}
        results = {line["tool_use_id"]: line["content"] for line in lines if line["kind"] == "tool_result"}
        for told in _told(life):
            match told:
                case {"type": "assistant", "message": {"id": message_id}} if message_id not in answers:
                    yield f"process {number} told of {message_id} before it was in the journal"
                case {"type": "user", "message": {"content": [*blocks]}}:
                    yield from (
                        f"process {number} told a result of {block['tool_use_id']} that is not in the journal"
                        for block in blocks
                        if block.get("type") == "tool_result"
                        and results.get(block["tool_use_id"]) != block["content"]
                    )
    final = seen.lives[-1]
    if final.exit_code == 0 and [*_told(final)][-1].get("exit_code") != 0:
        yield "the last line of standard output is not a result with exit code 0"


def _told(life: Life) -> Iterator[dict[str, Any]]:
    """The objects on standard output. Only whole lines count, because a killed process may have left half of
    one.
    """
    yield from (json.loads(line) for line in life.stdout.split("\n")[:-1])


def _effects(plan: SessionPlan, seen: Observed, lines: list[Line]) -> Iterator[str]:
    """A call must have at least as many intents as effects, and at least as many effects as results that say it was
    done. One intent must never have two effects.
    """
    files = {
        path.name: path.read_text() for path in seen.work.iterdir() if not path.name.startswith(".ralph-")
    }
    commands = Counter(files.pop(EFFECTS_FILE, "").splitlines())
    edits = Counter(files.pop(LOG_FILE).splitlines())
    intents = Counter(line["id"] for line in lines if line["kind"] == "tool_intent")
    results = {line["tool_use_id"]: line for line in lines if line["kind"] == "tool_result"}
    unknown = interrupted(lines)
    if len(unknown) > seen.kills:
        yield f"{len(unknown)} interrupted calls, {seen.kills} kills"
    for call in plan.task.calls:
        name = call_id(call)
        is_unknown = name in unknown
        if is_unknown and call.name != "Bash":
            yield f"{name} ({call.name}) was given up, though it can be settled"
        if results[name].get("is_error") and not is_unknown:
            yield f"{name} failed: {str(results[name]['content'])[:200]}"
        if not intents[name]:
            yield f"{name} has a result and no intent"
        match call.name:
            case "Bash":
                yield from _command(name, commands.pop(name, 0), intents[name], is_unknown=is_unknown)
            case "Edit" if (count := edits.pop(name, 0)) != 1:
                yield f"{name} (Edit) was done {count} times"
            case "Write" if (
                call.input["file_path"] != SHARED_FILE and files.pop(name, None) != call.input["content"]
            ):
                yield f"{name} (Write) is not as it was written"
    if files.pop(SHARED_FILE, None) != _last_content(plan.task.calls):
        yield "the file that was written twice does not hold what was written last"
    yield from (f"nobody asked for {what}" for what in (*commands, *files))


def _command(name: str, effects: int, intents: int, *, is_unknown: bool) -> Iterator[str]:
    if intents > 1:
        yield f"{name} (Bash) was announced {intents} times"
    if effects > intents:
        yield f"{name} (Bash) had {effects} effects for {intents} intents"
    if not effects and not is_unknown:
        yield f"{name} (Bash) is said to be done, and had no effect"


def _last_content(calls: list[ToolUse]) -> str:
    return str([call.input["content"] for call in calls if call.input.get("file_path") == SHARED_FILE][-1])


def _requests(plan: SessionPlan, seen: Observed, lines: list[Line]) -> Iterator[str]:
    """All requests must be valid. Requests of one turn to one vendor must be equal to the byte. The last one must
    contain the whole journal, but for the thinking of another vendor's model.
    """
    bodies: dict[tuple[str, int], bytes] = {}
    longest: dict[str, list[dict[str, Any]]] = {}
    for request in seen.requests:
        body = request.json()
        name = f"request {request.index} ({request.api})"
        if (why := BY_API[request.api].find_refusal(body, request.headers, False)) is not None:
            yield f"{name} is not valid: {why.message or why.body!r}"
        messages = body["input" if request.api == RESPONSES.api else "messages"]
        if request.api == ANTHROPIC.api:
            messages = without_markers(messages)
        if request.body != bodies.setdefault((request.api, len(messages)), request.body or b""):
            yield f"{name} is another one than the first with {len(messages)} messages"
        before = longest.setdefault(request.api, [])
        if messages[: len(before)] != before[: len(messages)]:
            yield f"{name} does not go on from the one before"
        longest[request.api] = max(before, messages, key=len)
    final = {"role": "assistant", "content": plan.task.content(len(plan.task.turns) - 1)}
    sent, kept = [*longest[ANTHROPIC.api], final], messages_of(lines)
    if plan.outage is not None:
        sent, kept = _without_thinking(sent), _without_thinking(kept)
        yield from _vendors(plan, plan.outage, seen, lines)
    if kept != sent:
        yield "the journal is another conversation than the requests"


def _without_thinking(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**message, "content": [block for block in message["content"] if block.get("type") != "thinking"]}
        for message in messages
    ]


def _vendors(plan: SessionPlan, outage: Outage, seen: Observed, lines: list[Line]) -> Iterator[str]:
    """The second vendor's model must have answered while the first one was away, and at no other time. Each model
    must get all of its own thinking back, and nobody else's.
    """
    models = [line["message"]["model"] for line in lines if line["kind"] == "assistant"]
    by_second = [model == vendors.SECOND_MODEL for model in models]
    for turn, is_second in enumerate(by_second):
        if is_second != (outage.begins <= turn < outage.ends):
            yield f"turn {turn} was answered by {models[turn]}"
    for request in seen.requests:
        sent = [block["thinking"] for block in _blocks(request.messages()) if block["type"] == "thinking"]
        own = [
            block.thinking
            for turn in range(plan.task.turn_of(request))
            for block in plan.task.turns[turn].blocks()
            if isinstance(block, Thinking) and by_second[turn] == (request.api != ANTHROPIC.api)
        ]
        if sent != own:
            yield f"request {request.index} ({request.api}) has the thinking {sent}, not {own}"


def _blocks(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (block for message in messages for block in message["content"])

"""Compares what a run did with what its plan must lead to. Yields one sentence for each difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.campaigns.engine import without_markers
from tests.soak.answers import NOTES_FILE
from tests.soak.attempt import Fate
from tests.soak.oracle import expect
from tests.soak.plan import DISCARDED, MOST_DAMAGED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.soak.oracle import Entry, Expected
    from tests.soak.plan import RunPlan
    from tests.soak.process import Observed

PEAK_KIB = 64 * 1024
# Eight are usual. A reader of a connection that was given up may end later, while the next request, asked at once, has its own.
# A thread lost per turn is far above this.
MOST_THREADS = 12
# Eleven stay open with a running command, up to four hold the namespaces and the root of its box, four more are open for a moment while a command begins, one
# while the mounts of the box are looked at, and whatever ralph looks at just then comes on top. A run has some thirty turns, so one descriptor lost per turn is far above this.
MOST_DESCRIPTORS = 32


def violations(plan: RunPlan, seen: Observed) -> list[str]:
    if seen.exit_code is None:
        return [f"it still ran after {seen.took_s:.0f} s"]
    expected = expect(plan)
    try:
        return [
            *_story(expected, seen),
            *_effects(expected, seen),
            *_requests(plan, expected, seen),
            *_leaks(seen),
        ]
    except Exception as error:  # noqa: BLE001 - what cannot even be read is a violation like any other
        return [f"output or requests cannot be read: {error!r}"]


def _story(expected: Expected, seen: Observed) -> Iterator[str]:
    """Standard output must have one message per turn, exactly one end for every chain of retries, and one true
    result.
    """
    told = [json.loads(line) for line in seen.stdout.splitlines()]
    first, *between, last = [entry for entry in (_entry(value) for value in told) if entry] or [(), ()]
    if (first, last) != (("init",), ("result",)):
        yield f"standard output begins with {first} and ends with {last}"
        return
    yield from _difference("stream-json", expected.story, between)
    result = told[-1]
    facts = {
        "exit code of the process": (expected.exit_code, seen.exit_code),
        "exit code in the result": (expected.exit_code, result["exit_code"]),
        "result text": (expected.result or f"API Error: {result['errors'][-1]}", result.get("result")),
        "is_error": (expected.exit_code != 0, result["is_error"]),
        "num_turns": (expected.num_turns, result["num_turns"]),
        "retries": (expected.retries, result["retries"]),
    }
    yield from (f"{name}: {was!r} instead of {due!r}" for name, (due, was) in facts.items() if was != due)


def _entry(value: dict[str, Any]) -> Entry:
    """A line of `stream-json` in the form that the oracle uses. Empty if the oracle does not predict such lines."""
    match value:
        case {"type": "assistant", "error": str()}:
            return ("failure told",)
        case {"type": "assistant", "message": {"id": message_id, "content": [{"type": kind}]}}:
            return ("assistant", message_id, kind)
        case {"type": "user", "message": {"content": results}}:
            return ("user", *(result.get("tool_use_id") for result in results))
        case {"type": "system", "subtype": "api_retry"}:
            names = ("attempt", "max_retries", "retry_delay_ms", "error_status", "kind")
            return ("api_retry", *(value[name] for name in names))
        case {"type": "system", "subtype": "retry_recovered" | "retry_exhausted" as name, "retries": retries}:
            return (name, retries)
        case {"type": "system", "subtype": "response_discarded", "message_id": message_id}:
            return ("response_discarded", message_id)
        case {"type": "system", "subtype": "clock_fired", "clock": clock}:
            return ("clock_fired", clock)
        case {"type": "system", "subtype": "notice"}:
            return ()
        case {"type": "system", "subtype": name}:
            return (name,)
        case _:
            return (value.get("type"),)


def _effects(expected: Expected, seen: Observed) -> Iterator[str]:
    """Each call of an accepted answer must have run once, in order. No call of a discarded answer may have run."""
    yield from _difference("effects", expected.lines, seen.lines)
    written = {name: text for name, text in seen.files.items() if name != NOTES_FILE}
    if written != {name: name for name in expected.files}:
        yield f"files: {sorted(written)} instead of {sorted(expected.files)}"


def _requests(plan: RunPlan, expected: Expected, seen: Observed) -> Iterator[str]:
    """The number of requests must be what the retry policy allows. Requests of one chain of retries must be equal,
    and each chain must continue the conversation.
    """
    due = sum(map(len, expected.recorded))
    if len(seen.requests) != due:
        yield f"{len(seen.requests)} requests instead of {due}"
        return
    history: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for number, chain in enumerate(expected.recorded):
        bodies = {seen.requests[index].body for index in chain}
        # The last request past damage asks for a whole answer, and is the only one of its turn that differs.
        whole = {body for body in bodies if b'"stream":false' in (body or b"")}
        damaged = sum(attempt.fate is Fate.DAMAGED for attempt in plan.turns[number].attempts)
        if len(whole) != (damaged == MOST_DAMAGED):
            yield f"turn {number}: {len(whole)} requests for a whole answer"
        bodies -= whole
        if len(bodies) > 1:
            yield f"turn {number}: {len(bodies)} different bodies in one chain"
        if not bodies:  # all its attempts were refused at accept
            continue
        messages = without_markers(json.loads(bodies.pop() or b"")["messages"])
        if messages[: len(history)] != history:
            yield f"turn {number}: its request does not begin with the messages of the one before"
        history = messages
        answers = [message for message in messages if message["role"] == "assistant"]
        if answers != [
            {"role": "assistant", "content": list(turn.attempts[-1].content)} for turn in plan.turns[:number]
        ]:
            yield f"turn {number}: its request does not hold exactly the answers that were committed"
    yield from _tool_results(plan, history)


def _tool_results(plan: RunPlan, messages: list[dict[str, Any]]) -> Iterator[str]:
    results = [
        block
        for message in messages
        if message["role"] == "user"
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    yield from (f"a call failed: {result}" for result in results if result.get("is_error"))
    if len({result["tool_use_id"] for result in results}) != len(results):
        yield "a call has two results"
    if DISCARDED in json.dumps(messages):
        yield "something of a discarded answer is in the last request"


def _leaks(seen: Observed) -> Iterator[str]:
    yield from (f"left behind: {what}" for what in seen.left)
    bounds = {
        "KiB of memory": (seen.gauge.peak_kib, PEAK_KIB),
        "threads": (seen.gauge.threads, MOST_THREADS),
        "open descriptors": (seen.gauge.descriptors, MOST_DESCRIPTORS),
    }
    yield from (f"{most} {name}, over {bound}" for name, (most, bound) in bounds.items() if most > bound)


def _difference(what: str, due: list[Any], was: list[Any]) -> Iterator[str]:
    if was == due:
        return
    at = next(
        (at for at, pair in enumerate(zip(due, was, strict=False)) if pair[0] != pair[1]),
        min(len(due), len(was)),
    )
    yield f"{what}: entry {at} of {len(was)} is {was[at : at + 3]} instead of {due[at : at + 3]} of {len(due)}"

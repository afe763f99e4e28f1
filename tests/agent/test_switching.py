"""Several models in one conversation: what each of them receives, what it costs, and that failures leave no
trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.conversation.reading import Reading
from ralph.conversation.records import run_record, session_record
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.retry.backoff import RetryPolicy, custom, off, patient, standard
from ralph.retry.roster import Roster
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from ralph.values.events import ResponseDiscarded, StreamReceived
from tests.conversation.conversation_rules import conversation_problems
from tests.fakes import (
    ECHO,
    TOUCH,
    FakeJournal,
    FakeWaiter,
    ScriptedClient,
    answer,
    call,
    text,
)
from tests.fakes.played import DONE, agent_loop
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.conversation.messages import Conversation, RequestBody
    from ralph.values.answer import Answer, Block
    from ralph.values.ports import Events

A = Target("a", "claude-sonnet-5-5", "http://127.0.0.1:1")
B = Target("b", "claude-opus-5-5", "http://127.0.0.1:1")
A_ELSEWHERE = replace(A, name="elsewhere", base_url="http://127.0.0.1:2")
DOWN = HttpError(529, None, "the failed attempt said so")
_MARKER = b',"cache_control":{"type":"ephemeral"}'


def thought(words: str, signature: str = "signed") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


class Talking(ScriptedClient):
    """A client whose calls take a second each. Before a stream breaks off, a part of its text arrives."""

    def __init__(self, script: Iterable[Answer | BaseException], waiter: FakeWaiter) -> None:
        super().__init__(script)
        self._waiter = waiter

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
        self._waiter.clock.seconds += 1
        try:
            return super().send_message(target, key, body, events, **how)
        except StreamTransient:
            delta = {"type": "text_delta", "text": "the failed attempt began so"}
            events.emit(StreamReceived({"type": "content_block_delta", "index": 0, "delta": delta}))
            events.emit(ResponseDiscarded("msg_of_the_failed_attempt"))
            raise


class Talk:
    """One task with several targets, played to its end."""

    def __init__(
        self,
        targets: Sequence[Target],
        *script: Answer | BaseException,
        policy: RetryPolicy | None = None,
        **options: Any,
    ) -> None:
        self.roster = Roster(targets, system="system", tools=(ECHO, TOUCH), **options)
        self.journal = FakeJournal()
        first = run_record(self.roster.first_shape, "now", 1, target=self.roster.first.name)
        self.journal.append(session_record("s1", "/work", "now", "0"), first)
        waiter = FakeWaiter()
        self.client = Talking(script, waiter)
        self.run = agent_loop(self.roster, self.client, self.journal, policy=policy, waiter=waiter)
        self.ended = self.run.run("the task")

    def sent_to(self, name: str) -> list[list[dict[str, Any]]]:
        """The messages of each request to a target, without cache markers."""
        return [
            json.loads(body.replace(_MARKER, b""))["messages"]
            for (asked, _), body in zip(self.client.asked, self.client.bodies, strict=True)
            if asked == name
        ]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.client.asked]

    def head_of(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.client.bodies[self.names.index(name)])
        return body


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


# --- Thinking


def test_what_one_model_thought_is_kept_from_the_other_and_shown_to_it_again() -> None:
    talk = Talk(
        [A, B],
        answer(thought("a1"), text("I look."), call("c1")),
        DOWN,
        answer(thought("b1"), text("I look too."), call("c2")),
        answer(thought("b2"), call("c3")),
        DONE,
    )
    assert talk.names == ["a", "a", "b", "b", "a"]
    seen_by_b = talk.sent_to("b")[-1]
    assert [kinds(message) for message in seen_by_b[1::2]] == [
        ["text", "tool_use"],
        ["thinking", "text", "tool_use"],
    ]
    seen_by_a = talk.sent_to("a")[-1]
    assert [kinds(message) for message in seen_by_a[1::2]] == [
        ["thinking", "text", "tool_use"],
        ["text", "tool_use"],
        ["tool_use"],
    ]
    assert seen_by_a[1]["content"][0] == thought("a1")


@every_row(
    "block",
    [
        thought("hm"),
        thought("hm", ""),
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "redacted_thinking"},
    ],
)
def test_the_same_model_elsewhere_never_gets_thinking_signed_or_not(block) -> None:
    talk = Talk([A, A_ELSEWHERE], answer(block, text("I look."), call("c")), DOWN, DONE)
    [messages] = talk.sent_to("elsewhere")
    assert block not in messages[1]["content"]
    assert block in talk.sent_to("a")[1][1]["content"]


BLOCKS = st.sampled_from(
    [
        [thought("signed"), text("Words.")],
        [thought("not signed", "")],
        [thought("signed")],
        [text("Words.")],
        [{"type": "redacted_thinking", "data": "x"}, text("Words.")],
        [{"type": "of_tomorrow", "x": [1, None]}],
        [],
    ]
)


# --- Failures leave no trace in the conversation

FAILURES = st.sampled_from(
    [
        *(HttpError(status, None, "the failed attempt") for status in (429, 500, 503, 529, 401, 403, 404)),
        *(HttpError(429, 3, "the failed attempt"), HttpError(529, 0, "the failed attempt")),
        *(StreamTransient("the failed attempt"), StreamParse("the failed attempt")),
        *(Json("x", "the failed attempt"), Api(NetworkCause.REFUSED, "the failed attempt")),
        *(Api(NetworkCause.CERTIFICATE, "the failed attempt"), HttpError(400, None, "the failed attempt")),
    ]
)
ANSWERS = st.lists(
    st.tuples(BLOCKS, st.sampled_from(["", "max_tokens", "pause_turn"]), st.booleans()), max_size=4
)


@dataclass(frozen=True)
class Committed:
    """The accepted messages of a conversation, without thinking, which not every model receives."""

    messages: list[tuple[str, list[Block]]]

    @classmethod
    def of(cls, messages: Iterable[tuple[str, Iterable[Block]]]) -> Committed:
        told = [
            (role, [block for block in content if "thinking" not in block["type"]])
            for role, content in messages
        ]
        return cls([message for message in told if message[1]])

    @classmethod
    def of_conversation(cls, conversation: Conversation) -> Committed:
        return cls.of((message.role, message.content) for message in conversation.messages)

    @classmethod
    def of_body(cls, body: bytes) -> Committed:
        messages = json.loads(body.replace(_MARKER, b""))["messages"]
        return cls.of((message["role"], message["content"]) for message in messages)


def answers_of(told: Sequence[tuple[Sequence[Block], str, bool]]) -> list[Answer]:
    calls = [
        answer(*blocks, *([call(f"call-{number}", text=str(number))] if calls else []), stop_reason=stop)
        for number, (blocks, stop, calls) in enumerate(told)
    ]
    return [*calls, *[answer(text("All done."))] * 5]


@given(
    ANSWERS,
    st.lists(st.lists(FAILURES, max_size=6), min_size=1, max_size=6),
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
    st.sampled_from(["fallback", "round_robin"]),
    st.booleans(),
    st.sampled_from([standard(), off(), patient(), custom(3, 1, 20)]),
)
def test_whatever_fails_the_conversation_is_that_of_the_same_run_without_failures(
    told, failures, key_counts, strategy, returns, policy
) -> None:
    targets = [
        replace(
            target,
            credentials=tuple(
                Credential("x-api-key", Secret(f"secret-{key}"), f"KEY_{key}") for key in range(keys)
            ),
        )
        for target, keys in zip((A, B, A_ELSEWHERE), key_counts, strict=False)
    ]
    answers = answers_of(told)
    clean = Talk([A], *answers)
    script: list[Answer | BaseException] = []
    for number, one in enumerate(answers):
        script += [*(failures[number] if number < len(failures) else []), one]
    talk = Talk(targets, *script, policy=policy, strategy=strategy, returns=returns)

    whole = Committed.of_conversation(clean.run.conversation).messages
    committed = Committed.of_conversation(talk.run.conversation).messages
    # A notice to the model is part of the message before only once an answer to it was accepted.
    *before, (role, said) = committed
    assert before == whole[: len(before)]
    assert (role, said) == (whole[len(before)][0], whole[len(before)][1][: len(said)])
    if talk.ended.outcome == clean.ended.outcome:
        assert committed == whole
    assert conversation_problems(talk.run.conversation.messages) == []

    requests = [Committed.of_body(body) for body in clean.client.bodies]
    asked = [Committed.of_body(body) for body in talk.client.bodies]
    assert (
        list(dict.fromkeys(map(repr, asked)))
        == list(dict.fromkeys(map(repr, requests)))[: len(set(map(repr, asked)))]
    )
    assert b"failed attempt" not in b"".join(talk.client.bodies)
    kept = [record for record in talk.journal.records if record.kind in {"user", "assistant", "tool_result"}]
    assert "failed attempt" not in repr(kept)

    again = replay(talk.journal.records)
    assert [one.content for one in again.conversation.messages] == [
        one.content for one in talk.run.conversation.messages
    ]
    for target in targets:
        shape = talk.roster.shape_of(target)
        assert b"".join(Reading(shape).of(again.conversation).request_body().pieces()) == b"".join(
            Reading(shape).of(talk.run.conversation).request_body().pieces()
        )

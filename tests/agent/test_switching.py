"""Several models in one conversation: what each of them receives, what it costs, and that failures leave no
trace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.conversation.session import Reading, replay
from ralph.conversation.target import Target
from ralph.retry.backoff import custom, off, patient, standard
from ralph.retry.targets import Roster
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.conversation.messages import Conversation, RequestBody
    from ralph.values.answer import Answer, Block
    from ralph.values.ports import Events

A = Target("a", "claude-sonnet-5-5", "http://127.0.0.1:1")
B = Target("b", "claude-opus-5-5", "http://127.0.0.1:1")
A_ELSEWHERE = replace(A, name="elsewhere", base_url="http://127.0.0.1:2")
Said = tuple[str, list["Block"]]
MARKER = b',"cache_control":{"type":"ephemeral"}'


class Talking(ScriptedClient):
    """A client whose calls take a second each. Before a stream breaks off, a part of its text arrives."""

    def __init__(self, script: Iterable[Answer | BaseException], waiter: FakeWaiter) -> None:
        super().__init__(script)
        self.takes(1, waiter.clock)

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
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
        self, targets: Sequence[Target], script: Iterable[Answer | BaseException], **options: Any
    ) -> None:
        policy = options.pop("policy", None)
        self.roster = Roster(targets, system="system", tools=(ECHO, TOUCH), **options)
        self.journal = FakeJournal.of_run(self.roster.first_shape, target="a")
        waiter = FakeWaiter()
        self.client = Talking(script, waiter)
        self.run = agent_loop(self.roster, self.client, self.journal, policy=policy, waiter=waiter)
        self.ended = self.run.run("the task")

    @property
    def committed(self) -> list[Said]:
        messages = self.run.conversation.messages
        return without_thinking((message.role, message.content) for message in messages)

    @property
    def asked(self) -> list[str]:
        """The messages of each request, without those that say the same as an earlier one."""
        bodies = [json.loads(body.replace(MARKER, b""))["messages"] for body in self.client.bodies]
        said = (
            without_thinking((message["role"], message["content"]) for message in body) for body in bodies
        )
        return list(dict.fromkeys(map(repr, said)))


def without_thinking(messages: Iterable[tuple[str, Iterable[Block]]]) -> list[Said]:
    """The messages without thinking, which not every model receives."""
    told = [
        (role, [block for block in content if "thinking" not in block["type"]]) for role, content in messages
    ]
    return [message for message in told if message[1]]


def request_to(target: Target, talk: Talk, conversation: Conversation) -> bytes:
    return b"".join(Reading(talk.roster.shape_of(target)).of(conversation).request_body().pieces())


def thought(signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


BLOCKS = st.sampled_from(
    [
        [thought("signed"), text("Words.")],
        [thought("")],
        [thought("signed")],
        [text("Words.")],
        [{"type": "redacted_thinking", "data": "x"}, text("Words.")],
        [{"type": "of_tomorrow", "x": [1, None]}],
        [],
    ]
)
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
    keys = [Credential("x-api-key", Secret(f"secret-{number}"), f"KEY_{number}") for number in range(2)]
    targets = [
        replace(target, credentials=tuple(keys[:count]))
        for target, count in zip((A, B, A_ELSEWHERE), key_counts, strict=False)
    ]
    answers = [
        answer(*blocks, *([call(f"call-{number}", text=str(number))] if calls else []), stop_reason=stop)
        for number, (blocks, stop, calls) in enumerate(told)
    ] + [DONE] * 5
    clean = Talk([A], answers)
    script: list[Answer | BaseException] = []
    for number, one in enumerate(answers):
        script += [*(failures[number] if number < len(failures) else []), one]
    talk = Talk(targets, script, policy=policy, strategy=strategy, returns=returns)

    # A notice to the model is part of the message before only once an answer to it was accepted.
    whole, committed = clean.committed, talk.committed
    *before, (role, said) = committed
    assert before == whole[: len(before)]
    assert (role, said) == (whole[len(before)][0], whole[len(before)][1][: len(said)])
    if talk.ended.outcome == clean.ended.outcome:
        assert committed == whole
    assert conversation_problems(talk.run.conversation.messages) == []
    assert talk.asked == clean.asked[: len(talk.asked)]
    assert b"failed attempt" not in b"".join(talk.client.bodies)
    kept = [record for record in talk.journal.records if record.kind in {"user", "assistant", "tool_result"}]
    assert "failed attempt" not in repr(kept)

    again = replay(talk.journal.records).conversation
    assert [one.content for one in again.messages] == [one.content for one in talk.run.conversation.messages]
    for target in targets:
        assert request_to(target, talk, again) == request_to(target, talk, talk.run.conversation)

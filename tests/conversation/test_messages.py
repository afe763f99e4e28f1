"""A conversation only grows, encodes each message once, and can always be resumed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ralph.conversation.messages import (
    NOT_RUN,
    Author,
    Conversation,
    GrowingSequence,
    Message,
    RequestShape,
    assistant_message,
    recover_conversation,
    user_message,
)
from ralph.conversation.session import Reading
from ralph.values.answer import ToolOutput, ToolResult
from ralph.values.usage import tokens_of_bytes
from tests.conversation.conversation_rules import conversation_problems
from tests.fakes import ECHO, TOUCH, call, text
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.values.answer import Block

SHAPE = RequestShape("claude-sonnet-5-5", "Be good.", (ECHO, TOUCH))


def said(*blocks: dict[str, Any]) -> Message:
    message = assistant_message(blocks)
    assert message is not None
    return message


def results(*ids: str) -> Message:
    return user_message(ToolResult(call_id, ToolOutput("ok")).as_block() for call_id in ids)


def conversation(*messages: Message, shape: RequestShape = SHAPE) -> Conversation:
    return replace(Conversation.start(shape), messages=GrowingSequence(messages))


def sent(talk: Conversation) -> bytes:
    return b"".join(talk.request_body().pieces())


def test_the_body_is_the_request_as_the_api_wants_it() -> None:
    body = json.loads(sent(conversation(user_message("do it"))))
    assert body["model"] == "claude-sonnet-5-5"
    assert body["stream"] is True
    assert (body["max_tokens"], [tool["name"] for tool in body["tools"]]) == (32_000, ["Echo", "Touch"])
    assert (body["system"][0]["text"], body["messages"][0]["content"][0]["text"]) == ("Be good.", "do it")
    assert not {"temperature", "top_p", "top_k"} & body.keys()


@every_row(
    ("model", "thinking"),
    [
        ("claude-opus-4-8", {"type": "adaptive"}),
        ("claude-sonnet-4-6", {"type": "adaptive"}),
        ("claude-opus-5-5", None),
        ("claude-haiku-4-5", None),
        ("qwen3", None),
    ],
)
def test_thinking_is_sent_only_where_the_model_table_allows_and_needs_it(model, thinking) -> None:
    body = json.loads(sent(conversation(user_message("x"), shape=replace(SHAPE, model=model))))
    assert body.get("thinking") == thinking


def markers(body: bytes) -> list[int]:
    messages = json.loads(body)["messages"]
    return [i for i, message in enumerate(messages) if "cache_control" in message["content"][-1]]


def test_at_most_four_cache_markers_on_system_and_the_two_newest_user_messages() -> None:
    talk = conversation(user_message("x"))
    for turn in range(12):
        talk = talk.plus(said(call(f"tu_{turn}"))).plus(results(f"tu_{turn}"))
        body = sent(talk)
        assert (body.count(b'"cache_control"'), markers(body)) == (3, [2 * turn, 2 * turn + 2])


def test_committed_messages_keep_their_bytes_markers_apart() -> None:
    talk = conversation(user_message("x"))
    before = sent(talk).replace(b',"cache_control":{"type":"ephemeral"}', b"")
    for turn in range(5):
        talk = talk.plus(said(text("ü\u2028"), call(f"tu_{turn}", text="a"))).plus(results(f"tu_{turn}"))
        after = sent(talk).replace(b',"cache_control":{"type":"ephemeral"}', b"")
        assert after.startswith(before[:-2])
        before = after


def test_a_long_conversation_is_sent_in_pieces_that_join_to_the_same_request() -> None:
    talk = conversation(user_message("x"))
    for turn in range(60):
        talk = talk.plus(said(call(f"tu_{turn}", text="y" * 20_000))).plus(results(f"tu_{turn}"))
        body = json.loads(sent(talk))
        assert (len(body["messages"]), markers(sent(talk))) == (2 * turn + 3, [2 * turn, 2 * turn + 2])
    pieces = talk.request_body().pieces()
    assert 5 < len(pieces) < 20, "not one piece, and not one a message"
    assert len(pieces[-1]) < 300_000, "what is new stays small"
    plain = json.loads(sent(talk).replace(b',"cache_control":{"type":"ephemeral"}', b""))
    assert [message["content"] for message in plain["messages"]] == [list(m.content) for m in talk.messages]


def test_a_packed_conversation_recovers_to_the_same_bytes_and_an_answered_call() -> None:
    talk = conversation(user_message("x"))
    for turn in range(30):
        talk = talk.plus(said(call(f"tu_{turn}", text="y" * 20_000))).plus(results(f"tu_{turn}"))
    broken = talk.plus(said(call("last")))
    recovered = recover_conversation(broken)
    assert sent(recovered.plus(user_message("on"))).startswith(sent(talk)[:400_000])
    assert recovered.messages[-1].tool_result_ids == ("last",)


def test_empty_text_is_left_out_and_an_empty_answer_is_no_message() -> None:
    assert said(text(" \n"), call("a")).content == (call("a"),)
    assert assistant_message([text("")]) is None
    assert user_message([text(""), text("x")]).content == (text("x"),)


def test_a_lone_surrogate_cannot_break_a_request() -> None:
    json.loads(sent(conversation(user_message("bad \ud83d end"))))


def test_final_failure_leaves_no_tool_call_without_its_result() -> None:
    broken = conversation(user_message("x"), said(call("a"), call("b")))
    recovered = recover_conversation(broken, {"b": ToolResult("b", ToolOutput("really did it"))})
    last = recovered.messages[-1]
    assert (last.tool_result_ids, last.content[0]["content"]) == (("a", "b"), NOT_RUN)
    assert last.content[0]["is_error"] is True
    assert last.content[1]["content"] == "really did it"


IDS = st.sampled_from(["a", "b", "c", "d"])
ASSISTANT = st.lists(st.one_of(IDS.map(call), st.just(text("t"))), min_size=1, max_size=4, unique_by=str).map(
    lambda blocks: said(*blocks)
)
USER = st.lists(
    st.one_of(IDS.map(lambda i: results(i).content[0]), st.just(text("u"))), min_size=1, max_size=4
).map(user_message)


@given(st.lists(st.one_of(ASSISTANT, USER), max_size=8), st.dictionaries(IDS, st.just("r")))
def test_recovery_answers_every_call_once_and_keeps_every_result_there_is(tail, done) -> None:
    finished = {i: ToolResult(i, ToolOutput(words)) for i, words in done.items()}
    recovered = recover_conversation(conversation(user_message("x"), *tail), finished)
    problems = [p for p in conversation_problems(recovered.messages) if "not unique" not in p]
    assert (problems, recover_conversation(recovered).messages) == ([], recovered.messages)
    known = set(done) | {i for message in tail for i in message.tool_result_ids}
    for message in recovered.messages:
        for block in message.content:
            if block.get("content") == NOT_RUN:
                assert block["tool_use_id"] not in known, "a result that was there was dropped"


def is_as_large_as_its_request(talk: Conversation) -> bool:
    """Whether the size of a conversation is that of its messages and of the rest of the request, apart from cache
    markers and one byte.
    """
    bodies = sum(len(message.body) for message in talk.messages)
    least = tokens_of_bytes(len(b"".join(talk.request_body().pieces())) - bodies)
    size = talk.size - sum(replace(message).size for message in talk.messages)
    return least <= size <= least + len(b',"cache_control":{"type":"ephemeral"}') + 1


SIZED = st.one_of(
    st.text(max_size=40).map(lambda words: said(text(f"t{words}"), call("a"))),
    st.text(max_size=40).map(lambda words: user_message(f"u{words}")),
    st.just(said({"type": "thinking", "thinking": "hm", "signature": "s" * 99})),
    st.just(user_message([{"type": "image", "source": {"type": "base64", "data": "A" * 999}}])),
)


@given(st.lists(SIZED, max_size=8))
def test_the_size_that_is_kept_is_the_size_that_a_sum_finds(messages) -> None:
    talk = Conversation.start(SHAPE).plus(user_message("x"))
    for message in messages:
        talk = talk.plus(message)
        assert is_as_large_as_its_request(talk)
    other = replace(SHAPE, model="qwen3", system="Be short.")
    for changed in (
        talk.amended(user_message("another end")),
        talk.under(other),
        recover_conversation(talk),
        Reading(other).of(talk),
    ):
        assert is_as_large_as_its_request(changed)


def test_a_reader_is_not_charged_for_thinking_that_it_is_not_sent() -> None:
    thought = {"type": "thinking", "thinking": "x" * 2_000, "signature": "s"}
    author = Author("claude-opus-5-5", "https://one.example")
    message = assistant_message([thought, text("done")], author)
    assert message is not None
    talk = Conversation.start(SHAPE).plus(user_message("x")).plus(message)
    assert talk.size - Reading(SHAPE).of(talk).size > 1_000


def test_a_message_is_weighed_once_however_long_the_conversation_is(monkeypatch) -> None:
    weighed = []

    def weigh(content: tuple[Block, ...], sent_bytes: int) -> int:
        weighed.append((content, sent_bytes))
        return 7

    monkeypatch.setattr("ralph.conversation.messages.content_size", weigh)
    talk = Conversation.start(SHAPE)
    empty = talk.size
    for number in range(1, 2_001):
        talk = talk.plus(user_message("x" * 500))
        assert len(weighed) == number
    assert talk.size == empty + 7 * 2_000 + 2_000 // 2, "and a comma behind each"
    assert len(weighed) == 2_000, "asking for the size weighs nothing"


def test_the_bytes_of_old_messages_are_held_once_and_stay_theirs() -> None:
    contents = [[text(f"{number} " + "x" * (number % 7 * 500)), text("y")] for number in range(400)]
    talk = Conversation.start(SHAPE)
    for content in contents:
        talk = talk.plus(user_message(content))
    old = talk.messages[: talk._packed_messages]
    assert len(old) > 200
    assert {id(message._piece) for message in old} == {id(piece) for piece in talk._packed}
    assert [list(message.content) for message in talk.messages] == contents
    assert talk.messages == tuple(map(user_message, contents))

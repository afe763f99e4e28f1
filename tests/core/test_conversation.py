"""Append-only, the bytes made once, and valid to resume whatever happened."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core.conversation import (
    NOT_RUN,
    Conversation,
    Message,
    RequestShape,
    assistant_message,
    conversation_problems,
    recover_conversation,
    user_message,
)
from ralph.core.tool_calls import ToolOutput, ToolResult
from tests.fakes import ECHO, TOUCH, call, text

SHAPE = RequestShape("claude-sonnet-5-5", "Be good.", (ECHO, TOUCH))


def said(*blocks: dict[str, Any]) -> Message:
    message = assistant_message(blocks)
    assert message is not None
    return message


def results(*ids: str) -> Message:
    return user_message(ToolResult(call_id, ToolOutput("ok")).as_block() for call_id in ids)


def conversation(*messages: Message, shape: RequestShape = SHAPE) -> Conversation:
    return replace(Conversation.start(shape), messages=messages)


def test_the_body_is_the_request_as_the_api_wants_it() -> None:
    body = json.loads(conversation(user_message("do it")).request_body())
    assert body["model"] == "claude-sonnet-5-5"
    assert body["stream"] is True
    assert body["max_tokens"] == 32_000
    assert [tool["name"] for tool in body["tools"]] == ["Echo", "Touch"]
    assert body["system"][0]["text"] == "Be good."
    assert body["messages"][0]["content"][0]["text"] == "do it"
    assert not {"temperature", "top_p", "top_k"} & body.keys()


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-opus-4-8", {"type": "adaptive"}),
        ("claude-sonnet-4-6", {"type": "adaptive"}),
        ("claude-opus-5-5", None),
        ("claude-haiku-4-5", None),
        ("qwen3", None),
    ],
)
def test_thinking_is_sent_only_where_the_model_table_allows_and_needs_it(model: str, thinking: object) -> None:
    body = json.loads(conversation(user_message("x"), shape=replace(SHAPE, model=model)).request_body())
    assert body.get("thinking") == thinking


def test_an_unknown_model_gets_a_plain_request() -> None:
    shape = replace(SHAPE, model="llama-3.3")
    body = conversation(user_message("x"), shape=shape).request_body()
    assert b"cache_control" not in body
    assert json.loads(body).keys() == {"model", "max_tokens", "stream", "tools", "system", "messages"}


def test_max_tokens_never_exceeds_what_the_model_is_known_for() -> None:
    shape = replace(SHAPE, model="claude-haiku-4-5", max_tokens=100_000)
    assert json.loads(conversation(user_message("x"), shape=shape).request_body())["max_tokens"] == 64_000


def markers(body: bytes) -> list[int]:
    messages = json.loads(body)["messages"]
    return [i for i, message in enumerate(messages) if "cache_control" in message["content"][-1]]


def test_at_most_four_cache_markers_on_system_and_the_two_newest_user_messages() -> None:
    talk = conversation(user_message("x"))
    for turn in range(12):
        talk = talk.plus(said(call(f"tu_{turn}"))).plus(results(f"tu_{turn}"))
        body = talk.request_body()
        assert body.count(b'"cache_control"') == 3
        assert markers(body) == [2 * turn, 2 * turn + 2]


def test_committed_messages_keep_their_bytes_markers_apart() -> None:
    talk = conversation(user_message("x"))
    before = talk.request_body().replace(b',"cache_control":{"type":"ephemeral"}', b"")
    for turn in range(5):
        talk = talk.plus(said(text("ü\u2028"), call(f"tu_{turn}", text="a"))).plus(results(f"tu_{turn}"))
        after = talk.request_body().replace(b',"cache_control":{"type":"ephemeral"}', b"")
        assert after.startswith(before[:-2])
        before = after


def test_empty_text_is_left_out_and_an_empty_answer_is_no_message() -> None:
    assert said(text(" \n"), call("a")).content == (call("a"),)
    assert assistant_message([text("")]) is None
    assert user_message([text(""), text("x")]).content == (text("x"),)


def test_a_lone_surrogate_cannot_break_a_request() -> None:
    json.loads(conversation(user_message("bad \ud83d end")).request_body())


def test_final_failure_leaves_no_tool_call_without_its_result() -> None:
    broken = conversation(user_message("x"), said(call("a"), call("b")))
    recovered = recover_conversation(broken, {"b": ToolResult("b", ToolOutput("really did it"))})
    last = recovered.messages[-1]
    assert last.tool_result_ids == ("a", "b")
    assert last.content[0]["content"] == NOT_RUN
    assert last.content[0]["is_error"] is True
    assert last.content[1]["content"] == "really did it"


def test_a_valid_conversation_is_recovered_as_it_is() -> None:
    valid = conversation(user_message("x"), said(call("a")), results("a"), said(text("done")))
    assert recover_conversation(valid).messages == valid.messages
    assert all(a is b for a, b in zip(recover_conversation(valid).messages, valid.messages, strict=True))


IDS = st.sampled_from(["a", "b", "c", "d"])
ASSISTANT = st.lists(st.one_of(IDS.map(call), st.just(text("t"))), min_size=1, max_size=4, unique_by=str).map(
    lambda blocks: said(*blocks)
)
USER = st.lists(st.one_of(IDS.map(lambda i: results(i).content[0]), st.just(text("u"))), min_size=1, max_size=4).map(
    user_message
)


@given(st.lists(st.one_of(ASSISTANT, USER), max_size=8), st.dictionaries(IDS, st.just("r")))
def test_recovery_answers_every_call_exactly_once_whatever_was_there(tail: list[Message], done: dict[str, str]) -> None:
    finished = {i: ToolResult(i, ToolOutput(words)) for i, words in done.items()}
    recovered = recover_conversation(conversation(user_message("x"), *tail), finished)
    problems = [p for p in conversation_problems(recovered.messages) if "not unique" not in p]
    assert problems == []
    assert recover_conversation(recovered).messages == recovered.messages

"""Tests what ralph knows of the target that is asked next: its window, how full that is, and how long its answer
may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.conversation.messages import Conversation, user_message
from ralph.conversation.target import ModelDescription, Target
from ralph.retry.targets import Roster
from ralph.values.limits import SHORTEST_ANSWER
from ralph.values.servers import DEFAULT_MAX_TOKENS
from ralph.values.usage import ContextMeter
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.conversation.messages import Message

KNOWN = Target("main", "claude-sonnet-5-5", "http://127.0.0.1:1")
LOCAL = Target("local", "qwen3:30b", "http://127.0.0.1:2")


def roster(*targets: Target) -> Roster:
    return Roster(targets or (KNOWN,), system="Be good.")


def talk(of: Roster, *messages: Message) -> Conversation:
    conversation = Conversation.start(of.first_shape).plus(user_message("Fix it."))
    for message in messages:
        conversation = conversation.plus(message)
    return conversation


@every_row(
    ("target", "description", "window"),
    [
        pytest.param(KNOWN, None, 1_000_000, id="the table"),
        pytest.param(LOCAL, None, None, id="nobody"),
        pytest.param(LOCAL, ModelDescription(8_192, None), 8_192, id="the server"),
        pytest.param(KNOWN, ModelDescription(200_000, None), 200_000, id="the server over the table"),
        pytest.param(KNOWN, ModelDescription(None, 9_000), 1_000_000, id="the server on something else"),
        pytest.param(
            replace(LOCAL, context_window=4_096), ModelDescription(8_192, None), 4_096, id="the user"
        ),
    ],
)
def test_the_window_is_the_users_the_servers_or_the_tables(target, description, window) -> None:
    asked = roster(target)
    asked.describe(description)
    assert asked.window == window
    assert asked.target.is_described


@every_row(
    ("target", "description", "prompt_tokens", "most_tokens", "longest"),
    [
        pytest.param(KNOWN, None, 1_000, None, DEFAULT_MAX_TOKENS, id="what is set"),
        pytest.param(KNOWN, None, 1_000, 16_000, 16_000, id="what is asked of it"),
        pytest.param(KNOWN, None, 968_000, None, DEFAULT_MAX_TOKENS, id="just room"),
        pytest.param(KNOWN, None, 968_001, None, DEFAULT_MAX_TOKENS - 1, id="a token less"),
        pytest.param(KNOWN, None, 999_999, None, SHORTEST_ANSWER, id="never less than this"),
        pytest.param(KNOWN, None, 2_000_000, None, SHORTEST_ANSWER, id="over the window"),
        pytest.param(KNOWN, None, 2_000_000, 500, 500, id="unless less is asked"),
        pytest.param(LOCAL, None, 2_000_000, None, DEFAULT_MAX_TOKENS, id="no window known"),
        pytest.param(LOCAL, ModelDescription(None, 4_096), 10, None, 4_096, id="the server's cap"),
        pytest.param(
            replace(LOCAL, max_tokens=2_000), ModelDescription(None, 4_096), 10, None, 2_000, id="less is set"
        ),
        pytest.param(
            replace(LOCAL, max_tokens=9_000), ModelDescription(None, 4_096), 10, None, 4_096, id="more is set"
        ),
        pytest.param(
            replace(LOCAL, context_window=8_000), None, 5_000, None, 3_000, id="what the window leaves"
        ),
    ],
)
def test_an_answer_may_get_as_long_as_settings_server_and_window_allow(
    target, description, prompt_tokens, most_tokens, longest
) -> None:
    asked = roster(target)
    asked.describe(description)
    assert asked.longest_answer(prompt_tokens, most_tokens) == longest


UNCOUNTED = ContextMeter()


def counted(asked: Roster, conversation: Conversation, tokens: int) -> ContextMeter:
    return UNCOUNTED.counted(asked.target.model, tokens, conversation.size)


@every_row(("tokens", "is_believed"), [(42, True), (10, False), (900_000, False)])
def test_a_context_that_was_never_sent_is_no_larger_than_its_bytes_say(tokens, is_believed) -> None:
    asked = roster()
    conversation = talk(asked)
    fresh = talk(asked, *[user_message("more")])
    by_bytes = asked.estimate(fresh, UNCOUNTED)
    meter = counted(asked, conversation, tokens)
    assert (asked.estimate_afresh(fresh, meter) < by_bytes) is is_believed
    assert asked.estimate_afresh(fresh, meter) <= by_bytes


def test_a_target_that_tells_its_window_and_this_prompt_is_believed() -> None:
    asked = roster(LOCAL)
    conversation = talk(asked)
    assert asked.learn_window(4_096, 897, conversation, UNCOUNTED)
    assert (asked.window, asked.estimate(conversation, UNCOUNTED)) == (4_096, 897)
    assert asked.longest_answer(897) == 4_096 - 897
    assert not asked.learn_window(4_096, 897, conversation, UNCOUNTED), "that is no news"
    assert not asked.learn_window(5_000, 897, conversation, UNCOUNTED)


def test_what_was_told_of_a_refused_request_holds_until_the_target_counts_one_itself() -> None:
    asked = roster(LOCAL)
    conversation = talk(asked)
    assert asked.learn_window(4_096, 897, conversation, UNCOUNTED)
    of_another = UNCOUNTED.counted("another", 5, 5)
    assert asked.at_most(conversation, of_another) == 897
    assert asked.at_most(conversation, counted(asked, conversation, 42)) == 42
    by_bytes = roster(LOCAL).at_most(conversation, UNCOUNTED)
    asked.begin_afresh()
    assert asked.at_most(conversation, UNCOUNTED) == by_bytes != 897


def test_max_tokens_are_replaced_in_the_request_and_nothing_else() -> None:
    asked = roster()
    conversation = talk(asked)
    whole, short = (
        b"".join(asked.body_for(conversation, tokens).pieces()) for tokens in (DEFAULT_MAX_TOKENS, 77)
    )
    assert short == whole.replace(b'"max_tokens":32000', b'"max_tokens":77')
    assert whole == b"".join(conversation.request_body().pieces())

"""A model's view of a conversation: what this model cannot read is left out, and nothing of an earlier context is
kept.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.conversation.messages import (
    Author,
    Conversation,
    Message,
    RequestShape,
    assistant_message,
    user_message,
)
from ralph.conversation.records import AssistantRecord, ResultRecord
from ralph.conversation.session import Reading, open_answer
from tests.fakes import text

if TYPE_CHECKING:
    from collections.abc import Iterator

READER = RequestShape("claude-opus-5-5", "system", ())
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def by_another(words: str) -> Message:
    message = assistant_message([THOUGHT, text(words)], Author("claude-sonnet-5-5"))
    assert message is not None
    return message


def test_a_growing_conversation_is_read_on_where_it_ended() -> None:
    reading, talk = Reading(READER), Conversation.start(READER)
    for number in range(5):
        talk = talk.plus(user_message(f"{number}?")).plus(by_another(f"{number}!"))
        view = reading.of(talk)
        assert view.messages == Reading(READER).of(talk).messages
        assert not any(message.thinks for message in view.messages)


def test_a_fresh_context_is_read_from_its_beginning() -> None:
    reading, talk = (
        Reading(READER),
        Conversation.start(READER).plus(user_message("go")).plus(by_another("old")),
    )
    reading.of(talk)
    fresh = talk.emptied().plus(user_message("go on")).plus(by_another("new"))
    assert [message.content[-1]["text"] for message in reading.of(fresh).messages] == ["go on", "new"]


def test_the_messages_of_a_context_that_is_over_are_not_held() -> None:
    gc.freeze()  # the collection below then looks at the objects of this test alone
    reading, talk = Reading(READER), Conversation.start(READER)
    talk = talk.plus(user_message("go")).plus(by_another("old"))
    reading.of(talk)
    kept = weakref.ref(talk.messages[0])
    fresh = talk.emptied().plus(user_message("go on"))
    assert reading.of(fresh) is fresh
    del talk
    gc.collect()
    assert kept() is None


def own(words: str) -> Message:
    message = assistant_message([THOUGHT, text(words)], READER.author)
    assert message is not None
    return message


def thinking_in(view: Conversation) -> list[bool]:
    return [message.thinks for message in view.messages if message.role == "assistant"]


def test_refused_thinking_is_left_out_up_to_the_refusal_and_the_view_only_grows() -> None:
    talk = Conversation.start(READER).plus(user_message("go")).plus(own("one")).plus(user_message("on"))
    reading = Reading(READER)
    assert reading.of(talk) is talk
    talk = talk.without_thinking(READER.author, is_off=False)
    assert thinking_in(reading.of(talk)) == [False]
    longer = talk.plus(own("two")).plus(user_message("on"))
    view = reading.of(longer)
    assert (thinking_in(view), view.messages[:3]) == ([False, True], reading.of(talk).messages[:3])
    again = longer.without_thinking(READER.author, is_off=False)
    assert thinking_in(reading.of(again)) == [False, False]
    assert reading.of(talk.emptied().plus(user_message("anew")).plus(own("three"))).messages[-1].thinks


def test_refused_thinking_is_left_out_for_that_reader_alone() -> None:
    elsewhere = replace(READER, endpoint="http://127.0.0.1:2")
    other = Reading(RequestShape("claude-sonnet-5-5", "system", ()))
    talk = (
        Conversation.start(READER).plus(user_message("go")).plus(by_another("one")).plus(user_message("on"))
    )
    left = talk.without_thinking(elsewhere.author, is_off=True)
    assert thinking_in(other.of(left)) == [True]
    assert "thinking" not in other.of(left).head.fields


def test_a_reader_that_must_not_think_is_told_so_until_it_may_again() -> None:
    reading = Reading(READER)
    talk = Conversation.start(READER).plus(user_message("go")).plus(own("one")).plus(user_message("on"))
    off = talk.without_thinking(READER.author, is_off=True)
    assert reading.of(off).head.fields["thinking"] == {"type": "disabled"}
    again = off.thinking_again()
    assert reading.of(again).head == READER.head()
    assert thinking_in(reading.of(again)) == [False], "what was left out stays left out"
    assert talk.thinking_again() is talk


def test_what_is_left_out_survives_a_repair_of_the_end() -> None:
    talk = Conversation.start(READER)
    for number in range(40):
        talk = talk.plus(user_message("x" * 9_000)).plus(own(str(number)))
    talk = talk.plus(user_message("on")).without_thinking(READER.author, is_off=True)
    assert talk.up_to(3).left_out == talk.left_out == talk.amended(user_message("more")).left_out


class CountedList(list[Any]):
    """How often its items were gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return super().__iter__()


def test_a_result_costs_the_same_however_many_calls_an_answer_has() -> None:
    ids = [f"call{number}" for number in range(200)]
    content = CountedList({"type": "tool_use", "id": one, "name": "Read", "input": {}} for one in ids)
    message = {"content": content, "stop_reason": "tool_use"}
    opened = open_answer(
        None, AssistantRecord(message=message, request_id=None, calls=tuple(ids), malformed={})
    )
    passes = content.passes
    for one in ids:
        assert opened is not None
        assert not opened.is_over
        opened = open_answer(opened, ResultRecord(type="tool_result", tool_use_id=one, content="x"))
    assert opened is not None
    assert opened.is_over
    assert content.passes == passes
    assert opened.answer.content is content

"""A model's view of a conversation: what this model cannot read is left out, and nothing of an earlier context is
kept.
"""

from __future__ import annotations

import gc
import weakref

from ralph.conversation.messages import (
    Author,
    Conversation,
    Message,
    RequestShape,
    assistant_message,
    user_message,
)
from ralph.conversation.reading import Reading
from tests.fakes import text

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

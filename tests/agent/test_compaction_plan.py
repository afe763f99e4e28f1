"""A fresh context contains the task word for word and no block of the old context. Repeated compaction ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.agent.compaction import (
    CUT_SUMMARY,
    FROM_HERE,
    SUMMARIZE,
    Attempt,
    CompactionSteps,
    digest_request,
    last_steps,
    new_context,
    sent_bytes,
    shrinks,
    summary_of,
)
from ralph.api.stream import answer_from_message
from ralph.conversation.messages import (
    Conversation,
    Message,
    RequestShape,
    user_message,
)
from ralph.values.answer import ToolOutput, ToolResult
from tests.conversation.conversation_rules import conversation_problems
from tests.conversation.test_messages import said
from tests.fakes import ECHO, call, text
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.values.answer import Block

SHAPE = RequestShape("claude-opus-5-5", "Be good.", (ECHO,))
SCREENSHOT = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "VEFTSw=="}}
TASKS = [
    [text("  Fix the parser.\n\n* keep `a  b`\t\n* never touch größe.py \u2028 \n")],
    [text("And this"), SCREENSHOT, text("as well.")],
    [text("Go on.")],
]
FILES = ["/work/src/parser.py", "/work/with space/größe 😀.txt", "/work/-a"]
SECRETS = ("THOUGHT", "SIGNED", "REDACTED", "PIXELS")
OLD_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "PIXELS" * 50}}


def result(call_id: str, content: str | tuple[Block, ...] = "ok", *, is_error: bool = False) -> Block:
    return ToolResult(call_id, ToolOutput(content, is_error)).as_block()


def texts(blocks: Sequence[Block]) -> str:
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Valid conversations that contain everything that a fresh context must not contain."""
    # Neither a secret nor the name of a block can be drawn by accident.
    alphabet = st.characters(codec="utf-8", exclude_categories=["Lu"], exclude_characters="_")
    words = st.text(alphabet, min_size=1, max_size=60).map(lambda drawn: f"w{drawn}")
    messages = [user_message(draw(words))]
    for turn in range(draw(st.integers(0, 6))):
        thought = draw(
            st.sampled_from(
                [
                    [],
                    [{"type": "thinking", "thinking": "THOUGHT" * 20, "signature": "SIGNED" * 40}],
                    [{"type": "redacted_thinking", "data": "REDACTED" * 20}],
                ]
            )
        )
        calls = [call(f"tu_{turn}_{number}", text=draw(words)) for number in range(draw(st.integers(0, 3)))]
        messages.append(said(*thought, text(draw(words)), *calls))
        outputs = [draw(st.one_of(words, st.just((OLD_IMAGE, text("shown"))))) for _ in calls]
        pairs = zip(calls, outputs, strict=True)
        results = [result(block["id"], output) for block, output in pairs]
        messages.append(user_message([*results, *([] if calls else [text(draw(words))])]))
    return messages


def without_tasks(blocks: Sequence[Block]) -> list[Block]:
    own = [block for task in TASKS for block in task]
    return [block for block in blocks if block not in own]


@settings(max_examples=12)
@given(histories(), st.integers(0, 20_000))
def test_no_block_of_the_old_context_is_in_the_new_one(history, most_bytes) -> None:
    assert conversation_problems(history) == []
    steps = last_steps(history, most_bytes)
    for blocks in (
        new_context(TASKS, "All is well.", FILES),
        new_context(TASKS, "", FILES, steps=steps),
        digest_request(TASKS, history, most_bytes).content,
    ):
        added = without_tasks(blocks)
        assert all(block["type"] == "text" and block.keys() == {"type", "text"} for block in added)
        written = json.dumps(added)
        assert not any(secret in written for secret in SECRETS)
        assert "tool_use" not in written
        assert "tool_result" not in written
        talk = Conversation.start(SHAPE).plus(user_message(blocks))
        assert conversation_problems(talk.messages) == []


def test_three_compactions_in_a_row_keep_every_task_and_file_word_for_word() -> None:
    talk = Conversation.start(SHAPE).plus(user_message(TASKS[0]))
    files = FILES[:1]
    for number in range(1, 4):
        steps = last_steps(talk.messages, 2_000)
        tasks, files = TASKS[:number], FILES[:number]
        blocks = (
            new_context(tasks, "", files, steps=steps)
            if number == 2
            else new_context(tasks, "So far so good.", files)
        )
        talk = Conversation.start(SHAPE).plus(user_message(blocks))
        sent = json.loads(b"".join(talk.request_body().pieces()))
        [first] = sent["messages"]
        plain = [{k: v for k, v in block.items() if k != "cache_control"} for block in first["content"]]
        for task in tasks:
            at = plain.index(task[0])
            assert plain[at : at + len(task)] == task
        assert "".join(f"\n- {path}" for path in files) in texts(plain)
        assert plain[-1] == text(FROM_HERE)
        talk = talk.plus(said(text("Working."), call(f"c{number}"))).plus(
            user_message([result(f"c{number}")])
        )


def test_steps_and_an_earlier_summary_take_the_place_of_a_summary() -> None:
    written = texts(new_context(TASKS, "It was red.", FILES, steps="Assistant: I ran it."))
    assert written.index("It was red.") < written.index("Assistant: I ran it.") < written.index(FILES[0])


SIZES = [user_message(task).size for task in TASKS]


@every_row(
    ("most_tokens", "kept"),
    [
        pytest.param(None, {1, 2, 3}, id="no bound"),
        pytest.param(sum(SIZES), {1, 2, 3}, id="at the bound"),
        pytest.param(sum(SIZES) - 1, {1, 3}, id="over it: one between goes"),
        pytest.param(SIZES[0] + SIZES[2], {1, 3}, id="the first and the newest"),
        pytest.param(0, {1, 3}, id="the first and the newest in any case"),
    ],
)
def test_tasks_between_go_only_when_all_exceed_the_bound_and_it_is_said(most_tokens, kept) -> None:
    blocks = new_context(TASKS, "So.", FILES, most_task_tokens=most_tokens)
    for number, task in enumerate(TASKS, start=1):
        assert all(block in blocks for block in task) is (number in kept)
        left_out = f"# Task {number} of 3: left out"
        assert (left_out in texts(blocks)) is (number not in kept)
    cut = texts(new_context(TASKS, "", FILES, steps="I ran it.", most_task_tokens=0))
    assert [f"# Task {number} of 3: left out" in cut for number in (1, 2, 3)] == [True, True, False]


HISTORY = [
    user_message("Fix it."),
    said(
        {"type": "thinking", "thinking": "THOUGHT", "signature": "SIGNED"},
        text("I look."),
        call("a", text="x" * 1_000),
    ),
    user_message([result("a", "line\n" * 2_000 + "end", is_error=True)]),
    said(call("b", text="short"), call("c")),
    user_message([result("b", (OLD_IMAGE, text("shown"))), result("c", "fine")]),
    said({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, text("It is done.")),
]


def test_the_last_steps_say_who_said_and_did_what() -> None:
    steps = last_steps(HISTORY, 100_000).split("\n\n")
    assert steps[0] == "[0 earlier messages left out]"
    assert steps[1:3] == ["User: Fix it.", "Assistant: I look."]
    assert steps[3].startswith('Call of Echo: {"text":"xxx')
    assert steps[3].endswith("xxx ...")
    assert len(steps[3].splitlines()) == 1
    assert len(steps[3]) < 350
    assert steps[4].startswith("Result of Echo (failed): line\nline\n")
    assert steps[5:] == [
        'Call of Echo: {"text":"short"}',
        'Call of Echo: {"text":"hi"}',
        "Result of Echo: [image]\nshown",
        "Result of Echo: fine",
        "Assistant: It is done.",
    ]


def test_the_newest_steps_stay_whole_and_older_ones_are_shortened_before_they_go() -> None:
    outputs = [f"BEGIN {number} " + f"{number}" * 3_000 + f" END {number}" for number in range(8)]
    history = [user_message("go")]
    for number, output in enumerate(outputs):
        history += [said(call(f"c{number}")), user_message([result(f"c{number}", output)])]
    steps = last_steps(history, 14_000)
    assert [output in steps for output in outputs] == [False] * 6 + [True] * 2
    assert all(f"BEGIN {number} " in steps and f" END {number}" in steps for number in range(8))
    assert steps.startswith("[0 earlier messages left out]")
    fewer = last_steps(history, 2_000)
    assert fewer.startswith("[11 earlier messages left out]")
    assert [f"BEGIN {number} " in fewer for number in range(8)] == [False] * 5 + [True] * 3


@settings(max_examples=12)
@given(histories(), st.integers(0, 3_000))
def test_the_last_steps_never_exceed_their_bound(history, most_bytes) -> None:
    steps = last_steps(history, most_bytes)
    assert len(steps.encode()) <= sent_bytes(steps) <= most_bytes
    assert steps == last_steps(history, most_bytes)
    assert steps == "" or steps.splitlines()[0].endswith("earlier messages left out]")
    assert steps != "" or most_bytes < 50


@every_row("most_tokens", [2_500, 8_000, 30_000])
@every_row("filling", ["x", "\x1b", "€", '"\n'])
def test_a_digest_fits_its_bound_and_uses_it(most_tokens, filling) -> None:
    history = [user_message("go")]
    for number in range(20):
        history += [said(call(f"c{number}")), user_message([result(f"c{number}", filling * 20_000)])]
    request = digest_request(TASKS[:1], history, most_tokens, earlier_summary="It was red.")
    assert most_tokens * 0.4 < request.size <= most_tokens
    assert request.role == "user"
    assert request.content[-1] == text(SUMMARIZE)
    assert TASKS[0][0] in request.content
    assert "It was red." in texts(request.content)
    assert "Result of Echo: " in texts(request.content)


@every_row(
    ("old", "new", "window", "is_worth_it"),
    [
        (100, 75, None, True),
        (100, 76, None, False),
        (100, 0, None, True),
        (0, 1, None, False),
        (400_000, 160_000, 200_000, True),
        (400_000, 160_001, 200_000, False),
        (160_001, 120_001, 200_000, False),
    ],
)
def test_a_fresh_context_must_be_a_quarter_smaller_and_not_over_the_threshold(
    old, new, window, is_worth_it
) -> None:
    assert shrinks(old, new, window) is is_worth_it


LONG = "word " * 100


@every_row(
    ("stop_reason", "content", "summary"),
    [
        ("end_turn", [text(" It works.\n")], "It works."),
        ("end_turn", [text("One."), text("Two.")], "One.\nTwo."),
        ("stop_sequence", [text("It works.")], "It works."),
        ("unheard_of", [text("It works.")], "It works."),
        ("max_tokens", [text("It wor")], f"It wor\n\n{CUT_SUMMARY}"),
        ("model_context_window_exceeded", [text("It wor")], f"It wor\n\n{CUT_SUMMARY}"),
        ("max_tokens", [{"type": "thinking", "thinking": "hm", "signature": "s"}], None),
        ("end_turn", [], None),
        ("end_turn", [text(" \n")], None),
        ("refusal", [text("It works.")], None),
        ("tool_use", [call("a")], None),
        ("tool_use", [text("I look first."), call("a")], None),
        ("tool_use", [text(LONG.removeprefix("word ")), call("a")], None),
        ("tool_use", [text(LONG), call("a")], LONG.strip()),
    ],
)
def test_a_summary_is_what_was_said_unless_that_is_nothing_or_no_summary(
    stop_reason, content, summary
) -> None:
    message = {"role": "assistant", "content": content, "stop_reason": stop_reason, "usage": {}}
    assert summary_of(answer_from_message(message)) == summary


@every_row(
    ("happened", "next_way"),
    [
        pytest.param([], "whole", id="at first"),
        pytest.param(["failed"], "digest", id="a summary that did not come"),
        pytest.param(["failed", "answered"], "digest", id="an answer in the old context proves nothing"),
        pytest.param(["shrank"], "digest", id="it shrank, and was still refused"),
        pytest.param(["shrank", "answered"], "whole", id="it shrank and helped"),
        pytest.param(["shrank", "failed", "answered"], "cut", id="the last attempt decides"),
        pytest.param(["failed", "shrank", "answered"], "whole", id="the second helped"),
        pytest.param(["failed", "failed", "shrank", "answered"], "whole", id="the cut helped"),
        pytest.param(["failed", "failed", "shrank"], None, id="even the cut was refused"),
        pytest.param(["failed", "failed", "failed", "answered"], None, id="nothing helped"),
    ],
)
def test_only_an_answer_after_a_context_that_shrank_begins_anew(happened, next_way) -> None:
    steps = CompactionSteps()
    for event in happened:
        steps = steps.answered() if event == "answered" else steps.next(has_shrunk=event == "shrank")
    attempt = steps.attempt("threshold")
    assert (attempt.way if attempt else None) == next_way


@every_row(
    ("estimate", "window", "most"),
    [
        pytest.param(300_000, 200_000, 50_000, id="over the window"),
        pytest.param(100_000, 200_000, 25_000, id="refused below it: the server's window is less"),
        pytest.param(100_000, None, 25_000, id="no window known"),
    ],
)
def test_a_share_is_of_the_window_or_of_what_was_refused(estimate, window, most) -> None:
    assert Attempt("digest", 1 / 4).most_tokens(estimate, window) == most

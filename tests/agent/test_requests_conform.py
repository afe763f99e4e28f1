"""Every kind of request that ralph sends must fit the request types of the official SDK."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.agent.task import AgentLoop
from ralph.api.stream import StreamAssembler
from ralph.conversation.messages import RequestShape, assistant_message, recover_conversation, user_message
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.permissions.gate import CallGate
from ralph.prompt.memory import read_memory
from ralph.run.context import RunContext
from ralph.run.options import RunOptions
from ralph.run.parts import build_roster, build_toolbox, run_policy
from ralph.settings.merge import load_settings
from ralph.tools.toolbox import READ
from ralph.values.controls import RunControls
from ralph.values.models import MODELS, facts_of, named_model
from ralph.values.redaction import Redactor
from ralph.values.tool_calls import ToolOutput, ToolResult
from ralph.values.tool_choice import TOOL_NAMES
from tests.api.answers.streams import streams
from tests.conversation.request_types import request_problems
from tests.conversation.test_messages import ASSISTANT, IDS, USER, conversation, sent
from tests.fakes import FakeJournal, RecordingEvents, ScriptedClient, answer, call, text
from tests.fakes.box import NO_BOX
from tests.rows import every_row
from tests.tools.image_files import png

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.conversation.messages import Conversation, Message
    from ralph.values.answer import Answer

DONE = answer(text("Done."))
PNG = png(2, 2)
EFFORTS = (None, "low", "medium", "high", "xhigh", "max")


class Sent:
    """A scripted run with the real tools, settings and system prompt. Each of its requests is checked."""

    def __init__(self, cwd: Path, *script: Answer | BaseException, prompts=None, **flags: object) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(cwd / "home"), "ANTHROPIC_API_KEY": "sk-ant-1"}
        clock, events = SystemClock(), RecordingEvents()
        waiter = InboxWaiter(clock)
        chosen = {f"model.{name}": value for name, value in flags.items()}
        settings, redactor = load_settings(chosen, environment, cwd, None), Redactor()
        options = RunOptions(**(prompts or {}))
        context = RunContext(settings, environment, cwd, waiter, clock, events, redactor, options)
        toolbox = build_toolbox(context, plan=NO_BOX)
        client = ScriptedClient(script)
        memory = read_memory(cwd, None)
        roster, _ = build_roster(context, tuple(toolbox.definitions), None, memory=memory)
        self.run = AgentLoop(
            roster,
            run_policy(settings.retry, 1.0),
            client=client,
            toolbox=toolbox,
            waiter=waiter,
            clock=clock,
            journal=FakeJournal(),
            events=events,
            gate=CallGate(RunControls(), events),
        )
        try:
            self.ended = self.run.run("the task")
        finally:
            toolbox.close()
        self.bodies: list[dict[str, Any]] = [json.loads(body) for body in client.bodies]
        for body in self.bodies:
            assert request_problems(body) == []

    @property
    def last(self) -> list[dict[str, Any]]:
        """The blocks of the last message in the last request, without cache markers."""
        blocks = self.bodies[-1]["messages"][-1]["content"]
        return [{name: value for name, value in b.items() if name != "cache_control"} for b in blocks]


@pytest.fixture(autouse=True, scope="module")
def official() -> None:
    """Imports the SDK's types before the tests, because that takes a second."""
    request_problems({})


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Sent]:
    return lambda *script, **options: Sent(tmp_path, *script, **options)


def models_and_efforts() -> Iterator[tuple[str, str | None]]:
    """Every model, and every effort with each kind of model. Models that differ only in price are of one kind."""
    kinds: dict[object, list[str]] = {}
    for model in (*MODELS, "claude-opus-4-5-20251101", "sonnet", "qwen3:30b"):
        facts = facts_of(named_model(model).id)
        kind = facts and (facts.context_window, facts.max_output, facts.needs_adaptive, facts.takes_effort)
        kinds.setdefault(kind, []).append(model)
    for models in kinds.values():
        for number in range(max(len(models), len(EFFORTS))):
            yield models[number % len(models)], EFFORTS[number % len(EFFORTS)]


@every_row(("model", "effort"), models_and_efforts())
def test_the_first_request_to_every_model_and_at_every_effort_conforms(run, model, effort) -> None:
    (body,) = run(DONE, name=model, effort=effort).bodies
    assert {tool["name"] for tool in body["tools"]} == set(TOOL_NAMES)
    facts = facts_of(body["model"])
    assert facts is None or body["max_tokens"] <= facts.max_output
    assert ("thinking" in body) == (facts is not None and facts.needs_adaptive)


def test_results_of_every_kind_conform_alone_and_together(run, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("line\n")
    (tmp_path / "a.png").write_bytes(PNG)
    calls = [
        call("t1", "Read", file_path="a.txt"),
        call("t2", "Read", file_path="a.png", surprise=1),
        call("t3", "Read", file_path="missing"),
        call("t4", "Read", file_path=7),
        call("t5", "Bash", command="echo out; exit 3"),
        call("t6", "Nothing"),
        call("t7", "Write", file_path="b.txt", content="new"),
        {"type": "tool_use", "id": "t8", "name": "Read", "input": ["no object"]},
        call("t9", "Bash", command="true"),
    ]
    alone = run(*(answer(one) for one in calls), DONE)
    together = run(answer(text("Working."), *calls), DONE)
    assert len(alone.bodies) == len(calls) + 1
    assert [block["tool_use_id"] for block in together.last] == [one["id"] for one in calls]
    failed = {block["tool_use_id"] for block in together.last if block.get("is_error")}
    assert {"t3", "t4", "t6", "t8"} <= failed
    picture = together.last[1]["content"]
    assert [block["type"] for block in picture] == ["image", "text"]


def follow_up(talk: Conversation) -> dict[str, Any]:
    """The request that would resume this conversation."""
    body: dict[str, Any] = json.loads(sent(talk.plus(user_message("Go on."))))
    return body


@settings(max_examples=12)
@given(st.lists(st.one_of(ASSISTANT, USER), max_size=8), st.dictionaries(IDS, st.sampled_from(["", "r"])))
def test_whatever_conversation_was_recovered_its_requests_conform(
    tail: list[Message], done: dict[str, str]
) -> None:
    finished = {i: ToolResult(i, ToolOutput(words, is_error=not words)) for i, words in done.items()}
    recovered = recover_conversation(conversation(user_message("x"), *tail), finished)
    assert request_problems(json.loads(sent(recovered))) == []
    assert request_problems(follow_up(recovered)) == []


def known_to_the_sdk(value: Any) -> Any:
    """The value without blocks and fields of the future, which the SDK's types do not have."""
    if isinstance(value, list):
        return [known_to_the_sdk(one) for one in value if not is_of_the_future(one)]
    if isinstance(value, dict):
        return {name: known_to_the_sdk(one) for name, one in value.items() if name != "future"}
    return value


def is_of_the_future(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "future_block"


def replies(events: list[dict[str, Any]]) -> Iterator[Message]:
    """The answer as a message of the next request, and a message with a result for each of its calls."""
    assembler = StreamAssembler()
    for event in events:
        assembler.feed(event)
    message = assistant_message(assembler.answer().content)
    if message is not None:
        yield message
        outputs = [ToolResult(call_id, ToolOutput("ok")).as_block() for call_id in message.tool_use_ids]
        yield user_message([*outputs, text("on")])


@pytest.mark.parametrize("with_betas", [False, True], ids=["general", "betas"])
@settings(max_examples=12)
@given(data=st.data())
def test_every_answer_that_the_api_may_give_conforms_when_it_is_sent_again(with_betas, data) -> None:
    talk = conversation(
        user_message("x"),
        *replies(data.draw(streams(with_betas=with_betas))),
        shape=RequestShape("claude-opus-4-8", "Be good.", (READ,), effort="max"),
    )
    body = json.loads(sent(talk))
    for message in body["messages"]:
        message["content"] = known_to_the_sdk(message["content"])
    assert request_problems(body, with_betas=with_betas) == []

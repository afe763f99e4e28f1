"""Runs tasks in the real agent loop with scripted answers, and checks what must be true after every task."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.agent.task import AgentLoop
from ralph.conversation.session import Session, replay
from ralph.conversation.target import Target
from ralph.output.stream_json import result_object
from ralph.permissions.gate import CallGate
from ralph.retry.backoff import RetryPolicy, standard
from ralph.retry.targets import Roster
from ralph.run.report_check import report_tool
from ralph.run.report_problems import validator_of
from ralph.values.answer import FINAL_REPORT
from ralph.values.controls import RunControls
from ralph.values.events import AttemptEnded, ReportAccepted
from ralph.values.report import ReportForm, plain_problems
from tests.conversation.conversation_rules import conversation_problems
from tests.fakes import (
    FakeJournal,
    FakeToolbox,
    FakeWaiter,
    RecordingEvents,
    ScriptedClient,
    answer,
    call,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.agent.tool_turn import Gate
    from ralph.retry.step import Client
    from ralph.values.answer import Answer
    from ralph.values.events import RunEnded
    from ralph.values.limits import LimitSettings
    from ralph.values.ports import TurnLock

DONE = answer(text("All done."))


def agent_loop(
    roster: Roster,
    client: Client,
    journal: FakeJournal,
    *,
    policy: RetryPolicy | None = None,
    toolbox: FakeToolbox | None = None,
    waiter: FakeWaiter | None = None,
    events: RecordingEvents | None = None,
    gate: Gate | None = None,
    **options: Any,
) -> AgentLoop:
    """An agent loop with fakes for the ports that are not given. `options` are further arguments of `AgentLoop`."""
    waiter, events = waiter or FakeWaiter(), events or RecordingEvents()
    return AgentLoop(
        roster,
        policy or standard(),
        client=client,
        toolbox=toolbox or FakeToolbox(),
        waiter=waiter,
        clock=waiter.clock,
        journal=journal,
        events=events,
        gate=gate or CallGate(RunControls(), events),
        **options,
    )


PAYLOAD_SCHEMA = {
    "type": "object",
    "properties": {"files": {"type": "array", "items": {"type": "string"}}},
    "required": ["files"],
    "additionalProperties": False,
}
PLAIN_FORM = ReportForm(report_tool(None), plain_problems, has_payload=False)
_WITH_PAYLOAD = report_tool(PAYLOAD_SCHEMA)
PAYLOAD_FORM = ReportForm(_WITH_PAYLOAD, validator_of(_WITH_PAYLOAD.input_schema), has_payload=True)
_WITH_ANYTHING = report_tool({})
ANY_FORM = ReportForm(_WITH_ANYTHING, validator_of(_WITH_ANYTHING.input_schema), has_payload=True)


def report(
    call_id: str = "r", status: str = "success", summary: str = "Did it.", **more: Any
) -> dict[str, Any]:
    """A call of the tool for final reports."""
    return call(call_id, FINAL_REPORT, status=status, summary=summary, **more)


class Played:
    """The first task of a run. `task` runs another one with the rest of the script."""

    def __init__(
        self,
        *script: Answer | BaseException,
        on_run: Callable[[Any], None] | None = None,
        interrupt_at_s: float | None = None,
        models: Sequence[str] = (),
        targets: Sequence[Target] = (),
        limits: LimitSettings | None = None,
        form: ReportForm | None = None,
        toolbox: FakeToolbox | None = None,
        waiter: FakeWaiter | None = None,
        policy: RetryPolicy | None = None,
        session: Session | None = None,
        journal: FakeJournal | None = None,
        prompt: str | None = "the task",
        strategy: str = "fallback",
        turn_lock: TurnLock | None = None,
        events: RecordingEvents | None = None,
        client: ScriptedClient | None = None,
        gate: Gate | None = None,
        controls: RunControls | None = None,
    ) -> None:
        """Without `client`, a client gives the answers in `script`."""
        self.client = client or ScriptedClient(script)
        self.events = events or RecordingEvents()
        self.toolbox = toolbox or FakeToolbox(on_run)
        self.waiter = waiter or FakeWaiter(interrupt_at_s=interrupt_at_s)
        self.roster = roster_for(models, targets, self.toolbox, form, strategy)
        self.journal = journal or FakeJournal.of_run(self.roster.first_shape)
        self.needs_report = form is not None
        self.run = agent_loop(
            self.roster,
            self.client,
            self.journal,
            policy=policy,
            toolbox=self.toolbox,
            waiter=self.waiter,
            events=self.events,
            gate=gate,
            controls=controls,
            session=session,
            limits=limits,
            report_form=form,
            turn_lock=turn_lock,
        )
        self.ended = self.task(prompt)

    def task(self, prompt: str | None) -> RunEnded:
        told_before = len(self.events.of(ReportAccepted))
        self.ended = ended = self.run.run(prompt)
        assert conversation_problems(self.run.conversation.messages) == []
        again = replay(self.journal.records)
        assert again.conversation.request_body() == self.run.conversation.request_body(), "to the byte"
        assert again.ended is not None
        assert again.ended.outcome == ended.outcome.value
        told = self.events.of(ReportAccepted)[told_before:]
        assert [event.source for event in told] == ([ended.report.source] if ended.report else [])
        assert not self.needs_report or ended.report is not None
        assert ended.result != ""
        return ended

    @property
    def result(self) -> dict[str, Any]:
        """The result object of the last task."""
        return result_object(self.ended, "s1")

    @property
    def calls_made(self) -> int:
        """The number of requests to the model."""
        return len(self.client.bodies)

    @property
    def cost_usd(self) -> float:
        """The cost of all attempts in US dollars, from the token counts of the scripted answers."""
        usage = self.ended.usage.cost_usd
        assert usage is not None
        return usage

    @property
    def attempts(self) -> list[AttemptEnded]:
        return self.events.of(AttemptEnded)

    @property
    def ran(self) -> list[str]:
        """The ids of the calls that ran, in order."""
        return [call_id for batch in self.toolbox.ran for call_id in batch]

    def request(self, index: int) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.client.bodies[index])
        return body

    def sent(self, index: int) -> list[dict[str, Any]]:
        """The messages of the request with this index."""
        messages: list[dict[str, Any]] = self.request(index)["messages"]
        return messages

    def last_words(self, index: int) -> list[str]:
        """The texts in the last message of a request. This message must be the user's."""
        last = self.sent(index)[-1]
        assert last["role"] == "user"
        return [block["text"] for block in last["content"] if block["type"] == "text"]

    def results_in(self, index: int) -> list[dict[str, Any]]:
        """The tool results in the last message of a request."""
        return [block for block in self.sent(index)[-1]["content"] if block["type"] == "tool_result"]

    @property
    def last_results(self) -> list[dict[str, Any]]:
        """The tool results in the last message of the conversation."""
        last = self.run.conversation.messages[-1]
        return [block for block in last.content if block["type"] == "tool_result"]

    @property
    def says(self) -> str:
        """The whole conversation as JSON text, to search for words in it."""
        return b"".join(self.run.conversation.request_body().pieces()).decode()


def roster_for(
    models: Sequence[str],
    targets: Sequence[Target],
    toolbox: FakeToolbox,
    form: ReportForm | None,
    strategy: str,
) -> Roster:
    named = [Target(model, model, "http://127.0.0.1:1") for model in models or ("claude-sonnet-5-5",)]
    tools = (*toolbox.definitions, *((form.tool,) if form is not None else ()))
    return Roster(targets or named, system="system", tools=tools, strategy=strategy)

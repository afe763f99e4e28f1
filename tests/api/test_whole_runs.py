"""The real loop on real sockets: whatever the network does, no tool runs twice and no request is sent without
need.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ralph.agent.task import AgentLoop
from ralph.machine.waiter import InboxWaiter
from ralph.mock_api import ErrorEvent, Fault, Step, Text, Thinking, ToolUse, Turn
from ralph.permissions.gate import CallGate
from ralph.retry.backoff import GiveUp, RetryPolicy, Wait, custom, off, standard
from ralph.values.controls import RunControls
from ralph.values.errors import AgentError, Api
from ralph.values.events import RetryExhausted, RetryRecovered, RetryScheduled
from ralph.values.outcome import Outcome
from tests.api.harness import Rig, limits
from tests.conversation.conversation_rules import conversation_problems
from tests.fakes import FakeJournal, FakeToolbox, roster_of
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.api.client import ApiClient
    from ralph.conversation.messages import RequestBody
    from ralph.conversation.target import ModelDescription, Target
    from ralph.values.answer import Answer
    from ralph.values.events import RunEnded
    from ralph.values.ports import Clock, Events


class SleeplessWaiter(InboxWaiter):
    """A waiter that really waits for sockets, but only notes the waits between retries."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.sleeps: list[float] = []

    def sleep(self, seconds: float, *, waiting_for: str) -> None:
        assert waiting_for
        self.sleeps.append(seconds)


class OneTarget:
    """A `Client` with only one endpoint."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.was_idle: list[bool] = []
        """For each request that failed, whether only an idle connection was lost. A test cannot foretell which connections
        are kept."""

    def send_message(
        self, _target: Target, _key: int, body: RequestBody, events: Events, *, is_whole: bool = False
    ) -> Answer:
        try:
            return self._api.send_message(body, events, is_whole=is_whole)
        except AgentError as error:
            self.was_idle.append(isinstance(error, Api) and error.was_idle)
            raise

    def describe_model(self, target: Target, _key: int) -> ModelDescription | None:
        return self._api.describe_model(target.model)


class WholeRun:
    """A `Run` with a real client and a fake toolbox."""

    def __init__(self, rig: Rig, policy: RetryPolicy) -> None:
        self.toolbox = FakeToolbox()
        self.events = rig.events
        self.client = OneTarget(rig.api)
        self.run = AgentLoop(
            roster_of("claude-test"),
            policy,
            client=self.client,
            toolbox=self.toolbox,
            waiter=rig.waiter,
            clock=rig.clock,
            journal=FakeJournal(),
            events=rig.events,
            gate=CallGate(RunControls(), rig.events),
        )
        self.ended: RunEnded = self.run.run("go")
        assert conversation_problems(self.run.conversation.messages) == []


def turn(number: int) -> Turn:
    words = f"ä{number:02}"  # two digits: the same byte of each turn's stream has the same meaning
    calls = [ToolUse("Echo", {"text": words}, id=f"e{number:02}"), ToolUse("Touch", {}, id=f"t{number:02}")]
    return Turn([Thinking("ü"), Text("世🙂"), *calls], id=f"m{number:02}", chunk_chars=0)


TRANSIENT = [
    *(Fault(status=status) for status in (408, 409, 429, 500, 502, 503, 504, 529)),
    *(
        Fault(status=status, headers={"retry-after": requested})
        for status in (429, 503)
        for requested in ("0", "7.5", "900", "nan")
    ),
    Fault(reset_before_headers=True),
    Fault(close_before_headers=True),
    Fault(partial_headers_bytes=20),
    Fault(garbage="SSH-2.0-OpenSSH\r\n"),
    Fault(error_event=ErrorEvent(after_events=3)),
    Fault(cut_after_events=4, framing="close"),
    Fault(cut_after_bytes=300, framing="reset"),
    Fault(cut_after_events=6, framing="chunked"),
    Fault(omit_message_stop=True),
    Fault(body="", content_type="text/event-stream"),
    Fault(stall_after_events=2),
]
DAMAGED = [Fault(body="<title>Log in</title>", content_type="text/html"), Fault(malformed_json_at_event=2)]
PERMANENT = [
    *(Fault(status=status) for status in (400, 401, 403, 404, 413)),
    *DAMAGED,
    Fault(status=307, headers={"location": "http://127.0.0.1:1/"}),
]
REQUESTED = {"0": 0.0, "7.5": 7.5, "900": 900.0}


def expected_waits(faults: list[Fault], policy: RetryPolicy, was_idle: Iterator[bool]) -> list[float]:
    """The waits of one chain of retries, computed from the policy and from what is noted of the failed requests."""
    has_lost_idle = False
    waits: list[float] = []
    for fault in faults:
        requested_s = REQUESTED.get(str((fault.headers or {}).get("retry-after")))
        decision = policy.next_wait(len(waits) + 1, requested_s, sum(waits))
        if next(was_idle) and not has_lost_idle and isinstance(decision, Wait):
            decision, has_lost_idle = Wait(0.0), True
        if fault in PERMANENT or isinstance(decision, GiveUp):
            break
        waits.append(decision.seconds)
    return waits


@every_row("seed", range(12))
def test_a25_any_mix_of_faults_costs_exactly_the_requests_and_waits_of_the_policy(serve, rig, seed) -> None:
    dice = random.Random(seed)
    policy = dice.choice([standard(), standard(), custom(3, 1, 10), off()])
    chains = [dice.choices(TRANSIENT, k=dice.choice([0, 0, 1, 2, 3, 5])) for _ in range(4)]
    if dice.random() < 0.3:
        chains[-1].append(dice.choice(PERMANENT))
    steps: list[Any] = []
    for number, faults in enumerate(chains):
        steps += [fault if fault.replaces_answer() else Step(turn(number), fault) for fault in faults]
        steps.append(turn(number))
    server = serve(*steps, Turn("Done."))
    client = rig(server, limits=limits(first_byte_s=0.3, bytes_idle_s=0.3), waiter_class=SleeplessWaiter)
    played = WholeRun(client, policy)
    waits: list[float] = []
    was_idle = iter(played.client.was_idle)
    requests, recovered, exhausted = 0, 0, 0
    for faults in chains:
        of_chain = expected_waits(faults, policy, was_idle)
        waits += of_chain
        requests += len(of_chain) + 1
        failed = len(of_chain) < len(faults)
        recovered += bool(of_chain) and not failed
        exhausted += bool(of_chain) and failed
        if failed and faults[len(of_chain)] in DAMAGED:
            requests += 1  # asked once more, and answered
        elif failed:
            break
    else:
        requests += 1
        assert played.ended.outcome is Outcome.COMPLETED
        assert played.toolbox.ran == [[f"{kind}{number:02}"] for number in range(4) for kind in "et"]
    assert len(server.requests) == requests
    assert isinstance(client.waiter, SleeplessWaiter)
    assert client.waiter.sleeps == waits
    assert len(played.events.of(RetryScheduled)) == len(waits) == played.ended.retries
    assert len(played.events.of(RetryRecovered)) == recovered
    assert len(played.events.of(RetryExhausted)) == exhausted

"""Runs of the agent with a server that has a small context window: it counts the tokens of each request and refuses
a request with too many.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ralph.agent.compaction import SUMMARIZE
from ralph.api.stream import answer_from_message
from ralph.conversation.messages import make_message
from ralph.conversation.records import run_record, session_record
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.retry.targets import Roster
from ralph.values.answer import FileChange, ToolDefinition, ToolOutput
from ralph.values.errors import HttpError
from ralph.values.events import ContextCompacted
from ralph.values.servers import Price
from tests.conversation.conversation_rules import conversation_problems
from tests.fakes import (
    ECHO,
    TOUCH,
    FakeJournal,
    FakeToolbox,
    FakeWaiter,
    RecordingEvents,
    answer,
    call,
    text,
)
from tests.fakes.played import agent_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.conversation.messages import RequestBody
    from ralph.conversation.session import Session
    from ralph.conversation.target import ModelDescription
    from ralph.values.answer import Answer, Block, ToolCall
    from ralph.values.ports import Events

WRITE = ToolDefinition("Write", "Changes a file.", {"type": "object", "properties": {}})
TOOLS = (ECHO, TOUCH, WRITE)
PRICE = Price(input=2, output=10, cache_write=2.5, cache_write_1h=4, cache_read=0.1)
SUMMARY = "The parser is half fixed; the tests are red."
MARKER = b',"cache_control":{"type":"ephemeral"}'


@dataclass(frozen=True)
class Request:
    """One request that the server received."""

    target: str
    body: bytes
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.fields["messages"]
        return found

    @property
    def is_summary_call(self) -> bool:
        return bool(self.messages[-1]["content"][-1].get("text") == SUMMARIZE)

    @property
    def head(self) -> bytes:
        """The fields other than the messages, as JSON. `max_tokens` is left out, because ralph lowers it when the
        window is nearly full.
        """
        head = {name: value for name, value in self.fields.items() if name not in {"messages", "max_tokens"}}
        return json.dumps(head, sort_keys=True).encode()

    @property
    def texts(self) -> list[str]:
        """The texts of the first message."""
        return [block["text"] for block in self.messages[0]["content"] if block["type"] == "text"]


class SmallServer:
    """A client with a server's answers. It counts one token for each `bytes_per_token` bytes, and refuses requests
    of more than `window` tokens like Anthropic's API. If `window` is None, it refuses none.
    """

    def __init__(
        self,
        script: Iterable[Answer | BaseException],
        *,
        summaries: Iterable[Answer | BaseException] | None = None,
        window: int | None = None,
        bytes_per_token: float = 4,
        descriptions: Mapping[str, ModelDescription] | None = None,
    ) -> None:
        """`summaries` are the answers to requests for a summary, in order. If it is None, all get the same
        answer.
        """
        self._script = list(script)
        self._summaries = None if summaries is None else list(summaries)
        self._window = window
        self._bytes_per_token = bytes_per_token
        self._descriptions = descriptions or {}
        self.requests: list[Request] = []
        self.described: list[str] = []

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    @property
    def summary_calls(self) -> list[Request]:
        return [request for request in self.requests if request.is_summary_call]

    def send_message(self, target: Target, key: int, body: RequestBody, events: Events, **how: Any) -> Answer:
        sent = b"".join(body.pieces())
        request = Request(target.name, sent.replace(MARKER, b""), json.loads(sent.replace(MARKER, b"")))
        self.requests.append(request)
        messages = [make_message(each["role"], each["content"]) for each in request.messages]
        assert conversation_problems(messages) == []
        tokens = int(len(request.body) / self._bytes_per_token)
        if self._window is not None and tokens > self._window:
            raise too_long(tokens, self._window)
        if request.is_summary_call and self._summaries is None:
            step: Answer | BaseException = answer(text(SUMMARY))
        else:
            steps = self._summaries if request.is_summary_call else self._script
            assert steps, "nothing is left to say"
            step = steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        output = len(json.dumps(step.message["content"])) // 4
        usage = {"input_tokens": tokens, "output_tokens": output}
        return answer_from_message({**step.message, "usage": usage})

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        self.described.append(target.name)
        return self._descriptions.get(target.model)


class LargeToolbox(FakeToolbox):
    """A toolbox whose Echo returns `size` bytes, and whose Write changes a file named after the id of the call."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.definitions = TOOLS
        self.size = size

    def plan(self, call: ToolCall) -> FileChange | None:
        return FileChange(f"/work/{call.id} größe", None, "after") if call.name == "Write" else None

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        self.ran.append([call.id for call in calls])
        sizes = [self.size if call.name == "Echo" else 0 for call in calls]
        pairs = zip(calls, sizes, strict=True)
        return [(ToolOutput(f"{call.id} ".ljust(size, "x")), 0.1) for call, size in pairs]


def too_long(tokens: int = 9, window: int = 8) -> HttpError:
    message = f"prompt is too long: {tokens} tokens > {window} maximum"
    return HttpError(400, None, "", error_type="invalid_request_error", message=message)


def works(number: int, **fields: Any) -> Answer:
    """An answer with thinking and two calls: one that reads much, and one that changes a file."""
    thinking = {"type": "thinking", "thinking": f"THOUGHT {number}", "signature": f"SIGNED{number}"}
    return answer(
        thinking,
        text(f"Step {number}."),
        call(f"read_{number}"),
        call(f"write_{number}", "Write"),
        **fields,
    )


def target(name: str = "main", window: int | None = 20_000, **more: Any) -> Target:
    fields = {"model": "claude-sonnet-5-5", "base_url": "http://127.0.0.1:1", "price": PRICE, **more}
    return Target(name, context_window=window, **fields)


class World:
    """One process of a session, from its prompt to its end."""

    def __init__(
        self,
        server: SmallServer,
        *targets: Target,
        prompt: str | Sequence[Block] | None = "Fix the parser.",
        result_bytes: int = 22_000,
        journal: FakeJournal | None = None,
        waiter: FakeWaiter | None = None,
        change: Callable[[World], None] = lambda world: None,
    ) -> None:
        """`change` is called with this object before the run begins."""
        self.server = server
        self.session: Session | None = replay(journal.records) if journal is not None else None
        recorded = self.session.shapes if self.session is not None else None
        self.roster = Roster(targets or [target()], system="Be good.", tools=TOOLS, recorded=recorded)
        self.journal = journal or FakeJournal()
        if journal is None:
            self.journal.append(session_record("s1", "/work", "now", "0"))
        self.events = RecordingEvents()
        self.toolbox = LargeToolbox(result_bytes)
        change(self)
        self.run = agent_loop(
            *(self.roster, server, self.journal),
            toolbox=self.toolbox,
            waiter=waiter,
            events=self.events,
            session=self.session,
        )
        self.ended = self.work(prompt)

    def work(self, prompt: str | Sequence[Block] | None) -> Any:
        first = self.roster.first
        opening = run_record(self.roster.first_shape, "now", 1, target=first.name)
        ended = self.run.run(prompt, opening)
        again = replay(self.journal.records)
        assert conversation_problems(self.run.conversation.messages) == []
        assert again.conversation.messages == self.run.conversation.messages, "as the journal tells it"
        return ended

    @property
    def compactions(self) -> list[ContextCompacted]:
        return self.events.of(ContextCompacted)

    @property
    def fresh_requests(self) -> list[Request]:
        """The first request of each context, except that of the first context."""
        return [
            request
            for request in self.server.requests
            if len(request.messages) == 1 and len(request.texts) > 1 and not request.is_summary_call
        ]

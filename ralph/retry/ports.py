"""The ports of the retry loop. `api/` implements the port for the client, and `agent/` the port for the session's
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ralph.conversation.messages import RequestBody
    from ralph.conversation.session import Session
    from ralph.conversation.target import ModelDescription, Target
    from ralph.values.answer import Answer
    from ralph.values.ports import Events


class State(Protocol):
    @property
    def session(self) -> Session:
        """The current state of the session."""
        ...


class Client(Protocol):
    def send_message(
        self, target: Target, key: int, body: RequestBody, events: Events, *, is_whole: bool = False
    ) -> Answer:
        """Sends one request and returns the answer. It never retries. `key` is the index of the target's key, counted
        from 0. `is_whole` is True if the body asks for one JSON object and not for a stream: such an answer may stay away
        until its time limit. `events` receives a RequestSent when the request is on its way, and the answer's events while it
        arrives. Raises only `AgentError`, `Interrupted` and the errors of `events`.
        """
        ...

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        """Asks the server once for its description of the target's model, and waits at most a few seconds.

        `key` is the index of the target's key, counted from 0. Returns None if the server gave no description. Raises
        only `Interrupted`. The client does not store the description.
        """
        ...

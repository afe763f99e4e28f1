"""The retry loop's ports: a client that sends one request, once (`api/`), and the session's state (`agent/`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ralph.conversation.messages import RequestBody
    from ralph.conversation.model_description import ModelDescription
    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.values.answer import Answer
    from ralph.values.ports import Events


class State(Protocol):
    @property
    def session(self) -> Session:
        """The session as recorded so far."""
        ...


class Client(Protocol):
    def send_message(self, target: Target, key: int, body: RequestBody, events: Events) -> Answer:
        """Sends one request, once, with the target's key number `key`, counted from 0.

        Emits the events of the answer to `events`. Raises only `AgentError` (and `Interrupted`); never retries.
        """
        ...

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        """Asks the server once for its description of the target's model, and waits a few seconds at most.

        None: the server gave no description. Raises only `Interrupted`. Stores nothing.
        """
        ...

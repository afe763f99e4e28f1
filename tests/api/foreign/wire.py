"""Answers of other servers as bytes, rows that say what ralph does with them, and the player of a row.

A row is one habit of a server, from a public report or a vendor's own page. `play` serves its answers over HTTP on the
loopback interface to a whole `ralph` process, and checks what the row says. A module of this folder is a table of rows
about one subject.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Text, ToolUse, Turn, as_events, as_message, encode_event
from tests.api.harness import RawServer, http_answer, read_request
from tests.patience import PATIENCE_S
from tests.program.conftest import ralph_in

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.program.conftest import Finished, Ralph

QUICKLY = "[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\n"
"""A user's settings file with four retries that hardly wait."""
CLOSING = "All done."


# --- Answers, in bytes


def sse(*events: Mapping[str, Any] | bytes) -> bytes:
    """A complete event stream with status 200. Bytes among the events are sent as they are."""
    return http_answer(b"".join(map(_event, events)))


def _event(event: Mapping[str, Any] | bytes) -> bytes:
    return event if isinstance(event, bytes) else encode_event(dict(event))


def refusal(status: int, body: Mapping[str, Any] | bytes, **headers: str) -> bytes:
    """An answer with this status. A mapping is sent as JSON. `headers` are further ones, with `_` for `-`."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    if isinstance(body, bytes):
        return http_answer(body, "text/plain", f"{status} X", lines)
    return http_answer(json.dumps(body).encode(), "application/json", f"{status} X", lines)


def events_of(turn: Turn | str) -> list[dict[str, Any]]:
    """The events of a good answer, for a row to change."""
    return as_events(turn if isinstance(turn, Turn) else Turn(turn))


def stream(turn: Turn | str, **message: Any) -> bytes:
    """A good answer. `message` replaces fields of the message in `message_start`, such as `usage`."""
    start, *rest = events_of(turn)
    return sse({**start, "message": {**start["message"], **message}}, *rest)


def whole(turn: Turn | str) -> bytes:
    """A good answer as one JSON object, as servers send it if the request says `"stream": false`."""
    message = as_message(turn if isinstance(turn, Turn) else Turn(turn))
    return http_answer(json.dumps(message).encode(), "application/json")


class Silence:
    """No answer until `end` is called. The server serves one connection after the other, so the next one waits for that."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.end = self._ended.set

    def __call__(self, _request: Mapping[str, Any]) -> None:
        self._ended.wait(PATIENCE_S)


DONE = stream(CLOSING)
"""The last answer of most rows."""


def command(words: str, call_id: str = "t1", says: str = "I run it.") -> Turn:
    """An answer with a text and one call of Bash."""
    return Turn([Text(says), ToolUse("Bash", {"command": words}, id=call_id)], id=f"m-{call_id}")


def note(number: int = 1) -> Turn:
    """An answer with a command that adds a line to `notes.txt`. A command that runs twice adds two lines."""
    return command(f"echo {number} >> notes.txt", f"t{number}")


# --- Rows


@dataclass(frozen=True)
class Row:
    """A habit of a server, with what ralph does."""

    name: str
    source: str
    """The public report (tracker and number) or the page that describes the habit."""
    answers: tuple[Any, ...]
    """The answers to the requests of the run, in order: bytes, or a function that is called with the request's JSON and
    returns bytes, or None for no answer at all. The last one is repeated."""
    code: int = 0
    """The exit code."""
    requests: int | None = None
    """The number of requests for messages. None means one for each answer."""
    result: str | None = CLOSING
    """The result. A run that does not end with 0 may have any, if the row names none."""
    notices: tuple[str, ...] = ()
    """A part of the text of each warning event, in order. Other notices of the run are not compared."""
    errors: tuple[str, ...] = ()
    """A part of each `[error]` line, in order."""
    notes: str | None = None
    """The content of `notes.txt` at the end. None means that no command has made it."""
    error: str = ""
    """A part of the errors in the result."""
    words: tuple[str, ...] = ()
    """Options of the command line."""
    settings: str = QUICKLY
    """The user's settings file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, Any] | None = None
    """The server's description of its model. None means that it has none (404)."""


@dataclass(frozen=True)
class Played:
    """A run that was played, and what it left."""

    ralph: Ralph
    ran: Finished
    requests: list[dict[str, Any]]
    """The bodies of the requests for messages."""

    @property
    def notices(self) -> list[str]:
        return [one["text"] for one in self.ran.objects if one.get("subtype") == "notice"]

    @property
    def notes(self) -> str | None:
        path = self.ralph.cwd / "notes.txt"
        return path.read_text() if path.exists() else None


def play(row: Row, directory: Path) -> Played:
    """Plays the row to a new `ralph` in `directory` and checks what the row says."""
    ralph = ralph_in(directory)
    with answering(row.answers, row.model) as (server, requests):
        ran = run(ralph, server, *row.words, settings=row.settings, environment=row.environment)
    played = Played(ralph, ran, requests)
    told = f"{ran.stderr}\n{ran.stdout}"
    assert ran.code == row.code, told
    assert len(requests) == (len(row.answers) if row.requests is None else row.requests), told
    if row.code == 0 or row.result != CLOSING:
        assert ran.result["result"] == row.result, told
    assert row.error in "\n".join(ran.result.get("errors", ())), told
    notices = iter(played.notices)
    assert all(any(part in text for text in notices) for part in row.notices), played.notices
    errors = [line for line in ran.stderr.splitlines() if line.startswith("[error]")]
    assert len(errors) == len(row.errors), told
    assert all(part in line for part, line in zip(row.errors, errors, strict=True)), errors
    assert played.notes == row.notes, told
    return played


def run(
    ralph: Ralph,
    server: RawServer,
    *words: str,
    settings: str = QUICKLY,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a task of `ralph` against the server."""
    ralph.user_file.write_text(settings)
    ralph.environment |= {"ANTHROPIC_BASE_URL": server.base_url, **(environment or {})}
    return ralph("do it", "--output-format", "stream-json", *words)


@contextmanager
def answering(
    answers: Iterable[Any], model: Mapping[str, Any] | None = None
) -> Iterator[tuple[RawServer, list[dict[str, Any]]]]:
    """Serves the answers as `Row.answers` says. Yields the server and the list of the requests for messages."""
    script = list(answers)
    requests: list[dict[str, Any]] = []

    def serve(sock: socket.socket) -> None:
        head, _, body = read_request(sock).partition(b"\r\n\r\n")
        answer: Any = None
        if head.startswith(b"GET"):
            answer = refusal(404, {}) if model is None else refusal(200, model)
        elif head:
            requests.append(json.loads(body))
            answer = script[min(len(requests), len(script)) - 1]
        if callable(answer):
            answer = answer(requests[-1])
        if answer is not None:
            sock.sendall(answer)

    server = RawServer(serve)
    try:
        yield server, requests
    finally:
        server.close()

"""A program that drives `ralph run` through its standard streams. It waits for lines, never for a time."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from tests.driven.driver_lines import request, user
from tests.patience import PATIENCE_S
from tests.program.conftest import Finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program.conftest import Ralph

STREAM_JSON = ("--input-format", "stream-json", "--output-format", "stream-json")

Line = dict[str, Any]


class Driver:
    """One run. Its standard error goes to a file, so that nobody has to read it meanwhile."""

    def __init__(self, ralph: Ralph, *arguments: str) -> None:
        self._errors = ralph.cwd.parent / "stderr"
        with self._errors.open("wb") as stderr:
            self.process = ralph.start(
                *STREAM_JSON, *arguments, stdin=subprocess.PIPE, stderr=stderr, bufsize=0
            )
        self._raw: list[bytes] = []
        self._lines: list[Line] = []
        self._has_ended = False
        self._news = threading.Condition()
        self._asked = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def lines(self) -> list[Line]:
        """The lines that have arrived so far."""
        with self._news:
            return list(self._lines)

    def send(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))

    def say(self, *messages: str) -> None:
        self.send(*map(user, messages))

    def ask(self, subtype: str, **fields: Any) -> Any:
        """Sends a request and returns the content of the response, or the error text."""
        self._asked += 1
        request_id = f"ask-{self._asked}"
        self.send(request(subtype, request_id, **fields))
        return self.answer(request_id)

    def answer(self, request_id: str | None, nth: int = 1) -> Any:
        line = self.wait_for(
            lambda line: line["type"] == "control_response" and line["response"]["request_id"] == request_id,
            nth,
        )
        response = line["response"]
        return response["response"] if response["subtype"] == "success" else response["error"]

    def event(self, subtype: str, nth: int = 1) -> Line:
        return self.wait_for(lambda line: line["type"] == "system" and line["subtype"] == subtype, nth)

    def delta(self, nth: int = 1) -> Line:
        """Waits for the nth piece of an answer. The run must have been started with --include-partial-messages."""
        return self.wait_for(
            lambda line: line["type"] == "stream_event" and line["event"]["type"] == "content_block_delta",
            nth,
        )

    def result(self, nth: int = 1) -> Line:
        return self.wait_for(lambda line: line["type"] == "result", nth)

    def wait_for(self, is_it: Callable[[Line], bool], nth: int = 1) -> Line:
        """Waits for the nth line, counted from 1, for which `is_it` is true. Lines that arrived before count too.
        Fails if the output ends without it.
        """

        def found() -> list[Line]:
            return [line for line in self._lines if is_it(line)]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= nth or self._has_ended, PATIENCE_S), self
            assert len(found()) >= nth, self
            return found()[nth - 1]

    def hang_up(self) -> None:
        """Closes the run's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def finish(self) -> Finished:
        """Closes the run's standard input, and waits until the process has ended and its output is read."""
        self.hang_up()
        return self.ended()

    def ended(self) -> Finished:
        code = self.process.wait(timeout=PATIENCE_S)
        self._reader.join(timeout=PATIENCE_S)
        return Finished(code, b"".join(self._raw).decode(), self._errors.read_text())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(timeout=PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def __repr__(self) -> str:
        shown = "\n".join(line.decode()[:300].rstrip() for line in self._raw[-20:])
        return f"the last lines:\n{shown}\nstandard error:\n{self._errors.read_text()[-2000:]}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            with self._news:
                self._raw.append(raw)
                self._lines.append(json.loads(raw))
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()


def results(finished: Finished) -> list[Line]:
    return [line for line in finished.objects if line["type"] == "result"]


def errors(finished: Finished) -> list[str]:
    """The errors of all requests and lines that were refused."""
    responses = [line["response"] for line in finished.objects if line["type"] == "control_response"]
    return [response["error"] for response in responses if response["subtype"] == "error"]

"""Tells a program of the user's how a run or a loop has ended, and that it waits in an outage (`--notify`).

The program runs outside the sandbox, because the user named it, but without credentials, and only if commands can replace none of
its files. Whatever becomes of it, the outcome stays.
"""

from __future__ import annotations

import json
import math
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.own_programs import ProgramSearch, own_environment, own_program
from ralph.machine.running_command import (
    CommandEnding,
    EndCause,
    MemoryCapture,
    RunningCommand,
    readable_text,
)
from ralph.machine.starting import environment_for_commands, start_thread
from ralph.places.own_commands import ADVICE, why_changeable
from ralph.values.events import Event, Notice, RetryExhausted, RetryRecovered, RetryScheduled
from ralph.values.outcome import CannotError
from ralph.values.ports import Clock, Events, Interrupted, Waiter
from ralph.values.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


LONG_WAIT_S = 300.0
"""A wait that is longer is told."""
_LIMIT_S = 30.0
_LIMIT_AFTER_STOP_S = 3.0
_LEAST_S = 1.0
_GRACE_S = 0.5
# Of the time for a stop, the part that is kept for stopping the program.
_TO_STOP_S = 1.5
_MOST_OUTPUT_BYTES = 4096


class EndOfOutput(MemoryCapture):
    """A `Capture` that keeps the end of the output."""

    def __init__(self) -> None:
        super().__init__(_MOST_OUTPUT_BYTES)

    def feed(self, chunk: bytes) -> bool:
        self.data = (self.data + chunk)[-_MOST_OUTPUT_BYTES:]
        return True

    def why_failed(self, ending: CommandEnding, limit_s: float, name: str) -> str | None:
        """The reason for people why the program `name` failed, or None if it did not."""
        if ending.how is EndCause.TIMED_OUT:
            return f"it took longer than {limit_s:g} s and was stopped"
        if ending.how is EndCause.BY_ITSELF and ending.status == 0:
            return None
        lines = [line for line in readable_text(bytes(self.data))[0].splitlines() if line.strip()]
        return lines[-1] if lines else f"{name} ended with exit {ending.status}"


class Notifier:
    """Runs the program. As an `Events` sink of a run, it must be the last one, and tells the outages of the run."""

    def __init__(
        self,
        command: str,
        *,
        directory: str,
        environment: Mapping[str, str],
        search: ProgramSearch,
        waiter: Waiter,
        clock: Clock,
        redact: Callable[[str], str],
        events: Events,
    ) -> None:
        """`directory` is that of the run or loop. `environment` is the user's, without credentials. `search` says where commands may write.
        `events` gets a notice if the program fails in an outage. Raises CannotError if it must not run.
        """
        self._command = command
        self._directory = directory
        home = environment.get("HOME", "")
        self._home = home if Path(home).is_dir() else os.sep
        self._environment, self._given = environment, own_environment(environment, search)
        self._search = search
        self._waiter = waiter
        self._clock = clock
        self._redact = redact
        self._events = events
        self._has_told_outage = False
        why = self._why_refused()
        if why:
            raise CannotError(why)

    def _why_refused(self) -> str:
        why = why_changeable(self._command, self._home, self._environment, self._search)
        return why and f"the command of --notify is not run: {why}; {ADVICE}"

    def emit(self, event: Event) -> None:
        if isinstance(event, RetryScheduled):
            self.tell_wait(event.wait_s, event.message)
        elif isinstance(event, RetryRecovered | RetryExhausted):
            self.outage_ended()

    def tell_wait(self, wait_s: float, reason: str) -> None:
        """Tells a wait after a failure, if it is the first long one of an outage. Raises Interrupted."""
        if wait_s <= LONG_WAIT_S or self._has_told_outage:
            return
        self._has_told_outage = True
        until = self._clock.utc_now() + timedelta(seconds=wait_s)
        notice = self._send(
            {
                "type": "outage",
                "directory": self._directory,
                "reason": reason,
                "wait_s": round(wait_s, 3),
                "until": until.isoformat(),
            }
        )
        if notice is not None:
            self._events.emit(notice)

    def outage_ended(self) -> None:
        self._has_told_outage = False

    def tell_end(self, fields: dict[str, Any]) -> Notice | None:
        """Tells the end. Returns a notice if the program fails. A signal ends only the program, because nothing
        else is left to stop.
        """
        try:
            return self._send(fields)
        except Interrupted as stop:
            return self._notice(f"its command was stopped: {stop}")

    def _send(self, fields: dict[str, Any]) -> Notice | None:
        line = json.dumps(shown(fields, self._redact), ensure_ascii=False)
        problem = self._why_refused() or self._run(line.encode("utf-8", "backslashreplace") + b"\n")
        return self._notice(problem) if problem else None

    def _notice(self, problem: str) -> Notice:
        return Notice(f"--notify: {self._redact(problem)}", is_vital=True)

    def _run(self, data: bytes) -> str | None:
        limit_s, left_s = _LIMIT_S, self._waiter.stop_left_s()
        if math.isfinite(left_s):
            limit_s = min(_LIMIT_AFTER_STOP_S, max(left_s - _TO_STOP_S, _LEAST_S))
        supervisor = CommandSupervisor(self._given, makes_group=False)  # that of commands may be closed
        said = EndOfOutput()
        try:
            source, sink = os.pipe()
            try:
                start_thread(_feed, sink, data, name="notification")
                process = supervisor.start(
                    [own_program("sh", self._search) or "/bin/sh", "-c", self._command],
                    cwd=Path(self._home),
                    environment=environment_for_commands(self._given),
                    grace_s=_GRACE_S,
                    input_from=source,
                    is_confined=False,
                )
            finally:
                os.close(source)
            ending = RunningCommand(process, said, waiter=self._waiter, clock=self._clock).run(
                limit_s, "the command of --notify"
            )
        except OSError as error:
            return f"it could not be started: {error.strerror or error}"
        finally:
            supervisor.close()
        return said.why_failed(ending, limit_s, "its command")


def _feed(sink: int, data: bytes) -> None:
    try:
        with os.fdopen(sink, "wb") as file:
            file.write(data)
    except BrokenPipeError:  # the program needs no more
        return

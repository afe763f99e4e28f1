"""Runs commands of a loop in their sandbox, each with a time limit, and then stops all its processes: the gate, the check and
other agents. Only the exit code decides whether a check passed. The output is never interpreted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.loop.record import new_file
from ralph.loop.values import CheckResult
from ralph.machine.launcher import NOT_STARTED, TRY_AGAIN
from ralph.machine.own_programs import own_program
from ralph.machine.running_command import (
    STARTER_GONE,
    STILL_RUNS,
    UNSEEN_END,
    EndCause,
    RunningCommand,
    StreamRedaction,
    readable_text,
)
from ralph.machine.starting import environment_for_commands
from ralph.sandbox.disk_work import SilentDiskError
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.outcome import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.running_command import BlockSearch, Capture, CommandEnding
    from ralph.sandbox.command_box import CommandBox
    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import Redactor

_GRACE_S = 1.0  # its time limit is exceeded by two seconds at most
MOST_LOG_BYTES = 50_000_000
TAIL_BYTES = 4096
"""The maximum number of bytes of the check's output that the next prompt contains."""
# Colours and progress bars are removed before the end is cut to its size.
_RAW_TAIL_BYTES = 16 * TAIL_BYTES
_CONTINUES = "\n[ralph: the output continues; only its first {size:,} bytes are kept]\n"


class CheckLog:
    """The log of a check, without known credentials: a file up to a size limit, and the end of the output in memory. If the file
    cannot be written, the check continues. Only one thread writes to the log. Another may read it after `close()`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        redactor: Redactor,
        most_bytes: int = MOST_LOG_BYTES,
        name: str = "check",
    ) -> None:
        self._redactor = redactor
        self._redaction = StreamRedaction(redactor)
        self._room_bytes = self._most_bytes = most_bytes
        self._end = bytearray()
        self._has_lost_its_beginning = False
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = new_file(folder, f"{name}.log")

    def fits_in_memory(self, size: int) -> bool:  # noqa: ARG002 - see `Capture`
        return False

    def feed(self, chunk: bytes) -> bool:
        self._keep(self._redaction.feed(chunk))
        return True

    def close(self) -> None:
        self._keep(self._redaction.end())
        self._close_file()

    def tail(self, note: str = "") -> str:
        """The end of the output with `note`, at most `TAIL_BYTES`. It begins with a whole line unless that is very long."""
        data = bytes(self._end)
        if self._has_lost_its_beginning:
            data = data[data.find(b"\n", 0, len(data) // 2) + 1 :]
        # Redacts again: without the escape sequences, a credential that one of them interrupted is in one piece.
        text = self._redactor.redact(readable_text(data)[0]).strip("\n") + note
        raw = text.encode()
        if len(raw) <= TAIL_BYTES:
            return text
        cut = raw[-TAIL_BYTES:]
        is_whole_line = raw[-TAIL_BYTES - 1 : -TAIL_BYTES] == b"\n"
        line = 0 if is_whole_line else cut.find(b"\n", 0, TAIL_BYTES // 2) + 1
        return cut[line:].decode("utf-8", "ignore")  # without the rest of a cut character

    def _keep(self, data: bytes) -> None:
        self._write(data)
        self._end += data
        if len(self._end) > 2 * _RAW_TAIL_BYTES:  # done seldom, because each cut moves half of the bytes
            del self._end[:-_RAW_TAIL_BYTES]
            self._has_lost_its_beginning = True

    def _write(self, data: bytes) -> None:
        if self._descriptor is None or not data:
            return
        fitting = data[: self._room_bytes]
        self._room_bytes -= len(fitting)
        note = b"" if len(fitting) == len(data) else _CONTINUES.format(size=self._most_bytes).encode()
        left = memoryview(fitting + note)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:  # a full disk does not change the verdict
            self._close_file()
        if len(fitting) < len(data):
            self._close_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


class LoopCommands(Struct, frozen=True):
    """Starts commands in one sandbox, and tells people what they changed of protected files."""

    supervisor: CommandSupervisor
    box: CommandBox
    directory: Path
    waiter: Waiter
    clock: Clock
    tell: Callable[[str], None]
    limits: SandboxSettings = SandboxSettings()
    """The limits of `supervisor`."""

    def close(self) -> None:
        self.supervisor.close()
        self.box.close()

    def run(
        self,
        command: list[str],
        capture: Capture,
        environment: Mapping[str, str],
        *,
        name: str,
        waiting_for: str,
        limit_s: float,
        grace_s: float,
        streams: tuple[int | None, int | None] = (None, None),
        search: BlockSearch | None = None,
    ) -> tuple[CommandEnding, list[str]]:
        """Runs a command to its end, at most `limit_s` seconds. Returns how it ended and what people were told.
        `streams` are the descriptors for its input and its standard error, as in `CommandSupervisor.start`, whose
        errors are raised. Raises Interrupted, after the command has ended.
        """
        box, undone, told = self.box, "", list[str]()
        environment = box.before(environment, waiting_for)
        try:
            process = self.supervisor.start(
                command,
                cwd=self.directory,
                environment=environment_for_commands(environment),
                grace_s=grace_s,
                input_from=streams[0],
                errors_to=streams[1],
            )
            running = RunningCommand(process, capture, waiter=self.waiter, clock=self.clock)
            ending = running.run(limit_s, waiting_for, search)
            undone = box.after(waiting_for)
        except BaseException:
            undone = box.after_stop()
            raise
        finally:
            told += filter(None, (undone, *box.refusals(), *box.told()[0]))
            for note in told:
                self.tell(f"{name}: {note}")
        return ending, told


class ShellCheck(Struct, frozen=True):
    name: str
    """`check` or `gate`, also the name of the log file in `folder`."""
    command: str
    folder: Path
    environment: Mapping[str, str]
    """The variables, without credentials."""
    redactor: Redactor
    commands: LoopCommands
    search: ProgramSearch
    """Where bash is looked for."""
    grace_s: float = _GRACE_S

    def run(self, limit_s: float) -> CheckResult:
        """Runs the check. If this machine lacks a resource such as memory, raises ShortageError, or an OSError for which
        `shortage_of` returns the shortage. Raises Interrupted, but only after the command has ended.
        """
        clock = self.commands.clock
        started_s = clock.now_s()
        log = CheckLog(self.folder, redactor=self.redactor, name=self.name)
        shell = own_program("bash", self.search) or "/bin/sh"
        try:
            ending, told = self.commands.run(
                [shell, "-c", self.command],
                log,
                self.environment,
                name=self.name,
                waiting_for=f"the {self.name}",
                limit_s=limit_s,
                grace_s=self.grace_s,
            )
        except OSError as error:
            log.close()
            if shortage_of(error) is not None:
                raise
            return CheckResult(None, problem=f"could not be started: {self._why(error)}")
        except ValueError:
            log.close()
            return CheckResult(None, problem="could not be started: it holds what no command line can")
        if ending.status == TRY_AGAIN and log.tail().startswith(NOT_STARTED):
            raise ShortageError("process")
        note = "" if ending.is_all_gone else f"\n[{STILL_RUNS}]"
        tail = log.tail("\n".join((note, *told)))
        problem = _problem(ending, limit_s, self.commands.limits)
        code = ending.status if problem is None else None
        return CheckResult(code, tail, problem, round(clock.now_s() - started_s, 3))

    def _why(self, error: OSError) -> str:
        directory = self.commands.directory
        if not isinstance(error, SilentDiskError) and not directory.is_dir():
            return f"the directory {directory} is gone"
        return error.strerror or type(error).__name__


def _problem(ending: CommandEnding, limit_s: float, limits: SandboxSettings) -> str | None:
    match ending.how:
        case EndCause.TIMED_OUT:
            return f"timed out after {limit_s:g} s"
        case EndCause.WITHOUT_SUPERVISOR:
            return f"failed: {UNSEEN_END}; {ending.rest}"
        case EndCause.NEVER_STARTED:
            return f"could not be started: {STARTER_GONE}"
        case _:
            why = limits.why_stopped(ending.how)
            return None if why is None else f"was stopped: {why}"

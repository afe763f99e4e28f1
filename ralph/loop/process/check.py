"""Runs the command of `--until` or `--gate` in a shell with a time limit, and then stops all its processes. If a process
cannot be stopped, the result says so. Only the exit code decides whether the check passed. The output is never interpreted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.loop.record import new_file
from ralph.loop.values import CheckResult
from ralph.machine.launcher import NOT_STARTED, TRY_AGAIN
from ralph.machine.output_capture import StreamRedaction, readable_text
from ralph.machine.own_programs import own_program
from ralph.machine.processes import environment_for_commands
from ralph.machine.running_command import (
    STARTER_GONE,
    STILL_RUNS,
    UNSEEN_END,
    CommandEnding,
    EndCause,
    RunningCommand,
)
from ralph.sandbox.disk_work import SilentDiskError
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.machine.own_programs import ProgramSearch
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


class ShellCheck(Struct, frozen=True):
    name: str
    """`check` or `gate`, also the name of the log file in `folder`."""
    command: str
    directory: Path
    folder: Path
    environment: Mapping[str, str]
    """The variables, without credentials."""
    redactor: Redactor
    supervisor: CommandSupervisor
    """Runs the check in the sandbox `box`."""
    waiter: Waiter
    clock: Clock
    box: CommandBox
    search: ProgramSearch
    """Where bash is looked for."""
    grace_s: float = _GRACE_S
    tell: Callable[[str], None] = lambda _text: None
    limits: SandboxSettings = SandboxSettings()
    """The limits of `supervisor`."""

    def run(self, limit_s: float) -> CheckResult:
        """Runs the check. If this machine lacks a resource such as memory, raises ShortageError, or an OSError for which
        `shortage_of` returns the shortage. Raises Interrupted, but only after the command has ended.
        """
        started_s = self.clock.now_s()
        log = CheckLog(self.folder, redactor=self.redactor, name=self.name)
        undone = ""
        try:
            environment = self.box.before(self.environment, f"the {self.name}")
            try:
                ending = self._followed(log, limit_s, environment)
                undone = self.box.after(f"the {self.name}")
            except BaseException:
                self._tell_all(self.box.after_stop())
                raise
            finally:
                told = (*self.box.refusals(), *self.box.told()[0])
                self._tell_all(undone, *told)
            undone = "\n".join(filter(None, (undone, *told)))
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
        tail = log.tail(f"{note}\n{undone}" if undone else note)
        problem = _problem(ending, limit_s, self.limits)
        code = ending.status if problem is None else None
        return CheckResult(code, tail, problem, round(self.clock.now_s() - started_s, 3))

    def _tell_all(self, *notes: str) -> None:
        for note in filter(None, notes):
            self.tell(f"{self.name}: {note}")

    def _why(self, error: OSError) -> str:
        if not isinstance(error, SilentDiskError) and not self.directory.is_dir():
            return f"the directory {self.directory} is gone"
        return error.strerror or type(error).__name__

    def _followed(self, log: CheckLog, limit_s: float, environment: Mapping[str, str]) -> CommandEnding:
        shell = own_program("bash", self.search) or "/bin/sh"
        process = self.supervisor.start(
            [shell, "-c", self.command],
            cwd=self.directory,
            environment=environment_for_commands(environment),
            grace_s=self.grace_s,
        )
        running = RunningCommand(process, log, waiter=self.waiter, clock=self.clock)
        return running.run(limit_s, f"the {self.name}")


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

"""Runs the `--until` command: a shell command in a session of its own, with a time limit. None of its processes is
left.

The exit code alone is the verdict: the output is never interpreted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.loop.record import new_file
from ralph.loop.values import CheckResult
from ralph.machine.launcher import NOT_STARTED, TRY_AGAIN
from ralph.machine.output_capture import StreamRedaction
from ralph.machine.own_programs import own_program
from ralph.machine.processes import SupervisedCommand, environment_for_commands
from ralph.machine.repository import repository_top
from ralph.machine.running_command import CommandEnding, Ended, NotFollowedError, RunningCommand
from ralph.machine.terminal_text import readable_text
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ralph.values.ports import Clock, Waiter

_GRACE_S = 5.0
_STILL_RUNS = "\n[something it started could not be stopped and still runs]"


LOG_FILE = "check.log"
MOST_LOG_BYTES = 50_000_000
TAIL_BYTES = 4096
"""The most bytes of the check's output that the next prompt has room for."""
# Colours and progress bars are removed before the end is cut to its size.
_RAW_TAIL_BYTES = 16 * TAIL_BYTES
_GOES_ON = "\n[ralph: the output goes on; only its first {size:,} bytes are kept]\n"


class CheckLog:
    """Keeps the check's output without known credentials: in a file up to a size limit, and its end in memory.

    It never stops the check: if the file fails, the check still runs and gives its verdict. One thread writes to it;
    another reads from it after `close()`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        redact: Callable[[str], str],
        longest_bytes: int,
        most_bytes: int = MOST_LOG_BYTES,
    ) -> None:
        """`folder`: the loop's folder, which takes the log. `longest_bytes`: the length of the longest credential that
        `redact` knows.
        """
        self._redact = redact
        self._redaction = StreamRedaction(redact, longest_bytes)
        self._room_bytes = self._most_bytes = most_bytes
        self._end = bytearray()
        self._has_lost_its_beginning = False
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = new_file(folder, LOG_FILE)

    def feed(self, chunk: bytes) -> bool:
        self._keep(self._redaction.feed(chunk))
        return True

    def close(self) -> None:
        self._keep(self._redaction.end())
        self._close_file()

    def tail(self, note: str = "") -> str:
        """At most `TAIL_BYTES` of the end, `note` included.

        It starts at the beginning of a line, unless lines are too long.
        """
        data = bytes(self._end)
        if self._has_lost_its_beginning:
            data = data[data.find(b"\n", 0, len(data) // 2) + 1 :]
        # Again: without the escape sequences, a credential that one interrupted is now in one piece.
        text = self._redact(readable_text(data)[0]).strip("\n") + note
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
        if len(self._end) > 2 * _RAW_TAIL_BYTES:  # seldom, because each cut moves half of it
            del self._end[:-_RAW_TAIL_BYTES]
            self._has_lost_its_beginning = True

    def _write(self, data: bytes) -> None:
        if self._descriptor is None or not data:
            return
        fitting = data[: self._room_bytes]
        self._room_bytes -= len(fitting)
        left = memoryview(fitting if len(fitting) == len(data) else fitting + self._note())
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:  # a full disk does not change the verdict
            self._close_file()
        if len(fitting) < len(data):
            self._close_file()

    def _note(self) -> bytes:
        return _GOES_ON.format(size=self._most_bytes).encode()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


class UntilCheck:
    def __init__(
        self,
        command: str,
        *,
        directory: Path,
        folder: Path,
        environment: Mapping[str, str],
        redact: Callable[[str], str],
        longest_bytes: int,
        waiter: Waiter,
        clock: Clock,
        grace_s: float = _GRACE_S,
    ) -> None:
        """`folder`: the loop's own, for the log. `environment`: without credentials. `longest_bytes`: the
        length of the longest credential that `redact` knows.
        """
        self._command = command
        self._directory = directory
        self._folder = folder
        self._environment = environment_for_commands(environment)
        self._redact = redact
        self._longest_bytes = longest_bytes
        self._waiter = waiter
        self._clock = clock
        self._grace_s = grace_s

    def run(self, limit_s: float) -> CheckResult:
        """Runs the check. Raises `Interrupted` after the command is gone, and ShortageError, which is no verdict."""
        started_s = self._clock.now_s()
        log = CheckLog(self._folder, redact=self._redact, longest_bytes=self._longest_bytes)
        try:
            ending = self._followed(log, limit_s)
        except OSError as error:
            log.close()
            if shortage_of(error) is not None:
                raise
            return CheckResult(None, problem=f"could not be started: {self._why(error)}")
        except ValueError:
            log.close()
            return CheckResult(None, problem="could not be started: it holds what no command line can")
        except NotFollowedError as error:
            raise ShortageError("thread") from error
        if ending.status == TRY_AGAIN and log.tail().startswith(NOT_STARTED):
            raise ShortageError("process")
        tail = log.tail("" if ending.is_all_gone else _STILL_RUNS)
        problem = _problem(ending, limit_s)
        code = ending.status if problem is None else None
        return CheckResult(code, tail, problem, self._clock.now_s() - started_s)

    def _why(self, error: OSError) -> str:
        if not self._directory.is_dir():
            return f"the directory {self._directory} is gone"
        return error.strerror or type(error).__name__

    def _followed(self, log: CheckLog, limit_s: float) -> CommandEnding:
        work = repository_top(self._directory) or self._directory
        shell = own_program("bash", self._environment.get("PATH", os.defpath), work) or "/bin/sh"
        process = SupervisedCommand(
            [shell, "-c", self._command],
            cwd=self._directory,
            environment=self._environment,
            grace_s=self._grace_s,
        )
        running = RunningCommand(process, log, waiter=self._waiter, clock=self._clock, grace_s=self._grace_s)
        return running.run(limit_s, "the check")


def _problem(ending: CommandEnding, limit_s: float) -> str | None:
    match ending.how:
        case Ended.TIMED_OUT:
            return f"timed out after {limit_s:g} s"
        case Ended.WITHOUT_SUPERVISOR:
            return "failed: it killed the process that supervises it, and all it had started was stopped"
        case _:
            return None

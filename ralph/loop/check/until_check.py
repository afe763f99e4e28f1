"""Runs the `--until` command: a shell command in a session of its own, with a time limit. Nothing it started is left.

The exit code alone is the verdict: the output is never interpreted.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.loop.check.log import CheckLog
from ralph.loop.values import CheckResult
from ralph.machine.launcher import NOT_STARTED, TRY_AGAIN
from ralph.machine.own_programs import own_program
from ralph.machine.processes import SupervisedCommand, environment_for_commands
from ralph.machine.repository import repository_top
from ralph.machine.running_command import CommandEnding, Ended, NotFollowedError, RunningCommand
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ralph.values.ports import Clock, Waiter

_GRACE_S = 5.0
_STILL_RUNS = "\n[something it started could not be stopped and still runs]"


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
        """Raises `Interrupted` once the command is gone, and ShortageError, which is no verdict."""
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

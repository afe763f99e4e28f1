"""Runs git for a worker, one call at a time, and says why a call failed. No call reads the configuration of a directory
that an agent can write: the caller passes a git directory of the worker's own. Another thread may stop the calls.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

from ralph.git.answer import GitAnswer
from ralph.git.remote import local_path
from ralph.git.runner import environment_for_git
from ralph.git.settings import settings_before_any
from ralph.machine import launcher
from ralph.machine.own_programs import own_program
from ralph.machine.starting import start_process
from ralph.values.outcome import Outcome
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOCAL_LIMIT_S = 300.0
"""Seconds for a call that contacts no remote, as in `ralph.loop.git`."""
REMOTE_LIMIT_S = 1800.0
"""Seconds for a call that contacts a remote. The first fetch of a repository of some gigabytes takes so long."""

_GRACE_S = 2.0
# Beyond the grace, for the launcher to kill what ignored SIGTERM.
_LAUNCHER_MARGIN_S = 3.0
# No git call of a worker needs these features, whoever has set them.
_OPTIONS = (
    *settings_before_any().arguments,
    *("-c", "core.splitIndex=false", "-c", "core.untrackedCache=false", "-c", "core.sparseCheckout=false"),
)
# In force in a remote on this machine. Its own configuration may name programs, which a push or a fetch would run.
_IN_THEIRS = (
    *settings_before_any().arguments,
    *("-c", "core.alternateRefsCommand=true", "-c", "receive.autogc=false"),
    # Never update the files of a checkout. `updateInstead` would, with programs that its configuration names.
    *("-c", "receive.denyCurrentBranch=refuse"),
)

# Parts of git's messages in the C locale, in lower case. The first row that has one decides.
_REASONS = (
    (
        Outcome.IO_ERROR,
        (
            *("no space left on device", "disk quota exceeded", "read-only file system"),
            *("failed to write new configuration file", "unable to write new index file"),
        ),
    ),
    (
        Outcome.AUTH,
        (
            *("authentication failed", "could not read username", "could not read password"),
            *(
                "permission denied (",
                "terminal prompts disabled",
                "returned error: 401",
                "returned error: 403",
            ),
            *("invalid username or", "access denied", "host key verification failed"),
        ),
    ),
    (
        Outcome.API_UNAVAILABLE,
        (
            *("could not resolve host", "couldn't resolve host", "name resolution", "network is unreachable"),
            *("no route to host", "connection refused", "connection timed out", "connection reset"),
            *("failed to connect to", "couldn't connect to", "operation timed out", "connection closed by"),
            *("early eof", "rpc failed", "unexpected disconnect", "the remote end hung up unexpectedly"),
            *("returned error: 429", "returned error: 5", "operation too slow", "ssl_error_syscall"),
            *("empty reply from server", "broken pipe", "kex_exchange_identification"),
            ".lock': file exists",  # another call changes the same refs
            *("resource temporarily unavailable", "cannot allocate memory", "too many open files"),
        ),
    ),
)
_MISSING = ("does not appear to be a git repository", "repository not found", "' not found")
_USER_IN_URL = re.compile(r"://[^/@\s]+@")


class RepositoryError(Exception):
    """Git or the file system refused an operation on a repository. The message is one line that names the repository
    and the reason. It contains no credentials.
    """

    def __init__(self, message: str, outcome: Outcome = Outcome.CONFIG) -> None:
        super().__init__(message)
        self.outcome = outcome

    @property
    def is_temporary(self) -> bool:
        """Whether a later attempt may succeed, because the network or the machine was the reason."""
        return self.outcome is Outcome.API_UNAVAILABLE


class StoppedError(Exception):
    """The calls were stopped from another thread. No process of theirs is left."""


class GitCalls:
    """Runs git calls. `stop` may be called from any thread, and the other methods from one thread at a time.

    `cwd` of a call is a checkout, the worker's own git directory beside it, or a mirror. Programs in the folder that
    contains `cwd` are not run, because an agent may have made them.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` are the worker's variables, with those that git needs to authenticate."""
        self._environment = environment
        self._changing = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def local(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        *,
        cwd: Path,
        given: bytes | None = None,
        output_to: int | None = None,
        input_from: int | None = None,
    ) -> GitAnswer:
        """Runs a git command that contacts no remote. `variables` choose the git directory. `given` is the standard
        input. `output_to` and `input_from` are descriptors, for output and input that do not fit into memory. Raises
        RepositoryError if git cannot be run or takes too long, and StoppedError.
        """
        return self._run([self._program(cwd), *_OPTIONS, *arguments], variables, cwd, LOCAL_LIMIT_S, given=given,
                         output_to=output_to, input_from=input_from)  # fmt: skip

    def remote(
        self,
        command: Sequence[str],
        url: str,
        rest: Sequence[str],
        variables: Mapping[str, str],
        *,
        cwd: Path,
        held: int | None = None,
    ) -> GitAnswer:
        """Runs `git COMMAND URL REST`, which contacts the remote at `url`. If this process dies, the call dies with
        it, with all its processes. `held` is a descriptor that these processes keep open until then. The output
        contains standard error. Raises RepositoryError and StoppedError.
        """
        program = self._program(cwd)
        service = "receive-pack" if command[0] == "push" else "upload-pack"
        theirs = []
        if local_path(url) is not None:
            theirs = [f"--{service}={' '.join(map(quote, ('git', *_IN_THEIRS)))} {service}"]
        whole = [program, *_OPTIONS, *command, *theirs, "--", url, *rest]
        wrapped = [
            *(sys.executable, "-I", "-S", launcher.__file__),
            *(str(os.getpid()), str(_GRACE_S), os.environ.get("LC_CTYPE", ""), "0"),
            *whole,
        ]
        answer = self._run(wrapped, variables, cwd, REMOTE_LIMIT_S, held=held)
        return GitAnswer(answer.status, answer.output, answer.output + answer.errors)

    def stop(self) -> None:
        """Ends the running call, and makes it and all later calls raise StoppedError. Returns at once."""
        with self._changing:
            self._is_stopped = True
            if self._running is not None:
                _signal(self._running, signal.SIGTERM)

    def refuse_stopped(self) -> None:
        """Raises StoppedError if `stop` was called."""
        if self._is_stopped:
            raise StoppedError

    def _program(self, cwd: Path) -> str:
        program = own_program("git", self._environment.get("PATH", os.defpath), cwd.parent)
        if program is None:
            raise RepositoryError("there is no git program on PATH; install git")
        return program

    def _run(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        cwd: Path,
        limit_s: float,
        *,
        given: bytes | None = None,
        output_to: int | None = None,
        input_from: int | None = None,
        held: int | None = None,
    ) -> GitAnswer:
        environment = environment_for_git(self._environment, cwd.parent) | dict(variables)
        source = subprocess.PIPE if given is not None else subprocess.DEVNULL
        process = self._started(
            command,
            cwd=cwd,
            env=environment,
            stdin=input_from if input_from is not None else source,
            stdout=subprocess.PIPE if output_to is None else output_to,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if held is None else (held,),
        )
        try:
            output, errors = process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise RepositoryError(
                f"git took longer than {limit_s:g} s and was stopped", Outcome.API_UNAVAILABLE
            ) from None
        finally:
            with self._changing:
                self._running = None
            _end(process)
        self.refuse_stopped()
        return GitAnswer(process.returncode, output or b"", errors)

    def _started(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        with self._changing:
            self.refuse_stopped()
            try:
                self._running = start_process(command, **options)
            except OSError as error:
                is_shortage = shortage_of(error) is not None
                outcome = Outcome.API_UNAVAILABLE if is_shortage else Outcome.IO_ERROR
                raise RepositoryError(f"git cannot be run in {options['cwd']}: {error}", outcome) from None
            return self._running


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs, and what is left of its session's first process group."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S + _LAUNCHER_MARGIN_S)
    if process.returncode is None:
        _signal(process, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signals the process group of a process that was not waited for yet."""
    with suppress(ProcessLookupError, PermissionError):
        if process.returncode is None:
            os.killpg(process.pid, number)


def failure_of(repository: str, command: str, answer: GitAnswer) -> RepositoryError:
    """The error for a git call that failed."""
    complaint = answer.complaint()
    said = answer.errors.decode("utf-8", "replace").lower()
    if answer.status == launcher.TRY_AGAIN:
        return RepositoryError("this machine has no process left for git", Outcome.API_UNAVAILABLE)
    if "refusing to update checked out branch" in said:
        return RepositoryError(
            f"{shown(repository)}: the branch is checked out there, and git does not push to such a branch; give the job "
            "another branch, or a bare repository"
        )
    if "dubious ownership" in said:
        return RepositoryError(
            f"{shown(repository)} belongs to another user, and git refuses to read it; if you trust it: git config "
            f"--global --add safe.directory '{repository}'"
        )
    if any(part in said for part in _MISSING):
        return RepositoryError(
            f"{shown(repository)}: there is no such repository, or it may not be read ({complaint})"
        )
    outcome = next(
        (outcome for outcome, parts in _REASONS if any(part in said for part in parts)), Outcome.CONFIG
    )
    return RepositoryError(f"{shown(repository)}: git {command}: {complaint}", outcome)


def shown(repository: str) -> str:
    """The address of a repository without a user name and a password."""
    return _USER_IN_URL.sub("://", repository)

"""Runs git on one checkout, under supervision and with a time limit. Git runs only programs that the user's own
configuration names, not programs that only the repository's configuration names. `git_settings.py` makes sure of
this.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.loop.git.git_settings import GitSettings, settings_before_any, settings_from
from ralph.loop.ports import CheckoutError
from ralph.machine.launcher import TRY_AGAIN
from ralph.machine.own_programs import own_program, trusted_directories
from ralph.machine.processes import environment_for_commands
from ralph.machine.running_command import CommandEnding, Ended, MemoryCapture, RunningCommand
from ralph.machine.terminal_text import readable_text
from ralph.values.redaction import MARK, Redactor
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.values.ports import Clock, Waiter

LOCAL_LIMIT_S = 300.0  # so long because a slow disk with a cold cache must not end the loop

_GRACE_S = 2.0
_MOST_OUTPUT_BYTES = 256 * 1024 * 1024  # names and ids of two million files
_MOST_ERROR_BYTES = 64 * 1024
_MOST_COMPLAINT_CHARS = 500

# These would make git use another checkout or index, or read paths in another way: `git rev-parse
# --local-env-vars` lists most of them.
_NOT_OURS = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"}
    | {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_NAMESPACE",
        "GIT_SHALLOW_FILE",
        "GIT_GRAFT_FILE",
        "GIT_CONFIG",
    }
    | {"GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"}
    | {"GIT_EXTERNAL_DIFF", "GIT_IMPLICIT_WORK_TREE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_NO_REPLACE_OBJECTS"}
)
_NOISE = re.compile(
    r"hint:|warning:|To |Please make sure you have the correct access|and the repository exists\.|Done$"
)
# Git's message ends with strerror(3) in the C locale. Nothing else shows a shortage.
_SHORTAGE = re.compile(
    rb": (?:(?P<process>Resource temporarily unavailable)|(?P<memory>Cannot allocate memory)|Too many open files)$",
    re.MULTILINE,
)
_COMPLAINT = re.compile(r"fatal:|error:")
_LINES_OF_A_COMPLAINT = 3
_USER_IN_URL = re.compile(r"(?i)(https?://)[^\s/@'\"]+@")


class GitSeams(Struct, frozen=True):
    """The environment, supervisor, waiter and clock that every git call uses."""

    environment: Mapping[str, str]
    """The environment, without credentials."""
    supervisor: CommandSupervisor
    waiter: Waiter
    clock: Clock


class GitAnswer(Struct, frozen=True):
    status: int
    output: bytes
    errors: bytes = b""

    def complaint(self) -> str:
        """The last meaningful lines of git's error output, joined to one line. Credentials are removed."""
        lines = [line.strip() for line in readable_text(self.errors)[0].replace("\t", " ").splitlines()]
        telling = [line for line in lines if line and not _NOISE.match(line)]
        refused = [
            line for line in telling if line.startswith("! ")
        ]  # lines of `push --porcelain` on standard output
        telling = [line for line in telling if line not in refused]
        ends = [number for number, line in enumerate(telling, start=1) if _COMPLAINT.match(line)]
        last = telling[: ends[-1]] if ends else telling
        return (
            _without_credentials("; ".join([*refused, *last[-_LINES_OF_A_COMPLAINT:]]))
            or f"it ended with {self.status}"
        )


class GitProgram:
    """Runs git in one directory and waits for each call to end. The caller chooses git's settings and environment."""

    def __init__(self, directory: Path, seams: GitSeams) -> None:
        self._directory = directory
        self._seams = seams

    def call(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        name: str,
        given: bytes | None = None,
        limit_s: float = LOCAL_LIMIT_S,
        is_merged: bool = False,
        most_bytes: int | None = None,
    ) -> GitAnswer:
        """Runs one git command. `name` stands for the command in error messages, and `given` is the command's
        standard input. The output includes standard error only if `is_merged` is True, so that warnings are not
        parsed as output. If the output exceeds `most_bytes`, the command is stopped and its output so far is returned
        with status 0. If `most_bytes` is None, output that no call of ralph should have is an error.

        Raises Interrupted. Raises CheckoutError if the command cannot be run or does not end by itself. Raises
        ShortageError if this machine lacks a resource that the command needs, such as memory.
        """
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as source:
            source.write(given or b"")
            source.seek(0)
            output = _Output(most_bytes or _MOST_OUTPUT_BYTES)
            start = partial(
                self._followed,
                arguments,
                environment,
                output,
                name=name,
                limit_s=limit_s,
                input_from=None if given is None else source.fileno(),
                errors_to=None if is_merged else errors.fileno(),
            )
            ending = start()
            if ending.how is Ended.NEVER_STARTED:  # an iteration has killed the supervisor
                ending = start()
            errors.seek(max(errors.seek(0, 2) - _MOST_ERROR_BYTES, 0))
            said = output.data() if is_merged else errors.read()
        if most_bytes is not None and ending.how is Ended.TOO_MUCH_OUTPUT and ending.is_all_gone:
            return GitAnswer(0, output.data(), said)
        _refuse_other_ends(name, ending, limit_s)
        _refuse_shortage(ending.status, b"" if is_merged else said)
        return GitAnswer(ending.status, output.data(), said)

    def _followed(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: _Output,
        *,
        name: str,
        limit_s: float,
        input_from: int | None,
        errors_to: int | None,
    ) -> CommandEnding:
        """Runs the command and returns how it ended. Raises CheckoutError, Interrupted and ShortageError."""
        program = own_program("git", environment["PATH"], self._directory)
        if program is None:
            raise CheckoutError(
                "this is a git checkout, but there is no git program on PATH outside of it; install git"
            )
        seams = self._seams
        try:
            process = seams.supervisor.start(
                [program, "--no-pager", *arguments],
                cwd=self._directory,
                environment=environment,
                grace_s=_GRACE_S,
                input_from=input_from,
                errors_to=errors_to,
                is_confined=False,
            )
            running = RunningCommand(
                process, output, waiter=seams.waiter, clock=seams.clock, grace_s=_GRACE_S
            )
            return running.run(limit_s, f"git {name}")
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            raise CheckoutError(f"git {name} could not be run in {self._directory}: {error}") from None


class Git:
    """Runs git on the checkout at `top`, the directory that contains `.git`. Never contacts a remote.

    The git settings are read in the constructor. An agent may change the settings later, so each operation of the
    loop uses a new `Git`.
    """

    def __init__(self, top: Path, seams: GitSeams) -> None:
        """Reads the git settings of the checkout. Raises CheckoutError and Interrupted."""
        self.top = top
        self._program = GitProgram(top, seams)
        self._environment = _environment(top, seams.environment)
        self.settings: GitSettings = settings_before_any()
        self.settings = settings_from(self.read("config", "--list", "--show-scope", "-z"))

    def read(self, *arguments: str, given: bytes | None = None) -> bytes:
        """Runs a read-only git command and returns its output. Raises Interrupted, and CheckoutError if the command
        fails.
        """
        answer = self.answer(*arguments, given=given)
        self._refuse_failure(arguments[0], answer)
        return answer.output

    def beginning(
        self, *arguments: str, most_bytes: int, limit_s: float, given: bytes | None = None
    ) -> bytes:
        """Runs a read-only git command and returns about the first `most_bytes` bytes of its output. Raises as `read`
        does, also if the command takes longer than `limit_s` seconds.
        """
        answer = self._program.call(
            [*self.settings.arguments, *arguments],
            self._environment | {"GIT_OPTIONAL_LOCKS": "0"},
            name=arguments[0],
            given=given,
            limit_s=limit_s,
            most_bytes=most_bytes,
        )
        self._refuse_failure(arguments[0], answer)
        return answer.output

    def change(self, *arguments: str, given: bytes | None = None) -> None:
        """Runs a git command that changes this repository. Raises Interrupted, and CheckoutError if the command
        fails.
        """
        self._refuse_failure(arguments[0], self._call(arguments, self._environment, given))

    def answer(self, *arguments: str, given: bytes | None = None) -> GitAnswer:
        """Runs a read-only git command that is allowed to fail. Raises Interrupted, and CheckoutError if the command
        cannot be run or does not end by itself.
        """
        return self._call(arguments, self._environment | {"GIT_OPTIONAL_LOCKS": "0"}, given)

    def _call(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], given: bytes | None
    ) -> GitAnswer:
        whole = [*self.settings.arguments, *arguments]
        return self._program.call(whole, environment, name=arguments[0], given=given)

    def _refuse_failure(self, command: str, answer: GitAnswer) -> None:
        if answer.status:
            raise failure(self.top, command, answer)


class _Output(MemoryCapture):
    """A `Capture` that keeps all output in memory. `feed` returns False if the output exceeds `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bool:
        self._chunks.append(chunk)
        self._size += len(chunk)
        return self._size <= self._most_bytes

    def data(self) -> bytes:
        return b"".join(self._chunks)


def failure(top: Path, command: str, answer: GitAnswer) -> CheckoutError:
    """Makes the error for a git command that failed. If the cause is known, the error contains advice."""
    complaint = answer.complaint()
    if "dubious ownership" in complaint:
        return CheckoutError(
            f"{top} belongs to somebody else, and git refuses to work in it; "
            f"if you trust it: git config --global --add safe.directory '{top}'"
        )
    return CheckoutError(f"git {command}: {complaint}")


def environment_for_git(base: Mapping[str, str], top: Path) -> dict[str, str]:
    """The environment variables for ralph's git calls on the checkout `top`. `base` are the environment variables of
    the loop, without credentials.
    """
    ours = {name: value for name, value in base.items() if name not in _NOT_OURS}
    search_path = trusted_directories(ours.get("PATH", os.defpath), top)
    return environment_for_commands(ours) | {
        # Git looks there for its helper programs, ssh and a shell.
        "PATH": os.pathsep.join(search_path),
        # A missing object is an error. To fetch it from a remote would run the program in `uploadpack`.
        "GIT_NO_LAZY_FETCH": "1",
        # Git's messages are parsed in this module.
        "LC_ALL": "C",
    }


def _environment(top: Path, base: Mapping[str, str]) -> dict[str, str]:
    return environment_for_git(base, top) | {
        # So that git uses neither `core.worktree` nor, if this repository is damaged, one in a parent directory.
        "GIT_WORK_TREE": str(top),
        "GIT_CEILING_DIRECTORIES": str(top.parent),
        # Git uses the first `core.gitProxy`: a later one does not replace it.
        "GIT_PROXY_COMMAND": base.get("GIT_PROXY_COMMAND", ""),
    }


def _refuse_other_ends(command: str, ending: CommandEnding, limit_s: float) -> None:
    if not ending.is_all_gone:
        raise CheckoutError(f"git {command} started something that cannot be stopped")
    match ending.how:
        case Ended.TIMED_OUT:
            raise CheckoutError(f"git {command} took longer than {limit_s:g} s and was stopped")
        case Ended.TOO_MUCH_OUTPUT:
            raise CheckoutError(
                f"git {command} printed more than {_MOST_OUTPUT_BYTES:,} bytes and was stopped"
            )
        case Ended.WITHOUT_SUPERVISOR:
            raise CheckoutError(f"git {command} was killed")
        case Ended.NEVER_STARTED:
            raise CheckoutError(f"git {command} was not started: the process that starts commands was killed")


def _refuse_shortage(status: int, said: bytes) -> None:
    """Raises ShortageError if git failed because this machine lacks a resource, such as memory. Looks at the exit
    status `status` and at git's error output `said`. Ignores a shortage on a remote machine.
    """
    found = _SHORTAGE.search(said) if status else None
    if status == TRY_AGAIN:
        raise ShortageError("process")
    if found is not None:
        raise ShortageError(found.lastgroup or "file descriptor")


def _without_credentials(text: str) -> str:
    masked = Redactor().redact_all(_USER_IN_URL.sub(rf"\1{MARK}@", text))
    return masked if len(masked) <= _MOST_COMPLAINT_CHARS else masked[:_MOST_COMPLAINT_CHARS] + "..."

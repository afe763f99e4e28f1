"""Runs commands of a loop in their sandbox, each with a time limit, and then stops all its processes: the gate, the check and
other agents. Only the exit code decides whether a check passed. The output is never interpreted. Besides the check, the files
of its plan and its stop file say whether the work is done, and one may hold the prompt.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager, suppress
from errno import EILSEQ
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.git.look import OWN_DIRECTORY
from ralph.loop.record import new_file
from ralph.loop.values import STOP_FILE, CheckResult
from ralph.machine.files.opened_file import closed_after, replace_at
from ralph.machine.files.paths import HELD_DIRECTORY
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
from ralph.prompt.judged_file import prompt_text, read_named_file
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES, PromptError, read_prompt
from ralph.sandbox.disk_work import SilentDiskError
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.outcome import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ralph.loop.values import LoopPlan
    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.running_command import BlockSearch, Capture, CommandEnding
    from ralph.prompt.prompt_input import InputWait, SilentPipe
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


# --- The plan

_MOST_BYTES = 4 * 1024 * 1024
_QUOTE = re.compile(r" {0,3}(?:> ?)+")
_MARKER = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?: {1,4}(?! )| |$)")
_BOX = re.compile(r"\[([ xX])\](?:\s|$)")
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_BEGINS_BLOCK = re.compile(rf"{_MARKER.pattern}|`{{3}}|~{{3}}|#")
"""Other lines without an empty line before them belong to the text above, also if they are indented less."""
_CODE_INDENT = 4
"""A line that is indented by this number of columns or more is code (CommonMark, "Indented code blocks")."""


def open_tasks(text: str) -> int | None:
    """The number of boxes in a Markdown text that are not ticked. None if the text has no box at all.

    The blocks are those of CommonMark, with one exception: an item that is indented too deep without an empty line
    before it, which CommonMark would join to the text above, is a task, because a reader takes it for one.
    """
    ticked, opened = 0, 0
    items: list[int] = []
    """The columns at which the contents of the list items around the line begin."""
    fence, fence_column, fence_quote = "", 0, ""
    is_after_gap, is_comment = True, False
    for raw in text.expandtabs(_CODE_INDENT).splitlines():
        quote = _QUOTE.match(raw)
        quoted = "" if quote is None else quote.group().replace(" ", "")
        line = raw if quote is None else raw[quote.end() :]
        rest = line.lstrip(" ")
        column = len(line) - len(rest)
        if fence and (len(quoted) < len(fence_quote) or (rest and column < fence_column)):
            fence = ""  # what the code block was in has ended
        if fence:
            closing = rest.rstrip() if quoted == fence_quote else ""
            if len(closing) >= len(fence) and set(closing) == {fence[0]}:
                fence, is_after_gap = "", True
            continue
        if is_comment:
            is_comment = "-->" not in rest
            continue
        if not rest:
            is_after_gap = True
            continue
        while items and column < items[-1] and (is_after_gap or _BEGINS_BLOCK.match(rest)):
            items.pop()
        if is_after_gap and column - (items[-1] if items else 0) >= _CODE_INDENT:
            continue  # an indented code block, which also ends only with a line that is indented less
        is_after_gap = False
        while (marker := _MARKER.match(rest)) is not None:
            column += marker.end()
            rest = rest[marker.end() :]
            items.append(column)
        if items and (box := _BOX.match(rest)) is not None:
            ticked, opened = ticked + (box[1] != " "), opened + (box[1] == " ")
        if (found := _FENCE.match(rest)) is not None:
            fence, fence_column, fence_quote = found.group(), items[-1] if items else 0, quoted
        is_comment = rest.startswith("<!--") and "-->" not in rest
    return opened if ticked or opened else None


def read_open_tasks(path: Path, directories: Sequence[str | Path]) -> int | None:
    """As `open_tasks`, of a file. `directories` are as in `open_named_file`: no link in their repositories may lead out of
    them. None also if the file is not UTF-8. Raises OSError if it cannot be read.
    """
    data = read_named_file(str(path), directories, _MOST_BYTES, takes_pipe=False)
    try:
        return open_tasks(data.decode())
    except UnicodeDecodeError:
        return None


# --- The stop file
# The stop file `.ralph/stop`, which the model creates when no work is left. Nothing else but a `.gitignore` file is
# there, because agents may delete the directory (`git clean -fdx`): it is made again before each iteration. If
# `.ralph` is a link or a file, the loop refuses it, so that nothing is written or removed elsewhere.

_IGNORE_FILE = ".gitignore"
_IGNORES_ALL = b"*\n"


class StopFileBelow:
    """Implements `StopFile` for the directory of the loop."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / OWN_DIRECTORY
        self.path = directory / STOP_FILE

    def is_there(self) -> bool:
        """Whether there is a file of any kind, even a dangling link: somebody has made it. A directory is none, nor
        is what a link in the place of `.ralph` leads to.
        """
        is_file = os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_dir())
        return is_file and not self._place.is_symlink()

    def make_room(self) -> None:
        """Makes the directory of the stop file, which git then ignores. Raises OSError."""
        with suppress(FileExistsError):
            self._place.mkdir(mode=0o700)
        with _held(self._place) as held:
            try:
                # A file that is not empty stays: a person may have edited it. A full disk or a kill leaves an empty one.
                with suppress(FileNotFoundError):
                    found = os.stat(_IGNORE_FILE, dir_fd=held, follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and found.st_size:
                        return
                replace_at(held, _IGNORE_FILE, _IGNORES_ALL, None)
            except OSError as error:  # of a call with `dir_fd`, it names only a part of the path
                raise OSError(error.errno, error.strerror, str(self._place / _IGNORE_FILE)) from error

    def remove(self) -> None:
        """Removes the stop file. Follows no link. Raises OSError."""
        with suppress(FileNotFoundError), _held(self._place) as held:
            os.unlink(self.path.name, dir_fd=held)


@contextmanager
def _held(place: Path) -> Iterator[int]:
    try:
        held = os.open(place, HELD_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            what = "is not a directory (a link does not count): move it out of the way"
            raise NotADirectoryError(errno.ENOTDIR, what, str(place)) from None
        raise
    with closed_after(held):
        yield held


# --- The prompt
# Finds a loop's prompt in an argument, a file or standard input. A regular file is read again for each iteration, any
# other source once. Beside an argument or a file, data on standard input is an error, because it would be dropped
# without notice.

_NO_STDIN = -1


class PromptSource(Struct, frozen=True):
    text: str | None
    """The prompt, or None if `file` contains it."""
    file: str | None
    notices: tuple[str, ...] = ()
    silent: SilentPipe | None = None
    """Standard input if it is a pipe from which no data came in time."""


def find_prompt(
    argument: str | None,
    file: str | None,
    *,
    directories: Sequence[str | Path],
    wait: InputWait,
    stdin_fd: int = 0,
) -> PromptSource:
    """`directories` are as in `open_named_file`. Raises PromptError, and Interrupted after a signal or the time limit."""
    find = partial(read_prompt, directories=directories, wait=wait)
    if "-" in (argument, file) or (argument is None and file is None):
        return PromptSource(find(argument, file, stdin_fd=stdin_fd).text, None)
    text = find(argument, file, stdin_fd=_NO_STDIN).text
    beside = find(None, None, stdin_fd=stdin_fd, is_required=False)
    if beside.text is not None:
        raise PromptError("a prompt was given and standard input holds data as well; use one of them")
    if file is None or not Path(file).is_file():
        return PromptSource(text, None, beside.notices, beside.silent)
    return PromptSource(None, file, beside.notices, beside.silent)


class PromptReader:
    """Reads the prompt for each iteration."""

    def __init__(
        self, plan: LoopPlan, *, warn: Callable[[str], None], redact: Callable[[str], str] = str
    ) -> None:
        self._file = plan.prompt_file
        self._directories = plan.directories
        self._last = plan.prompt
        self._warn = warn
        self._redact = redact

    def read(self) -> str:
        """The current prompt, without known credentials. If the file was removed or emptied, is not text, or has become a link
        out of the repository, warns and returns the last good prompt, or raises OSError if there was none.
        """
        return self._redact(self._read())

    def _read(self) -> str:
        if self._file is None:
            return self._last or ""
        text, before = "", "the iteration gets its earlier content"
        try:
            data = read_named_file(self._file, self._directories, MOST_PROMPT_BYTES, takes_pipe=False)
            text = prompt_text(data)
            why = f"{self._file} is empty; {before}"
        except OSError as error:
            if self._last is None:
                raise
            why = f"cannot read {self._file}: {error.strerror}; {before}"
        except ValueError as error:
            if self._last is None:
                raise OSError(EILSEQ, str(error), self._file) from None
            why = f"{self._file} {error}. {before.capitalize()}"
        if text.strip():
            self._last = text
        elif self._last is not None:
            self._warn(why)
        return self._last or text

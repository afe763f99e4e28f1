"""The files that steer a loop: its plan, its prompt and its stop file."""

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

from ralph.git.progress import OWN_DIRECTORY
from ralph.loop.values import STOP_FILE
from ralph.machine.files.opened_file import closed_after, replace_at
from ralph.machine.files.paths import HELD_DIRECTORY
from ralph.prompt.judged_file import prompt_text, read_named_file
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES, PromptError, read_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ralph.loop.values import LoopPlan
    from ralph.prompt.prompt_input import InputWait, SilentPipe

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

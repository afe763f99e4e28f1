"""Runs ripgrep, and limits its time and memory. `trusted_programs.py` says which ripgrep. Does not interpret the
results.
"""

from __future__ import annotations

import os
import re
import resource
import select
import subprocess
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from ralph.machine.starting import protect_this_process, start_process
from ralph.machine.trusted_programs import RIPGREP, UnusableError, candidates, choose
from ralph.values.outcome import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from subprocess import Popen
    from typing import Self

    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.trusted_programs import Candidate, Choice, Version

REINSTALL = f"python -m pip install --force-reinstall {RIPGREP.wanted}, with ralph's Python"
_NEEDED = (15, 2)
"""The version that the tests run. An older one is used where there is no other."""
_VERSION = re.compile(r"ripgrep (\d+(?:\.\d+)*)")

# Ripgrep needs 5 KB for each rule of a .gitignore file, so a file of 10 MB would take 5 GB.
_MOST_MEMORY_BYTES = 1024**3
_VERSION_WITHIN_S = 10
_CHUNK_BYTES = 65_536
_LOOK_UP_EVERY_MS = 100
# What ripgrep has written before its time is up fits into the pipes.
_MOST_LATE_LOOKS = 20
_MAX_RECORD_BYTES = 65_536
_MAX_ERROR_BYTES = 65_536
# Ripgrep's exit status for a bad pattern or an unreadable file.
_FAILED = 2

FILES_AS_GIT_SEES_THEM = (
    *("--no-config", "--no-ignore-dot", "--no-ignore-global", "--no-ignore-exclude"),
    *("--hidden", "--glob", "!.git", "--color", "never"),
)
SORTED = ("--sort", "path")
"""Ripgrep then uses one thread."""
OUTSIDE_OF_REPOSITORIES = ("--no-require-git", "--no-ignore-parent")
"""The options for a search in a directory that is in no repository. With them, .gitignore files inside the directory
apply, and .gitignore files above it do not."""

Record = tuple[bytes, int]
"""The first bytes of a record, and the number of bytes in the whole record."""


class RipgrepError(Exception):
    """Ripgrep is missing or cannot be started. The message does not say what to do about it; the caller adds that."""


def ripgrep_path(search: ProgramSearch) -> str:
    """The path of the ripgrep that is used. To be asked before each start. Raises RipgrepError."""
    candidate = find_ripgrep(search).candidate
    assert candidate is not None  # noqa: S101 - there is one, or an error
    if not candidate.is_unchanged:
        raise RipgrepError(f"no ripgrep can be used: {candidate.path} has changed")
    return candidate.path


@cache
def find_ripgrep(search: ProgramSearch) -> Choice:
    """Finds the ripgrep that is used. Raises RipgrepError if there is none."""
    choice = choose(candidates(RIPGREP, search), _version_of, _NEEDED)
    if choice.candidate is None:
        passed_over = "; ".join(choice.passed_over)
        raise RipgrepError(
            f"no ripgrep can be used: {passed_over}" if passed_over else "ripgrep is not installed"
        )
    return choice


def _version_of(candidate: Candidate) -> Version:
    """One that ralph does not know is asked for it. Raises UnusableError."""
    if candidate.version:
        return candidate.version
    try:
        said = subprocess.check_output(
            [candidate.path, "--version"],
            env={},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_VERSION_WITHIN_S,
        )
    except OSError as error:
        raise UnusableError(f"cannot be started: {error.strerror}") from None
    except subprocess.SubprocessError as error:
        raise UnusableError(f"does not run: {error}") from None
    found = _VERSION.match(said.decode("utf-8", "replace"))
    if found is None:
        raise UnusableError("does not say that it is ripgrep")
    return tuple(map(int, found[1].split(".")))


class Ripgrep:
    """One running search. Must be used in a `with` statement. At the end of this statement, the program is ended."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        cwd: str | None,
        is_over: Callable[[], bool],
        start: Callable[..., Popen[bytes]] = start_process,
    ) -> None:
        """Starts the search. `program` is the path of ripgrep. `is_over` is called at least ten times a second while `records`
        runs; True ends the search, and it may raise. `start` is `start_process`, or the same in a sandbox. Raises RipgrepError
        and ShortageError.
        """
        protect_this_process()
        self._is_over = is_over
        try:
            self._process = start(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env={},  # it needs none, and some variables would make it load a library or a configuration
                start_new_session=True,
                bufsize=0,
            )
        except ShortageError:
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""  # the program, or a missing directory
            raise RipgrepError(f"ripgrep cannot be started: {where}{error.strerror}") from None
        if sys.platform == "linux":  # mapped files do not count; a `preexec_fn` is unsafe beside threads
            with suppress(ProcessLookupError, PermissionError):  # it has ended, or has a lower limit already
                limits = (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES)
                resource.prlimit(self._process.pid, resource.RLIMIT_DATA, limits)
        self._errors = bytearray()
        self.skipped = 0
        """The number of files and directories that could not be read."""
        self.is_cut_short = False
        """True if `is_over` ended the search early."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def records(self, separator: bytes) -> Iterator[Record]:
        """Yields the records of the output without their separators. Each record is cut to its first 64 KiB."""
        beginning, size = b"", 0
        for chunk in self._chunks():
            *ends, rest = chunk.split(separator)
            for end in ends:
                yield (beginning + end)[:_MAX_RECORD_BYTES], size + len(end)
                beginning, size = b"", 0
            beginning, size = (beginning + rest)[:_MAX_RECORD_BYTES], size + len(rest)
        if size:
            yield beginning, size

    def is_stopped(self) -> bool:
        """Whether `is_over` has ended the search. For a caller that takes long to work on a record."""
        self.is_cut_short = self.is_cut_short or self._is_over()
        return self.is_cut_short

    def failure(self) -> str | None:
        """The error message of ripgrep, or None, also for unreadable files. Called after all records have been read."""
        if self.ending_signal():
            return f"the search was ended by signal {self.ending_signal()}"
        if self._process.wait() != _FAILED:
            return None
        objections = [
            line.decode("utf-8", "replace") for line in self.complaints() if b"(os error " not in line
        ]
        return "\n".join(objections).strip() or None

    def ending_signal(self) -> int:
        """The signal that ended the program, or 0 if none did. Must be called after all records have been read."""
        return max(0, -self._process.wait())

    def complaints(self) -> list[bytes]:
        """The lines in the first 64 KiB of standard error. The `rg: ` at the beginning of a line is removed."""
        return [line.removeprefix(b"rg: ") for line in bytes(self._errors).splitlines()]

    def _chunks(self) -> Iterator[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - both were asked for
        assert self._process.stderr is not None  # noqa: S101 - both were asked for
        output, errors = self._process.stdout.fileno(), self._process.stderr.fileno()
        poller = select.poll()
        for descriptor in (output, errors):
            poller.register(descriptor, select.POLLIN | select.POLLHUP)
        open_descriptors = {output, errors}
        late_looks = _MOST_LATE_LOOKS
        while open_descriptors:
            is_over = self._is_over()
            ready = poller.poll(0 if is_over else _LOOK_UP_EVERY_MS)
            late_looks -= is_over
            if is_over and not (ready and late_looks):
                self.is_cut_short = True
                return
            for descriptor, _events in ready:
                chunk = os.read(descriptor, _CHUNK_BYTES)
                if not chunk:
                    poller.unregister(descriptor)
                    open_descriptors.discard(descriptor)
                elif descriptor == output:
                    yield chunk
                else:
                    self.skipped += chunk.count(b"(os error ")
                    self._errors += chunk[: _MAX_ERROR_BYTES - len(self._errors)]

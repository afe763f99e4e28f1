"""Lists with ripgrep the files of a directory that is in no git repository, by its .gitignore files or without them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError
from ralph.machine.ripgrep import (
    FILES_AS_GIT_SEES_THEM,
    OUTSIDE_OF_REPOSITORIES,
    REINSTALL,
    SORTED,
    Ripgrep,
    RipgrepError,
    ripgrep_path,
)
from ralph.machine.starting import patiently, start_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import Popen

    from ralph.machine.own_programs import ProgramSearch
    from ralph.values.ports import Clock, Waiter

SILENCE_S = 20.0
"""After so long without output, a listing by .gitignore files fails: one may be a named pipe, or a very long list."""

# `./closed: IO error for operation on ./closed: Permission denied (os error 13)`
_UNLISTED = re.compile(rb"\./(.*?): (?:IO error for operation on .*: )?(.*) \(os error (\d+)\)", re.DOTALL)


class ListingEndedError(Exception):
    """The listing is incomplete: ripgrep printed nothing for too long, was cut short, or was killed."""


class Listing:
    """Lists the files below the working directory of this process. Use each object only once."""

    def __init__(
        self,
        waiter: Waiter,
        clock: Clock,
        look_up: Callable[[], None],
        search: ProgramSearch,
        *,
        follows_rules: bool = True,
        start: Callable[..., Popen[bytes]] = start_process,
    ) -> None:
        """`look_up` is called again and again while ripgrep runs, and may raise an exception. `search` says where ripgrep may
        lie. With `follows_rules`, files that .gitignore excludes are not listed. `start` starts ripgrep.
        """
        self._waiter = waiter
        self._search = search
        self._clock = clock
        self._look_up = look_up
        self._follows_rules = follows_rules
        self._start_program = start
        self._heard_at_s = clock.now_s()
        self.unlisted: list[tuple[str, OSError]] = []
        """Directories that could not be listed, each with its error. Complete after the last of `paths`."""

    def paths(self) -> Iterator[str]:
        """The relative paths of regular files, sorted. Raises CheckoutError, ListingEndedError and ShortageError."""
        with patiently(self._start, self._waiter, self._clock) as walk:
            self._heard_at_s = self._clock.now_s()
            for record, _size in walk.records(b"\0"):
                self._heard_at_s = self._clock.now_s()
                yield os.fsdecode(record).removeprefix("./")
            if walk.is_cut_short or walk.ending_signal():
                raise ListingEndedError
            for found in filter(None, map(_UNLISTED.fullmatch, walk.complaints())):
                error = OSError(int(found[3]), os.strerror(int(found[3])))
                self.unlisted.append((os.fsdecode(found[1]), error))

    def _start(self) -> Ripgrep:
        rules = OUTSIDE_OF_REPOSITORIES if self._follows_rules else ("--no-ignore",)
        command = [*FILES_AS_GIT_SEES_THEM, *SORTED, *rules, "--files", "--null", "--", "./"]
        try:
            return Ripgrep(
                ripgrep_path(self._search),
                command,
                cwd=None,
                is_over=self._is_over,
                start=self._start_program,
            )
        except RipgrepError as error:
            raise _cannot_list(error) from None

    def _is_over(self) -> bool:
        self._look_up()
        return self._follows_rules and self._clock.now_s() >= self._heard_at_s + SILENCE_S


def refuse_without_ripgrep(search: ProgramSearch) -> None:
    """Raises CheckoutError with advice if there is no ripgrep that can be used."""
    try:
        ripgrep_path(search)
    except RipgrepError as error:
        raise _cannot_list(error) from None


def _cannot_list(error: RipgrepError) -> CheckoutError:
    return CheckoutError(
        f"{error}, and without it the files of a directory outside git are not known; {REINSTALL}, or run git init here"
    )


def _unlisted(complaints: list[bytes]) -> Iterator[tuple[str, OSError]]:
    for complaint in complaints:
        match = _UNLISTED.fullmatch(complaint)
        if match:
            yield os.fsdecode(match[1]), OSError(int(match[3]), os.strerror(int(match[3])))

"""The time limits of git calls."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.waiter import InboxWaiter
from tests.git.repositories import CLOCK, Repository
from tests.processes.one_supervisor import SUPERVISOR

if TYPE_CHECKING:
    from pathlib import Path


class Leap:
    """A clock that leaps forward by `leap_s` seconds when git has begun. With `ends`, git then does its work; otherwise
    it waits for ever.
    """

    def __init__(self, place: Path, leap_s: float, *, ends: bool) -> None:
        self._began, self._seen = place / "began", place / "seen"
        self._leap_s = leap_s
        self._ends = ends
        self._looks = 0

    def now_s(self) -> float:
        return CLOCK.now_s() + (self._leap_s if self._looks else 0.0)

    def look(self) -> None:
        self._looks += self._began.exists()
        if self._looks > 1 and self._ends:
            self._seen.touch()


@pytest.mark.parametrize(("seconds", "is_stopped"), [(290, False), (310, True)])
def test_a_look_may_take_five_minutes(repository: Repository, tmp_path: Path, seconds, is_stopped) -> None:
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\n: > {tmp_path}/began\nwhile [ ! -e {tmp_path}/seen ]; do sleep 0.02; done\n"
        f'exec {shutil.which("git")} "$@"\n'
    )
    program.chmod(0o755)
    clock = Leap(tmp_path, seconds, ends=not is_stopped)
    waiter = InboxWaiter(clock, on_look=clock.look)  # type: ignore[arg-type]
    path = f"{program.parent}:{repository.environment['PATH']}"
    seams = GitSeams(repository.environment | {"PATH": path}, SUPERVISOR, waiter, clock)  # type: ignore[arg-type]
    if is_stopped:
        with pytest.raises(CheckoutError, match="git config took longer than 300 s and was stopped"):
            CheckoutGit(repository.top, seams)
    else:
        assert CheckoutGit(repository.top, seams).settings.values["user.name"] == "Tester"

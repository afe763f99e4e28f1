"""The time limits of git calls, and the outcomes of calls that could not be run."""

from __future__ import annotations

import os
import resource
import shutil
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.fleet.checkouts import GitCalls, WorkerGit
from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.waiter import InboxWaiter
from ralph.values.outcome import Outcome
from ralph.values.shortage import ShortageError
from tests.git.repositories import CLOCK, Repository
from tests.processes.one_supervisor import SUPERVISOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.git.runner import Git


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


@pytest.mark.parametrize("way", ["include", "link", "variable", "added", "cache"])
def test_the_users_own_settings_in_the_work_run_no_program(
    repository: Repository, tmp_path: Path, way: str
) -> None:
    user, added = tmp_path / "user.gitconfig", tmp_path / "added"
    added.mkdir()
    cache = tmp_path / "cache/ralph/packages"
    file = {"added": added, "cache": cache}.get(way, repository.top) / "shared"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[filter "evil"]\n\tclean = evil\n')
    if way == "link":
        user.symlink_to(file)
    else:
        user.write_text(f'[filter "mine"]\n\tclean = mine\n[include]\n\tpath = {file}\n')
    variables = {"GIT_CONFIG_GLOBAL": str(file if way == "variable" else user)}
    seams = repository.seams(**variables, XDG_CACHE_HOME=str(tmp_path / "cache"))
    seams = replace(seams, writable=(str(added),))
    assert CheckoutGit(repository.top, seams).settings.dropped_filters == {"evil"}


def test_after_a_call_that_did_not_end_local_calls_have_three_seconds_for_a_minute(
    repository: Repository,
) -> None:
    seams = repository.seams()
    for ago_s, is_remote, seconds in ((59.0, False, 3.0), (59.0, True, 300.0), (61.0, False, 300.0)):
        seams.late[:] = [CLOCK.now_s() - ago_s]
        assert seams.limit_s(300.0, is_remote=is_remote) == seconds


def of_loop(repository: Repository) -> Git:
    return CheckoutGit(repository.top, repository.seams())


def of_worker(repository: Repository) -> Git:
    return WorkerGit(
        GitCalls(repository.environment, SUPERVISOR), "https://host/x", repository.top.parent / "m/m.git"
    )


@pytest.mark.parametrize("make", [of_loop, of_worker])
def test_a_directory_that_is_gone_is_a_failed_disk(
    repository: Repository, make: Callable[[Repository], Git]
) -> None:
    """Another machine then does the job of a fleet, which a fault of the configuration would end for good."""
    git = make(repository)
    shutil.rmtree(repository.top)
    with pytest.raises(CheckoutError, match=r"git rev-parse could not be run in .* No such file") as caught:
        git.answer("rev-parse", "HEAD")
    assert caught.value.outcome is Outcome.IO_ERROR


@pytest.fixture
def few_descriptors() -> Iterator[Callable[[int], None]]:
    """Uses all file descriptors but some."""
    before, used = resource.getrlimit(resource.RLIMIT_NOFILE), []

    def use(left: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        while True:
            try:
                used.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(left):
            os.close(used.pop())

    yield use
    for descriptor in used:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("left", range(3))
def test_a_call_without_file_descriptors_is_a_shortage(
    repository: Repository, few_descriptors: Callable[[int], None], left: int
) -> None:
    """A loop repeats such a step, and a worker of a fleet repeats a push."""
    git, worker = of_loop(repository), of_worker(repository)
    worker.directory.mkdir(parents=True)
    git.read("version")  # the process that starts commands runs
    few_descriptors(left)
    with pytest.raises(ShortageError, match="no file descriptor left"):
        git.read("version")
    with pytest.raises(CheckoutError, match="no file descriptor left") as caught:
        worker.read("version")
    assert caught.value.outcome is Outcome.API_UNAVAILABLE

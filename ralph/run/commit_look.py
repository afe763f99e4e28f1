"""Looks for secrets in the commits that were made during a run, at its end."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError
from ralph.git.commit_diffs import FOR_ALL, look_through
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.own_programs import search_outside, without_unsafe_loads
from ralph.machine.repository import repository_top
from ralph.values.ports import Interrupted
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.values.ports import Clock, Waiter
    from ralph.values.redaction import LookedCommit, Redactor


def commits_of_run(
    cwd: Path,
    since_s: float,
    environment: Mapping[str, str],
    redactor: Redactor,
    *,
    waiter: Waiter,
    clock: Clock,
    writable: tuple[str, ...] = (),
) -> tuple[LookedCommit, ...]:
    """Where secrets are in the commits of the current branch since `since_s`, in seconds of the epoch. Commits that could
    not be looked through are missing. `environment` is that of commands, without credentials. No git is used from
    `writable`, the places that commands may write.
    """
    try:
        top = repository_top(cwd)
        if top is None:
            return ()
        safe = without_unsafe_loads(environment, search_outside(environment, (top, *writable)))
        with closing(CommandSupervisor(safe, most_processes=0)) as supervisor:
            git = CheckoutGit(
                top, GitSeams(environment, supervisor, waiter, clock, writable=writable), FOR_ALL
            )
            if git.resolved("HEAD") is None:
                return ()
            return look_through(git, [f"--since=@{int(since_s)}", "HEAD"], redactor)
    except (CheckoutError, ShortageError, OSError, Interrupted):  # a page leaves the commits out, and says so
        return ()

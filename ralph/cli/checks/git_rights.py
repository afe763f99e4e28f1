"""Checks whether commits work in the checkout, and whether its remote would take a push. Git runs as a loop runs it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ralph.cli.checks.finding import Finding, note, ok, short, warn
from ralph.git.answer import CheckoutError
from ralph.git.checkout import IDENTITY_ADVICE, GitCheckout, committer
from ralph.git.look import status_of
from ralph.git.runner import GitSeams
from ralph.loop import DEFAULT_PLAN_FILE
from ralph.loop.directory.preflight import open_checkout
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.own_programs import search_around, without_unsafe_loads
from ralph.machine.waiter import InboxWaiter
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.ports import Interrupted
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock

_PUSH_S = 60.0
"""The time limit of the attempt to push. A loop waits longer, but a person waits for doctor."""
_GIT_S = 20.0


def look_at_git(
    environment: Mapping[str, str], settings: Settings | None, cwd: Path, clock: Clock, *, tries_push: bool
) -> Iterator[Finding]:
    """Findings about the identity for commits, and about the right to push if `tries_push` is True. No finding
    outside of a git checkout.

    Git runs as a loop runs it: with the same settings and without credentials in its environment. A push is only
    tried out (`--dry-run`), and takes at most a minute.
    """
    secrets = known_secrets(environment, settings.secrets if settings else ())
    passed = settings.tools.pass_env if settings else ()
    variables = settings.key_variables if settings else frozenset()
    ours = child_environment(environment, passed, secrets, variables)
    wanted = settings.sandbox if settings else SandboxSettings()
    search = search_around(ours, (cwd,), wanted.written(ours))
    supervisor = CommandSupervisor(without_unsafe_loads(ours, search), makes_group=False)

    checks = {"git identity": (_identity, _GIT_S)} | ({"push": (_push, _PUSH_S)} if tries_push else {})
    try:
        for subject, (check, within_s) in checks.items():
            waiter = InboxWaiter(clock, run_ends_s=clock.now_s() + within_s)
            checkout = open_checkout(
                cwd, DEFAULT_PLAN_FILE, GitSeams(ours, supervisor, waiter, clock, writable=search.roots)
            )
            if isinstance(checkout, GitCheckout):
                yield _told(subject, within_s, partial(check, checkout))
    finally:
        supervisor.close()


def _told(subject: str, within_s: float, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Interrupted:
        return warn(subject, f"git gave no answer within {within_s:g} s", "see whether git itself works here")
    except CheckoutError as error:
        return warn(subject, str(error), "correct what git says; a loop with --commit or --push needs it")
    except OSError as error:
        return short(subject, shortage_of(error) or ShortageError("process"))


def _identity(checkout: GitCheckout) -> Finding:
    checkout.refuse_foreign()
    name = committer(checkout.git())
    if name is None:
        problem = "git does not know who commits here, so every commit would fail"
        return warn("git identity", problem, IDENTITY_ADVICE)
    return ok("git identity", f"commits are by {name}")


def _push(checkout: GitCheckout) -> Finding:
    """Tries a push in the same way as a loop with `--push` does before it begins."""
    checkout.refuse_foreign()
    git = checkout.git()
    try:
        push = checkout.push_of(git, status_of(git))
    except CheckoutError as error:
        return note("push", f"--push is not possible here: {error}")
    target = push.target
    where = f"remote {target.remote}, branch {target.branch}"
    try:
        push.try_out()
    except CheckoutError as error:
        return warn("push", f"{where}: {error}; a loop with --push would not begin", target.advice)
    return ok("push", f"{where} would take a push")

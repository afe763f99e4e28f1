"""Finds the checkout that a loop works on. Before any money is spent, checks whether commits and pushes can work
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError, shown
from ralph.git.checkout import IDENTITY_ADVICE, GitCheckout, committer
from ralph.git.filters import about_unnamed
from ralph.git.look import status_of
from ralph.loop.directory.plain_directory import PlainDirectory
from ralph.machine.files.repository import repository_top
from ralph.machine.starting import start_process
from ralph.machine.trusted_programs import PACKAGES_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from subprocess import Popen

    from ralph.git.checkout import UnpublishedIn
    from ralph.git.push import Push
    from ralph.git.runner import CheckoutGit, GitSeams
    from ralph.machine.own_programs import ProgramSearch
    from ralph.values.ports import Waiter
    from ralph.values.redaction import Redactor

_TRUE = frozenset({"true", "yes", "on", "1"})


def open_checkout(
    directory: Path,
    plan_file: str,
    seams: GitSeams,
    *,
    own_paths: tuple[Path, ...] = (),
    writable: tuple[Path, ...] = (),
    search: ProgramSearch = PACKAGES_ONLY,
    warn: Callable[[str], None] = lambda _text: None,
    start: Callable[..., Popen[bytes]] = start_process,
    redactor: Redactor | None = None,
    unpublished_in: UnpublishedIn = lambda _top: lambda _path, _is_in_head: False,
) -> GitCheckout | PlainDirectory:
    """Finds the checkout that contains `directory`, which must be the working directory. Runs no git. The parameters are those
    of `PlainDirectory` and `GitCheckout`.
    """
    top = repository_top(directory)
    if top is None:
        return PlainDirectory(
            directory,
            plan_file=plan_file,
            waiter=seams.waiter,
            clock=seams.clock,
            search=search,
            own_paths=own_paths,
            warn=warn,
            start=start,
        )
    return GitCheckout(
        *(top, directory),
        plan_file=plan_file,
        seams=seams,
        own_paths=own_paths,
        writable=writable,
        warn=warn,
        redactor=redactor,
        unpublished_in=unpublished_in,
    )


def check_checkout(
    checkout: GitCheckout | PlainDirectory, *, commits: bool, pushes: bool, waiter: Waiter | None = None
) -> list[str]:
    """Checks that the loop's commits and pushes will work, and returns notices for the user. Git is waited for by `waiter`.
    Under git, no merge or rebase may be unfinished, and HEAD must be on a branch; without git, ripgrep must be installed.
    Raises Interrupted, and CheckoutError with advice.
    """
    if isinstance(checkout, PlainDirectory):
        if commits or pushes:
            option = "--commit" if commits else "--push"
            raise CheckoutError(
                f"{checkout.top} is not in a git checkout; run git init there, or leave out {option}"
            )
        checkout.refuse_without_ripgrep()
        return []
    if commits or pushes:
        checkout.refuse_foreign()
    git = checkout.git(waiter)
    status = status_of(git)
    checkout.refuse_unfinished(status)
    checkout.refuse_detached(status)
    if commits:
        checkout.refuse_locked(status)
    notices = [*_about_identity(git, commits=commits), *(_about_settings(git) if commits or pushes else [])]
    notices += _about_commits(checkout, git) if commits else []
    if pushes:
        _refuse_useless_remote(checkout.push_of(git, status), _about_settings(git))
    uncommitted = [entry.path for entry in checkout.uncommitted(status)] if commits else []
    if uncommitted:
        verb, them = ("is", "it") if len(uncommitted) == 1 else ("are", "them")
        notices.append(
            f"{shown(uncommitted)} {verb} uncommitted already: the loop's first commit will include {them}"
        )
    return notices


def _about_identity(git: CheckoutGit, *, commits: bool) -> list[str]:
    if committer(git) is not None:
        return []
    if commits:
        raise CheckoutError(f"git does not know who commits here: {IDENTITY_ADVICE}, or leave out --commit")
    return [f"git does not know who commits here, so commits of the agent would fail: {IDENTITY_ADVICE}"]


def _about_commits(checkout: GitCheckout, git: CheckoutGit) -> list[str]:
    notices = []
    if (git.settings.configured("commit.gpgsign") or "").lower() in _TRUE:
        notices.append(
            "the loop's commits are not signed, although commit.gpgsign is set: sign them afterwards"
        )
    if hooks := checkout.commit_hooks(git):
        notices.append(
            f"--commit runs no hooks of git, so {', '.join(hooks)} {'does' if len(hooks) == 1 else 'do'} not run: have the "
            "checks of the loop do what they do"
        )
    return [*notices, *about_unnamed(git, git.settings)]


def _about_settings(git: CheckoutGit) -> list[str]:
    if not git.settings.left_out:
        return []
    names = ", ".join(git.settings.left_out)
    sentence = (
        f"ralph's own git calls do not follow {names}: an agent can write it, or what it names; where it is "
        f"needed, {git.settings.advice}, and keep what it names where commands may not write"
    )
    return [sentence]


def _refuse_useless_remote(push: Push, notices: Iterable[str]) -> None:
    try:
        push.try_out()
    except CheckoutError as error:
        target = push.target
        problem = f"remote {target.remote} does not take branch {target.branch}: {error}; {target.advice}"
        problem = "; ".join((problem, *notices))
        raise CheckoutError(problem, error.outcome) from None

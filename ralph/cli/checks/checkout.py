"""Checks the working directory: whether commits and pushes work, as a loop runs git, and the permission rules and
hooks in settings files for Claude Code.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ralph.cli.checks import Finding, fail, note, ok, short, warn
from ralph.git.answer import CheckoutError
from ralph.git.checkout import IDENTITY_ADVICE, GitCheckout, committer
from ralph.git.look import status_of
from ralph.git.runner import GitSeams
from ralph.loop import DEFAULT_PLAN_FILE
from ralph.loop.checkout import open_checkout
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.trees import LocalDisk
from ralph.machine.own_programs import search_around, without_unsafe_loads
from ralph.machine.waiter import InboxWaiter
from ralph.permissions.claude_settings import ClaudeSettings, GuardError, HookCommand, read_all
from ralph.permissions.judge import DeniedPlaces, RulePlaces, denied_places
from ralph.permissions.rule import RuleError
from ralph.run.hooks import doubts, missing_program, plan_hooks
from ralph.run.permission_rules import not_kept
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.planning import plan_box, with_denied_places
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.settings.files import ClaudeFileError, document_of, read_claude_files
from ralph.settings.merge import SettingsError
from ralph.settings.tables import Settings
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import ShortageError, shortage_of
from ralph.values.ports import Clock, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


_PUSH_S = 60.0
"""The time limit of the attempt to push. A loop waits longer, but a person waits for doctor."""
_GIT_S = 20.0


def look_at_git(
    environment: Mapping[str, str], settings: Settings | None, cwd: Path, clock: Clock, *, tries_push: bool
) -> Iterator[Finding]:
    """Findings about the identity for commits, and with `tries_push` about a push (`--dry-run`, a minute at most).
    None outside a git checkout. Git runs as a loop runs it, without credentials in its environment.
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
        return warn(
            subject, f"git did not answer within {within_s:g} s", "check whether git itself works here"
        )
    except CheckoutError as error:
        return warn(subject, str(error), "fix what git reports; a loop with --commit or --push needs it")
    except OSError as error:
        return short(subject, shortage_of(error) or ShortageError("process"))


def _identity(checkout: GitCheckout) -> Finding:
    checkout.refuse_foreign()
    name = committer(checkout.git())
    if name is None:
        problem = "git has no name and address for commits here, so every commit would fail"
        return warn("git identity", problem, IDENTITY_ADVICE)
    return ok("git identity", f"commits will be by {name}")


def _push(checkout: GitCheckout) -> Finding:
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
        return warn("push", f"{where}: {error}; a loop with --push would not start", target.advice)
    return ok("push", f"{where} would accept a push")


_NAME = "permission rules"
_HOOKS = "hooks"


def look_at_claude_rules(
    cwd: Path, environment: Mapping[str, str], settings: Settings | None = None
) -> Iterator[Finding]:
    """Findings about the settings files for Claude Code: which of their rules a run with `settings` would apply, and
    which not.
    """
    try:
        files = read_claude_files(cwd, environment)
        read = read_all(((file, document_of(file)) for file in files), ("user",))
    except (ClaudeFileError, GuardError) as error:
        yield fail(_NAME, str(error), "correct that file: no run begins without its rules")
        return
    for found in read:
        if found.rules or found.hooks:
            counts = f"{len(found.rules)} rules" + (f", {len(found.hooks)} hooks" if found.hooks else "")
            yield ok(_NAME, f"{found.file.name}: {counts}")
        if found.sandbox.keys:
            yield ok(_NAME, f"{found.file.name}: commands are restricted by {', '.join(found.sandbox.keys)}")
        for fact, advice in not_kept(found):
            yield warn(_NAME, fact, advice)
    settings = settings or Settings()
    yield from _about_hooks(cwd, environment, settings, [hook for found in read for hook in found.hooks])
    yield from _about_denied_places(cwd, environment, settings, read)


def _about_hooks(
    cwd: Path, environment: Mapping[str, str], settings: Settings, hooks: Sequence[HookCommand]
) -> Iterator[Finding]:
    if not hooks:
        return
    search = search_around(environment, (cwd,), settings.sandbox.written(environment))
    try:
        plan = plan_box(settings.sandbox, environment, (cwd,))
        made = plan_hooks(settings, environment, hooks, plan, search=search, roots=(cwd,))
    except CannotConfineError:  # the finding about the sandbox says so
        return
    except SettingsError as error:
        yield fail(_HOOKS, str(error), "no run begins with it")
        return
    more = ", ".join((*made.write[len(plan.write) :], *made.sockets[len(plan.sockets) :]))
    where = f"in the sandbox of commands{f', with {more}' if more else ''}"
    yield ok(_HOOKS, f"{len(hooks)} run {where if made.is_confined else 'without a sandbox'}")
    for fact, advice in doubts(hooks, made, search.roots, has_more=made is not plan):
        yield warn(_HOOKS, fact, advice)
    for hook in hooks:
        missing = missing_program(hook.command, cwd, environment)
        if missing is not None:
            yield warn(_HOOKS, f"the {hook.event} hook ({hook.name}) names {missing}", "it does not exist")


def _about_denied_places(
    cwd: Path, environment: Mapping[str, str], settings: Settings, read: Sequence[ClaudeSettings]
) -> Iterator[Finding]:
    rules = [rule for found in read for rule in found.rules]
    home = environment.get("HOME", "")
    try:
        places = RulePlaces(str(cwd), home if home.startswith("/") else "", LocalDisk())
        denied = denied_places(rules, settings.tools.disallowed, places, (str(cwd),))
    except RuleError as error:
        yield fail(_NAME, str(error), "correct that rule: no run begins without it")
        return
    if denied == DeniedPlaces():
        return
    try:
        plan = plan_box(settings.sandbox, environment, (cwd,))
    except CannotConfineError:  # the finding about the sandbox says so
        return
    if plan.is_confined:
        made = with_denied_places(plan, denied.read, (cwd,), denied.unsearched, denied.changed)
        for notice in made.notices[len(plan.notices) :]:
            yield warn(_NAME, notice.text, notice.advice)

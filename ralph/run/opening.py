"""Opens a session, a new one here and an old one in `old_session.py`, with its tools, clients and targets. They are made
once, before the first request, and stay the same for all tasks of the run.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from errno import EACCES, EROFS
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.conversation.next_step import LIMIT_LIFTED, is_bound
from ralph.conversation.records import session_record
from ralph.machine.files.paths import up_to_repository_root
from ralph.permissions.gate import RulesInForce
from ralph.prompt.commands import list_skills
from ralph.prompt.judged_file import Place, user_folder
from ralph.prompt.memory import NestedMemory, read_memory, shown_paths
from ralph.run.parts import (
    RunContext,
    RunGuards,
    begin_sandbox_trial,
    build_clients,
    build_guards,
    build_report_form,
    build_roster,
    build_toolbox,
    find_library,
    patterns_of_tools,
    plan_sandbox,
    refuse_uncountable_budget,
    tools_notice,
    withheld_notice,
)
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.planning import refuse_owners_work, with_denied_places
from ralph.sessions.journal import FileJournal, FileTurnLock, NoJournal
from ralph.sessions.store import NEXT_PROMPT, SessionStore, resume_command
from ralph.settings.merge import SettingsError
from ralph.values.answer import ToolError
from ralph.values.credentials import TURN_LOCK
from ralph.values.events import Notice, RunStarted, SessionTotal
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import JournalError
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.conversation.session import Session
    from ralph.mcp.toolset import McpToolset, ServerGroup
    from ralph.permissions.claude_settings import HookCommand
    from ralph.permissions.gate import Hooks
    from ralph.retry.targets import Roster
    from ralph.run.options import SessionOptions
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.ports import Clock

# --- The session
# The session of a run: the opening of a new one, and the command that resumes it. `old_session.py` opens old ones.


_LIMITS = frozenset({Outcome.LIMIT_REACHED.value, Outcome.TIMED_OUT.value})


class OpenSession(Struct, frozen=True):
    id: str
    journal: FileJournal | NoJournal
    old: Session | None = None
    notices: tuple[str, ...] = ()
    total: SessionTotal = SessionTotal()
    """The totals of the session's earlier runs. They are 0 for a new session and for a copy."""

    def forget(self) -> None:
        """Removes the journal of a new session, so that `--continue` does not find the session. Called if no work was
        done in the session. Does not remove the journal of a resumed session.
        """
        if self.old is None and isinstance(self.journal, FileJournal):
            with suppress(OSError):
                self.journal.path.unlink()


def prompt_of_resumed(
    old: Session, prompt: str | None, command_with: Callable[[str], str | None]
) -> str | None:
    """The first prompt for the model in a resumed run. None if the model gets no new prompt.

    If there is no `prompt` and a limit ended the last run, the model is told once that this limit no longer applies.
    Raises UsageError if the session is completed and there is no `prompt`. `command_with` takes a prompt, and returns
    the command that resumes the session with that prompt.
    """
    if prompt is not None:
        return prompt
    if old.is_completed:
        command = command_with(NEXT_PROMPT)
        shown = "" if command is None else f": {command}"
        raise UsageError(f"session {old.id} is complete: say what to do next{shown}")
    was_limited = old.ended is not None and old.ended.outcome in _LIMITS
    was_limited = was_limited or is_bound(old.conversation.messages)
    return LIMIT_LIFTED if was_limited and not _was_told(old, LIMIT_LIFTED) else None


def _was_told(old: Session, words: str) -> bool:
    """Whether the last message comes from the user and its last block is exactly `words`."""
    last = old.conversation.messages[-1]
    return last.role == "user" and last.content[-1].get("text") == words


def resume_command_of(
    session: OpenSession,
    options: SessionOptions,
    *,
    cwd: Path | None,
    again: Mapping[str, str],
    prompt: str | None = None,
) -> str | None:
    """The command that resumes the session of a run, or None if nothing can be resumed.

    `cwd` is the directory that the command should contain. If it is None, the command contains no directory.
    """
    if not isinstance(session.journal, FileJournal) or session.journal.is_gone:
        return None
    return resume_command(
        SessionStore(session.journal.path.parent.parent).short_name(session.id),
        cwd=None if cwd is None else str(cwd),
        session_dir=options.directory_text,
        again=again,
        prompt=prompt,
    )


@contextmanager
def journal_errors_told(context: RunContext, new_id: str) -> Iterator[None]:
    """A context manager that converts errors about journals into UsageError or CannotError."""
    try:
        yield
    except JournalError as error:
        cause = error.__cause__
        if isinstance(cause, FileExistsError):
            raise UsageError(f"session {new_id} exists already: continue it with --resume") from error
        is_read_only = isinstance(cause, OSError) and cause.errno in {EROFS, EACCES}
        is_old = context.options.session.is_old
        instead = ": --fork-session resumes a copy" if is_read_only and is_old else ""
        raise CannotError(f"{error}{instead}", Outcome.IO_ERROR) from error


def store_of(context: RunContext) -> SessionStore:
    options = context.options
    writable: tuple[Path | str, ...] = (*context.roots(), *options.output.directories)
    return SessionStore.for_user(
        context.environment,
        options.session.directory,
        writable,
        roots=context.search_at_start.roots,
        is_old=options.session.is_old,
    )


def open_new_session(context: RunContext, new_id: str) -> OpenSession:
    """Raises UsageError if a session with this id exists, and CannotError if no journal can be created."""
    if not context.options.session.is_kept:
        return OpenSession(new_id, NoJournal())
    with journal_errors_told(context, new_id):
        store = store_of(context)
        journal = store.create(new_id, context.cwd, context.redactor.spans)
        journal.append(
            session_record(new_id, str(context.cwd), context.clock.utc_now().isoformat(), __version__)
        )
        return OpenSession(new_id, journal, None, (store.notice,) if store.notice else ())


# --- Opening


class SessionParts:
    """The session of a run, with its tools, clients and targets."""

    def __init__(
        self, context: RunContext, new_id: str, *, has_prompt: bool, of_driver: ServerGroup | None = None
    ) -> None:
        """Opens all of it. `of_driver` are the MCP servers in a driver's own process.

        Raises SettingsError, WorkingDirectoryGoneError, UsageError or CannotError. What was opened before the error is
        closed again.
        """
        guards = build_guards(context)
        if guards.mode is not None:
            context.controls.permission_mode = guards.mode
        with ExitStack() as opened:
            lock = context.environment.get(TURN_LOCK)
            self.turn_lock = FileTurnLock(lock, context.waiter) if lock else None
            """The lock that another program shares with this run. None if no program shares one."""
            if self.turn_lock is not None:
                opened.callback(self.turn_lock.close)
            self.context = context.with_sandbox_limits(guards.sandbox) if guards.sandbox else context
            # The servers and the sandbox take long, so that they begin first.
            self.mcp: McpToolset | None = None
            if context.settings.mcp_servers or of_driver is not None:
                from ralph.run import servers  # noqa: PLC0415 - few runs have servers

                self._connect_servers = servers.connect_servers
                self.mcp = servers.build_mcp(self.context, of_driver)
            if self.mcp is not None:
                opened.callback(self.mcp.close)
            begin_sandbox_trial(self.context)
            self.clients = build_clients(self.context)
            opened.callback(self.clients.close)
            self.plan = plan_sandbox(self.context)
            """The sandbox of commands."""
            if context.options.session.is_old:
                self.session = _open_old_session(self.context, new_id, has_prompt=has_prompt)
            else:
                self.session = open_new_session(self.context, new_id)
            opened.callback(self.session.journal.close)
            self.hooks, about_rules = self._take_rules(guards)
            self.toolbox, about_hooks = self._make_toolbox()
            opened.callback(self._close_toolbox)
            self._connect()
            self.report_form = build_report_form(self.context, self.session.old)
            after_kill = self.toolbox.about_killed_run()
            about_targets = self._make_targets()
            opened.pop_all()
        if self.session.old is not None:
            self._restore(self.session.old)
        self.notices = (
            *self.session.notices,
            *about_targets,
            *self._about_rights(),
            *about_rules,
            *about_hooks,
            *(notice.line for notice in self.plan.notices),
            *filter(None, [after_kill]),
            *withheld_notice(self.context),
        )
        """Notices for people about this run."""

    def _take_rules(self, guards: RunGuards) -> tuple[Sequence[HookCommand], Sequence[str]]:
        """Sets the rules of the run, and returns its hooks and notices."""
        context, old = self.context, self.session.old
        kept = {} if old is None or context.options.names_tools else old.tool_patterns
        own = patterns_of_tools(context)
        if kept:
            guards = build_guards(context, kept)
            denied = tuple(dict.fromkeys((*own.get("disallowed", ()), *kept.get("disallowed", ()))))
            own = {**own, **kept, **({"disallowed": denied} if denied else {})}
        self.tool_patterns: Mapping[str, tuple[str, ...]] = own
        """The tool lists with patterns that the journal records for this run."""
        self.rules = RulesInForce(guards.judge)
        self.judge_by = guards.judge_by
        self.library = find_library(context, self.plan, guards.judge)
        """The commands and skills that the rules let ralph read."""
        self.writable = context.options.writable
        """The directories outside the working directory in which tools may write."""
        if guards.judge is not None and self.plan.is_confined:
            # What rules deny as a whole, commands do not see, or cannot change.
            roots = context.roots()
            places = guards.judge.denied_places(tuple(map(str, roots)))
            self.plan = with_denied_places(self.plan, places.read, roots, places.unsearched, places.changed)
        return guards.hooks, guards.notices

    def _make_toolbox(self) -> tuple[LocalToolbox, Sequence[str]]:
        """The tools, and notices about hooks."""
        context, old, hook_plan, doubts = self.context, self.session.old, self.plan, tuple[str, ...]()
        of_loop = context.options.of_loop
        self.guard_files: Mapping[str, str] = {} if of_loop is None else of_loop.guards
        """The files of hooks that commands could change, each with the digest of its content when the run or its loop
        began."""
        self.command_hooks: Callable[[], Sequence[Hooks]] = tuple
        """Makes the hooks of the session, which run in their sandbox."""
        if self.hooks:
            from ralph.run import hooks  # noqa: PLC0415 - few runs have hooks

            self.command_hooks = lambda: (hooks.command_hooks(self),)
            hook_plan, doubts = hooks.plan_of_hooks(context, self.hooks, self.plan)
            self.guard_files = hooks.guard_files(context, self.hooks) | self.guard_files
        toolbox = build_toolbox(
            context,
            writable=self.writable,
            plan=self.plan,
            hook_plan=None if hook_plan is self.plan else hook_plan,
            guards=self.guard_files,
            offered=old.offered_tools if old is not None and not context.options.names_tools else None,
            keeps_list=self._keeps_requests,
            rules=self.rules,
            mcp=self.mcp,
        )
        return toolbox, doubts

    def _close_toolbox(self) -> None:
        """Closes the tools of a run that cannot begin. A server may have changed protected files already."""
        undone = self.toolbox.close()
        if undone:
            self.context.events.emit(Notice(undone, is_vital=True))

    def _connect(self) -> None:
        """Connects the MCP servers. Raises SettingsError, also for a sandbox in which commands could change what belongs
        to another user.
        """
        if self._has_tool("Bash"):
            try:
                refuse_owners_work(self.plan, self.context.cwd)
            except CannotConfineError as error:
                raise SettingsError(str(error)) from None
        if self.mcp is not None:
            self._connect_servers(self.toolbox)

    def _make_targets(self) -> Sequence[str]:
        """Makes the targets with their system prompt, and returns notices about them, the instruction files and the
        skills.
        """
        context, old = self.context, self.session.old
        sources = context.options.setting_sources
        place = Place("", denied=self.plan.read_deny, why_not_read=self.rules.why_not_read)
        user = user_folder(context.environment, context.cwd)
        memory = read_memory(context.cwd, user, sources, place.denied, place.why_not_read)
        self.memory_files = memory.files
        self.nested = NestedMemory(context.cwd, memory, sources, place, _is_about)
        """The instructions for places that tools touch."""
        self.about_sandbox = (
            self.plan.sentence_for_model(len(self.writable)) if self._has_tool("Bash") else ""
        )
        """The sentence about the sandbox for the model. Empty if there is nothing to say."""
        # A model that cannot read their files is told of none.
        skills = list_skills(self.library.skills if self._has_tool("Read") else ())
        names = [tool.name for tool in self.toolbox.definitions]
        has_new_tools = old is not None and self.mcp is not None and not old.offered_tools.issuperset(names)
        report = () if self.report_form is None else (self.report_form.tool,)
        self.roster, notices = build_roster(
            *(context, (*self.toolbox.definitions, *report), old),
            about_sandbox=self.about_sandbox,
            memory=memory,
            skills=skills.text,
            keeps=not has_new_tools,
        )
        # The settings may name another model than the old session.
        refuse_uncountable_budget(self.roster.targets, context.settings)
        is_new_prompt = has_new_tools or not self._keeps_requests
        targets, first = self.roster.names, self.roster.first
        self.started = RunStarted(
            cwd=str(context.cwd),
            model=first.model,
            tools=(*names, *(tool.name for tool in report)),
            api_key_source=first.credentials[0].source if first.credentials else "none",
            targets=targets if len(targets) > 1 else (),
            permission_mode=context.controls.permission_mode,
            sandbox=self.plan.level.name,
            protections=self.plan.protections,
            gpus=self.plan.gpus,
            memory=shown_paths(memory, context.cwd, context.home) if is_new_prompt else {},
            commands=self.library.names,
            skills=skills.names if is_new_prompt else (),
            mcp_servers=() if self.mcp is None else self.mcp.server_names,
        )
        return (*notices, *skills.notices)

    def _restore(self, old: Session) -> None:
        """Hands over the cooldowns, the servers that have answered and the files that were read."""
        take_over_cooldowns(self.roster, old, self.context.clock)
        self.clients.know_answered(old.answered)
        contents = (one.content for one in old.conversation.messages)
        self.toolbox.resume_from(old.seen, contents, old.background.count)

    def _about_rights(self) -> Iterator[str]:
        """Notices about the permission mode, the MCP servers and the tools."""
        context, old = self.context, self.session.old
        yield from filter(None, [context.controls.mode_notice])
        offered = frozenset() if old is None else old.offered_tools
        had_servers = any(name.startswith(MCP_PREFIX) for name in offered)
        files = (folder / ".mcp.json" for folder in up_to_repository_root(context.cwd))
        if context.settings.mcp_servers or had_servers or any(map(os.path.lexists, files)):
            from ralph.run.servers import mcp_notices  # noqa: PLC0415 - few runs have servers

            yield from mcp_notices(context, self.mcp, offered)
        yield from tools_notice(context, [tool.name for tool in self.toolbox.definitions], self.tool_patterns)

    def _has_tool(self, name: str) -> bool:
        return any(tool.name == name for tool in self.toolbox.definitions)

    @property
    def _keeps_requests(self) -> bool:
        return self.context.options.keeps_requests(self.session.old, self.context.settings.targets[0])


def _open_old_session(context: RunContext, new_id: str, *, has_prompt: bool) -> OpenSession:
    """Opens the session to resume. If `--continue` finds none and there is a prompt, opens a new session."""
    from ralph.run.old_session import NoSessionError, open_old_session  # noqa: PLC0415 - a new one needs none of it

    try:
        return open_old_session(context, new_id)
    except NoSessionError as error:
        if not has_prompt:
            raise
        fresh = open_new_session(context, new_id)
        return replace(fresh, notices=(*fresh.notices, f"{error}: a new one begins"))


def _is_about(pattern: str, path: str) -> bool:
    """Whether the pattern of a rule matches a relative path, by the rules of .gitignore."""
    from ralph.tools.glob_pattern import GlobPattern  # noqa: PLC0415 - few projects have such rules

    try:
        return GlobPattern(pattern).matches(path)
    except ToolError:  # too many braces: a rule too many is better than one too few
        return True


def take_over_cooldowns(roster: Roster, old: Session, clock: Clock) -> None:
    """Restores the cooldowns of targets and the serving target from the last run.

    A target gets no requests during its cooldown. The serving target is the one that answered last.
    """
    now_s, now = clock.now_s(), clock.utc_now()
    ends_s = {
        name: now_s + (datetime.fromisoformat(end) - now).total_seconds() for name, end in old.cooling.items()
    }
    roster.cool(ends_s, serving=old.target)

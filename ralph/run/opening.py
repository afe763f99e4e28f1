"""Opens a session with its tools, clients and targets. They are made once, before the first request, and stay the same
for all tasks of the run.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.repository import up_to_repository_root
from ralph.permissions.gate import RulesInForce
from ralph.prompt.judged_file import Place, user_folder
from ralph.prompt.memory import NestedMemory, read_memory, shown_paths
from ralph.run.context import open_turn_lock
from ralph.run.parts import (
    begin_sandbox_trial,
    build_clients,
    build_report_form,
    build_roster,
    build_toolbox,
    find_library,
    plan_sandbox,
    refuse_uncountable_budget,
    tools_notice,
    withheld_notice,
)
from ralph.run.permission_rules import build_guards, patterns_of_tools
from ralph.run.session import OpenSession, open_new_session
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.planning import refuse_owners_work, with_denied_reads
from ralph.settings.merge import SettingsError, refuse_resumed
from ralph.values.answer import ToolError
from ralph.values.events import Notice, RunStarted
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.conversation.session import Session
    from ralph.mcp.ports import ServerGroup
    from ralph.mcp.toolset import McpToolset
    from ralph.permissions.claude_settings import HookCommand
    from ralph.prompt.skills import SkillList
    from ralph.run.context import RunContext
    from ralph.run.permission_rules import RunGuards
    from ralph.tools.toolbox import LocalToolbox


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
            self.turn_lock = open_turn_lock(context)
            if self.turn_lock is not None:
                opened.callback(self.turn_lock.close)
            self.context = context.with_sandbox_limits(guards.sandbox)
            # The servers and the sandbox take long, so that they begin first.
            self.mcp = self._mcp(of_driver)
            if self.mcp is not None:
                opened.callback(self.mcp.close)
            begin_sandbox_trial(self.context)
            self.clients = build_clients(self.context)
            opened.callback(self.clients.close)
            self.plan = plan_sandbox(self.context)
            """The sandbox of commands."""
            self.session = _open_session(self.context, new_id, has_prompt=has_prompt)
            opened.callback(self.session.journal.close)
            self.hooks, about_rules = self._take_rules(guards)
            self._take_places_of_session()
            self.toolbox, about_hooks = self._make_toolbox()
            opened.callback(self._close_toolbox)
            self._connect()
            self.report_form = build_report_form(self.context, self.session.old, self.writable)
            after_kill = self.toolbox.about_killed_run()
            about_targets = self._make_targets()
            opened.pop_all()
        if self.session.old is not None:
            self._go_on_from(self.session.old)
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

    def _mcp(self, of_driver: ServerGroup | None) -> McpToolset | None:
        if not self.context.settings.mcp_servers and of_driver is None:
            return None
        from ralph.run.servers import build_mcp  # noqa: PLC0415 - few runs have servers

        return build_mcp(self.context, of_driver)

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
        self._judge = guards.judge
        self.library = find_library(context, self.plan, guards.judge)
        """The commands and skills that the rules let ralph read."""
        return guards.hooks, guards.notices

    def _take_places_of_session(self) -> None:
        """Sets the directories outside the working directory in which tools may write, and closes what rules deny to
        read. A resumed session keeps its directories, unless the command line names some.
        """
        context, old, writable = self.context, self.session.old, self.context.options.writable
        if old is not None and writable == context.settings.directories:  # none of the command line
            writable = tuple(dict.fromkeys((*old.writable, *writable)))
        if writable != context.options.writable:
            config_file = context.options.config_file
            path = None if config_file is None else Path(config_file)
            refuse_resumed(context.settings, context.environment, context.roots(), path, writable)
            self.plan = plan_sandbox(context, writable)
        self.writable = writable
        if self._judge is not None and self.plan.is_confined:
            # What rules deny to read as a whole, commands do not see.
            roots = context.roots(writable)
            denied = self._judge.unreadable_places(tuple(map(str, roots)))
            self.plan = with_denied_reads(self.plan, denied.paths, roots, denied.unsearched)

    def _make_toolbox(self) -> tuple[LocalToolbox, Sequence[str]]:
        """The tools, and notices about hooks."""
        context, old, hook_plan, doubts = self.context, self.session.old, self.plan, tuple[str, ...]()
        of_loop = context.options.of_loop
        self.guard_files: Mapping[str, str] = {} if of_loop is None else of_loop.guards
        """The files of hooks that commands could change, each with the digest of its content when the run or its loop
        began."""
        if self.hooks:
            from ralph.run.hooks import guard_files, plan_of_hooks  # noqa: PLC0415 - few runs have hooks

            hook_plan, doubts = plan_of_hooks(context, self.hooks, self.plan, self.writable)
            self.guard_files = guard_files(context, self.hooks, self.writable) | self.guard_files
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
            from ralph.run.servers import connect_servers  # noqa: PLC0415 - few runs have servers

            connect_servers(self.toolbox)

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
        skills = self._skills()
        names = [tool.name for tool in self.toolbox.definitions]
        has_new_tools = old is not None and self.mcp is not None and not old.offered_tools.issuperset(names)
        report = () if self.report_form is None else (self.report_form.tool,)
        self.roster, notices = build_roster(
            *(context, (*self.toolbox.definitions, *report), old),
            about_sandbox=self.about_sandbox,
            memory=memory,
            skills="" if skills is None else skills.text,
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
            skills=skills.names if skills is not None and is_new_prompt else (),
            mcp_servers=() if self.mcp is None else self.mcp.server_names,
        )
        return (*notices, *(() if skills is None else skills.notices))

    def _skills(self) -> SkillList | None:
        """The skills to list in the system prompt. None if there are none, or if the model cannot read their files."""
        if not self.library.skills or not self._has_tool("Read"):
            return None
        from ralph.prompt.skills import list_skills  # noqa: PLC0415 - few projects have skills

        return list_skills(self.library.skills)

    def _go_on_from(self, old: Session) -> None:
        """Hands over the cooldowns, the servers that have answered and the files that were read."""
        from ralph.run.old_session import take_over_cooldowns  # noqa: PLC0415 - a new one needs none of it

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


def _open_session(context: RunContext, new_id: str, *, has_prompt: bool) -> OpenSession:
    """Opens the requested session. If `--continue` finds no session and there is a prompt, opens a new session."""
    if not context.options.session.is_old:
        return open_new_session(context, new_id)
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
    from ralph.tools.search.glob_pattern import GlobPattern  # noqa: PLC0415 - few projects have such rules

    try:
        return GlobPattern(pattern).matches(path)
    except ToolError:  # too many braces: a rule too many is better than one too few
        return True

"""Opens a session with its tools, clients and targets. They are made once, before the first request, and stay the same
for all tasks of the run.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.permissions.in_force import RulesInForce
from ralph.prompt.judged_file import Place, user_folder
from ralph.prompt.memory import read_memory, shown_paths
from ralph.prompt.nested_memory import NestedMemory
from ralph.run.permission_rules import build_guards, patterns_of_tools
from ralph.run.session import OpenSession, open_new_session
from ralph.run.wiring import (
    begin_sandbox_trial,
    build_clients,
    build_report_form,
    build_roster,
    build_toolbox,
    find_library,
    open_turn_lock,
    plan_sandbox,
    refuse_uncountable_budget,
    search_for_programs,
    with_sandbox_limits,
)
from ralph.sandbox.box_plan import CannotConfineError, refuse_owners_work, with_denied_reads
from ralph.settings.merge import SettingsError, refuse_resumed
from ralph.values.events import Notice
from ralph.values.tool_calls import ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.api.target_clients import TargetClients
    from ralph.conversation.session import Session
    from ralph.mcp.ports import ServerGroup
    from ralph.mcp.toolset import McpToolset
    from ralph.permissions.claude_settings import HookCommand
    from ralph.prompt.commands import Library
    from ralph.prompt.memory import MemoryFile
    from ralph.prompt.skills import SkillList
    from ralph.retry.roster import Roster
    from ralph.run.options import RunOptions
    from ralph.run.permission_rules import RunGuards
    from ralph.run.wiring import Surroundings
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sessions.turn_lock import FileTurnLock
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.controls import RunControls
    from ralph.values.ports import Clock, Events
    from ralph.values.report import ReportForm
    from ralph.values.tool_calls import ToolDefinition


class RuleParts(Struct, frozen=True):
    """The permission rules, and the commands and skills that these rules let ralph read."""

    guards: RunGuards
    kept_patterns: Mapping[str, tuple[str, ...]]
    """The tool lists with patterns that the journal records for this run."""
    library: Library
    in_force: RulesInForce


class ToolParts(Struct, frozen=True):
    toolbox: LocalToolbox
    mcp: McpToolset | None
    plan: BoxPlan
    """The sandbox of commands."""
    writable: tuple[str, ...]
    """The directories outside of the working directory in which tools may write."""
    report_form: ReportForm | None
    about_hooks: tuple[str, ...] = ()
    """Notices about hooks that will not find what they name."""
    guards: Mapping[str, str] = {}
    """The files of hooks that commands could change, each with the digest of its content when the run or its loop began."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools of requests, with the tool for the final report if there is one."""
        return (*self.toolbox.definitions, *(() if self.report_form is None else (self.report_form.tool,)))

    @property
    def about_sandbox(self) -> str:
        """The sentence about the sandbox for the model. Empty if there is nothing to say."""
        has_commands = any(tool.name == "Bash" for tool in self.toolbox.definitions)
        return self.plan.sentence_for_model(len(self.writable)) if has_commands else ""


class TargetParts(Struct, frozen=True):
    """The targets, and the parts of their system prompt."""

    roster: Roster
    notices: tuple[str, ...]
    """Notices for people about the targets, the instruction files and the skills."""
    memory_files: tuple[MemoryFile, ...]
    memory: dict[str, str]
    """The files whose instructions are in the system prompt, as in RunStarted. Empty for a resumed session, which
    keeps its system prompt and reads no such files."""
    skills: tuple[str, ...]
    """The names of the skills in the system prompt."""
    nested: NestedMemory
    """The instructions for places that tools touch."""


class RunParts(Struct, frozen=True):
    options: RunOptions
    around: Surroundings
    controls: RunControls
    turn_lock: FileTurnLock | None
    clients: TargetClients
    session: OpenSession
    rules: RuleParts
    tools: ToolParts
    after_kill: str
    """A notice about protected files that have changed since an earlier run was killed, or an empty string."""
    targets: TargetParts


def open_parts(
    options: RunOptions,
    around: Surroundings,
    controls: RunControls,
    new_id: str,
    *,
    has_prompt: bool,
    of_driver: ServerGroup | None = None,
) -> RunParts:
    """Opens the session and all that belongs to it. `of_driver` are the MCP servers in a driver's own process.

    Raises SettingsError, WorkingDirectoryGoneError, UsageError or CannotError. What was opened before the error is
    closed again.
    """
    guards = build_guards(around, options, controls)
    if guards.mode is not None:
        controls.permission_mode = guards.mode
    with ExitStack() as opened:
        turn_lock = open_turn_lock(around)
        if turn_lock is not None:
            opened.callback(turn_lock.close)
        if guards.sandbox:
            around = with_sandbox_limits(around, guards.sandbox)
        # The servers and the sandbox take long, so that they begin first.
        mcp = _build_mcp(around, controls, of_driver, options.writable)
        if mcp is not None:
            opened.callback(mcp.close)
        begin_sandbox_trial(around, options.writable)
        clients = build_clients(around)
        opened.callback(clients.close)
        plan = plan_sandbox(around, options.writable)
        session = _open_session(options, around, new_id, has_prompt=has_prompt)
        opened.callback(session.journal.close)
        rules = _make_rules(options, around, controls, guards=guards, old=session.old, plan=plan)
        tools = _open_tools(options, around, controls, rules=rules, old=session.old, plan=plan, mcp=mcp)
        opened.callback(_close_tools, tools.toolbox, around.events)
        after_kill = tools.toolbox.about_killed_run()
        targets = _make_targets(options, around, rules, tools, session.old)
        opened.pop_all()
    if session.old is not None:
        _continue_from(session.old, targets.roster, clients, tools.toolbox, around.clock)
    return RunParts(
        *(options, around, controls, turn_lock, clients, session, rules, tools, after_kill, targets)
    )


def _make_rules(
    options: RunOptions,
    around: Surroundings,
    controls: RunControls,
    *,
    guards: RunGuards,
    old: Session | None,
    plan: BoxPlan,
) -> RuleParts:
    """The rules of the run, with the tool lists of the session that it resumes, unless the command line selects tools
    again.
    """
    kept = {} if old is None or options.names_tools else old.tool_patterns
    if kept:
        guards = build_guards(around, options, controls, kept)
    patterns = _patterns_to_keep(patterns_of_tools(around), kept)
    return RuleParts(
        guards, patterns, find_library(around, options, plan, guards.judge), RulesInForce(guards.judge)
    )


def _patterns_to_keep(
    own: Mapping[str, tuple[str, ...]], kept: Mapping[str, tuple[str, ...]]
) -> Mapping[str, tuple[str, ...]]:
    """The run's own tool lists, with those that it takes over from the session that it resumes."""
    if not kept:
        return own
    disallowed = dict.fromkeys((*own.get("disallowed", ()), *kept.get("disallowed", ())))
    return {**own, **kept, **({"disallowed": tuple(disallowed)} if disallowed else {})}


def _open_tools(
    options: RunOptions,
    around: Surroundings,
    controls: RunControls,
    *,
    rules: RuleParts,
    old: Session | None,
    plan: BoxPlan,
    mcp: McpToolset | None,
) -> ToolParts:
    """The tools of the run, with its MCP servers connected. A resumed session keeps its selection of tools and its
    directories, unless the command line selects again.
    """
    writable = options.writable
    if old is not None and writable == around.settings.directories:  # none of the command line
        writable = tuple(dict.fromkeys((*old.writable, *writable)))
    if writable != options.writable:
        config_file = None if options.config_file is None else Path(options.config_file)
        roots = (around.cwd, *map(Path, options.writable))
        refuse_resumed(around.settings, around.environment, roots, config_file, writable)
        plan = plan_sandbox(around, writable)
    if rules.guards.judge is not None and plan.is_confined:
        # What rules deny to read as a whole, commands do not see.
        roots = (around.cwd, *map(Path, writable))
        denied = rules.guards.judge.unreadable_places(tuple(map(str, roots)))
        plan = with_denied_reads(plan, denied.paths, roots, denied.unsearched)
    hook_plan, doubts = _plan_hooks(around, rules.guards.hooks, plan, writable)
    guards = _guarding_files(options, around, rules.guards.hooks, writable)
    toolbox = build_toolbox(
        around,
        options,
        writable=writable,
        plan=plan,
        hook_plan=None if hook_plan is plan else hook_plan,
        guards=guards,
        offered=old.offered_tools if old is not None and not options.names_tools else None,
        mode=controls.permission_mode,
        keeps_list=options.keeps_requests(old, around.settings.targets[0]),
        rules=rules.in_force,
        mcp=mcp,
    )
    with ExitStack() as opened:
        opened.callback(_close_tools, toolbox, around.events)
        if any(tool.name == "Bash" for tool in toolbox.definitions):
            try:
                refuse_owners_work(plan, around.cwd)
            except CannotConfineError as error:
                raise SettingsError(str(error)) from None
        if mcp is not None:
            from ralph.run.servers import connect_servers  # noqa: PLC0415 - few runs have servers

            connect_servers(toolbox)
        tools = ToolParts(
            *(toolbox, mcp, plan, writable, build_report_form(around, options, old, writable), doubts),
            guards=guards,
        )
        opened.pop_all()
    return tools


def _plan_hooks(
    around: Surroundings, hooks: Sequence[HookCommand], plan: BoxPlan, writable: Sequence[str]
) -> tuple[BoxPlan, tuple[str, ...]]:
    """The sandbox of hooks, and notices about them. Raises SettingsError."""
    if not (hooks and plan.is_confined):
        return plan, ()
    from ralph.run.hook_rights import doubts, plan_hooks  # noqa: PLC0415 - few runs have hooks

    search = search_for_programs(around, writable)
    roots = (around.cwd, *map(Path, writable))
    made = plan_hooks(around.settings, around.environment, hooks, plan, search=search, roots=roots)
    return made, tuple(f"{fact}: {advice}" for fact, advice in doubts(hooks, made, search.roots))


def _guarding_files(
    options: RunOptions, around: Surroundings, hooks: Sequence[HookCommand], writable: Sequence[str]
) -> Mapping[str, str]:
    """As in `ToolParts`, by their paths. Those of the loop count as they were when it began."""
    of_loop = {} if options.of_loop is None else options.of_loop.guards
    if not hooks:
        return of_loop
    from ralph.permissions.hook_answers import GUARDED  # noqa: PLC0415 - few runs have hooks
    from ralph.places.own_commands import guarding_files  # noqa: PLC0415 - few runs have hooks

    guards = [hook.command for hook in hooks if hook.event in GUARDED]
    known = {**around.environment, "CLAUDE_PROJECT_DIR": str(around.cwd)}
    return guarding_files(guards, str(around.cwd), known, search_for_programs(around, writable)) | of_loop


def _close_tools(toolbox: LocalToolbox, events: Events) -> None:
    """Closes the tools of a run that cannot begin. A server may have changed protected files already."""
    undone = toolbox.close()
    if undone:
        events.emit(Notice(undone, is_vital=True))


def _make_targets(
    options: RunOptions, around: Surroundings, rules: RuleParts, tools: ToolParts, old: Session | None
) -> TargetParts:
    user = user_folder(around.environment, around.cwd)
    place = Place("", denied=tools.plan.read_deny, why_not_read=rules.in_force.why_not_read)
    memory = read_memory(around.cwd, user, options.setting_sources, place.denied, place.why_not_read)
    definitions = tools.definitions
    skills = _list_skills(rules.library, definitions)
    names = [tool.name for tool in tools.toolbox.definitions]
    has_new_tools = old is not None and tools.mcp is not None and not old.offered_tools.issuperset(names)
    roster, notices = build_roster(
        *(around, definitions, options, old),
        about_sandbox=tools.about_sandbox,
        memory=memory,
        skills="" if skills is None else skills.text,
        keeps=not has_new_tools,
    )
    # The settings may name another model than the old session.
    refuse_uncountable_budget(roster.targets, around.settings)
    is_new_prompt = has_new_tools or not options.keeps_requests(old, around.settings.targets[0])
    return TargetParts(
        roster,
        (*notices, *(() if skills is None else skills.notices)),
        memory.files,
        shown_paths(memory, around.cwd, around.environment.get("HOME", "")) if is_new_prompt else {},
        skills.names if skills is not None and is_new_prompt else (),
        NestedMemory(around.cwd, memory, options.setting_sources, place, _is_about),
    )


def _is_about(pattern: str, path: str) -> bool:
    """Whether the pattern of a rule matches a relative path, by the rules of .gitignore."""
    from ralph.tools.search.glob_pattern import GlobPattern  # noqa: PLC0415 - few projects have such rules

    try:
        return GlobPattern(pattern).matches(path)
    except ToolError:  # too many braces: a rule too many is better than one too few
        return True


def _build_mcp(
    around: Surroundings, controls: RunControls, of_driver: ServerGroup | None, writable: Sequence[str]
) -> McpToolset | None:
    if not around.settings.mcp_servers and of_driver is None:
        return None
    from ralph.run.servers import build_mcp  # noqa: PLC0415 - few runs have servers

    return build_mcp(around, controls, of_driver, writable)


def _open_session(options: RunOptions, around: Surroundings, new_id: str, *, has_prompt: bool) -> OpenSession:
    """Opens the requested session. If `--continue` finds no session and there is a prompt, opens a new session."""
    wanted, spans_of, writable = options.session, around.redactor.spans, options.writable
    opening = (wanted, new_id, around.cwd, around.environment, around.clock.utc_now())
    if not wanted.is_old:
        return open_new_session(*opening, spans_of=spans_of, writable=writable)
    from ralph.run.old_session import NoSessionError, open_old_session  # noqa: PLC0415 - a new one needs none of it

    try:
        return open_old_session(
            *opening, redactor=around.redactor, settings=around.settings, writable=writable
        )
    except NoSessionError as error:
        if not has_prompt:
            raise
        fresh = open_new_session(*opening, spans_of=spans_of, writable=writable)
        return replace(fresh, notices=(*fresh.notices, f"{error}: a new one begins"))


def _continue_from(
    old: Session, roster: Roster, clients: TargetClients, toolbox: LocalToolbox, clock: Clock
) -> None:
    """Hands over the cooldowns, the servers that have answered and the files that were read."""
    from ralph.run.old_session import take_over_cooldowns  # noqa: PLC0415 - a new one needs none of it

    take_over_cooldowns(roster, old, clock)
    clients.know_answered(old.answered)
    messages = old.conversation.messages
    toolbox.resume_from(old.seen, (one.content for one in messages), old.background.count)


def _list_skills(library: Library, tools: Sequence[ToolDefinition]) -> SkillList | None:
    """The skills to list in the system prompt. None if there are none, or if the model cannot read their files."""
    files = library.skills
    if not files or not any(tool.name == "Read" for tool in tools):
        return None
    from ralph.prompt.skills import list_skills  # noqa: PLC0415 - few projects have skills

    return list_skills(files)

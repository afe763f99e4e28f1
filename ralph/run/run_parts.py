"""Opens a session with its tools, clients and targets. They are made once, before the first request, and stay the same
for all tasks of the run.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.prompt.judged_file import user_folder
from ralph.prompt.memory import read_memory, shown_paths
from ralph.run.permission_rules import build_guards, patterns_of_tools
from ralph.run.session import OpenSession, open_new_session
from ralph.run.wiring import (
    begin_sandbox_trial,
    build_clients,
    build_report_form,
    build_roster,
    build_toolbox,
    close_denied_places,
    find_library,
    open_turn_lock,
    plan_sandbox,
    refuse_uncountable_budget,
    with_sandbox_limits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.api.target_clients import TargetClients
    from ralph.conversation.session import Session
    from ralph.machine.turn_lock import FileTurnLock
    from ralph.mcp.ports import ServerGroup
    from ralph.mcp.toolset import McpToolset
    from ralph.prompt.commands import Library
    from ralph.prompt.memory import Memory, MemoryFile
    from ralph.prompt.skills import SkillList
    from ralph.retry.roster import Roster
    from ralph.run.command_rules import TaskJudge
    from ralph.run.options import RunOptions
    from ralph.run.permission_rules import RunGuards
    from ralph.run.wiring import Surroundings
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.controls import RunControls
    from ralph.values.ports import CallJudge, Clock
    from ralph.values.report import ReportForm
    from ralph.values.tool_calls import ToolDefinition


class RunParts(Struct, frozen=True):
    options: RunOptions
    around: Surroundings
    controls: RunControls
    session: OpenSession
    guards: RunGuards
    kept_patterns: Mapping[str, tuple[str, ...]]
    """The tool lists with patterns that the journal records for this run."""
    library: Library
    task_judge: TaskJudge | None
    """Applies the permission rules of the run and of the current command. None if there are no commands."""
    judge: CallJudge | None
    """Applies the permission rules. None if there are none."""
    turn_lock: FileTurnLock | None
    writable: tuple[str, ...]
    """The directories outside of the working directory in which tools may write."""
    plan: BoxPlan
    """The sandbox of commands."""
    about_sandbox: str
    """The sentence about the sandbox for the model. Empty if there is nothing to say."""
    mcp: McpToolset | None
    toolbox: LocalToolbox
    after_kill: str
    """A notice about protected files that have changed since an earlier run was killed, or an empty string."""
    report_form: ReportForm | None
    clients: TargetClients
    roster: Roster
    notices: tuple[str, ...]
    """Notices for people about the targets, the instruction files and the skills."""
    memory_files: tuple[MemoryFile, ...]
    memory: dict[str, str]
    """The files whose instructions are in the system prompt, as in RunStarted. Empty for a resumed session, which
    keeps its system prompt and reads no such files."""
    skills: tuple[str, ...]
    """The names of the skills in the system prompt."""


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

    Raises SettingsError, WorkingDirectoryGoneError, UsageError or CannotOpenError. What was opened before the error is
    closed again.
    """
    guards = build_guards(around, options, controls)
    if guards.mode is not None:
        controls.permission_mode = guards.mode
    turn_lock = open_turn_lock(around)
    if guards.sandbox:
        around = with_sandbox_limits(around, guards.sandbox)
    with ExitStack() as opened:
        # The servers and the sandbox take long, so that they begin first.
        mcp = _build_mcp(around, controls, of_driver)
        if mcp is not None:
            opened.callback(mcp.close)
        begin_sandbox_trial(around)
        clients = build_clients(around)
        opened.callback(clients.close)
        plan = plan_sandbox(around, options.writable)
        session = _open_session(options, around, new_id, has_prompt=has_prompt)
        opened.callback(session.journal.close)
        old = session.old

        patterns = _patterns_to_keep(options, around, old)
        if old is not None and not options.names_tools and old.tool_patterns:
            guards = build_guards(around, options, controls, old.tool_patterns)
        library = find_library(around, options, plan, guards.judge)
        task_judge = _task_judge(guards.judge) if library.files else None
        judge = task_judge or guards.judge

        writable = options.writable or (old.writable if old is not None else ())
        if writable != options.writable:
            plan = plan_sandbox(around, writable)
        if guards.judge is not None:
            plan = close_denied_places(plan, guards.judge, around.cwd, writable)
        toolbox = _open_toolbox(
            options, around, controls, old, writable=writable, plan=plan, judge=judge, mcp=mcp
        )
        opened.callback(toolbox.close)
        after_kill = toolbox.about_killed_run()
        report_form = build_report_form(around, options, old)

        tools = (*toolbox.definitions, *(() if report_form is None else (report_form.tool,)))
        has_commands = any(tool.name == "Bash" for tool in toolbox.definitions)
        about_sandbox = plan.sentence_for_model(len(writable)) if has_commands else ""
        memory = _read_memory(options, around, plan, guards.judge)
        skills = _list_skills(library, tools)
        names = [tool.name for tool in toolbox.definitions]
        has_new_tools = old is not None and mcp is not None and not old.offered_tools.issuperset(names)
        is_new_prompt = old is None or has_new_tools or options.shapes_requests
        roster, notices = build_roster(
            *(around, tools, options, old),
            about_sandbox=about_sandbox,
            memory=memory,
            skills="" if skills is None else skills.text,
            keeps=not has_new_tools,
        )
        # The settings may name another model than the old session.
        refuse_uncountable_budget(roster.targets, around.settings)
        opened.pop_all()
    if old is not None:
        _continue_from(old, roster, clients, toolbox, around.clock)
    return RunParts(
        options=options,
        around=around,
        controls=controls,
        session=session,
        guards=guards,
        kept_patterns=patterns,
        library=library,
        task_judge=task_judge,
        judge=judge,
        turn_lock=turn_lock,
        writable=writable,
        plan=plan,
        about_sandbox=about_sandbox,
        mcp=mcp,
        toolbox=toolbox,
        after_kill=after_kill,
        report_form=report_form,
        clients=clients,
        roster=roster,
        notices=(*notices, *(() if skills is None else skills.notices)),
        memory_files=memory.files,
        memory=shown_paths(memory, around.cwd, around.environment.get("HOME", "")) if is_new_prompt else {},
        skills=skills.names if skills is not None and is_new_prompt else (),
    )


def _build_mcp(
    around: Surroundings, controls: RunControls, of_driver: ServerGroup | None
) -> McpToolset | None:
    if not around.settings.mcp_servers and of_driver is None:
        return None
    from ralph.run.servers import build_mcp  # noqa: PLC0415 - few runs have servers

    return build_mcp(around, controls, of_driver)


def _open_session(options: RunOptions, around: Surroundings, new_id: str, *, has_prompt: bool) -> OpenSession:
    """Opens the requested session. If `--continue` finds no session and there is a prompt, opens a new session."""
    wanted, now = options.session, around.clock.utc_now()
    if not wanted.is_old:
        return open_new_session(wanted, new_id, around.cwd, around.environment, now)
    from ralph.run.old_session import NoSessionError, open_old_session  # noqa: PLC0415 - a new one needs none of it

    try:
        return open_old_session(wanted, new_id, around.cwd, around.environment, now, settings=around.settings)
    except NoSessionError as error:
        if not has_prompt:
            raise
        fresh = open_new_session(wanted, new_id, around.cwd, around.environment, now)
        return replace(fresh, notices=(*fresh.notices, f"{error}: a new one begins"))


def _task_judge(rules: CallJudge | None) -> TaskJudge:
    from ralph.run.command_rules import TaskJudge  # noqa: PLC0415 - few projects have commands

    return TaskJudge(rules)


def _open_toolbox(
    options: RunOptions,
    around: Surroundings,
    controls: RunControls,
    old: Session | None,
    *,
    writable: tuple[str, ...],
    plan: BoxPlan,
    judge: CallJudge | None,
    mcp: McpToolset | None,
) -> LocalToolbox:
    """The tools of the run, with its MCP servers connected. A resumed session keeps its selection of tools, unless the
    command line selects tools again.
    """
    toolbox = build_toolbox(
        around,
        options,
        writable=writable,
        plan=plan,
        offered=old.offered_tools if old is not None and not options.names_tools else None,
        controls=controls,
        keeps_list=old is not None and not options.shapes_requests,
        judge=judge,
        mcp=mcp,
    )
    if mcp is None:
        return toolbox
    from ralph.run.servers import connect_servers  # noqa: PLC0415 - few runs have servers

    try:
        connect_servers(toolbox)
    except BaseException:
        toolbox.close()
        raise
    return toolbox


def _continue_from(
    old: Session, roster: Roster, clients: TargetClients, toolbox: LocalToolbox, clock: Clock
) -> None:
    """Hands over what the resumed session knows: cooldowns, servers that have answered, files that were read."""
    from ralph.run.old_session import take_over_cooldowns  # noqa: PLC0415 - a new one needs none of it

    take_over_cooldowns(roster, old, clock)
    clients.know_answered(old.answered)
    toolbox.resume_from(old.seen, (one.content for one in old.conversation.messages))


def _patterns_to_keep(
    options: RunOptions, around: Surroundings, old: Session | None
) -> Mapping[str, tuple[str, ...]]:
    """The tool lists of this run with the lists of the session that it resumes. The command line may select tools
    again; then the session's lists are left out.
    """
    own = patterns_of_tools(around)
    if old is None or options.names_tools or not old.tool_patterns:
        return own
    kept = old.tool_patterns
    disallowed = dict.fromkeys((*own.get("disallowed", ()), *kept.get("disallowed", ())))
    return {**own, **kept, **({"disallowed": tuple(disallowed)} if disallowed else {})}


def _read_memory(options: RunOptions, around: Surroundings, plan: BoxPlan, rules: CallJudge | None) -> Memory:
    user = user_folder(around.environment, around.cwd)
    why_not = None if rules is None else rules.why_not_read
    return read_memory(around.cwd, user, options.setting_sources, plan.read_deny, why_not)


def _list_skills(library: Library, tools: Sequence[ToolDefinition]) -> SkillList | None:
    """The skills to list in the system prompt. None if there are none, or if the model cannot read their files."""
    files = library.skills
    if not files or not any(tool.name == "Read" for tool in tools):
        return None
    from ralph.prompt.skills import list_skills  # noqa: PLC0415 - few projects have skills

    return list_skills(files)

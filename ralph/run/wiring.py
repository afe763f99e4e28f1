"""Builds the parts of a run from its settings: tools, clients, targets, and the form of the report. There is one
function for each part. Also makes notices that tell people unexpected facts about a run.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.own_programs import search_around
from ralph.permissions.gate import is_permitted
from ralph.prompt.commands import Library, find_commands
from ralph.prompt.judged_file import user_folder
from ralph.prompt.memory import Memory, PromptParts, system_prompt
from ralph.retry import backoff
from ralph.retry.roster import Roster
from ralph.sandbox.box_plan import CannotConfineError, may_have_overlays, plan_box
from ralph.sandbox.detection import begin_trial
from ralph.settings.merge import SettingsError
from ralph.values.controls import PermissionMode
from ralph.values.credentials import CALLERS_VARIABLES, TURN_LOCK, child_environment, known_secrets
from ralph.values.limits import LimitSettings
from ralph.values.outcome import CannotError, UsageError
from ralph.values.redaction import redacted
from ralph.values.tool_calls import FINAL_REPORT
from ralph.values.tool_choice import TOOL_NAMES, is_pattern, tool_of, without_background

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.agent.task import Prompt
    from ralph.api.target_clients import Keys, TargetClients
    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.machine.own_programs import ProgramSearch
    from ralph.mcp.toolset import McpToolset
    from ralph.retry.backoff import RetryPolicy
    from ralph.run.options import RunOptions
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.sandbox_limits import SandboxLimits
    from ralph.sessions.turn_lock import FileTurnLock
    from ralph.settings.key_programs import ProgramKeys
    from ralph.settings.tables import RetrySettings, Settings
    from ralph.tools.tool_context import ToolSettings
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.ports import Clock, Events, PathRules, Waiter
    from ralph.values.redaction import Redactor
    from ralph.values.report import ReportForm
    from ralph.values.tool_calls import ToolDefinition


class Surroundings(Struct, frozen=True, dict=True):
    """The objects that all parts of one run share."""

    settings: Settings
    environment: Mapping[str, str]
    cwd: Path
    waiter: Waiter
    clock: Clock
    events: Events
    redactor: Redactor
    keys: Keys | None = None
    """The keys that programs print. None if no target has such a program, or if none has been run yet."""

    @cached_property
    def secrets(self) -> frozenset[str]:
        return known_secrets(self.environment, self.settings.secrets)

    @cached_property
    def tools_environment(self) -> dict[str, str]:
        """The environment variables that a tool's process gets."""
        return child_environment(
            {**self.environment, **self.settings.command_variables.plain},
            self.settings.tools.pass_env,
            self.secrets,
            self.settings.key_variables,
        )


def build_toolbox(
    around: Surroundings,
    options: RunOptions,
    *,
    plan: BoxPlan,
    hook_plan: BoxPlan | None = None,
    guards: Iterable[str] = (),
    writable: Sequence[str] = (),
    offered: frozenset[str] | None = None,
    mode: PermissionMode = PermissionMode.BYPASS,
    keeps_list: bool = False,
    rules: PathRules | None = None,
    mcp: McpToolset | None = None,
) -> LocalToolbox:
    """Builds the tools. `plan` is the sandbox of commands, `hook_plan` that of hooks if it is another. `guards` are the files of hooks that commands could change. `mcp` are the tools of MCP
    servers, which are not connected yet. `rules` are the permission rules about paths.

    `offered` holds the names of the tools that the session has offered to the model so far. All other tools are left
    out. If `offered` is None, no tool is left out for this reason. If `keeps_list` is True, the model still sees
    tools that the permission mode forbids, and calls of these tools are refused. If `keeps_list` is False, the model
    does not see them.

    Raises WorkingDirectoryGoneError, or SettingsError for an unusable directory.
    """
    from ralph.tools.toolbox import LocalToolbox  # noqa: PLC0415 - a run that is refused at once needs no tools

    enabled = frozenset(around.settings.enabled_tools)
    if offered is not None:
        enabled &= offered
    if not keeps_list:
        enabled = frozenset(name for name in enabled if is_permitted(mode, name))
    tool_settings = _tool_settings(around, options, enabled, writable, plan)
    agents = (*tool_settings.agents, *map(Path, guards))
    tool_settings = replace(tool_settings, rules=rules, hook_plan=hook_plan, agents=agents)
    try:
        return LocalToolbox(
            tool_settings,
            waiter=around.waiter,
            clock=around.clock,
            redactor=around.redactor,
            mcp=mcp,
        )
    except OSError as error:
        problem = f"cannot work in {error.filename}: {error.strerror}"
        raise SettingsError(problem, from_flag=True) from error


def _tool_settings(
    around: Surroundings,
    options: RunOptions,
    enabled: frozenset[str],
    writable: Sequence[str],
    plan: BoxPlan,
) -> ToolSettings:
    from ralph.tools.tool_context import ToolSettings  # noqa: PLC0415 - comes with the toolbox

    tools = around.settings.tools
    named = (*around.settings.mcp.config, options.claude_settings or "")
    return ToolSettings(
        cwd=around.cwd,
        bash_timeout_s=tools.bash_timeout_s,
        bash_max_timeout_s=tools.bash_max_timeout_s,
        max_output_bytes=tools.max_output_bytes,
        environment=around.tools_environment,
        enabled=enabled,
        writable=tuple(map(Path, writable)),
        user_environment=around.environment,
        configuration=() if options.config_file is None else (Path(options.config_file),),
        agents=tuple(Path(one) for one in named if one.startswith("/")),
        session_directory=options.session.directory,
        is_below_loop=options.of_loop is not None,
        box_plan=plan,
        sandbox=around.settings.sandbox,
    )


def with_sandbox_limits(around: Surroundings, limits: Sequence[tuple[str, SandboxLimits]]) -> Surroundings:
    """The surroundings with the restrictions of settings files for Claude Code, each with the name of its file. Raises
    SettingsError if a restriction cannot be kept.
    """
    from ralph.sandbox.sandbox_limits import restricted  # noqa: PLC0415 - few runs have such a file

    settings = around.settings
    closing = ", ".join(name for name, one in limits if one.read_deny)
    origins = {**settings.origins, **({"sandbox.read_deny": closing} if closing else {})}
    try:
        wanted = restricted(settings.sandbox, limits)
    except CannotConfineError as error:
        raise SettingsError(str(error)) from error
    return replace(around, settings=replace(settings, sandbox=wanted, origins=origins))


def begin_sandbox_trial(around: Surroundings, writable: Sequence[str]) -> None:
    """Starts to test whether bubblewrap works, unless the user wants no sandbox. The test runs while ralph loads the
    HTTP client. `writable` is as in `plan_sandbox`.
    """
    wanted = around.settings.sandbox
    if wanted.mode != "off":
        begin_trial(
            search_for_programs(around, writable),
            shares_network=wanted.asked_net == "full",
            has_overlays=may_have_overlays(wanted, around.environment, (around.cwd, *writable)),
        )


def search_for_programs(around: Surroundings, writable: Sequence[str]) -> ProgramSearch:
    """Where the run looks for ralph's own programs. `writable` is as in `plan_sandbox`."""
    written = around.settings.sandbox.written(around.environment)
    return search_around(around.environment, (around.cwd, *writable), written)


def safe_environment(around: Surroundings, writable: Sequence[str]) -> dict[str, str]:
    """The variables for processes of ralph's own. `writable` is as in `plan_sandbox`."""
    from ralph.machine.own_programs import without_unsafe_loads  # noqa: PLC0415 - few runs have such processes

    return without_unsafe_loads(around.tools_environment, search_for_programs(around, writable))


def program_keys(around: Surroundings, writable: Sequence[str]) -> ProgramKeys:
    """Runs the programs that print keys. `writable` is as in `plan_sandbox`."""
    from ralph.settings.key_programs import ProgramKeys  # noqa: PLC0415 - few users have one

    return ProgramKeys(
        around.environment,
        around.tools_environment,
        search_for_programs(around, writable),
        waiter=around.waiter,
        clock=around.clock,
        events=around.events,
        redactor=around.redactor,
    )


def plan_sandbox(around: Surroundings, writable: Sequence[str]) -> BoxPlan:
    """Decides which sandbox the commands of the run get. `writable` are the directories that commands may write in
    addition to the working directory. Raises SettingsError if a protection that the user requires is impossible here.
    """
    settings = around.settings
    try:
        return plan_box(settings.sandbox, around.environment, (around.cwd, *map(Path, writable)))
    except CannotConfineError as error:
        origin = settings.origins.get("sandbox.read_deny", "default")
        is_about_reading = str(error).startswith("sandbox.read_deny") and origin != "default"
        raise SettingsError(f"{origin}: {error}" if is_about_reading else str(error)) from error


def find_library(
    around: Surroundings,
    options: RunOptions,
    plan: BoxPlan | None = None,
    rules: PathRules | None = None,
) -> Library:
    """Finds the commands and skills of the run. Leaves out files that the sandbox `plan` or the permission rules
    forbid to read.
    """
    if not options.takes_commands:
        return Library()
    user = user_folder(around.environment, around.cwd)
    denied = () if plan is None else plan.read_deny
    return find_commands(
        around.cwd, user, options.setting_sources, denied, None if rules is None else rules.why_not_read
    )


def refuse_unknown_command(around: Surroundings, options: RunOptions, prompt: str) -> None:
    """Raises UsageError if `prompt`, which comes from the command line, calls a command that does not exist."""
    why = find_library(around, options).why_unknown(prompt) if options.takes_commands else None
    if why is not None:
        raise UsageError(why)


def open_turn_lock(around: Surroundings) -> FileTurnLock | None:
    """Opens the lock that another program shares with this run (RALPH_TURN_LOCK). None if no program shares one.
    Raises CannotError if the lock is unusable, because the other program relies on it.
    """
    path = around.environment.get(TURN_LOCK)
    if not path:
        return None
    from ralph.sessions.turn_lock import FileTurnLock, TurnLockError  # noqa: PLC0415 - few runs share a lock

    try:
        return FileTurnLock(path, around.waiter)
    except TurnLockError as error:
        raise CannotError(str(error)) from error


def build_clients(around: Surroundings) -> TargetClients:
    """Builds the clients. Raises SettingsError for an unusable CA file, endpoint or proxy."""
    from ralph.api.target_clients import Connecting, TargetClients  # noqa: PLC0415 - takes most of the start-up time

    settings = around.settings
    ca_file = str(settings.model.ca_file) if settings.model.ca_file is not None else None
    clients = TargetClients(
        Connecting(
            ca_file,
            limits=settings.clocks,
            waiter=around.waiter,
            clock=around.clock,
            redact=around.redactor.redact_all,
            keys=around.keys,
        )
    )
    try:
        clients.prepare(settings.targets[0])
    except OSError as error:  # `from error` lets the caller recognise a shortage of descriptors
        raise SettingsError(f"cannot use the CA file {ca_file}: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return clients


def redacted_prompt(prompt: Prompt | None, redactor: Redactor) -> Prompt | None:
    """The prompt, in which each known credential is replaced. A user who pastes a credential into a task does not
    mean to send it to the API.
    """
    if prompt is None or isinstance(prompt, str):
        return prompt and redactor.redact(prompt)
    return [redacted(block, redactor.redact) for block in prompt]


def text_of_prompt(prompt: Prompt | None) -> str:
    """The text of a prompt that is a text or a single text block. Empty for any other prompt."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    is_text = len(prompt) == 1 and prompt[0].get("type") == "text"
    return str(prompt[0].get("text", "")) if is_text else ""


def build_report_form(
    around: Surroundings, options: RunOptions, old: Session | None, writable: Sequence[str]
) -> ReportForm | None:
    """The tool with which the model gives its final report, and the validator of its arguments. None if no report is
    required. If the options request no report, the report tool in the old session's requests is used. `writable` is as
    in `plan_sandbox`.
    """
    offered = old.offered_tool(FINAL_REPORT) if old is not None else None
    if options.report is None and offered is None:
        return None
    from ralph.agent.report_tool import has_payload, report_tool  # noqa: PLC0415 - most runs need none
    from ralph.values.report import ReportForm, plain_problems  # noqa: PLC0415 - most runs need none

    requested = options.report
    tool = (
        offered
        if requested is None
        else report_tool(redacted(requested.payload_schema, around.redactor.redact))
    )
    assert tool is not None  # noqa: S101 - one of the two is there
    if not has_payload(tool):
        return ReportForm(tool, plain_problems, has_payload=False)
    from ralph.run.report_check import ReportCheck  # noqa: PLC0415 - few runs have a schema

    check = ReportCheck(
        tool.input_schema,
        waiter=around.waiter,
        clock=around.clock,
        environment=safe_environment(around, writable),
    )
    return ReportForm(tool, check, has_payload=True)


def build_roster(
    around: Surroundings,
    tools: tuple[ToolDefinition, ...],
    options: RunOptions,
    old: Session | None,
    *,
    about_sandbox: str = "",
    memory: Memory | None = None,
    skills: str = "",
    keeps: bool = True,
) -> tuple[Roster, tuple[str, ...]]:
    """Returns the targets of the run, and notices about the targets and about instruction files. A target is a model
    at a server.

    The requests of a resumed session keep the form of its earlier requests, unless the command line changes them.
    `keeps` is False if the run has tools that the session has not offered before. The system prompt of a new session
    contains `about_sandbox`, which tells the model about the sandbox of its commands. It also contains the
    instructions in `memory`, if that is not None, and the section `skills`.
    """
    settings = around.settings
    keeps = keeps and options.keeps_requests(old, settings.targets[0])
    memory = memory or Memory()
    prompt = _system_prompt(around, options, about_sandbox, memory, skills=skills)
    targets = settings.targets
    is_implicit = settings.origins.get("targets", "default") == "default"
    if old is not None and keeps and is_implicit:
        targets = _of_the_session(targets, old)
    roster = Roster(
        targets,
        system=around.redactor.redact(prompt),
        tools=tools,
        strategy=settings.retry.strategy,
        returns=settings.retry.revert == "cooldown-expiry",
        recorded=old.shapes if old is not None and keeps else {},
        can_grow=is_implicit,
        aliases=settings.aliases,
    )
    return roster, (*memory.notices, *roster_notices(roster, targets, old))


def _system_prompt(
    around: Surroundings, options: RunOptions, about_sandbox: str, memory: Memory, *, skills: str
) -> str:
    parts = PromptParts(
        cwd=str(around.cwd),
        platform=os.uname().sysname,
        replacement=options.system_prompt,
        appendix=options.append_system_prompt,
        memory=memory.files,
        skills=skills,
        sandbox=about_sandbox,
    )
    return system_prompt(parts)


def _of_the_session(targets: tuple[Target, ...], old: Session) -> tuple[Target, ...]:
    """The targets for a resumed session. The first target gets the name and the model of the session's first target.
    Any other target with the same model is left out.
    """
    model = old.shapes[old.first].model
    first = replace(targets[0], name=old.first, model=model)
    return (first, *(target for target in targets[1:] if target.model != model))


def refuse_uncountable_budget(targets: Iterable[Target], settings: Settings) -> None:
    """Raises SettingsError if a budget is set that cannot be enforced with these targets."""
    for target in targets:
        problem = why_uncountable(target, settings)
        if problem is not None:
            raise SettingsError(problem)


def why_uncountable(target: Target, settings: Settings) -> str | None:
    """The reason why the budget cannot be enforced with this target, with advice. None if the budget can be enforced,
    or if there is no budget.
    """
    is_priced = target.facts is not None and target.facts.price is not None
    if settings.limits.max_budget_usd is None or is_priced:
        return None
    key = "limits.max_budget_usd"
    name = "--max-budget-usd" if settings.origins.get(key, "").startswith("flag") else key
    model = json.dumps(target.model)
    return (
        f"{name} cannot be kept: the price of {target.model} is not known. Say it in a [[targets]] entry of your "
        f"config.toml: name = {model}, model = {model}, price = {{ input = ..., output = ..., cache_write = ..., "
        "cache_read = ... } (USD per million tokens)"
    )


def run_policy(retry: RetrySettings, speed: float) -> RetryPolicy:
    """The retry policy that the settings choose, with its waits divided by `speed`."""
    policy = retry_policy(retry)
    return policy if speed == 1.0 else backoff.sped_up(policy, speed)


def retry_policy(retry: RetrySettings) -> RetryPolicy:
    """The retry policy that the settings choose.

    If the policy is `off`, returns the standard policy, because a driver may switch retries on.
    """
    match retry.policy:
        case "patient":
            return backoff.patient()
        case "custom":
            return backoff.custom(retry.max_retries, retry.base_delay_s, retry.max_delay_s)
        case _:
            return backoff.standard()


def roster_notices(roster: Roster, targets: Sequence[Target], old: Session | None) -> Iterator[str]:
    """Notices about requests that differ from the requests of the old session, and about an effort setting that is
    not sent. `old` is the session that the run resumes, or None.
    """
    for name in roster.changed:
        yield f"{name}: requests change from here on, as the settings ask for something else than before"
    yield from _lost_notice(roster, old)
    yield from _effort_notices(targets)


def _lost_notice(roster: Roster, old: Session | None) -> tuple[str, ...]:
    """A notice about the old session's targets that this run does not have. The run cannot fall back to these
    targets.
    """
    models = {target.model for target in roster.targets}
    known = old.shapes.items() if old is not None else ()
    lost = [name for name, shape in known if name not in roster.names and shape.model not in models]
    if not lost:
        return ()
    names = ", ".join(lost)
    return (
        f"asked in this session before, and not in this run: {names} (--config or --fallback-model would add it)",
    )


def no_limit_notice(settings: Settings) -> tuple[str, ...]:
    """A notice if the user has set no limit. Nobody watches an unattended run, so it could go on without end."""
    if settings.limits != LimitSettings():
        return ()
    return ("no limit is set: this run goes on until it is done (--max-time 2h would end it)",)


def tools_notice(
    around: Surroundings, names: Sequence[str], mode: PermissionMode, patterns: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """A notice that lists the usable tools with their patterns, and says why the others are missing. Empty if every call
    of every tool may run.

    `names` are the tools that the run offers to the model. The permission mode `mode` may forbid some of them.
    `patterns` are the lists of tools with patterns (`patterns_of_tools`).
    """
    usable = [name for name in names if is_permitted(mode, name)]
    if set(usable).issuperset(TOOL_NAMES) and not patterns:
        return ()
    limits = around.settings.enabled_tools
    origin = around.settings.origins["tools"]
    is_narrowed = len(limits) < len(TOOL_NAMES) or (patterns and origin != "default")
    why = [origin] if is_narrowed else []
    if not all(is_permitted(mode, name) for name in limits):
        why.append(f"permission mode {mode}")
    if {name for name in limits if is_permitted(mode, name)} - set(usable) or not why:
        why.append("as the session had them before; --tools default gives all of them")
    allowed = patterns.get("allowed", ())
    shown = [entry for name in without_background(usable) for entry in _entries_of(name, allowed)]
    never = [entry for entry in patterns.get("disallowed", ()) if tool_of(entry) in usable]
    listed = ", ".join(shown) or "none"
    if never:
        listed += f", but not {', '.join(never)}"
    return (f"tools of this run: {listed} ({'; '.join(why)})",)


def _entries_of(tool: str, allowed: Sequence[str]) -> Sequence[str]:
    """The entries for one tool in a list of allowed tools: the tool's patterns, or the tool's name if all its calls
    are allowed.
    """
    entries = [entry for entry in allowed if tool_of(entry) == tool]
    return entries if entries and all(map(is_pattern, entries)) else [tool]


def withheld_notice(around: Surroundings) -> tuple[str, ...]:
    """A notice that names environment variables which tools do not get. Without the notice, users would not know why
    a command that needs such a variable fails.
    """
    given = around.environment.keys() | around.settings.command_variables.plain.keys()
    withheld = given - around.tools_environment.keys()
    names = sorted(name for name in withheld - CALLERS_VARIABLES if not name.startswith("ANTHROPIC_"))
    if not names:
        return ()
    listed = ", ".join(names)
    return (f"kept from tools, as they look like credentials: {listed} (--pass-env NAME lets one through)",)


def _effort_notices(targets: Sequence[Target]) -> Iterator[str]:
    """Notices about models that are known to refuse the effort setting, so that ralph does not send it to them."""
    for target in targets:
        if target.effort is not None and target.facts is not None and not target.facts.takes_effort:
            yield f"{target.model} takes no effort setting; it is left out"

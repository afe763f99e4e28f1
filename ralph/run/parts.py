"""The context that all parts of one run share, and the parts made from it: sandbox, tools, clients, targets, and the form
of the report. One function for each part. Also makes notices that tell people unexpected facts about a run.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.machine.connecting import choose_address
from ralph.machine.own_programs import ProgramSearch, search_around, without_unsafe_loads
from ralph.permissions.gate import RuleVerdict, is_covered, is_permitted
from ralph.prompt.commands import Library, find_commands
from ralph.prompt.judged_file import user_folder
from ralph.prompt.memory import Memory, PromptParts, system_prompt
from ralph.retry import backoff
from ralph.retry.targets import Roster
from ralph.run.options import RunOptions
from ralph.sandbox.box_plan import BoxPlan, CannotConfineError
from ralph.sandbox.detection import begin_trial
from ralph.sandbox.planning import may_have_overlays, plan_box, restricted
from ralph.settings.merge import SettingsError
from ralph.tools.tool_context import ToolSettings
from ralph.tools.toolbox import LocalToolbox
from ralph.values.answer import FINAL_REPORT, ToolDefinition
from ralph.values.controls import PermissionMode, RunControls
from ralph.values.credentials import CALLERS_VARIABLES, child_environment, known_secrets
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import WORKING_DIRECTORY_GONE
from ralph.values.redaction import Redactor, redacted
from ralph.values.tool_choice import TOOL_NAMES, is_pattern, tool_of, without_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.api.client import Keys, TargetClients
    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.mcp.toolset import McpToolset
    from ralph.permissions.claude_settings import HookCommand
    from ralph.permissions.judge import Permissions
    from ralph.permissions.rule import PermissionRule
    from ralph.retry.backoff import RetryPolicy
    from ralph.settings.key_programs import ProgramKeys
    from ralph.settings.tables import RetrySettings, Settings
    from ralph.values.answer import ToolCall
    from ralph.values.claude_file import SandboxLimits
    from ralph.values.ports import Clock, Events, PathRules, Waiter
    from ralph.values.report import ReportForm


def entered(directory: str | None) -> Path:
    """Changes to the directory, if one is given, and returns the working directory, which tools, files and git use as theirs.
    Raises UsageError, and CannotError if it is gone.
    """
    if directory is not None:
        try:
            os.chdir(directory)
        except OSError as error:
            raise UsageError(f"cannot work in {directory}: {error.strerror}") from error
    try:
        return Path.cwd()
    except OSError:
        raise CannotError(WORKING_DIRECTORY_GONE, Outcome.IO_ERROR) from None


# --- The context
# The context that all parts of one run share: its options, its settings and the ports.


class RunContext(Struct, frozen=True, dict=True):
    settings: Settings
    environment: Mapping[str, str]
    cwd: Path
    waiter: Waiter
    clock: Clock
    events: Events
    redactor: Redactor
    options: RunOptions = RunOptions()
    controls: RunControls = field(default_factory=RunControls)
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

    @property
    def home(self) -> str:
        return self.environment.get("HOME", "")

    def roots(self) -> tuple[Path, ...]:
        """The directories that commands may write, the working directory first."""
        return (self.cwd, *map(Path, self.options.writable))

    @cached_property
    def search_at_start(self) -> ProgramSearch:
        """That of `search` before the first command."""
        return self.search()

    def search(self) -> ProgramSearch:
        """Where the run looks for ralph's own programs. Commands may change which checkouts are around the roots."""
        written = self.settings.sandbox.written(self.environment)
        return search_around(self.environment, self.roots(), written)

    def safe_environment(self) -> dict[str, str]:
        """The variables for processes of ralph's own."""
        return without_unsafe_loads(self.tools_environment, self.search())

    def with_sandbox_limits(self, limits: Sequence[tuple[str, SandboxLimits]]) -> RunContext:
        """The context with the restrictions of settings files for Claude Code, each with the name of its file. Raises
        SettingsError if a restriction cannot be kept.
        """
        closing = ", ".join(name for name, one in limits if one.read_deny)
        origins = {**self.settings.origins, **({"sandbox.read_deny": closing} if closing else {})}
        try:
            wanted = restricted(self.settings.sandbox, limits)
        except CannotConfineError as error:
            raise SettingsError(str(error)) from error
        return replace(self, settings=replace(self.settings, sandbox=wanted, origins=origins))


def program_keys(context: RunContext) -> ProgramKeys:
    from ralph.settings.key_programs import ProgramKeys  # noqa: PLC0415 - few users have one

    return ProgramKeys(
        context.environment,
        context.tools_environment,
        context.search(),
        waiter=context.waiter,
        clock=context.clock,
        events=context.events,
        redactor=context.redactor,
    )


# --- The parts


class RunGuards(Struct, frozen=True):
    """The protections that settings files and options require."""

    judge: Permissions | None = None
    """Applies the permission rules. None if there are none."""
    hooks: tuple[HookCommand, ...] = ()
    mode: PermissionMode | None = None
    """The permission mode that a settings file sets, or None."""
    sandbox: tuple[tuple[str, SandboxLimits], ...] = ()
    """The restrictions that settings files require for the sandbox of commands, with the names of the files."""
    notices: tuple[str, ...] = ()
    judge_by: Callable[[PermissionRule, ToolCall], RuleVerdict] = is_covered
    """Judges a call by one rule alone, which the matcher of a hook contains."""


def build_guards(
    context: RunContext, kept: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> RunGuards:
    """Reads the settings files and builds the rules. `kept` contains the tool lists of the session that the run
    resumes. Raises SettingsError for a rule or a hook that ralph cannot apply.
    """
    tools = context.settings.tools
    has_patterns = any(map(is_pattern, (*(tools.allowed or ()), *tools.disallowed)))
    is_narrow = context.controls.permission_mode is PermissionMode.DONT_ASK
    is_asked = bool(has_patterns or is_narrow or context.options.takes_messages or kept)
    if not (is_asked or context.settings.claude_files):
        return RunGuards()
    from ralph.run.permission_rules import built_guards  # noqa: PLC0415 - few runs have rules

    return built_guards(context, kept, is_asked=is_asked)


def patterns_of_tools(context: RunContext) -> dict[str, tuple[str, ...]]:
    """The lists of allowed and of disallowed tools, if they contain patterns such as `Bash(git *)`. The journal
    records these lists.
    """
    tools = context.settings.tools
    lists = {"allowed": tools.allowed or (), "disallowed": tuple(filter(is_pattern, tools.disallowed))}
    return {name: names for name, names in lists.items() if any(map(is_pattern, names))}


def begin_sandbox_trial(context: RunContext) -> None:
    """Starts to test whether bubblewrap works, unless the user wants no sandbox. The test runs while ralph loads the
    HTTP client.
    """
    wanted = context.settings.sandbox
    if wanted.mode != "off":
        begin_trial(
            context.search_at_start,
            shares_network=wanted.asked_net == "full",
            has_overlays=may_have_overlays(wanted, context.environment, context.roots()),
        )


def plan_sandbox(context: RunContext) -> BoxPlan:
    """Decides which sandbox the commands of the run get. Raises SettingsError if a protection that the user requires is
    impossible here.
    """
    settings = context.settings
    try:
        return plan_box(settings.sandbox, context.environment, context.roots(), context.search_at_start)
    except CannotConfineError as error:
        origin = settings.origins.get("sandbox.read_deny", "default")
        is_about_reading = str(error).startswith("sandbox.read_deny") and origin != "default"
        raise SettingsError(f"{origin}: {error}" if is_about_reading else str(error)) from error


def build_toolbox(
    context: RunContext,
    *,
    plan: BoxPlan,
    hook_plan: BoxPlan | None = None,
    guards: Iterable[str] = (),
    writable: Sequence[str] = (),
    offered: frozenset[str] | None = None,
    keeps_list: bool = False,
    rules: PathRules | None = None,
    mcp: McpToolset | None = None,
) -> LocalToolbox:
    """Builds the tools. `plan` is the sandbox of commands, `hook_plan` that of hooks if it is another. `guards` are the
    files of hooks that commands could change. `mcp` are the tools of MCP servers, which are not connected yet. `rules`
    are the permission rules about paths.

    `offered` holds the names of the tools that the session has offered to the model so far: all others are left out. If
    `keeps_list` is True, the model still sees tools that the permission mode forbids, and calls of these are refused.

    Raises WorkingDirectoryGoneError, or SettingsError for an unusable directory.
    """
    options, settings, tools = context.options, context.settings, context.settings.tools
    enabled = frozenset(settings.enabled_tools)
    if offered is not None:
        enabled &= offered
    if not keeps_list:
        mode = context.controls.permission_mode
        enabled = frozenset(name for name in enabled if is_permitted(mode, name))
    named = (*settings.mcp.config, options.claude_settings or "")
    agents = (*(one for one in named if one.startswith("/")), *guards)
    tool_settings = ToolSettings(
        cwd=context.cwd,
        bash_timeout_s=tools.bash_timeout_s,
        bash_max_timeout_s=tools.bash_max_timeout_s,
        max_output_bytes=tools.max_output_bytes,
        environment=context.tools_environment,
        enabled=enabled,
        writable=tuple(map(Path, writable)),
        user_environment=context.environment,
        configuration=() if options.config_file is None else (Path(options.config_file),),
        agents=tuple(map(Path, agents)),
        session_directory=options.session.directory,
        is_below_loop=options.of_loop is not None,
        box_plan=plan,
        hook_plan=hook_plan,
        sandbox=settings.sandbox,
        rules=rules,
    )
    try:
        waiter, clock, redactor = context.waiter, context.clock, context.redactor
        return LocalToolbox(tool_settings, waiter=waiter, clock=clock, redactor=redactor, mcp=mcp)
    except OSError as error:
        problem = f"cannot work in {error.filename}: {error.strerror}"
        raise SettingsError(problem, from_flag=True) from error


def find_library(context: RunContext, plan: BoxPlan | None = None, rules: PathRules | None = None) -> Library:
    """Finds the commands and skills of the run. Leaves out files that the sandbox `plan` or the permission rules
    forbid to read.
    """
    if not context.options.takes_commands:
        return Library()
    return find_commands(
        context.cwd,
        user_folder(context.environment, context.cwd),
        context.options.setting_sources,
        () if plan is None else plan.read_deny,
        None if rules is None else rules.why_not_read,
    )


def build_clients(context: RunContext) -> TargetClients:
    """Builds the clients. Raises SettingsError for an unusable CA file, endpoint or proxy."""
    from ralph.api.client import HttpSettings, TargetClients  # noqa: PLC0415 - takes most of the start-up time

    settings = context.settings
    ca_file = str(settings.model.ca_file) if settings.model.ca_file is not None else None
    clients = TargetClients(
        HttpSettings(
            ca_file,
            limits=settings.clocks,
            waiter=context.waiter,
            clock=context.clock,
            redact=context.redactor.redact_all,
            keys=context.keys,
        )
    )
    for target in settings.targets:
        choose_address(target.base_url)
    try:
        clients.prepare(settings.targets[0])
    except OSError as error:  # `from error` lets the caller recognise a shortage of descriptors
        raise SettingsError(f"cannot use the CA file {ca_file}: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return clients


def build_report_form(context: RunContext, old: Session | None) -> ReportForm | None:
    """The tool with which the model gives its final report, and the validator of its arguments. None if no report is
    required. If the options request no report, the report tool in the old session's requests is used.
    """
    offered = old.offered_tool(FINAL_REPORT) if old is not None else None
    requested = context.options.report
    if requested is None and offered is None:
        return None
    from ralph.run.report_check import report_form  # noqa: PLC0415 - most runs need none

    return report_form(
        offered if requested is None else None,
        None if requested is None else redacted(requested.payload_schema, context.redactor.redact),
        waiter=context.waiter,
        clock=context.clock,
        environment=context.safe_environment(),
    )


def build_roster(
    context: RunContext,
    tools: tuple[ToolDefinition, ...],
    old: Session | None,
    *,
    about_sandbox: str = "",
    memory: Memory | None = None,
    skills: str = "",
    keeps: bool = True,
) -> tuple[Roster, tuple[str, ...]]:
    """The targets of the run, and notices about them and about instruction files. A target is a model at a server.

    The requests of a resumed session keep the form of its earlier requests, unless the command line changes them.
    `keeps` is False if the run has tools that the session has not offered before. The system prompt of a new session
    contains `about_sandbox`, which tells the model about the sandbox of its commands, the instructions in `memory`, and
    the section `skills`.
    """
    settings, options, targets = context.settings, context.options, context.settings.targets
    keeps = keeps and options.keeps_requests(old, targets[0])
    memory = memory or Memory()
    prompt = PromptParts(
        cwd=str(context.cwd),
        platform=os.uname().sysname,
        replacement=options.system_prompt,
        appendix=options.append_system_prompt,
        memory=memory.files,
        skills=skills,
        sandbox=about_sandbox,
    )
    is_implicit = settings.origins.get("targets", "default") == "default"
    if old is not None and keeps and is_implicit:
        # The first target is the session's first one. Any other target with the same model is left out.
        model = old.shapes[old.first].model
        others = (target for target in targets[1:] if target.model != model)
        targets = (replace(targets[0], name=old.first, model=model), *others)
    roster = Roster(
        targets,
        system=context.redactor.redact(system_prompt(prompt)),
        tools=tools,
        strategy=settings.retry.strategy,
        returns=settings.retry.revert == "cooldown-expiry",
        recorded=old.shapes if old is not None and keeps else {},
        can_grow=is_implicit,
        aliases=settings.aliases,
    )
    return roster, (*memory.notices, *_roster_notices(roster, targets, old))


def _roster_notices(roster: Roster, targets: Sequence[Target], old: Session | None) -> Iterator[str]:
    """Notices about requests that differ from the requests of the old session, about its targets that this run cannot
    fall back to, and about an effort setting that a model is known to refuse.
    """
    for name in roster.changed:
        yield f"{name}: requests change from here on, because the settings have changed"
    models = {target.model for target in roster.targets}
    known = old.shapes.items() if old is not None else ()
    lost = [name for name, shape in known if name not in roster.names and shape.model not in models]
    if lost:
        names = ", ".join(lost)
        yield f"targets of this session that this run does not have: {names} (add them with --config or --fallback-model)"
    for target in targets:
        if target.effort is not None and target.facts is not None and not target.facts.takes_effort:
            yield f"{target.model} takes no effort setting; ralph leaves it out"


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
    """The retry policy that the settings choose, with its waits divided by `speed`. If the policy is `off`, it is the
    standard one, because a driver may switch retries on.
    """
    match retry.policy:
        case "patient":
            policy = backoff.patient()
        case "custom":
            policy = backoff.custom(retry.max_retries, retry.base_delay_s, retry.max_delay_s)
        case _:
            policy = backoff.standard()
    return policy if speed == 1.0 else backoff.sped_up(policy, speed)


def tools_notice(
    context: RunContext, names: Sequence[str], patterns: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """A notice that lists the usable tools with their patterns, and says why the others are missing. Empty if every call
    of every tool may run.

    `names` are the tools that the run offers to the model. The permission mode may forbid some of them. `patterns` are
    the lists of tools with patterns (`patterns_of_tools`).
    """
    mode, limits = context.controls.permission_mode, context.settings.enabled_tools
    usable = [name for name in names if is_permitted(mode, name)]
    if set(usable).issuperset(TOOL_NAMES) and not patterns:
        return ()
    origin = context.settings.origins["tools"]
    is_narrowed = len(limits) < len(TOOL_NAMES) or (patterns and origin != "default")
    why = [origin] if is_narrowed else []
    if not all(is_permitted(mode, name) for name in limits):
        why.append(f"permission mode {mode}")
    if {name for name in limits if is_permitted(mode, name)} - set(usable) or not why:
        why.append("as in the session so far; --tools default gives all")
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


def withheld_notice(context: RunContext) -> tuple[str, ...]:
    """A notice that names environment variables which tools do not get. Without the notice, users would not know why
    a command that needs such a variable fails.
    """
    given = context.environment.keys() | context.settings.command_variables.plain.keys()
    withheld = given - context.tools_environment.keys()
    names = sorted(name for name in withheld - CALLERS_VARIABLES if not name.startswith("ANTHROPIC_"))
    if not names:
        return ()
    return (
        f"not passed to tools because they look like credentials: {', '.join(names)} (--pass-env NAME passes one)",
    )

"""Build what a run needs from the settings: tools, clients, whom to ask. One function each, no decisions."""

from __future__ import annotations

import json
import platform
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.output.shown_object import redacted
from ralph.prompt.project_instructions import read_project_instructions
from ralph.prompt.system_prompt import PromptParts, system_prompt
from ralph.retry import backoff
from ralph.retry.roster import Roster
from ralph.settings.merge import SettingsError
from ralph.values.controls import RunControls
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.limits import LimitSettings
from ralph.values.permission_mode import is_permitted
from ralph.values.tool_calls import FINAL_REPORT
from ralph.values.tool_choice import TOOL_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.agent.task import Prompt
    from ralph.api.target_clients import TargetClients
    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.retry.backoff import RetryPolicy
    from ralph.run.options import RunOptions
    from ralph.settings.merge import RetrySettings, Settings
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.permission_mode import PermissionMode
    from ralph.values.ports import Clock, Events, Waiter
    from ralph.values.redaction import Redactor
    from ralph.values.report import ReportForm
    from ralph.values.tool_calls import ToolDefinition


class Surroundings(Struct, frozen=True, dict=True):
    """The parts that every effect of one run shares."""

    settings: Settings
    environment: Mapping[str, str]
    cwd: Path
    waiter: Waiter
    clock: Clock
    events: Events

    @cached_property
    def secrets(self) -> frozenset[str]:
        return known_secrets(self.environment, self.settings.secrets)

    @cached_property
    def tools_environment(self) -> dict[str, str]:
        """The environment that a tool's process may see."""
        return child_environment(
            self.environment, self.settings.tools.pass_env, self.secrets, self.settings.key_variables
        )


def build_toolbox(
    around: Surroundings,
    redactor: Redactor,
    options: RunOptions,
    *,
    writable: Sequence[str] = (),
    offered: frozenset[str] | None = None,
    controls: RunControls | None = None,
    keeps_list: bool = False,
) -> LocalToolbox:
    """`offered`: what the requests of the session have offered so far; None: it does not matter.

    `keeps_list`: the requests keep their list of tools, so that the permission mode refuses calls; else it
    leaves tools out.

    Raises WorkingDirectoryGoneError, and SettingsError for a directory that cannot be worked in.
    """
    from ralph.tools.tool_room import ToolSettings  # noqa: PLC0415 - near the request
    from ralph.tools.toolbox import LocalToolbox  # noqa: PLC0415 - near the request

    tools, controls = around.settings.tools, controls or RunControls()
    enabled = frozenset(around.settings.enabled_tools)
    if offered is not None:
        enabled &= offered
    if not keeps_list:
        enabled = frozenset(name for name in enabled if is_permitted(controls.permission_mode, name))
    try:
        return LocalToolbox(
            ToolSettings(
                cwd=around.cwd,
                bash_timeout_s=tools.bash_timeout_s,
                bash_max_timeout_s=tools.bash_max_timeout_s,
                max_output_bytes=tools.max_output_bytes,
                environment=around.tools_environment,
                enabled=enabled,
                writable=tuple(map(Path, writable)),
                user_environment=around.environment,
                configuration=() if options.config_file is None else (Path(options.config_file),),
                session_directory=options.session.directory,
                is_below_loop=options.is_iteration,
            ),
            waiter=around.waiter,
            clock=around.clock,
            redact=redactor.redact,
            redact_longest=redactor.longest_bytes,
            why_refused=controls.why_refused,
        )
    except OSError as error:
        problem = f"cannot work in {error.filename}: {error.strerror}"
        raise SettingsError(problem, from_flag=True) from error


def build_clients(around: Surroundings, redactor: Redactor) -> TargetClients:
    """Raises SettingsError for a CA file, an endpoint or a proxy that cannot be used."""
    # Late, because they cost most of the start-up time and nothing before needs them.
    from ralph.api.target_clients import Connecting, TargetClients  # noqa: PLC0415

    settings = around.settings
    ca_file = str(settings.model.ca_file) if settings.model.ca_file is not None else None
    clients = TargetClients(
        Connecting(
            ca_file,
            limits=settings.clocks,
            waiter=around.waiter,
            clock=around.clock,
            redact=redactor.redact_all,
        )
    )
    try:
        clients.prepare(settings.targets[0])
    except OSError as error:  # a shortage of descriptors is told by who looks at the cause
        raise SettingsError(f"cannot use the CA file {ca_file}: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return clients


def redacted_prompt(prompt: Prompt | None, redactor: Redactor) -> Prompt | None:
    """The prompt without known credentials: whoever pastes one into a task, or links one in, has not meant it
    for the API.
    """
    if prompt is None or isinstance(prompt, str):
        return prompt and redactor.redact(prompt)
    return [redacted(block, redactor.redact) for block in prompt]


def build_report_form(
    around: Surroundings, redactor: Redactor, options: RunOptions, old: Session | None
) -> ReportForm | None:
    """The form of the final report: as requested now, else as in the session's requests. None: no report is
    required.
    """
    offered = old.offered_tool(FINAL_REPORT) if old is not None else None
    if options.report is None and offered is None:
        return None
    from ralph.agent.report_tool import has_payload, report_tool  # noqa: PLC0415 - the same
    from ralph.values.report import ReportForm, plain_problems  # noqa: PLC0415 - most runs need none

    wish = options.report
    tool = offered if wish is None else report_tool(redacted(wish.payload_schema, redactor.redact))
    assert tool is not None  # noqa: S101 - one of the two is there
    if not has_payload(tool):
        return ReportForm(tool, plain_problems, has_payload=False)
    from ralph.run.report_check import ReportCheck  # noqa: PLC0415 - few runs have a schema

    check = ReportCheck(
        tool.input_schema, waiter=around.waiter, clock=around.clock, environment=around.tools_environment
    )
    return ReportForm(tool, check, has_payload=True)


def build_roster(
    around: Surroundings,
    redactor: Redactor,
    tools: tuple[ToolDefinition, ...],
    options: RunOptions,
    old: Session | None,
) -> tuple[Roster, tuple[str, ...]]:
    """The targets of the run, and notices about requested options that did not fit. A resumed session keeps
    its requests as they were, unless the command line changes them.
    """
    settings = around.settings
    instructions, left_out = read_project_instructions(around.cwd)
    parts = PromptParts(
        cwd=str(around.cwd),
        platform=platform.system(),
        replacement=options.system_prompt,
        appendix=options.append_system_prompt,
        instructions=instructions,
    )
    targets = settings.targets
    keeps = old is not None and not options.shapes_requests
    is_implicit = settings.origins.get("targets", "default") == "default"
    if old is not None and keeps and is_implicit:
        targets = _of_the_session(targets, old)
    roster = Roster(
        targets,
        system=redactor.redact(system_prompt(parts)),
        tools=tools,
        strategy=settings.retry.strategy,
        returns=settings.retry.revert == "cooldown-expiry",
        recorded=old.shapes if old is not None and keeps else {},
        can_grow=is_implicit,
        aliases=settings.aliases,
    )
    cut = [
        f"{instructions.path} was cut: only 32 KB of project instructions are read"
        for instructions in parts.instructions
        if instructions.was_cut
    ]
    changed = [
        f"{name}: requests change from here on, as the settings ask for something else than before"
        for name in roster.changed
    ]
    return roster, (*left_out, *cut, *changed, *_lost_notice(roster, old), *_effort_notices(targets))


def _lost_notice(roster: Roster, old: Session | None) -> tuple[str, ...]:
    """A fallback that is gone is missed when it is needed: say so before."""
    models = {target.model for target in roster.targets}
    known = old.shapes.items() if old is not None else ()
    lost = [name for name, shape in known if name not in roster.names and shape.model not in models]
    if not lost:
        return ()
    names = ", ".join(lost)
    return (
        f"asked in this session before, and not in this run: {names} (--config or --fallback-model would add it)",
    )


def _of_the_session(targets: tuple[Target, ...], old: Session) -> tuple[Target, ...]:
    """The implicit target asks for the model that the session's last run was about."""
    model = old.shapes[old.first].model
    first = replace(targets[0], name=old.first, model=model)
    return (first, *(target for target in targets[1:] if target.model != model))


def no_limit_notice(settings: Settings) -> tuple[str, ...]:
    """Nobody watches: who has set no bound should have heard so."""
    if settings.limits != LimitSettings():
        return ()
    return ("no limit is set: this run goes on until it is done (--max-time 2h would end it)",)


def refuse_uncountable_budget(targets: Iterable[Target], settings: Settings) -> None:
    """A limit that cannot be kept must not seem to be. Raises SettingsError."""
    for target in targets:
        problem = why_uncountable(target, settings)
        if problem is not None:
            raise SettingsError(problem)


def why_uncountable(target: Target, settings: Settings) -> str | None:
    """Why the budget could not be kept with this target, and what helps. None: it can, or there is none."""
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


def tools_notice(around: Surroundings, names: Sequence[str], mode: PermissionMode) -> tuple[str, ...]:
    """A notice about the tools of a run that has not all of them. `names`: the tools that it offers."""
    usable = [name for name in names if is_permitted(mode, name)]
    if len(usable) == len(TOOL_NAMES):
        return ()
    limits = around.settings.enabled_tools
    why = [around.settings.origins["tools"]] if len(limits) < len(TOOL_NAMES) else []
    if not all(is_permitted(mode, name) for name in limits):
        why.append(f"permission mode {mode}")
    if {name for name in limits if is_permitted(mode, name)} - set(usable):
        why.append("as the session had them before; --tools default gives all of them")
    return (f"tools of this run: {', '.join(usable) or 'none'} ({'; '.join(why)})",)


def withheld_notice(around: Surroundings) -> tuple[str, ...]:
    """A command that misses a variable would be a riddle: say which ones stay behind."""
    withheld = around.environment.keys() - around.tools_environment.keys()
    names = sorted(name for name in withheld if not name.startswith("ANTHROPIC_"))
    if not names:
        return ()
    listed = ", ".join(names)
    return (f"kept from tools, as they look like credentials: {listed} (--pass-env NAME lets one through)",)


def run_policy(retry: RetrySettings, speed: float) -> RetryPolicy:
    """The policy that the settings ask for, its waits divided by `speed`."""
    policy = retry_policy(retry)
    return policy if speed == 1.0 else backoff.sped_up(policy, speed)


def retry_policy(retry: RetrySettings) -> RetryPolicy:
    """The retry policy; where retry is off, the one that a driver may switch on."""
    match retry.policy:
        case "patient":
            return backoff.patient()
        case "custom":
            return backoff.custom(retry.max_retries, retry.base_delay_s, retry.max_delay_s)
        case _:
            return backoff.standard()


def _effort_notices(targets: Sequence[Target]) -> Iterator[str]:
    """Notices about requested options that are not sent, because the model is known to refuse them."""
    for target in targets:
        if target.effort is not None and target.facts is not None and not target.facts.takes_effort:
            yield f"{target.model} takes no effort setting; it is left out"

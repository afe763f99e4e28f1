"""Builds the parts of a run from its settings: tools, clients, targets, report form. One function each."""

from __future__ import annotations

import json
import platform
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.output.shown_object import redacted
from ralph.prompt.system_prompt import PromptParts, read_project_instructions, system_prompt
from ralph.retry import backoff
from ralph.retry.roster import Roster
from ralph.run.notices import cut_notices, roster_notices
from ralph.settings.merge import SettingsError
from ralph.values.controls import RunControls
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.permission_mode import is_permitted
from ralph.values.tool_calls import FINAL_REPORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ralph.agent.task import Prompt
    from ralph.api.target_clients import TargetClients
    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.retry.backoff import RetryPolicy
    from ralph.run.options import RunOptions
    from ralph.settings.tables import RetrySettings, Settings
    from ralph.tools.tool_room import ToolSettings
    from ralph.tools.toolbox import LocalToolbox
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
    redactor: Redactor

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
    options: RunOptions,
    *,
    writable: Sequence[str] = (),
    offered: frozenset[str] | None = None,
    controls: RunControls | None = None,
    keeps_list: bool = False,
) -> LocalToolbox:
    """Builds the tools. `offered`: the tools that the session's requests have offered so far; all other tools are left
    out. None: there is no such limit. `keeps_list`: the requests keep their list of tools, and calls that the
    permission mode forbids are refused. Otherwise the forbidden tools are left out of the list.

    Raises WorkingDirectoryGoneError, and SettingsError for an unusable directory.
    """
    from ralph.tools.toolbox import LocalToolbox  # noqa: PLC0415 - near the request

    controls = controls or RunControls()
    enabled = frozenset(around.settings.enabled_tools)
    if offered is not None:
        enabled &= offered
    if not keeps_list:
        enabled = frozenset(name for name in enabled if is_permitted(controls.permission_mode, name))
    try:
        return LocalToolbox(
            _tool_settings(around, options, enabled, writable),
            waiter=around.waiter,
            clock=around.clock,
            redact=around.redactor.redact,
            redact_longest=around.redactor.longest_bytes,
            why_refused=controls.why_refused,
        )
    except OSError as error:
        problem = f"cannot work in {error.filename}: {error.strerror}"
        raise SettingsError(problem, from_flag=True) from error


def _tool_settings(
    around: Surroundings, options: RunOptions, enabled: frozenset[str], writable: Sequence[str]
) -> ToolSettings:
    from ralph.tools.tool_room import ToolSettings  # noqa: PLC0415 - near the request

    tools = around.settings.tools
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
        session_directory=options.session.directory,
        is_below_loop=options.is_iteration,
    )


def build_clients(around: Surroundings) -> TargetClients:
    """Builds the clients. Raises SettingsError for an unusable CA file, endpoint or proxy."""
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
            redact=around.redactor.redact_all,
        )
    )
    try:
        clients.prepare(settings.targets[0])
    except OSError as error:  # the reader of the cause recognises a shortage of descriptors
        raise SettingsError(f"cannot use the CA file {ca_file}: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return clients


def redacted_prompt(prompt: Prompt | None, redactor: Redactor) -> Prompt | None:
    """The prompt without known credentials: a user who pastes one into a task does not mean to send it to the API."""
    if prompt is None or isinstance(prompt, str):
        return prompt and redactor.redact(prompt)
    return [redacted(block, redactor.redact) for block in prompt]


def build_report_form(around: Surroundings, options: RunOptions, old: Session | None) -> ReportForm | None:
    """The form of the final report: the form that the options request, or else the form in the session's requests.
    None: no report is required.
    """
    offered = old.offered_tool(FINAL_REPORT) if old is not None else None
    if options.report is None and offered is None:
        return None
    from ralph.agent.report_tool import has_payload, report_tool  # noqa: PLC0415 - the same
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
        tool.input_schema, waiter=around.waiter, clock=around.clock, environment=around.tools_environment
    )
    return ReportForm(tool, check, has_payload=True)


def build_roster(
    around: Surroundings,
    tools: tuple[ToolDefinition, ...],
    options: RunOptions,
    old: Session | None,
) -> tuple[Roster, tuple[str, ...]]:
    """The targets of the run, and notices about requested options that did not fit. A resumed session keeps
    its requests as they were, unless the command line changes them.
    """
    settings, keeps = around.settings, old is not None and not options.shapes_requests
    prompt, about_prompt = _system_prompt(around, options)
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
    return roster, (*about_prompt, *roster_notices(roster, targets, old))


def _system_prompt(around: Surroundings, options: RunOptions) -> tuple[str, Iterable[str]]:
    """The system prompt, and notices about instruction files that it does not contain in full."""
    instructions, left_out = read_project_instructions(around.cwd)
    parts = PromptParts(
        cwd=str(around.cwd),
        platform=platform.system(),
        replacement=options.system_prompt,
        appendix=options.append_system_prompt,
        instructions=instructions,
    )
    return system_prompt(parts), (*left_out, *cut_notices(parts))


def _of_the_session(targets: tuple[Target, ...], old: Session) -> tuple[Target, ...]:
    """The targets for a resumed session. The first target takes the name and the model of the session's first target.
    Other targets with this model are left out.
    """
    model = old.shapes[old.first].model
    first = replace(targets[0], name=old.first, model=model)
    return (first, *(target for target in targets[1:] if target.model != model))


def refuse_uncountable_budget(targets: Iterable[Target], settings: Settings) -> None:
    """Raises SettingsError for a budget that cannot be enforced: a user must not rely on it."""
    for target in targets:
        problem = why_uncountable(target, settings)
        if problem is not None:
            raise SettingsError(problem)


def why_uncountable(target: Target, settings: Settings) -> str | None:
    """Why the budget cannot be enforced with this target, and what helps. None: it can, or there is no budget."""
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
    """The retry policy of the settings, with its waits divided by `speed`."""
    policy = retry_policy(retry)
    return policy if speed == 1.0 else backoff.sped_up(policy, speed)


def retry_policy(retry: RetrySettings) -> RetryPolicy:
    """The retry policy of the settings. If they switch retry off, returns the standard policy, because a driver may
    switch retry on.
    """
    match retry.policy:
        case "patient":
            return backoff.patient()
        case "custom":
            return backoff.custom(retry.max_retries, retry.base_delay_s, retry.max_delay_s)
        case _:
            return backoff.standard()

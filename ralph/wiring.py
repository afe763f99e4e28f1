"""Build what a run needs from the settings: the tools, the client, the task. One function each, no decisions."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.core import backoff
from ralph.core.conversation import RequestShape
from ralph.core.credentials import child_environment, known_secrets
from ralph.core.models import facts_of
from ralph.core.system_prompt import PromptParts, system_prompt
from ralph.effects.project_instructions import read_project_instructions
from ralph.loop import Task
from ralph.settings import SettingsError, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.core.backoff import RetryPolicy
    from ralph.core.redaction import Redactor
    from ralph.core.tool_calls import ToolDefinition
    from ralph.effects.messages_api import MessagesApi
    from ralph.effects.tools import LocalToolbox
    from ralph.ports import Clock, Events, Waiter
    from ralph.settings import RetrySettings, Settings


@dataclass(frozen=True)
class Surroundings:
    """What every effect of one run shares."""

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
        """What a tool's process may see."""
        return child_environment(self.environment, self.settings.tools.pass_env, self.secrets)


def build_toolbox(around: Surroundings, redactor: Redactor, writable: Sequence[str] = ()) -> LocalToolbox:
    """Raises WorkingDirectoryGoneError, and SettingsError for a directory that cannot be worked in."""
    from ralph.effects.tools import ALL_TOOLS, LocalToolbox, ToolSettings  # noqa: PLC0415 - near the request

    tools = around.settings.tools
    allowed = ALL_TOOLS if tools.allowed is None else frozenset(tools.allowed)
    try:
        return LocalToolbox(
            ToolSettings(
                cwd=around.cwd,
                bash_timeout_s=tools.bash_timeout_s,
                bash_max_timeout_s=tools.bash_max_timeout_s,
                max_output_bytes=tools.max_output_bytes,
                environment=around.tools_environment,
                enabled=allowed - frozenset(tools.disallowed),
                writable=tuple(map(Path, writable)),
            ),
            waiter=around.waiter,
            clock=around.clock,
            redact=redactor.redact,
            redact_longest=redactor.longest_bytes,
        )
    except OSError as error:
        problem = f"cannot work in {error.filename}: {error.strerror}"
        raise SettingsError(problem, from_flag=True) from error


def build_client(around: Surroundings, redactor: Redactor) -> MessagesApi:
    """Raises SettingsError for a CA file, an endpoint or a proxy that cannot be used."""
    # Late, because they cost most of the start-up time and nothing before needs them.
    from ralph.effects.http_client import build_http_client  # noqa: PLC0415
    from ralph.effects.messages_api import Endpoint, MessagesApi  # noqa: PLC0415

    settings, model = around.settings, around.settings.model
    ca_file = str(model.ca_file) if model.ca_file is not None else None
    try:
        http = build_http_client(model.base_url, ca_file, is_loopback=is_loopback(model.base_url))
    except OSError as error:
        raise SettingsError(f"cannot use the CA file {ca_file}: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error
    credential = settings.credential
    own = ((credential.header, credential.value),) if credential else ()
    return MessagesApi(
        Endpoint(model.base_url, own + settings.custom_headers),
        http,
        limits=settings.clocks,
        waiter=around.waiter,
        clock=around.clock,
        events=around.events,
        redact=redactor.redact_all,
    )


def build_task(
    around: Surroundings,
    prompt: str | None,
    tools: tuple[ToolDefinition, ...],
    *,
    own_system_prompt: str | None = None,
    appended_system_prompt: str | None = None,
    speed: float = 1.0,
) -> tuple[Task, tuple[str, ...]]:
    """The task, and notices about what of the wishes did not fit."""
    settings = around.settings
    parts = PromptParts(
        cwd=str(around.cwd),
        platform=platform.system(),
        replacement=own_system_prompt,
        appendix=appended_system_prompt,
        instructions=read_project_instructions(around.cwd),
    )
    shape = RequestShape(
        model=settings.model.name,
        system=system_prompt(parts),
        tools=tools,
        max_tokens=settings.model.max_tokens,
        effort=settings.model.effort,
    )
    policy = retry_policy(settings.retry)
    task = Task(
        prompt=prompt,
        shape=shape,
        policy=policy if speed == 1.0 else backoff.sped_up(policy, speed),
        endpoint=settings.model.base_url,
        credential=settings.credential.source if settings.credential else "ANTHROPIC_API_KEY is not set",
    )
    cut = [
        f"{instructions.path} was cut: only 32 KB of project instructions are read"
        for instructions in parts.instructions
        if instructions.was_cut
    ]
    return task, (*cut, *_effort_notice(settings))


def no_limit_notice(settings: Settings) -> tuple[str, ...]:
    """Nobody watches: who has set no bound should have heard so."""
    if settings.limits.max_time_s is not None:
        return ()
    return ("no limit is set: this run goes on until it is done (--max-time 2h would end it)",)


def withheld_notice(around: Surroundings) -> tuple[str, ...]:
    """A command that misses a variable would be a riddle: say which ones stay behind."""
    withheld = around.environment.keys() - around.tools_environment.keys()
    names = sorted(name for name in withheld if not name.startswith("ANTHROPIC_"))
    if not names:
        return ()
    listed = ", ".join(names)
    return (f"kept from tools, as they look like credentials: {listed} (--pass-env NAME lets one through)",)


def retry_policy(retry: RetrySettings) -> RetryPolicy:
    """The policy that the settings ask for."""
    if not retry.enabled:
        return backoff.off()
    match retry.policy:
        case "patient":
            return backoff.patient()
        case "off":
            return backoff.off()
        case "custom":
            return backoff.custom(retry.max_retries, retry.base_delay_s, retry.max_delay_s)
        case _:
            return backoff.standard()


def _effort_notice(settings: Settings) -> tuple[str, ...]:
    """What was asked for and is not sent, because the model is known to refuse it."""
    model = settings.model
    facts = facts_of(model.name)
    if model.effort is None or facts is None or facts.takes_effort:
        return ()
    return (f"{model.name} takes no effort setting; it is left out",)

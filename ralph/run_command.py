"""`ralph run` from its options to its exit code: wires the real effects to the loop, and ends in one result.

Every path through here, bugs included, ends in exactly one `RunEnded`, except misuse of the command line,
which is a `UsageError`.
"""

from __future__ import annotations

import os
import platform
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ralph import __version__
from ralph.core import backoff
from ralph.core.bug_report import describe_bug
from ralph.core.conversation import RequestShape
from ralph.core.credentials import child_environment, known_secrets
from ralph.core.events import Event, Notice, RunEnded, RunStarted
from ralph.core.models import facts_of
from ralph.core.outcome import Outcome, UsageError
from ralph.core.redaction import Redactor
from ralph.core.system_prompt import PromptParts, system_prompt
from ralph.core.usage import RunUsage
from ralph.effects.clock import SystemClock
from ralph.effects.output.writer import OutputOptions, Writer
from ralph.effects.project_instructions import read_project_instructions
from ralph.effects.prompt_input import PromptError, read_prompt
from ralph.effects.waiter import Heartbeats, InboxWaiter, catch_stop_signals
from ralph.loop import Run, Task
from ralph.ports import Interrupted
from ralph.settings import ClockSettings, Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.core.backoff import RetryPolicy
    from ralph.effects.tools import LocalToolbox
    from ralph.settings import RetrySettings


@dataclass(frozen=True)
class RunOptions:
    """What the command line said. None: not given."""

    prompt: str | None = None
    prompt_file: str | None = None
    directory: str | None = None
    config_file: str | None = None
    session_id: str | None = None
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    output: OutputOptions = field(default_factory=OutputOptions)
    settings: Mapping[str, object] = field(default_factory=dict)
    """Flags under their settings' names (`model.name`)."""
    reads_stdin: bool = True
    """False: the prompt is all there is, whatever standard input holds."""
    speed: float = 1.0
    """Waits of the retry policy are divided by it: for demonstrations."""


def run_command(options: RunOptions) -> int:
    """Run one task; the process's exit code. Raises UsageError, and nothing else."""
    return RunCommand(options, dict(os.environ)).execute()


class RunCommand:
    """One invocation: the effects that live as long as it does. It is an `Events` sink for the loop."""

    def __init__(self, options: RunOptions, environment: Mapping[str, str]) -> None:
        self.options = options
        self.ended: RunEnded | None = None
        """The result, once `execute` has returned."""
        self.on_event: Callable[[Event], None] | None = None
        """Sees every event too (the demo's summary)."""
        self._environment = environment
        self._session_id = options.session_id or str(uuid.uuid4())
        self._clock = SystemClock()
        self._waiter = InboxWaiter(self._clock)
        self._heartbeats = Heartbeats(self, self._clock, ClockSettings().heartbeat_s)
        self._waiter.heartbeats = self._heartbeats
        self._writer = Writer(
            options.output,
            self._session_id,
            __version__,
            redact=Redactor(known_secrets(environment)).redact,
            has_color="NO_COLOR" not in environment and os.isatty(2),
            is_one_terminal=os.isatty(1) and os.isatty(2),
        )
        self._started_s = self._clock.now_s()

    def execute(self) -> int:
        restore_signals = catch_stop_signals(self._waiter)
        try:
            ended = self._outcome()
        finally:
            restore_signals()
        return ended.exit_code

    def emit(self, event: Event) -> None:
        self._heartbeats.saw(event)
        if self.on_event is not None:
            self.on_event(event)
        self._writer.emit(event)

    def _outcome(self) -> RunEnded:
        try:
            ended = self._run()
        except SettingsError as error:
            if error.from_flag:
                raise UsageError(str(error)) from error
            ended = self._ended(Outcome.CONFIG, str(error))
        except PromptError as error:
            raise UsageError(str(error)) from error
        except Interrupted as interrupted:
            ended = self._ended(
                Outcome.INTERRUPTED, "stopped by a signal", signal_number=interrupted.signal_number
            )
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            ended = self._ended(Outcome.INTERNAL_ERROR, describe_bug(error))
        return self._written(ended)

    def _written(self, ended: RunEnded) -> RunEnded:
        """Write the result everywhere it belongs. Where that fails the outcome becomes io_error."""
        try:
            self._writer.write_result_file(ended)
        except OSError as error:
            name = self.options.output.result_file
            ended = _io_error(ended, f"cannot write the result file {name}: {error.strerror}")
        self.ended = ended
        self.emit(ended)
        failure = self._writer.close(self._waiter, self._clock)
        if failure is not None:
            ended = self.ended = _io_error(ended, f"cannot write to standard output: {failure.strerror}")
            with suppress(OSError):  # said above already when it failed before
                self._writer.write_result_file(ended)
            self._writer.amend(ended, self._waiter, self._clock)
        return ended

    def _run(self) -> RunEnded:
        try:
            cwd = self._directory()
        except FileNotFoundError:
            return self._ended(Outcome.IO_ERROR, "the working directory is gone; change to one that exists")
        prompt, notices = self._prompt()
        config_file = Path(self.options.config_file) if self.options.config_file is not None else None
        settings = load_settings(self.options.settings, self._environment, cwd, config_file)
        secrets = known_secrets(self._environment, settings.secrets)
        redactor = Redactor(secrets)
        self._writer.redact = redactor.redact
        self._heartbeats.interval_s = settings.clocks.heartbeat_s
        toolbox = self._toolbox(settings, redactor, secrets, cwd)
        task = self._task(settings, toolbox, prompt, cwd)
        source = settings.credential.source if settings.credential else "none"
        tools = tuple(tool.name for tool in toolbox.definitions)
        self.emit(RunStarted(str(cwd), settings.model.name, tools, source))
        for notice in (*settings.warnings, *notices, *self._withheld(settings, secrets), *_unused(settings)):
            self.emit(Notice(notice))
        return self._run_task(task, settings, toolbox, redactor)

    def _run_task(
        self, task: Task, settings: Settings, toolbox: LocalToolbox, redactor: Redactor
    ) -> RunEnded:
        # Late, because they cost most of the start-up time and nothing before needs them.
        from ralph.effects.http_client import build_http_client  # noqa: PLC0415
        from ralph.effects.messages_api import Endpoint, MessagesApi  # noqa: PLC0415
        from ralph.settings import is_loopback  # noqa: PLC0415

        model = settings.model
        ca_file = str(model.ca_file) if model.ca_file is not None else None
        try:
            http = build_http_client(model.base_url, ca_file, is_loopback=is_loopback(model.base_url))
        except OSError as error:
            return self._ended(Outcome.CONFIG, f"cannot use the CA file {ca_file}: {error.strerror or error}")
        except ValueError as error:
            return self._ended(Outcome.CONFIG, str(error))
        credential = settings.credential
        # A custom header of the same name is the user's last word.
        custom = {name.lower() for name, _ in settings.custom_headers}
        own = (
            ((credential.header, credential.value),) if credential and credential.header not in custom else ()
        )
        client = MessagesApi(
            Endpoint(model.base_url, own + settings.custom_headers),
            http,
            limits=settings.clocks,
            waiter=self._waiter,
            clock=self._clock,
            events=self,
            redact=redactor.redact_all,
        )
        try:
            return Run(
                task, client=client, toolbox=toolbox, waiter=self._waiter, clock=self._clock, events=self
            ).run()
        finally:
            client.close()
            toolbox.close()

    def _prompt(self) -> tuple[str, tuple[str, ...]]:
        """The task, and notices about where it came from."""
        if not self.options.reads_stdin:
            return self.options.prompt or "", ()
        return read_prompt(
            self.options.prompt, self.options.prompt_file, waiter=self._waiter, clock=self._clock
        )

    def _directory(self) -> Path:
        """The working directory, entered. Tools, files and git all see it as the current one."""
        if self.options.directory is not None:
            try:
                os.chdir(self.options.directory)
            except OSError as error:
                raise UsageError(f"cannot work in {self.options.directory}: {error.strerror}") from error
        return Path.cwd()

    def _toolbox(
        self, settings: Settings, redactor: Redactor, secrets: frozenset[str], cwd: Path
    ) -> LocalToolbox:
        from ralph.effects.tools import ALL_TOOLS, LocalToolbox, ToolSettings  # noqa: PLC0415

        tools = settings.tools
        allowed = ALL_TOOLS if tools.allowed is None else frozenset(tools.allowed)
        return LocalToolbox(
            ToolSettings(
                cwd=cwd,
                bash_timeout_s=tools.bash_timeout_s,
                bash_max_timeout_s=tools.bash_max_timeout_s,
                max_output_bytes=tools.max_output_bytes,
                environment=child_environment(self._environment, tools.pass_env, secrets),
                enabled=allowed - frozenset(tools.disallowed),
            ),
            waiter=self._waiter,
            clock=self._clock,
            redact=redactor.redact,
            redact_longest=redactor.longest_bytes,
        )

    def _task(self, settings: Settings, toolbox: LocalToolbox, prompt: str, cwd: Path) -> Task:
        parts = PromptParts(
            cwd=str(cwd),
            platform=platform.system(),
            replacement=self.options.system_prompt,
            appendix=self.options.append_system_prompt,
            instructions=read_project_instructions(cwd),
        )
        for instructions in parts.instructions:
            if instructions.was_cut:
                self.emit(Notice(f"{instructions.path} was cut: only 32 KB of project instructions are read"))
        shape = RequestShape(
            model=settings.model.name,
            system=system_prompt(parts),
            tools=tuple(toolbox.definitions),
            max_tokens=settings.model.max_tokens,
            effort=settings.model.effort,
        )
        policy = retry_policy(settings.retry)
        if self.options.speed != 1.0:
            policy = backoff.sped_up(policy, self.options.speed)
        credential = settings.credential.source if settings.credential else "no key is set"
        return Task(prompt, shape, policy, settings.model.base_url, credential)

    def _withheld(self, settings: Settings, secrets: frozenset[str]) -> tuple[str, ...]:
        """A command that misses a variable would be a riddle: say which ones stay behind."""
        passed = child_environment(self._environment, settings.tools.pass_env, secrets)
        names = sorted(
            name for name in self._environment.keys() - passed.keys() if not name.startswith("ANTHROPIC_")
        )
        if not names:
            return ()
        return (
            f"kept from tools, as they look like credentials: {', '.join(names)} (--pass-env NAME lets one through)",
        )

    def _ended(self, outcome: Outcome, error: str, *, signal_number: int = 0) -> RunEnded:
        """A run that ended before its loop began, or by a bug."""
        return RunEnded(
            outcome=outcome,
            exit_code=outcome.exit_code(signal_number),
            result=None,
            errors=(error,),
            stop_reason=None,
            num_turns=0,
            duration_s=self._clock.now_s() - self._started_s,
            api_s=0.0,
            usage=RunUsage(),
        )


def _unused(settings: Settings) -> tuple[str, ...]:
    """What was asked for and is not sent, because the model is known to refuse it."""
    model = settings.model
    facts = facts_of(model.name)
    if model.effort is None or facts is None or facts.takes_effort:
        return ()
    return (f"{model.name} takes no effort setting; it is left out",)


def _io_error(ended: RunEnded, error: str) -> RunEnded:
    """The same end, whose result could not be delivered."""
    outcome = Outcome.IO_ERROR
    return replace(ended, outcome=outcome, exit_code=outcome.exit_code(), errors=(*ended.errors, error))


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

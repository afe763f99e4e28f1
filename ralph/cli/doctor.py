"""`ralph doctor` shows the merged settings with their origins, then checks whether a run would work. A failed check
ends nothing. Shows no secret. Changes no file, but makes a missing directory for sessions and starts MCP servers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph import __version__
from ralph.api.client import HttpSettings
from ralph.cli.checks import Finding, Level, exit_code, fail, ok, verdict, warn
from ralph.cli.checks.machine import (
    look_at_claude_rules,
    look_at_disks,
    look_at_git,
    look_at_limits,
    look_at_machine,
    look_at_process_room,
    look_at_room,
    look_at_sandbox,
    look_at_sessions,
    look_at_working_directory,
)
from ralph.cli.checks.probe import LIMITS, probe_targets, try_sandbox
from ralph.cli.run import DoctorLine
from ralph.cli.settings_command import SettingsCommand, TypedLine
from ralph.cli.typer_command import absolute
from ralph.loop.starter import placeholders_left
from ralph.machine.files.paths import repository_top
from ralph.machine.trust import trusting, unusable_places
from ralph.machine.waiter import STOP_SIGNALS, InboxWaiter, SystemClock
from ralph.output.standard_streams import has_color
from ralph.run.parts import RunContext, build_toolbox, entered, plan_sandbox, program_keys
from ralph.run.servers import build_mcp, connect_servers
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.settings.merge import SettingsError, load_with_claude
from ralph.settings.tables import KEYS, Settings, shown_value
from ralph.values.credentials import known_secrets
from ralph.values.events import EventStream
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.redaction import Redactor, redacted
from ralph.values.screen_text import counted, in_one_line
from ralph.values.servers import requests_url
from ralph.values.tool_choice import without_background

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from ralph.conversation.target import Target
    from ralph.settings.tables import Settings
    from ralph.values.servers import Price

_COLORS = {Level.OK: "32", Level.NOTE: "36", Level.WARN: "33", Level.FAIL: "31"}
_NOT_ASKED = "not asked: a run would not start with these settings"
_SERVERS = "MCP servers"
_SERVERS_ADVICE = "correct --mcp-config or [mcp]: no run begins without its servers (`ralph help mcp`)"
_MOST_TOOLS = 8
_LEVEL_WIDTH = max(len(level.value) for level in Level)


def doctor(line: DoctorLine, _typed: TypedLine) -> int:
    """Show the merged settings, each with its origin. Then show what works, and what to do about the rest.

    Most options of `ralph run` have the same effect here.

    ralph shows no key, and sends requests only with --probe. It starts and stops MCP servers.
    If a check says FAIL, the exit code is the one that a run would have: 78 for settings, and with --probe also 77, 69
    or 75.
    """
    if line.probe and line.sandbox:
        raise UsageError("--probe and --sandbox cannot be used together")
    if line.is_json and line.sandbox:
        raise UsageError("--json and --sandbox cannot be used together")
    # Paths on the command line are relative to the directory where ralph was called.
    line = replace(line, config=absolute(line.config), session_dir=absolute(line.session_dir))
    _end_at_once_when_asked()
    environment = dict(os.environ)
    cwd = None
    with suppress(CannotError):  # a finding says that it is gone
        cwd = entered(line.directory)
    if line.sandbox:
        return _tried_sandbox(line, environment, cwd)
    settings, problem = _settings(line, environment, cwd)
    environment |= {} if settings is None else settings.variables.plain
    page = _Page(_redactor(environment, settings))
    found = []
    if settings is not None and not line.is_json:
        _show_settings(page, settings)
    if not line.is_json:
        page.write("Checks")
    for finding in _findings(line, environment, cwd, settings, problem):
        found.append(finding)
        if not line.is_json:
            page.show(finding)
    code = exit_code(found)
    if line.is_json:
        page.write_json(_json_object(found, code))
    elif line.probe:
        page.write("")
        page.write(f"Verdict: {verdict(found)}")
    return code


def _redactor(environment: Mapping[str, str], settings: Settings | None) -> Redactor:
    return Redactor(known_secrets(environment, settings.secrets if settings else ()))


def _json_object(found: list[Finding], code: int) -> dict[str, Any]:
    findings = [
        {
            "level": finding.level.value.lower(),
            "check": finding.subject,
            "text": finding.text,
            "remedy": finding.advice,
            **({"figures": dict(finding.figures)} if finding.figures else {}),
        }
        for finding in found
    ]
    return {"ralph": __version__, "exit_code": code, "verdict": verdict(found), "findings": findings}


def _tried_sandbox(line: DoctorLine, environment: Mapping[str, str], cwd: Path | None) -> int:
    page = _Page(Redactor(known_secrets(environment, ())))
    settings, problem = _settings(line, environment, cwd)
    wanted = SandboxSettings() if settings is None else settings.sandbox
    if wanted.net == "full" and wanted.allow_hosts:
        raise UsageError(
            "--net full allows every host and --allow-host only the listed ones: leave out one of them"
        )
    tried = try_sandbox(environment, cwd, wanted)
    for row in tried.rows:
        page.write(row)
    page.write("Verdict")
    # A missing key, for one, says nothing about the sandbox.
    findings = (*([problem] if problem is not None and settings is None else []), *tried.findings)
    for finding in findings:
        page.show(finding)
    is_failed = any(finding.level is Level.FAIL for finding in findings)
    return Outcome.CONFIG.exit_code() if is_failed else 0


class _Page:
    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._has_color = has_color(1, os.environ)

    def show(self, finding: Finding) -> None:
        level = f"{finding.level.value:<{_LEVEL_WIDTH}}"
        if self._has_color:
            level = f"\x1b[{_COLORS[finding.level]}m{level}\x1b[0m"
        self._put(f"  {level}  {self._clean(finding.line)}")

    def write(self, line: str) -> None:
        self._put(self._clean(line))

    def write_json(self, value: dict[str, Any]) -> None:
        self._put(json.dumps(redacted(value, self._clean), ensure_ascii=False))

    def _put(self, line: str) -> None:
        with suppress(BrokenPipeError):
            sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
            sys.stdout.buffer.flush()

    def _clean(self, line: str) -> str:
        return self._redactor.redact_all(in_one_line(line))


def _end_at_once_when_asked() -> None:
    def end(signal_number: int, _frame: FrameType | None) -> None:
        os._exit(Outcome.INTERRUPTED.exit_code(signal_number))

    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _settings(
    line: DoctorLine, environment: Mapping[str, str], cwd: Path | None
) -> tuple[Settings | None, Finding | None]:
    """The settings and the first problem in them."""
    if cwd is None:
        return None, None
    config_file = Path(line.config) if line.config is not None else None
    try:
        return load_with_claude(line.settings, environment, cwd, config_file), None
    except SettingsError as error:
        if error.from_flag:
            raise UsageError(str(error)) from error
        return error.so_far, fail(
            "settings", str(error), "fix that; `ralph help settings` lists all settings"
        )


def _show_settings(page: _Page, settings: Settings) -> None:
    page.write("Settings")
    for line in setting_lines(settings):
        page.write(f"  {line}")
    page.write("")
    page.write("Targets")
    for target in settings.targets:
        for line in target_lines(target):
            page.write(f"  {line}")
    page.write("")


def _findings(
    line: DoctorLine,
    environment: Mapping[str, str],
    cwd: Path | None,
    settings: Settings | None,
    problem: Finding | None,
) -> Iterator[Finding]:
    clock = SystemClock()
    waiter = InboxWaiter(clock)
    yield from look_at_room(waiter, clock)
    wanted = SandboxSettings() if settings is None else settings.sandbox
    yield from look_at_machine(environment, __version__, wanted, cwd)
    yield from look_at_sandbox(wanted, environment, cwd)
    session_dir = Path(line.session_dir) if line.session_dir else None
    yield look_at_working_directory(cwd)
    yield look_at_sessions(environment, session_dir, cwd)
    yield from look_at_disks(environment, session_dir, cwd)
    yield look_at_process_room()
    if cwd is not None:
        yield from _about_checkout(line, environment, cwd, settings, clock)
    if problem is not None:
        yield problem
    if settings is not None:
        if problem is None:
            yield from _look_at_values(settings, environment)
        yield look_at_limits(settings)
        for remark in settings.remarks:
            yield warn("settings", remark.text, remark.advice)
        if settings.mcp_servers and cwd is not None:
            yield from _look_at_servers(settings, environment, cwd, waiter, clock)
    if line.probe and (settings is None or problem is not None):
        yield warn("targets", _NOT_ASKED, "fix the settings first")
    elif line.probe and settings is not None:
        yield from _answers_of_targets(settings, environment, cwd, waiter, clock)


def _look_at_servers(
    settings: Settings, environment: Mapping[str, str], cwd: Path, waiter: InboxWaiter, clock: SystemClock
) -> Iterator[Finding]:
    """A finding for each server with its tools and for each notice of a run, or one failure if no run could begin. All
    servers have ended at the end.
    """
    context = RunContext(
        settings, environment, cwd, waiter, clock, EventStream(), _redactor(environment, settings)
    )
    mcp = toolbox = None
    try:
        mcp = build_mcp(context)
        if mcp is None:
            return
        toolbox = build_toolbox(context, plan=plan_sandbox(context), mcp=mcp)
        connect_servers(toolbox)
    except SettingsError as error:
        yield fail(_SERVERS, str(error), _SERVERS_ADVICE)
        return
    finally:
        if toolbox is not None:
            toolbox.close()
        elif mcp is not None:
            mcp.close()
    for server, tools in mcp.tools_by_server().items():
        more = f" and {len(tools) - _MOST_TOOLS} more" if len(tools) > _MOST_TOOLS else ""
        listed = f" ({', '.join(tools[:_MOST_TOOLS])}{more})" if tools else ""
        yield ok(_SERVERS, f"{server}: connected, {len(tools)} tools{listed}")
    yield from (warn(_SERVERS, notice, "`ralph help mcp`") for notice in mcp.notices)


def _answers_of_targets(
    settings: Settings,
    environment: Mapping[str, str],
    cwd: Path | None,
    waiter: InboxWaiter,
    clock: SystemClock,
) -> Iterator[Finding]:
    redactor = _redactor(environment, settings)
    ca_file = None if settings.model.ca_file is None else str(settings.model.ca_file)
    if settings.key_programs and cwd is not None:
        context = RunContext(settings, environment, cwd, waiter, clock, EventStream(), redactor)
        try:
            settings = program_keys(context).begin(settings)
        except SettingsError as error:
            yield fail("targets", str(error), "correct that program: no run begins without its key")
            return
    http = HttpSettings(ca_file, LIMITS, waiter, clock, redactor.redact_all)
    yield from probe_targets(settings.targets, http)


def _about_checkout(
    line: DoctorLine, environment: Mapping[str, str], cwd: Path, settings: Settings | None, clock: SystemClock
) -> Iterator[Finding]:
    if repository_top(cwd) is not None:
        yield from look_at_git(environment, settings, cwd, clock, tries_push=line.probe)
    if left := placeholders_left(cwd):
        fact, _, advice = left.partition("; ")
        yield warn("loop", fact, advice)
    yield from look_at_claude_rules(cwd, environment, settings)


def _look_at_values(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """A failure if the CA file cannot be read."""
    ca_file = settings.model.ca_file
    try:
        if ca_file is not None:
            trusting(str(ca_file))
    except OSError as error:
        reason = f"cannot use the CA file {ca_file}: {error.strerror or error}"
        yield fail("settings", reason, "correct model.ca_file or SSL_CERT_FILE")
        return
    for variable, place in unusable_places(environment) if ca_file is None else ():
        yield warn(
            "settings", f"{variable} names {place}, which contains no certificate", f"correct {variable}"
        )
    programs = [f"; {one.setting} of {one.origin} prints the key" for one in settings.key_programs]
    yield ok("settings", f"all are valid{''.join(programs)}")


COMMAND = SettingsCommand("doctor", doctor, DoctorLine)


# --- The settings with their values and origins. Never the values of API keys and headers: only the names of variables and
# headers.

# The column of values is at most this wide. A longer value moves only the origin in its own line to the right.
_WIDEST_VALUE = 34


def setting_lines(settings: Settings) -> Iterator[str]:
    """Yields lines of name, value and origin: one for each setting, one for the usable tools, and one for the
    number of targets.
    """
    rows = [(key.name, shown_value(attrgetter(key.name)(settings))) for key in KEYS]
    rows.append(("tools", shown_value(without_background(settings.enabled_tools))))
    rows.append(("targets", counted(len(settings.targets), "target")))
    name_width = max(len(name) for name, _ in rows)
    value_width = min(_WIDEST_VALUE, max(len(value) for _, value in rows))
    for name, value in rows:
        yield f"{name:<{name_width}}  {value:<{value_width}}  {settings.origins[name]}"


def target_lines(target: Target) -> Iterator[str]:
    """Yields the name of a target, followed by one line for each value of the target."""
    facts = target.facts
    window = facts.context_window if facts else None
    price = facts.price if facts else None
    keys = [f"{credential.place} (set)" for credential in target.credentials]
    yield target.name
    rows = (
        ("model", target.model),
        ("API", target.api),
        ("base URL", target.base_url),
        ("posts to", requests_url(target.base_url, target.api, target.model)),
        ("keys", ", ".join(keys) or "none"),
        ("headers", ", ".join(name for name, _ in target.headers.plain) or "none"),
        ("max tokens", shown_value(target.max_tokens)),
        ("window", f"{window} tokens" if window else "unknown"),
        ("thinking", target.thinking or "as the model is known to need it"),
        ("price", _price(price)),
    )
    for name, value in rows:
        yield f"  {name:<10}  {value}"


def _price(price: Price | None) -> str:
    if price is None:
        return "unknown: costs are not counted"
    return (
        f"input {price.input:g}, output {price.output:g}, cache write {price.cache_write:g}, "
        f"cache read {price.cache_read:g} USD per million tokens"
    )

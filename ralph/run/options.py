"""The options of one run. An option that is None was not given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from ralph.output.writer import OutputOptions
from ralph.prompt.judged_file import ALL_SOURCES
from ralph.settings.files import without_values
from ralph.values.servers import ANTHROPIC, is_claude, vendor_of
from ralph.values.tool_choice import TOOL_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.settings.handover import LoopHandover
    from ralph.values.controls import PermissionMode


class SessionOptions(Struct, frozen=True):
    """The options of the command line that choose a session."""

    session_id: str | None = None
    """The id of a new session. None means that ralph generates one."""
    continues: bool = False
    """True if the run resumes the last session of this directory."""
    resume: str | None = None
    """The first characters of the id of the session to resume, or None."""
    forks: bool = False
    """True if the run resumes a copy of the old session, so that the old session remains unchanged."""
    has_moved: bool = False
    """True if the session may be resumed here although the directory that it belongs to still exists."""
    directory: Path | None = None
    """The directory in which sessions are stored. None means RALPH_STATE_DIR or the user's state directory."""
    is_kept: bool = True

    @property
    def directory_text(self) -> str | None:
        return None if self.directory is None else str(self.directory)

    @property
    def is_old(self) -> bool:
        return self.continues or self.resume is not None


class RequestedReport(Struct, frozen=True):
    """The user's request for a final report."""

    payload_schema: dict[str, Any] | None = None
    """The JSON Schema of the report's payload. None if the report has only a status and a summary."""


_SHAPING = ("model.name", "model.effort", "model.max_tokens", *TOOL_SETTINGS)


class RunOptions(Struct, frozen=True):
    prompt: str | None = None
    prompt_file: str | None = None
    takes_messages: bool = False
    """True if a driver steers the run over standard input. The driver sends user messages and control requests, one
    JSON object per line."""
    directory: str | None = None
    writable: tuple[str, ...] = ()
    """Absolute paths of the directories in which file tools may write, in addition to the working directory."""
    config_file: str | None = None
    session: SessionOptions = SessionOptions()
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    files_read: tuple[str, ...] = ()
    """The absolute paths of the files whose content is in these options."""
    claude_settings: str | None = None
    """The value of `--settings`: a JSON text, or the absolute path of a settings file made for Claude Code."""
    setting_sources: frozenset[str] = ALL_SOURCES
    """The places from which the run takes files that were made for Claude Code: `user`, `project` and `local`."""
    names_sources: bool = False
    """True if the command line names the sources of settings made for Claude Code (`--setting-sources`)."""
    takes_commands: bool = True
    """False if a prompt that begins with `/name` is ordinary text. Skills are then not listed either."""
    permission_mode: PermissionMode | None = None
    permissions: Literal["driver", "nobody"] | None = None
    """Decides about calls that the permission mode does not permit. "driver" means that the driver is asked, "nobody"
    that the call is denied, and None that it is permitted."""
    report: RequestedReport | None = None
    """The final report that the run requires. None means the report that the resumed session required, if any."""
    of_loop: LoopHandover | None = None
    """The values of the `ralph loop` that started this run. None if no loop started it. A loop has its own limits,
    and resumes the session by itself. So ralph does not show the user a command that resumes the session."""
    metrics_file: str | None = None
    exports_traces: bool = False
    has_diagnostics: bool = False
    """True if each event gets a line of diagnostics."""
    debug_file: str | None = None
    """The file to which diagnostics are appended. None means standard error."""
    replays_messages: bool = False
    """True if ralph sends each message back to the driver when work on the message begins."""
    includes_hook_events: bool = False
    """True if an event is emitted for each hook that runs a command."""
    title: str | None = None
    """The user's title for the session, or None."""
    output: OutputOptions = OutputOptions()
    is_restricted: bool = False
    """True if `settings` contain what `--restricted` stands for."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The values of flags, by the names of their settings, such as `model.name`."""
    reads_stdin: bool = True
    """False if the options contain the whole prompt, so that standard input is not read."""
    speed: float = 1.0
    """The number by which the waits between retries are divided. Demonstrations use it."""

    @property
    def needed_again(self) -> dict[str, str]:
        """The options, by name, that must be given again when the user resumes this session."""
        budget = self.settings.get("limits.max_budget_usd")
        hosts = self.settings.get("sandbox.allow_hosts")
        model, api = self.settings.get("model.name"), self.settings.get("model.api")
        # The options name a vendor other than Anthropic, so that the model belongs to that server.
        names_vendor = api not in {None, ANTHROPIC}
        if api is None and isinstance(model, str) and not is_claude(model):
            names_vendor = vendor_of(model) is not None
        servers = self.settings.get("mcp.config")
        file = servers[0] if isinstance(servers, tuple) and len(servers) == 1 else ""
        mode = self.permission_mode if self.permission_mode in ("plan", "dontAsk") else None
        options = {
            "--max-budget-usd": None if budget is None else str(budget).removesuffix(".0"),
            "--config": self.config_file,
            "--api": api,
            "--model": model if names_vendor else None,
            "--base-url": self.settings.get("model.base_url"),
            "--retry": self.settings.get("retry.policy"),
            "--permission-mode": mode,
            "--settings": None if self.claude_settings is None else without_values(self.claude_settings),
            "--setting-sources": ",".join(sorted(self.setting_sources)) if self.names_sources else None,
            "--sandbox": self.settings.get("sandbox.mode"),
            "--net": self.settings.get("sandbox.net"),
            "--unix-sockets": self.settings.get("sandbox.unix_sockets"),
            "--allow-host": ",".join(hosts) if isinstance(hosts, tuple) and hosts else None,
            "--gpu": self.settings.get("sandbox.gpu"),
            "--mcp-config": file if file.startswith("/") else None,
        }
        return {name: str(value) for name, value in options.items() if value is not None}

    @property
    def names_tools(self) -> bool:
        """True if the options select tools. The run then ignores the tool selection of the session that it resumes."""
        return any(self.settings.get(name) is not None for name in TOOL_SETTINGS)

    def keeps_requests(self, old: Session | None, first: Target) -> bool:
        """Whether the options leave the requests of the resumed session `old` as they are. `first` is the run's first target.
        False if no session is resumed.
        """
        if old is None:
            return False
        # To name the model that the session has changes nothing.
        same = {"model.name"} if first.model == old.shapes[old.first].model else set()
        given = (self.settings.get(name) for name in _SHAPING if name not in same)
        own = (self.system_prompt, self.append_system_prompt, self.report)
        return all(one is None for one in (*own, *given))

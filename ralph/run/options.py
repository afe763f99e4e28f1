"""The options of one run, as values. An option that is None was not given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.output.writer import OutputOptions
from ralph.run.session import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.permission_mode import PermissionMode


class RequestedReport(Struct, frozen=True):
    """The demand for a final report."""

    payload_schema: dict[str, Any] | None = None
    """The JSON Schema of the report's payload; None: the report has only a status and a summary."""


_TOOLS = ("tools.exact", "tools.allowed", "tools.disallowed")
_SHAPING = ("model.name", "model.effort", "model.max_tokens", *_TOOLS)


class RunOptions(Struct, frozen=True):
    prompt: str | None = None
    prompt_file: str | None = None
    takes_messages: bool = False
    """Standard input steers the run: user messages and control requests, a JSON object a line."""
    directory: str | None = None
    writable: tuple[str, ...] = ()
    """Directories besides the working directory that file tools may write beneath. Absolute."""
    config_file: str | None = None
    settings_descriptor: int | None = None
    """The descriptor over which an outer loop passes the contents of settings files; None: the run reads the files."""
    session: SessionOptions = field(default_factory=SessionOptions)
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    permission_mode: PermissionMode | None = None
    report: RequestedReport | None = None
    """The report to require; None: the report that the old session required, if any."""
    is_iteration: bool = False
    """True for an iteration of an outer loop, which has its own limits and resumes by itself."""
    metrics_file: str | None = None
    exports_traces: bool = False
    output: OutputOptions = field(default_factory=OutputOptions)
    settings: Mapping[str, object] = field(default_factory=dict)
    """Flags under their settings' names (`model.name`)."""
    reads_stdin: bool = True
    """False: the options hold the whole prompt, and standard input is not read."""
    speed: float = 1.0
    """The divisor of the retry policy's waits, for demonstrations."""

    @property
    def needed_again(self) -> dict[str, str]:
        """The options, by name, that the command that resumes the session must repeat."""
        options = {
            "--config": self.config_file,
            "--base-url": self.settings.get("model.base_url"),
            "--retry": self.settings.get("retry.policy"),
            "--permission-mode": self.permission_mode if self.permission_mode == "plan" else None,
        }
        return {name: str(value) for name, value in options.items() if value is not None}

    @property
    def names_tools(self) -> bool:
        """True if the options list tools; the tools of an old session are then ignored."""
        return any(self.settings.get(name) is not None for name in _TOOLS)

    @property
    def shapes_requests(self) -> bool:
        """True if the options set a part of the requests that a resumed session otherwise keeps."""
        own = (self.system_prompt, self.append_system_prompt, self.report)
        return any(each is not None for each in own) or any(
            self.settings.get(name) is not None for name in _SHAPING
        )

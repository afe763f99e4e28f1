"""Facts about a run for its driver: models, commands, and how full the context is. The sizes of its parts are
estimates from bytes, scaled to the last estimate of the whole request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.conversation.context_size import BYTES_PER_TOKEN
from ralph.conversation.messages import to_json
from ralph.output.stream_json import OUTPUT_STYLE, READERS_WANT_VERSION
from ralph.prompt.commands import CommandFile, as_text, read_command
from ralph.run.parts import why_uncountable
from ralph.settings.tables import EFFORTS, Settings
from ralph.values.servers.endpoint import ANTHROPIC, is_default
from ralph.values.servers.models import vendor_elsewhere
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.conversation.target import Target
    from ralph.prompt.memory import MemoryFile
    from ralph.retry.targets import Roster
    from ralph.run.session_run import SessionRun
    from ralph.values.controls import PermissionMode
    from ralph.values.redaction import Redactor

# Drivers that draw the parts expect a color for each of them.
_COLORS = {
    "System prompt": "blue",
    "System tools": "yellow",
    "MCP tools": "cyan",
    "Memory files": "orange",
    "Messages": "green",
}


class SessionFacts:
    def __init__(
        self, roster: Roster, settings: Settings, redactor: Redactor, opened: SessionRun | None = None
    ) -> None:
        """`opened` is None before the session is open."""
        self._roster = roster
        self._settings = settings
        self._redactor = redactor
        self._opened = opened

    def choose(self, requested: str | None) -> str:
        """The name of the requested target, or else of the requested model. For None, that of the first target. Raises
        ValueError if the model is not available, is one of another vendor, has a credential in its name, or has no
        known price while a budget is set.
        """
        if requested is not None and self._redactor.redact(requested) != requested:
            # The journal and every result would contain it as the name of the model.
            raise ValueError('"model" holds a credential, not a model\'s name')
        target = self._roster.find(requested)
        elsewhere = vendor_elsewhere(target.model, target.base_url)
        if elsewhere is not None and target not in self._roster.targets:
            raise ValueError(
                f"{target.model} is a model of {elsewhere}, and this run asks {target.base_url}: name it at the start "
                "(--fallback-model), or in [[targets]]"
            )
        problem = why_uncountable(target, self._settings)
        if problem is not None:
            raise ValueError(problem)
        return target.name if target in self._roster.targets else target.model

    @property
    def serving(self) -> str:
        """The name of the target that requests currently go to."""
        return self._roster.target.name

    def introduction(self, mode: PermissionMode) -> dict[str, Any]:
        """The response to `initialize`. `models` lists only names that `set_model` accepts. Features that ralph lacks
        are empty lists.
        """
        library = None if self._opened is None else self._opened.parts.library
        return {
            "commands": []
            if library is None
            else [_described(library.files[name]) for name in library.names],
            "agents": [],
            "models": [_model(target) for target in _choices(self._roster)],
            "account": _account(self._roster.first),
            "output_style": OUTPUT_STYLE,
            "available_output_styles": [OUTPUT_STYLE],
            "claude_code_version": READERS_WANT_VERSION,
            "current_permission_mode": mode.value,
            "hook_on_failure_supported": True,
        }

    def mcp_status(self) -> list[dict[str, Any]]:
        """The connected MCP servers of the run."""
        mcp = None if self._opened is None else self._opened.parts.mcp
        return [
            {
                "name": name,
                "status": "connected",
                "tools": [{"name": tool, "annotations": {}} for tool in tools],
            }
            for name, tools in ({} if mcp is None else mcp.tools_by_server()).items()
        ]

    def context_usage(self) -> dict[str, Any]:
        """The response to `get_context_usage`. Raises ValueError while the session is not open."""
        if self._opened is None:
            raise ValueError("the session is not open yet")
        roster, loop = self._roster, self._opened.loop
        total_tokens = roster.estimate(loop.conversation, loop.log.session.meter)
        window = roster.window or total_tokens
        head = roster.shape.head()
        tools = head.fields.get("tools", [])
        memory = list(_memory_in(head.body, self._opened.parts.memory_files, self._redactor))
        mcp = None if self._opened is None else self._opened.parts.mcp
        servers = {} if mcp is None else mcp.server_of_each()
        of_servers = [
            # A resumed session may offer tools of servers that this run does not have.
            (
                {"name": name, "serverName": servers.get(name) or name.split("__")[1], "isLoaded": True},
                len(to_json(tool)),
            )
            for tool in tools
            if (name := tool["name"]).startswith(MCP_PREFIX)
        ]
        tool_bytes = len(to_json(tools))
        memory_bytes, mcp_bytes = (sum(size for _, size in parts) for parts in (memory, of_servers))
        sizes = (
            max(len(head.body) - tool_bytes - memory_bytes, 0),
            tool_bytes - mcp_bytes,
            mcp_bytes,
            memory_bytes,
            max(loop.conversation.size * BYTES_PER_TOKEN - len(head.body), 0),
        )

        def tokens(size_bytes: int) -> int:
            return round(total_tokens * size_bytes / (sum(sizes) or 1))

        used = [
            {"name": name, "tokens": tokens(size), "color": color, "kind": "used"}
            for (name, color), size in zip(_COLORS.items(), sizes, strict=True)
        ]
        left = max(window - total_tokens, 0)
        return {
            "categories": [*used, {"name": "Free space", "tokens": left, "color": "gray", "kind": "free"}],
            "totalTokens": total_tokens,
            "maxTokens": window,
            "rawMaxTokens": window,
            "percentage": round(100 * total_tokens / window) if window else 0,
            "gridRows": [],
            "model": roster.target.model,
            "memoryFiles": [{**facts, "tokens": tokens(size)} for facts, size in memory],
            "mcpTools": [{**facts, "tokens": tokens(size)} for facts, size in of_servers],
            "agents": [],
            "isAutoCompactEnabled": True,
            "apiUsage": None,
        }


def _memory_in(
    head: bytes, files: Sequence[MemoryFile], redactor: Redactor
) -> Iterator[tuple[dict[str, str], int]]:
    """The instruction files in a request's head, in Claude Code's words, with sizes in bytes. A resumed session keeps
    its system prompt, so a file counts only if its section is there.
    """
    kinds: dict[str, str] = {}
    for file in files:  # an importer precedes its imports, which have its word
        own = "Local" if file.path.endswith("/CLAUDE.local.md") else "Project"
        kinds[file.path] = "User" if file.is_users else kinds.get(file.imported_by or "", own)
        sent = to_json(redactor.redact(file.section))[1:-1]
        if sent in head:
            yield {"path": file.path, "type": kinds[file.path]}, len(sent)


def _described(file: CommandFile) -> dict[str, str]:
    """Without a description if the file is unusable."""
    try:
        fields = read_command(file).fields
    except ValueError:
        fields = {}
    about, hint = (as_text(fields.get(key, "")) for key in ("description", "argument-hint"))
    return {"name": file.name, "description": about, "argumentHint": hint}


def _choices(roster: Roster) -> Iterator[Target]:
    """The run's targets, and the known models of Anthropic's API."""
    for name in roster.names:
        yield roster.find(name)
    if roster.can_grow and is_default(roster.first.base_url):
        for alias, model in roster.aliases.items():
            if model.id != roster.first.model:
                yield roster.find(alias)


def _model(target: Target) -> dict[str, Any]:
    facts = target.facts
    takes_effort = facts is not None and facts.takes_effort
    window = facts.context_window if facts is not None else None
    about = f"{target.model}, a window of {window:,} tokens" if window is not None else target.model
    return {
        "value": target.name,
        "resolvedModel": target.model,
        "displayName": target.name,
        "description": about,
        "supportsEffort": takes_effort,
        **({"supportedEffortLevels": list(EFFORTS)} if takes_effort else {}),
    }


def _account(first: Target) -> dict[str, str]:
    """The source of the first target's credential, such as an environment variable."""
    key = first.credentials[0] if first.credentials else None
    is_token = key is not None and key.header == "authorization" and first.api == ANTHROPIC
    return {
        "tokenSource": key.source if key is not None and is_token else "none",
        "apiKeySource": key.source if key is not None and not is_token else "none",
        "apiProvider": "firstParty",
    }

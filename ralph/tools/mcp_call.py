"""Calls the tools of MCP servers, and converts their results to content that a request to the API can contain. Text
is shortened like the output of a command. Images are checked like images that Read shows.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.own_programs import (
    named_writable,
    names_settings,
    own_environment,
    trusted_directories,
    unsafe_loads,
)
from ralph.machine.starting import environment_for_commands
from ralph.mcp.helper_process import ServerProcess
from ralph.mcp.toolset import CallFailedError, ReceivedImage, ServerFailedError, is_error, parts_of
from ralph.places.own_commands import ADVICE, why_changeable
from ralph.tools.bash import denial_note, new_capture
from ralph.tools.content import image_media_type, shown_image
from ralph.values.answer import Block, ToolCall, ToolError, ToolOutput, tool_errors, unknown_arguments
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from ralph.machine.own_programs import ProgramSearch
    from ralph.mcp.configuration import McpServer
    from ralph.mcp.toolset import McpToolset
    from ralph.tools.tool_context import ToolContext


def start_server(server: McpServer, context: ToolContext) -> ServerProcess:
    """Starts the process of a server as Bash starts a command: without credentials and in the sandbox. The server's
    configuration can turn the sandbox off. Raises ServerFailedError, ShortageError, ValueError or OSError.
    """
    settings = context.settings
    program = server.command if "/" in server.command else context.program(server.command)
    if program is None:
        raise ServerFailedError(
            f"the MCP server {server.name!r} cannot be started: there is no program {server.command!r} on PATH outside "
            "of the working directory"
        )
    has_credential = _has_credential(server, context)
    is_guarded = settings.box_plan.is_confined and (has_credential or not server.is_confined)
    if is_guarded and (why := _why_not_trusted(program, server, context)):
        refused, way_out = (
            ("gets no credential", "let commands have it too (--pass-env)")
            if server.is_confined
            else ("does not run outside the sandbox", "leave out sandbox = false")
        )
        raise ServerFailedError(f"the MCP server {server.name!r} {refused}: {why}; {ADVICE}, or {way_out}")
    own = own_environment(settings.environment, context.search) if is_guarded else None
    if server.is_confined:
        environment = context.box.watch(settings.environment, f"the sandbox of the MCP server {server.name}")
        box = context.server_box if is_guarded else context.box
        environment = environment if own is None else box.variables(own)
        confine = box.confine(lasts=True, is_alone=True)
    else:
        environment, confine = own or context.safe_environment, None
    guard = _path_outside(server, context) if is_guarded else {}
    return ServerProcess(
        [program, *server.arguments],
        supervisor=context.new_supervisor(confine),
        # There, npx finds no package of the work, uv no project and Python no module.
        cwd=Path("/") if is_guarded else settings.cwd,
        environment=environment_for_commands(environment) | server.environment.plain | guard,
        waiter=context.waiter,
    )


def _has_credential(server: McpServer, context: ToolContext) -> bool:
    """Whether an argument or a variable of a server holds a credential that commands do not get: the value of a variable that is
    kept from them, however short, or one that ralph knows.
    """
    if not server.variables <= context.settings.environment.keys():
        return True
    passed = [
        value for value in context.settings.environment.values() if context.redactor.redact(value) != value
    ]
    words = "\n".join((*server.arguments, *server.environment.plain.values()))
    for value in passed:
        words = words.replace(value, "")
    return context.redactor.redact(words) != words


def _why_not_trusted(program: str, server: McpServer, context: ToolContext) -> str | None:
    """Why commands could change what a server runs (`why_changeable`), or what a variable loads. None if they cannot."""
    search, known = _search_of(server, context), {**context.settings.environment, **server.environment.plain}
    if why := why_changeable(join([program, *server.arguments]), os.sep, known, search, takes_data=True):
        return why
    for name, value in server.environment.plain.items():
        unsafe = unsafe_loads({name: value}, search).get(name)
        if unsafe is None and name != "PATH":
            paths, may_load = (
                map(Path, named_writable(value, search)),
                names_settings(name, "in its directory"),
            )
            is_line = len(value.split()) > 1  # a line such as `sh FILE`, and there may be the file later
            unsafe = [
                f"{one}" for one in paths if may_load or one.is_file() or (is_line and not one.is_dir())
            ]
        if unsafe:
            return f"{name} names {unsafe[0] or 'the working directory'}, where commands may write"
    return None


def _path_outside(server: McpServer, context: ToolContext) -> dict[str, str]:
    """The PATH with which a server finds no program where commands may write."""
    return {"PATH": os.pathsep.join(trusted_directories(_search_of(server, context)))}


def _search_of(server: McpServer, context: ToolContext) -> ProgramSearch:
    search_path = server.environment.plain.get("PATH", context.search.search_path)
    return replace(context.search, search_path=search_path)


def run(call: ToolCall, toolset: McpToolset, context: ToolContext) -> ToolOutput:
    """Calls the tool of an MCP server. Raises ToolError, and Interrupted, whose `undone` says which changes were undone."""
    box, waiting_for = context.box, f"{call.name}: protected files"
    with tool_errors("the call was not made"):
        box.before({}, waiting_for)
    undone = ""
    try:
        try:
            shown, failed = _shown_result(call, toolset, context)
        except CallFailedError as error:
            shown, failed = [str(error)], True
        undone = box.after(waiting_for)
        denied = _denied(shown, call.name, toolset, context) if failed else ""
    except BaseException as error:
        undone = context.redactor.redact(undone or box.after_stop())
        if isinstance(error, Interrupted):
            error.undone = undone
        raise
    told, news = box.told()
    notes = [*filter(None, (denied, undone)), *told]
    return ToolOutput(
        _content([*shown, *notes], context),
        is_error=failed,
        is_denied=bool(denied or undone),
        notices=tuple(news),
    )


def _denied(shown: list[Block | str], name: str, toolset: McpToolset, context: ToolContext) -> str:
    """A note about an action that the sandbox denied to the server of a failed call. Empty if there is none. Raises Interrupted."""
    server = toolset.process_server_of(name)
    if server is None or not server.is_confined:
        return ""
    box = context.server_box if _has_credential(server, context) else context.box
    text = "\n".join(part for part in shown if isinstance(part, str))
    note = denial_note(text, box, context, name)
    return f"[{note}; the user can open more to the server (sandbox.write)]" if note else ""


def _shown_result(
    call: ToolCall, toolset: McpToolset, context: ToolContext
) -> tuple[list[Block | str], bool]:
    unknown = unknown_arguments(toolset.schema_of(call.name), call.arguments)
    arguments = {key: value for key, value in call.arguments.items() if key not in unknown}
    result = toolset.call(call.name, arguments)
    failed = is_error(result)
    parts = parts_of(result)
    return [
        part if isinstance(part, str) else _shown(part, context, may_be_image=not failed) for part in parts
    ], failed


def _content(parts: list[Block | str], context: ToolContext) -> str | tuple[Block, ...]:
    """The content of a tool result. Texts and images stay in order."""
    texts = [part for part in parts if isinstance(part, str)]
    text = "\n".join(texts)
    images = [part for part in parts if not isinstance(part, str)]
    if not images:
        return _cut(text, context)
    if len(text.encode("utf-8", "replace")) > context.settings.max_output_bytes:
        parts = [text, *images]
    cut = (_cut(part, context) if isinstance(part, str) else part for part in parts)
    return tuple({"type": "text", "text": part} if isinstance(part, str) else part for part in cut if part)


def _shown(image: ReceivedImage, context: ToolContext, *, may_be_image: bool) -> Block | str:
    """The content block for an image. If the image cannot be shown, returns a text that describes it."""
    media_type = image_media_type(image.data) if may_be_image else None
    if media_type is None:
        return f"[an image that cannot be shown: {image.described}]"
    try:
        return shown_image(image.data, media_type, context.images)
    except ToolError as error:
        return f"[an image that cannot be shown: {error}]"


def _cut(text: str, context: ToolContext) -> str:
    capture = new_capture(context)
    capture.feed(text.encode("utf-8", "replace"))
    capture.close()
    return capture.text()

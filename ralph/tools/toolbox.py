"""Runs tool calls that are permitted. A failed call becomes an error message for the model. A signal stops the running calls.

Every request to the API contains the definitions of the tools, so they are short: less than 3.2 KB of JSON in total.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from ralph.machine.files.trees import SpillDirectory
from ralph.machine.starting import ThreadJob, start_job
from ralph.places.state import name_for, named_state_directories, running_below
from ralph.tools.tool_context import Roots, ToolContext, ToolSettings
from ralph.values.answer import (
    COMMANDS,
    FILE_TOOLS,
    Block,
    FileChange,
    ToolCall,
    ToolDefinition,
    ToolError,
    ToolOutput,
    os_error_text,
)
from ralph.values.events import Background, BackgroundEnded, BackgroundStarted
from ralph.values.outcome import ShortageError, shortage_of
from ralph.values.ports import TIMED_OUT, Clock, Interrupted, Mailbox, Waiter, WorkingDirectoryGoneError
from ralph.values.redaction import Redactor
from ralph.values.screen_text import counted
from ralph.values.tool_choice import OF_BACKGROUND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from ralph.mcp.configuration import McpServer
    from ralph.mcp.helper_process import ServerProcess
    from ralph.mcp.toolset import McpToolset
    from ralph.tools.planned_write import PlannedWrite


T = TypeVar("T")

if TYPE_CHECKING:
    Work: TypeAlias = tuple[str, Callable[[], T]]
    """Work for a thread: a name to show in heartbeats, and a function. The function may raise no error other than
    WorkingDirectoryGoneError."""

# In the results of these tools, credentials are redacted. Read and Edit show the content of a file unredacted,
# because the text that the model wants to edit must match the file.
_REDACTED = frozenset({COMMANDS, *OF_BACKGROUND, "Glob", "Grep"})
# A link that became a directory between two looks at it is an invalid argument of readlink(2).
_REPLACED = frozenset({errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})
# How long stopped calls may take to end. Searches notice a stop ten times a second. A write that has begun should
# finish and not leave a temporary file. A thread that waits for a file system without an answer is left behind.
_GIVE_UP_S = 0.8
# How often ralph looks whether the threads are alive. A thread may die without a message if memory runs out.
_LOOK_AT_THREADS_S = 1.0
# Bash and the tools of MCP servers wait for signals themselves, and the kernel ties its command to the thread that starts it.
_ON_THIS_THREAD = frozenset({COMMANDS, *OF_BACKGROUND})


class LocalToolbox:
    """Runs ralph's tools as the current user, and those of MCP servers. `close()` removes long outputs, and ends the servers."""

    def __init__(
        self,
        settings: ToolSettings,
        *,
        waiter: Waiter,
        clock: Clock,
        redactor: Redactor | None = None,
        mcp: McpToolset | None = None,
    ) -> None:
        """Raises WorkingDirectoryGoneError if the working directory is gone, and OSError if another directory cannot be opened."""
        self._mcp = mcp
        self._plans: dict[str, PlannedWrite | ToolOutput] = {}
        self._may_have_written = False
        self._began_s = clock.utc_now().timestamp()
        self._looked_for: str | None = None
        """The id of the call before which `plan` has looked at the working directory."""
        roots = Roots(settings.cwd, settings.writable)
        spill = SpillDirectory((*map(str, roots.paths), *settings.box_plan.write))
        self.context = ToolContext(settings, waiter, clock, redactor or Redactor(), roots, spill=spill)

    @property
    def definitions(self) -> Sequence[ToolDefinition]:
        own = [known for name, known in DEFINITIONS.items() if name in self.context.settings.enabled]
        return own if self._mcp is None else [*own, *self._mcp.definitions]

    def about_killed_run(self) -> str:
        """A note for people if protected files have changed since a run here was killed during a command, or empty. Raises
        Interrupted.
        """
        settings = self.context.settings
        if not settings.box_plan.is_confined:
            return ""
        state = next(named_state_directories(settings.places_environment), "")
        try:
            left = os.listdir(running_below(state))  # noqa: PTH208 - for speed
        except OSError:
            return ""
        # In most runs, nothing of the same directories is there. Only otherwise is the sandbox made so early.
        own = name_for(self.context.roots.paths)
        if not any(name.startswith(own) for name in left):
            return ""
        return self.context.box.look_after_kill("protected files")

    def connect_servers(
        self,
        start: Callable[[McpServer, ToolContext], ServerProcess],
        run: Callable[[ToolCall, McpToolset, ToolContext], ToolOutput],
    ) -> None:
        """Starts each MCP server by `start`, and waits until they have listed their tools, which `run` calls. Raises
        ServerFailedError and Interrupted.
        """
        self._run_mcp = run
        if self._mcp is not None:
            self._mcp.connect(lambda server: start(server, self.context))

    def resume_from(
        self, seen: Mapping[str, str], contents: Iterable[Iterable[Block]], background_count: int = 0
    ) -> None:
        """Restores what earlier runs of the session have seen: `seen` is the texts of `SeenFiles` by path, `contents` those of
        all messages, for their images, and `background_count` the number of commands that ran in the background.
        """
        if background_count:
            self.context.background.count = background_count
        self.context.seen.restore(seen)
        for content in contents:
            self.context.images.restore(content)

    def expect(self, name: str) -> None:
        """Prepares a call of the tool `name` while the arguments of the call are still arriving. For Bash, starts the
        supervisor and makes the sandbox, which takes time. Does nothing for other tools.
        """
        if name == "Bash" and name in self.context.settings.enabled:
            with suppress(OSError, ImportError, MemoryError):  # a shortage is reported by the call itself
                self.context.supervisor.start_early()
                self.context.box.prepare_early()

    def plan(self, call: ToolCall) -> FileChange | None:
        if call.name in _ON_THIS_THREAD:
            return None
        if call.name not in FILE_TOOLS:
            self._look()
            self._looked_for = call.id
            return None
        [(planned, _)] = self._together([self._job(call, self._planned)])
        self._plans = {call.id: planned}
        return None if isinstance(planned, ToolOutput) else planned.change

    def settle(self, change: FileChange) -> ToolOutput | None:
        return self.aside("an interrupted change", lambda: _settled(change, self.context))

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        if any(call.name in _REDACTED or self._is_mcp(call) for call in calls):
            _ = self.context.box  # made on this thread, before several threads look for it
        if all(call.name in DEFINITIONS and DEFINITIONS[call.name].is_read_only for call in calls):
            return self._together([self._job(call, self._output_of) for call in calls])
        self._may_have_written = True
        return [result for call in calls for result in self._run_alone(call)]

    @property
    def background(self) -> Background:
        if "background" not in vars(self.context):
            return Background()
        commands = self.context.background
        return Background(commands.count, {one.id: one.started.command for one in commands.running})

    def background_news(self) -> Sequence[BackgroundStarted | BackgroundEnded]:
        return self.context.background.news() if "background" in vars(self.context) else ()

    def stop_background(self) -> None:
        if "background" in vars(self.context):
            commands = self.context.background
            with suppress(Interrupted):  # then they were killed at once, and the run ends anyway
                commands.stop(commands.running, "run")

    def aside(self, name: str, work: Callable[[], T]) -> T | ToolOutput:
        """The value of `work`, or an error for the model if it fails. It is done on a thread, so that a signal can end the
        wait. Raises Interrupted.
        """
        [(done, _)] = self._together([(name, lambda: _guarded(name, work))])
        return done

    def close(self) -> str:
        """Stops commands in the background, ends the servers and removes temporary files. Returns a note for people about such
        commands, undone changes, and what commands may have planted below the working directories, or an empty text.
        """
        left = len(self.background.running)
        notes = [f"{counted(left, 'command')} in the background stopped"] if left else []
        self.stop_background()
        if self._mcp is not None:
            self._mcp.close()
        boxes = vars(self.context)
        notes += (boxes[name].end_watch() for name in ("box", "hook_box") if name in boxes)
        if self._may_have_written or self._mcp is not None:
            try:
                from ralph.places.nested_repositories import last_look  # noqa: PLC0415 - not for runs without commands

                environment = self.context.settings.places_environment
                notes.append(last_look(self.context.roots.paths, self._began_s, environment))
            except (OSError, ImportError):  # a shortage: the work is done all the same
                notes.append(
                    "what commands may have planted for git was not looked for: this machine is short of resources"
                )
        self.context.close()
        return "; ".join(filter(None, notes))

    def _is_mcp(self, call: ToolCall) -> bool:
        return self._mcp is not None and self._mcp.has(call.name)

    def _run_alone(self, call: ToolCall) -> list[tuple[ToolOutput, float]]:
        if call.name in _ON_THIS_THREAD:  # its launcher looks at the working directory
            return [self._timed((call.name, lambda: self._output_of(call)))]
        if self._is_mcp(call):
            if call.id != self._looked_for:
                self._look()
            return [self._timed((call.name, lambda: self._output_of(call)))]
        return self._together([self._job(call, self._output_of)])

    def _look(self) -> None:
        """Checks the working directory on a thread, because a file system may never answer."""
        self._together([("the working directory", self.context.roots.check_working_directory)])

    def _job(self, call: ToolCall, work: Callable[[ToolCall], T]) -> Work[T]:
        def there() -> T:
            self.context.roots.check_working_directory()
            return work(call)

        return call.name, there

    def _together(self, jobs: Sequence[Work[T]]) -> list[tuple[T, float]]:
        mailbox = self.context.waiter.mailbox()
        self.context.give_up.clear()
        done: dict[int, tuple[T, float] | BaseException] = {}
        waiting_for = ", ".join(name for name, _ in jobs)
        try:
            threads = [self._start(mailbox, index, job) for index, job in enumerate(jobs)]
            while len(done) < len(jobs):
                done.update([self._next_done(mailbox, threads, waiting_for)])
        except BaseException:
            self._give_up(mailbox, len(jobs) - len(done))
            raise
        finally:
            mailbox.close()
        return [_unless_failed(done[index]) for index in range(len(jobs))]

    def _start(self, mailbox: Mailbox, index: int, job: Work[T]) -> ThreadJob | None:
        def run() -> None:
            try:
                result: object = self._timed(job)
            except BaseException as failed:  # noqa: BLE001 - raised where somebody waits for it
                result = failed
            mailbox.put((index, result))

        with suppress(ShortageError):
            return start_job(run, name=job[0])
        run()  # not while that error is handled: each later one would look like a shortage
        return None

    def _next_done(self, mailbox: Mailbox, threads: Sequence[ThreadJob | None], waiting_for: str) -> Any:
        while True:
            were_alive = any(thread is not None and thread.is_alive() for thread in threads)
            until_s = self.context.clock.now_s() + _LOOK_AT_THREADS_S
            item = self.context.waiter.wait(mailbox, until_s=until_s, waiting_for=waiting_for)
            if item is not TIMED_OUT:
                return item
            if not were_alive:
                raise ShortageError("memory")

    def _give_up(self, mailbox: Mailbox, running: int) -> None:
        """Tells the running jobs to stop, and waits briefly for them."""
        self.context.give_up.set()
        deadline_s = self.context.clock.now_s() + _GIVE_UP_S
        try:
            while (
                running
                and self.context.waiter.wait(mailbox, until_s=deadline_s, waiting_for="tools")
                is not TIMED_OUT
            ):
                running -= 1
        except Interrupted:
            return

    def _timed(self, job: Work[T]) -> tuple[T, float]:
        started_s = self.context.clock.now_s()
        done = job[1]()
        return done, self.context.clock.now_s() - started_s

    def _output_of(self, call: ToolCall) -> ToolOutput:
        if self._mcp is not None and self._mcp.has(call.name):
            toolset = self._mcp
            output = _guarded(call.name, lambda: self._run_mcp(call, toolset, self.context))
            return self._presentable(call.name, output)
        if call.name not in FILE_TOOLS:
            return self._presentable(call.name, _guarded(call.name, lambda: _run(call, self.context)))
        planned = self._plans.pop(call.id, None) or self._planned(call)
        output = planned if isinstance(planned, ToolOutput) else _guarded(call.name, planned.execute)
        return self._presentable(call.name, output)

    def _planned(self, call: ToolCall) -> PlannedWrite | ToolOutput:
        return _guarded(call.name, lambda: _function(call)(call.arguments, self.context))

    def _presentable(self, name: str, output: ToolOutput) -> ToolOutput:
        """The output as text that can be encoded as UTF-8. Credentials are redacted for the tools in `_REDACTED`."""
        if not isinstance(output.content, str):
            return output
        text = self.context.redactor.redact(output.content) if name in _REDACTED else output.content
        return replace(output, content=text.encode("utf-8", "replace").decode())


def _unless_failed(result: tuple[T, float] | BaseException) -> tuple[T, float]:
    if isinstance(result, BaseException):
        raise result
    return result


def _guarded(name: str, work: Callable[[], T]) -> T | ToolOutput:
    """Calls `work` and returns its value."""
    try:
        return work()
    except WorkingDirectoryGoneError:
        raise
    except ToolError as failure:
        return ToolOutput(str(failure), is_error=True)
    except Exception as bug:  # noqa: BLE001 - a bug in a tool must not end the run
        short = shortage_of(bug)
        if short is not None:
            return ToolOutput(
                f"{short}; nothing is wrong with the call. That passes: try again", is_error=True
            )
        if isinstance(bug, OSError) and bug.errno in _REPLACED:
            return ToolOutput(
                f"{name}: something replaced or removed a part of the path while it was followed ({os_error_text(bug)}): try again",
                is_error=True,
            )
        # Not everybody may follow the kernel's links, such as /proc/1/root.
        if isinstance(bug, PermissionError) and bug.filename:
            return ToolOutput(f"{bug.filename}: {os_error_text(bug)}", is_error=True)
        return ToolOutput(f"{name} failed inside ralph: {type(bug).__name__}: {bug}", is_error=True)


def _run(call: ToolCall, context: ToolContext) -> ToolOutput:
    if call.name in OF_BACKGROUND or (call.name == COMMANDS and call.arguments.get("run_in_background")):
        from ralph.tools import background  # noqa: PLC0415 - few runs have such commands

        return background.run(call, context)
    output: ToolOutput = _function(call)(call.arguments, context)
    return output


def _settled(change: FileChange, context: ToolContext) -> ToolOutput | None:
    from ralph.tools.planned_write import settle  # noqa: PLC0415 - most runs resume no change

    return settle(change, Path(change.path), context.seen)


_FUNCTIONS = {
    "Bash": "bash:run",
    "Read": "read:run",
    "Edit": "edit:plan_edit",
    "Write": "edit:plan_write",
    "Glob": "search:run_glob",
    "Grep": "search:run_grep",
}
"""For each tool, the module and the function that runs a call, or that plans a file's change."""


def _function(call: ToolCall) -> Any:
    """The function of a tool. Its module is imported at the first call, because most runs use only some of the tools."""
    module, _, function = _FUNCTIONS[call.name].partition(":")
    return getattr(import_module(f"ralph.tools.{module}"), function)


READ = ToolDefinition(
    "Read",
    "Read a text file with line numbers, or an image. Use before Edit. Long files: give offset and limit.",
    {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0, "description": "first line, from 1"},
            "limit": {"type": "integer", "minimum": 1, "description": "lines, default 2000"},
        },
        "required": ["file_path"],
    },
    is_read_only=True,
)

WRITE = ToolDefinition(
    "Write",
    "Create a file or replace all of it. To change a part of one, use Edit.",
    {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
    },
)

EDIT = ToolDefinition(
    "Edit",
    "Replace old_string, which must occur exactly once (or set replace_all), by new_string. Copy it from Read "
    "without line numbers, with enough lines around to be unique.",
    {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "old_string": {"type": "string"},
            "new_string": {"type": "string"},
            "replace_all": {"type": "boolean"},
        },
        "required": ["file_path", "old_string", "new_string"],
    },
)

BASH = ToolDefinition(
    "Bash",
    "Run a shell command in the working directory: builds, tests, git. No terminal, no input; whatever it "
    "starts is stopped when it ends, or with run_in_background (servers) at the end of the run. For files prefer "
    "Read, Edit, Glob, Grep.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "integer", "minimum": 1, "description": "milliseconds"},
            "description": {"type": "string", "description": "its purpose in 5-10 words"},
            "run_in_background": {"type": "boolean"},
        },
        "required": ["command"],
    },
)

BASH_OUTPUT = ToolDefinition(
    "BashOutput",
    "Wait up to 30 s for new output, or the end, of a background command.",
    {"type": "object", "properties": {"bash_id": {"type": "string"}}, "required": ["bash_id"]},
)

KILL_BASH = ToolDefinition(
    "KillBash",
    "Stop a background command.",
    {"type": "object", "properties": {"shell_id": {"type": "string"}}, "required": ["shell_id"]},
)

GLOB = ToolDefinition(
    "Glob",
    "Find files by name, such as *.py or src/**/*.ts. Skips what .gitignore names.",
    {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "directory, default: working directory"},
        },
        "required": ["pattern"],
    },
    is_read_only=True,
)

_LINES = {"type": "integer", "minimum": 0}

GREP = ToolDefinition(
    "Grep",
    "Search file contents by regular expression. Skips what .gitignore names and binary files.",
    {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "file or directory"},
            "glob": {"type": "string", "description": "only these files, such as *.{ts,tsx}"},
            "output_mode": {
                "type": "string",
                "enum": ["content", "files_with_matches", "count"],
                "description": "default files_with_matches",
            },
            "-i": {"type": "boolean"},
            "-n": {"type": "boolean", "description": "line numbers, default true"},
            "-A": _LINES,
            "-B": _LINES,
            "-C": _LINES,
            "head_limit": {"type": "integer", "minimum": 1},
        },
        "required": ["pattern"],
    },
    is_read_only=True,
)

DEFINITIONS = {known.name: known for known in (READ, WRITE, EDIT, BASH, BASH_OUTPUT, KILL_BASH, GLOB, GREP)}

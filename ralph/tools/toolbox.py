"""Runs tool calls: a failure becomes an error for the model, and a signal leaves nothing running."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from ralph.machine.starting import start_thread
from ralph.tools.definitions import DEFINITIONS
from ralph.tools.files.planned_write import PlannedWrite, settle
from ralph.tools.files.roots import Roots
from ralph.tools.tool_room import ToolRoom, ToolSettings
from ralph.values.error_text import ToolError
from ralph.values.ports import TIMED_OUT, Interrupted
from ralph.values.shortage import ShortageError, shortage_of
from ralph.values.tool_calls import FILE_TOOLS, FileChange, ToolCall, ToolDefinition, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from threading import Thread
    from typing import TypeAlias

    from ralph.values.ports import Clock, Mailbox, Waiter
    from ralph.values.tool_calls import Block

T = TypeVar("T")

if TYPE_CHECKING:
    Job: TypeAlias = tuple[str, Callable[[], T]]
    """Work for a thread: a name, which heartbeats show, and a function. The function raises only
    WorkingDirectoryGoneError."""

# Tools that show a file's content unredacted, or no edit would match; the output of programs and searches is
# redacted.
_REDACTED = frozenset({"Bash", "Glob", "Grep"})
# Searches look up ten times a second, and a write in progress should finish rather than leave its temporary file;
# what hangs on a dead mount is left behind.
_GIVE_UP_S = 0.8
# Without memory a thread may die without a message.
_LOOK_AT_THREADS_S = 1.0
# Bash waits for signals itself, and the kernel ties its command to the thread that starts it.
_ON_THIS_THREAD = frozenset({"Bash"})


class LocalToolbox:
    """The six tools on this machine, as this user. `close()` removes what long outputs left in files."""

    def __init__(
        self,
        settings: ToolSettings,
        *,
        waiter: Waiter,
        clock: Clock,
        redact: Callable[[str], str] | None = None,
        redact_longest: int = 0,
        why_refused: Callable[[str], str | None] = lambda _tool: None,
    ) -> None:
        """`redact` replaces every known credential; `redact_longest` is the longest one's length in bytes.

        `why_refused`: the reason why an offered tool may not be used now; None: it may.

        Raises WorkingDirectoryGoneError, and OSError for another directory that cannot be held open.
        """
        self._why_refused = why_refused
        self._plans: dict[str, PlannedWrite | ToolOutput] = {}
        roots = Roots(settings.cwd, settings.writable)
        self._room = ToolRoom(settings, waiter, clock, redact or str, redact_longest if redact else 0, roots)

    @property
    def definitions(self) -> Sequence[ToolDefinition]:
        return [known for name, known in DEFINITIONS.items() if name in self._room.settings.enabled]

    def resume_from(self, seen: Mapping[str, str], contents: Iterable[Iterable[Block]]) -> None:
        """Takes over the files and images that earlier runs of the session have shown the model. `seen`: the digest
        of each path's content; `contents`: the contents of the messages.
        """
        self._room.seen.restore(seen)
        for content in contents:
            self._room.images.restore(content)

    def expect(self, name: str) -> None:
        """Prepares for a call of this tool that is still arriving: starts the parts that take time to start. Changes
        nothing else.
        """
        if name == "Bash" and name in self._room.settings.enabled and self._why_refused(name) is None:
            with suppress(OSError, ImportError, MemoryError):  # a shortage is reported by the call itself
                self._room.supervisor.start_early()

    def plan(self, call: ToolCall) -> FileChange | None:
        if call.name not in FILE_TOOLS:
            self._together([self._job(call, _no_plan)])
            return None
        [(planned, _)] = self._together([self._job(call, self._planned)])
        self._plans = {call.id: planned}
        return planned.change if isinstance(planned, PlannedWrite) else None

    def settle(self, change: FileChange) -> ToolOutput | None:
        def look() -> ToolOutput | None:
            return _guarded("Settling it", lambda: settle(change, Path(change.path), self._room.seen))

        [(settled, _)] = self._together([("an interrupted change", look)])
        return settled

    def run(self, calls: Sequence[ToolCall]) -> Sequence[tuple[ToolOutput, float]]:
        if all(_is_read_only(call) for call in calls):
            return self._together([self._job(call, self._output_of) for call in calls])
        return [result for call in calls for result in self._run_alone(call)]

    def close(self) -> None:
        self._room.close()

    def _run_alone(self, call: ToolCall) -> list[tuple[ToolOutput, float]]:
        job = self._job(call, self._output_of)
        if call.name in _ON_THIS_THREAD:
            return [self._timed(job)]
        return self._together([job])

    def _job(self, call: ToolCall, work: Callable[[ToolCall], T]) -> Job[T]:
        def there() -> T:
            self._room.roots.check_working_directory()
            return work(call)

        return call.name, there

    def _together(self, jobs: Sequence[Job[T]]) -> list[tuple[T, float]]:
        """Does all jobs on threads of their own, so that a signal is noticed while they run."""
        mailbox = self._room.waiter.mailbox()
        self._room.give_up.clear()
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

    def _start(self, mailbox: Mailbox, index: int, job: Job[T]) -> Thread | None:
        def run() -> None:
            try:
                result: object = self._timed(job)
            except BaseException as failed:  # noqa: BLE001 - raised where somebody waits for it
                result = failed
            mailbox.put((index, result))

        try:
            return start_thread(run, name=job[0])
        except ShortageError:
            run()
            return None

    def _next_done(self, mailbox: Mailbox, threads: Sequence[Thread | None], waiting_for: str) -> Any:
        """The index of a finished job, and its result. Raises ShortageError if the threads ended without reporting
        even their failure.
        """
        while True:
            were_alive = any(thread is not None and thread.is_alive() for thread in threads)
            until_s = self._room.clock.now_s() + _LOOK_AT_THREADS_S
            item = self._room.waiter.wait(mailbox, until_s=until_s, waiting_for=waiting_for)
            if item is not TIMED_OUT:
                return item
            if not were_alive:
                raise ShortageError("memory")

    def _give_up(self, mailbox: Mailbox, running: int) -> None:
        """Stops everything that the calls have started. A further signal ends this wait."""
        self._room.give_up.set()
        deadline_s = self._room.clock.now_s() + _GIVE_UP_S
        try:
            while (
                running
                and self._room.waiter.wait(mailbox, until_s=deadline_s, waiting_for="tools") is not TIMED_OUT
            ):
                running -= 1
        except Interrupted:
            return

    def _timed(self, job: Job[T]) -> tuple[T, float]:
        started_s = self._room.clock.now_s()
        done = job[1]()
        return done, self._room.clock.now_s() - started_s

    def _output_of(self, call: ToolCall) -> ToolOutput:
        if call.name not in self._room.settings.enabled or call.name not in DEFINITIONS:
            names = ", ".join(known.name for known in self.definitions)
            return ToolOutput(f"There is no tool {call.name}. Tools: {names}", is_error=True)
        why = self._why_refused(call.name)  # asked last, as the caller may have forgotten to
        if why is not None:
            return ToolOutput(why, is_error=True)
        if call.name not in FILE_TOOLS:
            return self._presentable(
                call.name, _guarded(call.name, lambda: _module(call).run(call.arguments, self._room))
            )
        planned = self._plans.pop(call.id, None) or self._planned(call)
        output = _guarded(call.name, planned.execute) if isinstance(planned, PlannedWrite) else planned
        return self._presentable(call.name, output)

    def _planned(self, call: ToolCall) -> PlannedWrite | ToolOutput:
        """The planned write, or an output for the model with the reason why there is none."""
        return _guarded(call.name, lambda: _module(call).plan(call.arguments, self._room))

    def _presentable(self, name: str, output: ToolOutput) -> ToolOutput:
        """The output, redacted where that is promised, and encodable even if file names are not valid text."""
        if not isinstance(output.content, str):
            return output
        text = self._room.redact(output.content) if name in _REDACTED else output.content
        return replace(output, content=text.encode("utf-8", "replace").decode())


def _no_plan(_call: ToolCall) -> None:
    """Plans nothing, because the effects of a command cannot be foreseen. The working directory has already been
    checked.
    """


def _unless_failed(result: tuple[T, float] | BaseException) -> tuple[T, float]:
    if isinstance(result, BaseException):
        raise result
    return result


def _is_read_only(call: ToolCall) -> bool:
    return call.name in DEFINITIONS and DEFINITIONS[call.name].is_read_only


def _guarded(name: str, work: Callable[[], T]) -> T | ToolOutput:
    """Does the work. A failure or a bug becomes an error for the model, and the run continues."""
    try:
        return work()
    except ToolError as failure:
        return ToolOutput(str(failure), is_error=True)
    except Exception as bug:  # noqa: BLE001 - as above
        short = shortage_of(bug)
        if short is not None:
            return ToolOutput(
                f"{short}; nothing is wrong with the call. That passes: try again", is_error=True
            )
        return ToolOutput(f"{name} failed inside ralph: {type(bug).__name__}: {bug}", is_error=True)


def _module(call: ToolCall) -> Any:
    """The module of a tool. It is loaded at the first call of the tool, because most runs need only half of the
    tools.
    """
    return import_module(f"ralph.tools.{call.name.lower()}")

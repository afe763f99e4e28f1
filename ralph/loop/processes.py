"""Runs each iteration as a `ralph run` process. Only its exit code decides the outcome. When it has ended, all other processes
of the iteration are killed.

Signals are passed on to that process alone. After one, it stops its own commands within six seconds and still writes its
result. Ctrl-Z suspends only the loop: an iteration that was suspended too could not end when its loop is killed, and would
hold the lock.
"""

from __future__ import annotations

import math
import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from ralph.loop.record import write_private
from ralph.loop.rules import is_counted
from ralph.loop.values import IterationResult, IterationSession, Setback
from ralph.machine.files.opened_file import open_regular_file, read_regular_file
from ralph.machine.files.paths import leads_into
from ralph.machine.files.trees import OwnDirectory
from ralph.machine.own_programs import own_python
from ralph.machine.process_start import core_limit_at_start
from ralph.machine.running_command import STILL_RUNS, RunningCommand, is_killed
from ralph.machine.starting import OwnedProcess, start_thread
from ralph.machine.waiter import STOP_SIGNALS
from ralph.output.notifier import EndOfOutput
from ralph.output.stream_json import limit_named
from ralph.sessions.looking import look_to_list
from ralph.sessions.store import SessionStore
from ralph.sessions.story import DAMAGED
from ralph.settings.handover import LoopHandover, handed_over
from ralph.values.limits import budget_word
from ralph.values.outcome import Outcome, ShortageError, shortage_of
from ralph.values.ports import TIMED_OUT, Interrupted
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.loop.check import LoopCommands
    from ralph.loop.values import IterationOrder, LoopPlan
    from ralph.sessions.looking import SessionLook
    from ralph.sessions.story import SessionStory
    from ralph.settings.files import SettingsFile
    from ralph.values.ports import Clock, Mailbox, Waiter
    from ralph.values.redaction import Redactor

STOPS_WITHIN_S = 15.0
"""The seconds after a signal to stop at which the process is killed. `ralph run` promises to need at most six."""
OVERTIME_S = 30.0
"""The seconds after its time limit at which an iteration is stopped. `ralph run` should have ended by itself at the
limit."""


class IterationEnding(Struct, frozen=True):
    exit_code: int
    """0-255, 128 + n if signal n killed the process."""
    stopped_by: int | None = None
    """The first signal that the loop received during the run."""
    killed_by: int | None = None
    was_overdue: bool = False
    """True if the process ran past its time limit and was stopped."""
    is_all_gone: bool = True
    """False if a process could not be killed, because it belongs to another user or hangs in the kernel."""


class RunningIteration:
    def __init__(
        self,
        process: OwnedProcess,
        *,
        waiter: Waiter,
        clock: Clock,
        stops_within_s: float = STOPS_WITHIN_S,
        overtime_s: float = OVERTIME_S,
    ) -> None:
        self._process = process
        self._waiter = waiter
        self._clock = clock
        self._stops_within_s = stops_within_s
        self._overtime_s = overtime_s
        self._mailbox = waiter.mailbox()
        self._status: int | None = None
        self._stopped_by: int | None = None
        self._was_overdue = False
        self._overdue_at_s = math.inf
        self._killed_at_s = math.inf

    def run(self, limit_s: float | None, waiting_for: str) -> IterationEnding:
        """Waits for the end of the process. `limit_s` is the time limit that the process itself keeps. If no thread can be
        started to wait for it, kills the process and raises ShortageError.
        """
        if limit_s is not None:
            self._overdue_at_s = self._clock.now_s() + limit_s + self._overtime_s
        try:
            self._start_thread()
            self._wait_for_end(waiting_for)
        finally:
            next_item = partial(self._next, waiting_for="what the iteration has left to end")
            is_all_gone = is_killed(self._process.kill_what_is_left, self._clock, next_item)
            self._mailbox.close()
        status = -signal.SIGKILL if self._status is None else self._status
        code = status if status >= 0 else 128 - status
        killed_by = -status if status < 0 else None
        return IterationEnding(code, self._stopped_by, killed_by, self._was_overdue, is_all_gone)

    def _start_thread(self) -> None:
        following = (self._process, self._mailbox)
        try:
            start_thread(_await_end, *following, name="iteration end")
        except ShortageError:
            self._process.kill_what_is_left()
            self._process.wait_for_end()
            raise

    def _wait_for_end(self, waiting_for: str) -> None:
        while self._status is None:
            until_s = min(self._overdue_at_s, self._killed_at_s)
            if self._next(until_s, waiting_for) is not TIMED_OUT:
                continue
            if self._clock.now_s() >= self._killed_at_s:
                return
            self._was_overdue = True
            self._overdue_at_s = math.inf
            self._ask_to_stop(signal.SIGTERM)

    def _next(self, until_s: float, waiting_for: str) -> Any:
        until = until_s if math.isfinite(until_s) else None
        try:
            news = self._waiter.wait(self._mailbox, until_s=until, waiting_for=waiting_for)
        except Interrupted as interrupted:
            number = interrupted.signal_number or signal.SIGTERM
            self._stopped_by = self._stopped_by or number
            self._ask_to_stop(number)
            return None
        if isinstance(news, int):
            self._status = news
        return news

    def _ask_to_stop(self, signal_number: int) -> None:
        """A second signal makes `ralph run` end at once, and does not postpone the kill."""
        self._process.send(signal_number)
        self._killed_at_s = min(self._killed_at_s, self._clock.now_s() + self._stops_within_s)


def _await_end(process: OwnedProcess, mailbox: Mailbox) -> None:
    mailbox.put(process.wait_for_end())


PROMPT_FILE = "prompt.md"
# `ralph run` refuses a limit of 0.
_LEAST_S = 0.001


class RalphIterations(Struct, frozen=True):
    """Implements the `Iterations` port with real processes, on the main thread only. On Linux, an iteration ends with its
    loop (`end_with_parent`), elsewhere by itself.
    """

    plan: LoopPlan
    folder: Path
    """The loop's folder, where the prompt is written."""
    environment: Mapping[str, str]
    waiter: Waiter
    clock: Clock
    settings: Sequence[SettingsFile]
    """The recorded settings files, which each iteration uses."""
    redactor: Redactor
    """It and the iterations tell each other the secrets that they know."""
    guards: Mapping[str, str] = {}
    """As in `LoopHandover`."""
    lock: int | None = None
    """The descriptor of the checkout's lock, which each iteration inherits."""
    program: tuple[str, ...] | None = None
    """The program to start, with its `run` command. None for this ralph."""
    stops_within_s: float = STOPS_WITHIN_S
    overtime_s: float = OVERTIME_S

    def run(self, order: IterationOrder) -> IterationResult:
        started_s = self.clock.now_s()
        try:
            result = self._ran(order)
        except OSError as error:
            shortage = shortage_of(error)
            if shortage is None:
                raise
            result = self._not_started(order.session_id, shortage)
        return replace(result, duration_s=round(self.clock.now_s() - started_s, 3))

    def _ran(self, order: IterationOrder) -> IterationResult:
        # A new file for each process: an earlier result must not be mistaken for this one.
        place = OwnDirectory("ralph-loop-", (self.plan.directory, *self.plan.added_directories))
        try:
            result_file = Path(place.path, "result.json")
            handover = LoopHandover(
                files=tuple(self.settings),
                claude_files=self.plan.claude_files or (),
                folder=str(self.folder),
                number=order.number,
                guards=dict(self.guards),
                directories=self.plan.reach,
                secrets=self.redactor.secrets,
                task_chars=None if order.prompt is None else order.task_chars,
            )
            with handed_over(handover, self.redactor.learn) as descriptor:
                ending = self._followed(order, result_file, descriptor)
            result = self._result(order, ending, result_file)
        finally:
            place.remove()
        return replace(result, stopped_by=ending.stopped_by)

    def seen(self, session_id: str) -> IterationSession | None:
        roots = (self.plan.directory, *self.plan.reach)
        return session_seen(session_id, self.environment, self.plan.session_directory, roots)

    def _followed(self, order: IterationOrder, result_file: Path, handover: int) -> IterationEnding:
        call = f"main({core_limit_at_start()}, {os.getpid()})"
        arguments = [
            *(self.program or tuple(own_python(f"from ralph.__main__ import main; {call}"))),
            *self._arguments(order, result_file),
            "--iteration",
            str(handover),
        ]
        process = OwnedProcess(
            arguments,
            cwd=Path(self.plan.launch_directory),
            environment=self.environment,
            kept_descriptors=(handover,) if self.lock is None else (handover, self.lock),
        )
        running = RunningIteration(
            process,
            waiter=self.waiter,
            clock=self.clock,
            stops_within_s=self.stops_within_s,
            overtime_s=self.overtime_s,
        )
        return running.run(order.time_s, order.waiting_for)

    def _arguments(self, order: IterationOrder, result_file: Path) -> Iterator[str]:
        """The plan's arguments, and then the loop's own, which override them."""
        yield from ("run", *self.plan.run_arguments)
        if self.plan.directory != self.plan.launch_directory:
            yield from ("--cd", self.plan.directory)
        if order.prompt is None:
            # The loop's directory may have moved since the session began.
            yield from ("--resume", order.session_id, "--moved")
        else:
            # Half of a surrogate pair, which no file can hold, becomes a question mark.
            file = write_private(self.folder, PROMPT_FILE, order.prompt.encode("utf-8", "replace"))
            yield from ("--prompt-file", str(file), "--session-id", order.session_id)
        yield from ("--result-file", str(result_file))
        # Without an exponent: the limits' parser accepts none.
        if order.budget_usd is not None:
            yield from ("--max-budget-usd", budget_word(order.budget_usd))
        if order.time_s is not None:
            yield from ("--max-time", f"{max(order.time_s, _LEAST_S):.3f}")

    def _result(self, order: IterationOrder, ending: IterationEnding, result_file: Path) -> IterationResult:
        try:
            result = result_written(result_file, ending.exit_code)
        except NoResultError as error:
            result = self._result_without_words(order.session_id, ending.exit_code, str(error))
        if ending.was_overdue and ending.stopped_by is None and result.outcome is Outcome.INTERRUPTED:
            why = f"it kept running for {self.overtime_s:g} s after its time limit, and was stopped"
            timed_out = Outcome.TIMED_OUT
            result = replace(result, exit_code=timed_out.exit_code(), outcome=timed_out, reason=why)
        is_by_us = ending.stopped_by is not None or ending.was_overdue
        if not is_by_us and ending.killed_by is not None and ending.killed_by not in STOP_SIGNALS:
            why = f"was killed by {_signal_name(ending.exit_code - 128)}"
            result = replace(result, setback=Setback.KILL, reason=why)
        if not ending.is_all_gone:
            result = replace(result, reason="; ".join(filter(None, (result.reason, STILL_RUNS))))
        return result

    def _not_started(self, session_id: str, shortage: ShortageError) -> IterationResult:
        """The result of a process that could not be started, followed or read. Turns and cost come from its journal."""
        try:
            spent = self._spent(session_id)
        except OSError as error:
            if shortage_of(error) is None:
                raise
            spent = (0, 0.0)
        away, reason = Outcome.API_UNAVAILABLE, f"it could not be started or followed: {shortage}"
        return IterationResult(away.exit_code(), away, *spent, reason=reason, setback=Setback.SHORTAGE)

    def _spent(self, session_id: str) -> tuple[int, float | None]:
        seen = self.seen(session_id)
        return (0, 0.0) if seen is None else (seen.turns, seen.cost_usd)

    def _result_without_words(self, session_id: str, exit_code: int, problem: str) -> IterationResult:
        """The result of a process that wrote no usable result object. Turns and cost come from its journal."""
        spent, outcome = self._spent(session_id), outcome_of(exit_code)
        if outcome is Outcome.USAGE:  # a run that refuses its options leaves no result
            problem = "ralph run refused its options: its message is above"
        elif outcome is Outcome.INTERRUPTED:
            problem = f"it was ended by {_signal_name(exit_code - 128)} and {problem.removeprefix('it ')}"
        elif outcome is None or is_counted(outcome):
            # No run of ralph ends like this. What it did is unknown, and the next run would end the same way.
            problem = f"it ended with exit {exit_code}, and {problem.removeprefix('it ')}"
            outcome = Outcome.INTERNAL_ERROR
            exit_code = outcome.exit_code()
        # Every run that begins leaves a result, unless the machine lacks the resources for it.
        setback = Setback.SHORTAGE if outcome is Outcome.API_UNAVAILABLE else None
        return IterationResult(exit_code, outcome, *spent, reason=problem, setback=setback)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


# --- The page of a running loop
# Rewrites the HTML page of a running loop. The page is made by a `ralph report` process, so that the loop itself
# never loads what the page needs, and no fault of the page can end the loop.

_LIMIT_S = 60.0
"""A page of 100 MB of journals takes a few seconds, and git may take 20 seconds for each question."""
_GRACE_S = 2.0


class LoopPage(Struct, frozen=True):
    """Implements the `Page` port."""

    file: str
    """The absolute path of the page."""
    loop: str
    """The name of the folder of the loop."""
    environment: Mapping[str, str]
    """The user's whole environment: `ralph report` must know the credentials that it removes."""
    commands: LoopCommands

    def write(self) -> str | None:
        told, commands = EndOfOutput(), self.commands
        arguments = ["report", self.loop, "-o", self.file, "--cd", str(commands.directory)]
        call = f"main({core_limit_at_start()})"
        try:
            process = commands.supervisor.start(
                own_python(f"from ralph.__main__ import main; {call}", *arguments),
                cwd=commands.directory,
                environment=self.environment,
                grace_s=_GRACE_S,
                is_confined=False,
            )
            running = RunningCommand(process, told, waiter=commands.waiter, clock=commands.clock)
            ending = running.run(_LIMIT_S, "the page")
        except OSError as error:
            return str(error)
        why = told.why_failed(ending, _LIMIT_S, "ralph report")
        return why and why.removeprefix("ralph: ")


# --- The result of an iteration. The exit code of the `ralph run` process decides the outcome. Its result object adds texts
# and numbers, and is rejected if it has another exit code. The result of a run whose end this process did not see comes
# from its session's journal.

# A long answer has about 100 KB, so no real result comes near this limit.
_MOST_BYTES = 64 * 1024 * 1024
_AWAY = Outcome.API_UNAVAILABLE.exit_code()
_BY_EXIT_CODE = {each.exit_code(): each for each in Outcome if each is not Outcome.INTERRUPTED}

Amount = Annotated[float, Meta(ge=0)]


class WrittenReport(Struct, frozen=True):
    summary: str = ""
    source: str = ""


class WrittenResult(Struct, frozen=True, kw_only=True):
    """The fields of a result object that a loop uses. `output/stream_json.py` writes the object."""

    exit_code: int
    subtype: str | None = None
    result: str | None = None
    final_report: WrittenReport | None = None
    errors: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    session_num_turns: Annotated[int, Meta(ge=0)] = 0
    session_cost_usd: Amount | None = None
    retry_after_s: Amount | None = None
    is_short: bool = False


class NoResultError(Exception):
    """There is no valid result object. The message says why."""


def outcome_of(exit_code: int) -> Outcome | None:
    """The outcome for an exit code, or None if `ralph run` never exits with this code."""
    if exit_code - 128 in signal.valid_signals():
        return Outcome.INTERRUPTED
    return _BY_EXIT_CODE.get(exit_code)


def result_written(path: Path, exit_code: int) -> IterationResult:
    """Reads a result object. Raises NoResultError, and ShortageError if this machine lacks a resource, such as memory."""
    written = read_result(path)
    if written.exit_code != exit_code:
        raise NoResultError(f"its result says exit code {written.exit_code}, which ralph does not believe")
    report = written.final_report
    return IterationResult(
        exit_code,
        outcome_of(exit_code) or Outcome.INTERNAL_ERROR,
        turns=written.session_num_turns,
        cost_usd=written.session_cost_usd,
        last_words=written.result or (report.summary if report is not None else ""),
        # The model did not write a synthetic report.
        summary=report.summary if report is not None and report.source != "synthetic" else "",
        reason="; ".join(filter(None, written.errors)),
        advice=" ".join(written.hints),
        limit=limit_named(written.subtype),
        retry_after_s=written.retry_after_s,
        setback=Setback.SHORTAGE if written.is_short and exit_code == _AWAY else None,
    )


def read_result(path: Path) -> WrittenResult:
    """As `result_written`, whatever the exit code was."""
    try:
        return convert(strict_json(read_regular_file(path, _MOST_BYTES).decode()), WrittenResult)
    except FileNotFoundError:
        raise NoResultError("it left no result") from None
    except OSError as error:
        shortage = shortage_of(error)
        if shortage is not None:
            raise shortage from None
        raise NoResultError(f"its result cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NoResultError(f"its result is damaged: {error}") from error


def session_seen(
    session_id: str, environment: Mapping[str, str], directory: str | None, roots: Sequence[str] = ()
) -> IterationSession | None:
    """Reads the state of a session from its journal. None if there is no journal, or one without a message, which cannot be
    resumed. `directory` is that of `ralph run --session-dir`. `roots` are directories that commands may write, in which
    `SessionStore.for_user` keeps none. Raises ShortageError, and OSError if it cannot be listed.
    """
    look = _look(session_id, environment, directory, roots)
    if look is None or (look.problem is None and not look.story.has_message):
        return None
    try:
        written_at = datetime.fromtimestamp(look.written_at_s, UTC)
        ended, is_damaged = _end_of(look.story), look.outcome == DAMAGED
        return IterationSession(look.story.turns, look.story.cost_usd, ended, written_at, is_damaged)
    except ValueError:  # the journal contains an outcome that only a newer ralph knows
        return IterationSession(0, None)


def _look(
    session_id: str, environment: Mapping[str, str], directory: str | None, roots: Sequence[str]
) -> SessionLook | None:
    store = SessionStore.to_read(environment, None if directory is None else Path(directory))
    for path in store.starting_with(session_id):
        if os.sep not in roots and leads_into(str(path), roots):
            continue
        with suppress(FileNotFoundError):  # it was removed just now
            try:
                os.close(open_regular_file(path))
            except OSError as error:  # in a shortage, `look_to_list` would report the journal as unreadable
                if (shortage := shortage_of(error)) is not None:
                    raise shortage from None
            return look_to_list(path)
    return None


def _end_of(story: SessionStory) -> IterationResult | None:
    ended = story.runs[-1].ended if story.runs else None
    if ended is None:
        return None
    return IterationResult(
        ended.exit_code,
        Outcome(ended.outcome),
        turns=story.turns,
        cost_usd=story.cost_usd,
        last_words=ended.result or "",
        reason="; ".join(ended.errors),
        duration_s=float(ended.duration_s),
    )

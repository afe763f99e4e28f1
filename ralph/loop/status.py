"""Implements `ralph loop --status`, which shows the state of a directory's loop, once or until the loop has ended, and
`ralph loop ls` and `show`, which print what is recorded. Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ralph.loop.checkout import holder_of
from ralph.loop.events import (
    continue_command,
    ending_line,
    iteration_line,
    resume_hint,
    totals,
    which_iteration,
)
from ralph.loop.record import LoopStore, RecordError
from ralph.loop.rules import tasks_text
from ralph.loop.state import LoopState, Phase, state_fields
from ralph.machine.starting import facts_of
from ralph.machine.waiter import Inbox, InboxWaiter, SystemClock, catch_stop_signals
from ralph.output.iteration_log import LOG_TEXT, LiveIteration, read_live
from ralph.output.standard_streams import ReaderLeftError, complain, obeys_controls, print_lines
from ralph.output.status_line import Screen
from ralph.output.status_line import doing as doing_now
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Interrupted
from ralph.values.redaction import Redactor, redacted
from ralph.values.screen_text import counted, cut_to_columns, dollars, duration, in_one_line
from ralph.values.usage import plain, total_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.loop.record import FileRecord
    from ralph.loop.state import CurrentIteration

_WATCH_EVERY_S = 1.0
_LONGEST_BACKGROUND = 80
_DOING = {
    Phase.WORKING: "the model works",
    Phase.WAITING: "waiting",
    Phase.SAVING: "committing and pushing",
    Phase.CHECKING: "running the check",
}
_NO_PROC = not os.path.isdir("/proc/self")  # noqa: PTH112 - `Path` would be made for it alone


def redact_of(status: LoopStatus) -> Callable[[str], str]:
    """Cuts the secrets of the environment, and those in the options that the loop's record repeats."""
    return Redactor(known_secrets(os.environ, tuple(status.state.plan.secrets()))).redact_all


def _change_text(status: LoopStatus) -> str:
    """One line about the moment. It contains no duration, so that it changes only if something happens."""
    if not status.is_running:
        return [*status_lines(status)][1]
    state, now = status.present, "between iterations"
    if state.current is not None:
        now = f"iteration {state.current.number}: {doing_text(status, state.current, has_times=False)}"
    return f"{now}; {totals(state).rpartition(', ')[0]}"


def loop_status(directory: Path, *, is_json: bool = False, watches: bool = False) -> int:
    """Prints the status and returns the exit code. `watches` prints it again and again until the loop has ended.
    Raises UsageError if the directory has no recorded loop.
    """
    store = LoopStore.to_read(os.environ, directory)
    try:
        if watches:
            return _watch(directory, store, is_json=is_json)
        status = read_status(directory, store)
    except RecordError as error:
        return _refused(error)
    redact = redact_of(status)
    with suppress(ReaderLeftError):
        print_lines([_json(status, redact)] if is_json else safe_lines(status_lines(status), redact))
    return 0


def _refused(error: RecordError) -> int:
    if error.outcome is Outcome.USAGE:
        raise UsageError(str(error)) from None
    complain(str(error))
    return error.outcome.exit_code()


def read_status(directory: Path, store: LoopStore) -> LoopStatus:
    """Reads the newest loop of the directory. Raises RecordError."""
    return status_of_record(store.newest(), directory, store)


def status_of_record(record: FileRecord, directory: Path | None, store: LoopStore) -> LoopStatus:
    """Reads the loop of a record. If `directory` is None, it is the loop's own directory. Raises RecordError."""
    state = record.load()
    where = Path(state.plan.directory) if directory is None else directory
    # The lock is for the checkout, which may contain several directories, and a loop works in one of them.
    is_running = state.ended is None and holder_of(where, store.place_of(where)) == state.pid
    live = read_live(record.folder) if is_running else None
    if live is not None and not _is_current(live, state):
        live = None
    return LoopStatus(record.folder, state, is_running, live, SystemClock().utc_now())


def _is_current(live: LiveIteration, state: LoopState) -> bool:
    """Whether the live file belongs to the process of the running iteration. The file of a killed process stays."""
    current = state.current
    if current is None or current.phase is not Phase.WORKING:
        return False
    if (live.number, live.session_id) != (current.number, current.session_id):
        return False
    facts = facts_of(live.pid)
    return _NO_PROC or (facts is not None and facts.parent == state.pid)


def _watch(directory: Path, store: LoopStore, *, is_json: bool) -> int:
    """Shows the loop every second until it has ended, and returns the exit code. On a terminal, draws the status
    again in the same place. Elsewhere, and as JSON, prints one line per change. Raises RecordError.
    """
    clock = SystemClock()
    inbox = Inbox(clock)
    restore_signals = catch_stop_signals(inbox)
    waiter = InboxWaiter(clock, inbox)
    screen = Screen() if not is_json and obeys_controls(1, os.environ) else None
    last = ""
    try:
        status = read_status(directory, store)
        redact = redact_of(status)
        while True:
            if screen is not None:
                screen.draw(safe_lines(status_lines(status), redact))
            elif (text := _change_text(status)) != last:
                last = text
                line = _json(status, redact) if is_json else f"{status.at.astimezone():%H:%M:%S} {text}"
                print_lines([line] if is_json else safe_lines([line], redact))
            if not status.is_running:
                return 0
            waiter.sleep(_WATCH_EVERY_S, waiting_for="the loop")
            status = read_status(directory, store)
    except ReaderLeftError:
        return 0
    except Interrupted as stop:
        return stop.outcome.exit_code(stop.signal_number)
    finally:
        if screen is not None:
            screen.close()
        restore_signals()


def _json(status: LoopStatus, redact: Callable[[str], str]) -> str:
    state = status.present
    told = {"is_running": status.is_running, "folder": str(status.folder), "totals": state.totals}
    about = {"left": left_of(state), "live": to_builtins(status.live)}
    return json.dumps(redacted({**told, **about, **state_fields(status.state)}, redact))


def safe_lines(lines: Iterable[str], redact: Callable[[str], str]) -> list[str]:
    """Text of a model, a file's name or a record becomes one line, whatever it contains."""
    return [redact(in_one_line(line)) for line in lines]


# --- Recorded loops

_HEADER = f"{'ID':4}  {'BEGUN':16}  {'OUTCOME':15}  ITERATIONS      COST  TASK"
_SHOWN_ITERATIONS = 10_000


def list_loops(directory: Path) -> int:
    """Prints one line per loop, the newest first, and returns the exit code. A loop may be listed as unreadable."""
    store = LoopStore.to_read(os.environ, directory)
    redact = Redactor(known_secrets(os.environ)).redact_all
    rows = [_row(record, store) for record in store.all_records()]
    rows.sort(key=lambda row: row[0], reverse=True)
    # COLUMNS counts without a terminal too. A pipe gets whole lines.
    width = shutil.get_terminal_size((80 if sys.stdout.isatty() else 0, 24)).columns
    lines = safe_lines([_HEADER, *(line for _, line in rows)], redact)
    lines = [cut_to_columns(line, width) for line in lines] if width else lines
    with suppress(ReaderLeftError):
        print_lines(lines if rows else [f"no loop is recorded in {directory}"])
    return 0


def show_loop(directory: Path, number: str | None) -> int:
    """Prints the story of a loop of this directory, and returns the exit code. `number` is the number of the loop, or None
    for the newest. Raises UsageError if there is no such loop.
    """
    store = LoopStore.to_read(os.environ, directory)
    try:
        record = store.newest() if number is None else store.numbered(number)
        status = status_of_record(record, directory, store)
    except RecordError as error:
        return _refused(error)
    with suppress(ReaderLeftError):
        print_lines(safe_lines(_story(status), redact_of(status)))
    return 0


def _task(status: LoopStatus) -> str:
    """The first line of the task. If the task is in a file, the name of the file."""
    plan = status.state.plan
    if plan.prompt_file is not None:
        return f"-f {Path(plan.prompt_file).name}"
    return next((line.strip() for line in (plan.prompt or "").splitlines() if line.strip()), "")


def _row(record: FileRecord, store: LoopStore) -> tuple[str, str]:
    """When the loop began, and its line."""
    number = f"{int(record.folder.name)!s:4}"
    try:
        status = status_of_record(record, None, store)
    except RecordError:
        return "", f"{number}  {'':16}  {'unreadable':15}  {'':>10}  {'':>8}  "
    state = status.present
    outcome = "running" if status.is_running else "stopped"
    if state.ended is not None:
        outcome = state.ended.outcome.value
    count, cost = len(state.iterations), dollars(state.spent_usd)
    begun, task = local(state.started_at), in_one_line(_task(status))
    return state.started_at, f"{number}  {begun:16}  {outcome:15}  {count:>10}  {cost:>8}  {task}"


def _story(status: LoopStatus) -> Iterator[str]:
    """The lines of `--status`, with all iterations, and the reason and the last words of each."""
    yield f"loop {int(status.folder.name)}: {_task(status)}"
    yield from status_lines(status, _SHOWN_ITERATIONS, tells_words=True)
    yield f"log: {status.folder / LOG_TEXT}"


# --- The lines of a status


class LoopStatus(Struct, frozen=True):
    """A loop at one moment."""

    folder: Path
    state: LoopState
    is_running: bool
    """Whether a process of the loop holds the lock."""
    live: LiveIteration | None
    """The live file of the running iteration, or None if it is not known."""
    at: datetime

    @property
    def present(self) -> LoopState:
        """The state brought forward to this moment, with the turns and the cost of the running iteration so far."""
        state, live, current = self.state, self.live, self.state.current
        if not self.is_running:
            return state
        if current is not None and live is not None:
            cost = total_usd((current.cost_usd, live.run.cost_usd))
            current = replace(current, turns=current.turns + live.run.answered, cost_usd=cost)
        age_s = _age_s(state.updated_at, self.at) or 0.0
        return replace(state, current=current, elapsed_s=state.elapsed_s + age_s)


def status_lines(
    status: LoopStatus, most_iterations: int = 10, *, tells_words: bool = False
) -> Iterator[str]:
    """The lines of `ralph loop --status`, with the last `most_iterations` iterations, and their words if `tells_words`."""
    state, is_running = status.present, status.is_running
    plan = state.plan
    yield f"loop in {plan.directory}, started {local(state.started_at)}"
    if state.ended is not None:
        yield f"ended {local(state.updated_at)}: {ending_line(state, state.ended)}"
    elif is_running:
        yield f"running as process {state.pid}: {totals(state)}"
        yield from _left_text(state)
    else:
        yield f"stopped without recording an end, last active {local(state.updated_at)}: {totals(state)}"
    if state.current is not None:
        yield _now_at(status, state.current)
        yield from [] if status.live is None else _process_lines(status.live, status.at)
    if plan.gate is not None and state.last_gate is not None:
        yield f"gate `{plan.gate}`: {state.last_gate.words}"
    if plan.until is not None and state.last_check is not None:
        yield f"check `{plan.until}`: {state.last_check.words}"
    if plan.plan is not None:
        yield f"plan {plan.plan}: {tasks_text(state.open_tasks)}"
    most = plan.limits.max_iterations
    for record in state.iterations[-most_iterations:]:
        yield iteration_line(record, most)
        if tells_words:
            yield from (f"  {text}" for text in (record.reason, record.last_words) if text)
    yield from state.warnings
    yield f"record, last prompt, log and the check's output: {status.folder}"
    if state.ended is not None:
        yield from filter(None, [resume_hint(state, state.ended)])
    elif not is_running:
        yield f"continue with: {continue_command(state)}"


def _left_text(state: LoopState) -> Iterator[str]:
    limits, left = state.plan.limits, left_of(state)
    parts = []
    if left["iterations"] is not None:
        parts.append(f"{left['iterations']} of {counted(limits.max_iterations or 0, 'iteration')}")
    if limits.max_budget_usd is not None:
        parts.append(f"{dollars(left['usd'])} of {dollars(limits.max_budget_usd)}")
    if (seconds := left["seconds"]) is not None:
        parts.append(f"{duration(seconds)} of {duration(limits.max_time_s or 0)}")
    if parts:
        yield f"left: {', '.join(parts)}"


def left_of(state: LoopState) -> dict[str, float | None]:
    """The rest of a loop's limits: iterations that have not begun, US dollars and seconds. None without a limit.
    The dollars are also None if the cost so far is unknown.
    """
    limits, spent = state.plan.limits, state.spent_usd
    most, budget_usd, max_time_s = limits.max_iterations, limits.max_budget_usd, limits.max_time_s
    begun = len(state.iterations) + (state.current is not None)
    return {
        "iterations": None if most is None else max(most - begun, 0),
        "usd": None if budget_usd is None or spent is None else plain(max(budget_usd - spent, 0.0)),
        "seconds": None if max_time_s is None else plain(max(max_time_s - state.elapsed_s, 0.0)),
    }


def _now_at(status: LoopStatus, current: CurrentIteration) -> str:
    which = which_iteration(current.number, status.state.plan.limits.max_iterations, current.session_id)
    if not status.is_running:
        return f"{which}: not finished"
    age_s = _age_s(current.started_at, status.at)
    started = current.started_at if age_s is None else f"{duration(age_s)} ago"
    return f"{which}: {doing_text(status, current)}, started {started}"


def doing_text(status: LoopStatus, current: CurrentIteration, *, has_times: bool = True) -> str:
    """The present work of a running loop, or its wait. Without `has_times`, the text contains no duration, so that it
    changes only if something else happens.
    """
    if status.live is not None:
        return _progress_text(status.live, status.at, has_times=has_times)
    doing = _DOING[current.phase]
    if current.waits_until is not None:
        # An outage sets the number of kills to 0.
        after = counted(current.kills, "kill") if current.kills else counted(current.outages, "outage")
        doing += f" until {local(current.waits_until)} ({after})"
    return doing


def _progress_text(live: LiveIteration, now: datetime, *, has_times: bool) -> str:
    run, now_s = live.run, now.timestamp()
    if not run.turn:
        return "starting"
    most = "" if live.max_turns is None else f" of {live.max_turns}"
    what, how_long = doing_now(run, now_s)
    until = ""
    if run.wait is not None and run.wait.until_s > now_s:
        until = f" until {datetime.fromtimestamp(run.wait.until_s, now.tzinfo).astimezone():%H:%M:%S}"
    return f"turn {run.turn}{most}, {what}{until}{f' ({how_long})' if has_times else ''}"


def _process_lines(live: LiveIteration, now: datetime) -> Iterator[str]:
    run, took_s = live.run, max(now.timestamp() - live.began_s, 0.0)
    budget = "" if live.max_budget_usd is None else f" of {dollars(live.max_budget_usd)}"
    time = "" if live.max_time_s is None else f" of {duration(live.max_time_s)}"
    yield (
        f"{run.model or 'its process'}: {counted(run.answered, 'turn')}, {run.tokens_in:,} tokens in, "
        f"{run.tokens_out:,} out, {dollars(run.cost_usd)}{budget}, {duration(took_s)}{time}"
    )
    for one in run.background:
        text = cut_to_columns(one.text, _LONGEST_BACKGROUND)
        yield f"in the background: {one.id} for {duration(max(now.timestamp() - one.since_s, 0.0))}: {text}"


def _age_s(moment: str, now: datetime) -> float | None:
    """The seconds since an ISO 8601 time, 0 in the future, or None if it is not valid."""
    try:
        return max((now - datetime.fromisoformat(moment)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def local(moment: str) -> str:
    """An ISO 8601 time as local time. A text that is not a valid time is returned unchanged."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return moment

"""Implements `ralph loop --status`, which shows the state of a directory's loop, once or until the loop has ended, and
`ralph loop ls` and `show`, which print what is recorded. Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from ralph.loop.directory.lock import holder_of
from ralph.loop.record import LoopStore, RecordError
from ralph.loop.state import LoopState, Phase, state_fields
from ralph.loop.words import LoopStatus, doing_text, left_of, local, status_lines, totals
from ralph.machine.processes import facts_of
from ralph.machine.waiter import Inbox, InboxWaiter, SystemClock, catch_stop_signals
from ralph.output.iteration_log import LOG_TEXT, LiveIteration, read_live
from ralph.output.standard_streams import ReaderLeftError, complain, obeys_controls, print_lines
from ralph.output.status_line import Screen
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Interrupted
from ralph.values.redaction import Redactor, redacted
from ralph.values.screen_text import cut_to_columns, dollars, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.loop.record import FileRecord

_WATCH_EVERY_S = 1.0
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
    about = {"left": to_builtins(left_of(state)), "live": to_builtins(status.live)}
    return json.dumps(redacted({**told, **about, **state_fields(status.state)}, redact))


def safe_lines(lines: Iterable[str], redact: Callable[[str], str]) -> list[str]:
    """Text of a model, a file's name or a record becomes one line, whatever it contains."""
    return [redact(in_one_line(line)) for line in lines]


# --- Recorded loops

_UNREADABLE = "unreadable"
_HEADER = f"{'ID':4}  {'BEGUN':16}  {'OUTCOME':15}  ITERATIONS      COST  TASK"
_SHOWN_ITERATIONS = 10_000


def list_loops(directory: Path) -> int:
    """Prints one line per loop, the newest first, and returns the exit code. A loop may be listed as unreadable."""
    store = LoopStore.to_read(os.environ, directory)
    redact = Redactor(known_secrets(os.environ)).redact_all
    loops = [(record, _status_or_none(record, store)) for record in store.all_records(of_all=False)]
    loops.sort(key=lambda loop: "" if loop[1] is None else loop[1].state.started_at, reverse=True)
    # COLUMNS counts without a terminal too. A pipe gets whole lines.
    width = shutil.get_terminal_size((80 if sys.stdout.isatty() else 0, 24)).columns
    lines = safe_lines([_HEADER, *(_row(*loop) for loop in loops)], redact)
    lines = [cut_to_columns(line, width) for line in lines] if width else lines
    with suppress(ReaderLeftError):
        print_lines(lines if loops else [f"no loop is recorded in {directory}"])
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


def _status_or_none(record: FileRecord, store: LoopStore) -> LoopStatus | None:
    try:
        return status_of_record(record, None, store)
    except RecordError:
        return None


def _outcome(status: LoopStatus | None) -> str:
    if status is None:
        return _UNREADABLE
    if status.state.ended is not None:
        return status.state.ended.outcome.value
    return "running" if status.is_running else "stopped"


def _task(status: LoopStatus | None) -> str:
    """The first line of the task. If the task is in a file, the name of the file."""
    if status is None:
        return ""
    plan = status.state.plan
    if plan.prompt_file is not None:
        return f"-f {Path(plan.prompt_file).name}"
    return next((line.strip() for line in (plan.prompt or "").splitlines() if line.strip()), "")


def _row(record: FileRecord, status: LoopStatus | None) -> str:
    begun = count = cost = ""
    if status is not None:
        state = status.present
        begun, cost, count = local(state.started_at), dollars(state.spent_usd), str(len(state.iterations))
    id_, task = str(int(record.folder.name)), in_one_line(_task(status))
    return f"{id_:4}  {begun:16}  {_outcome(status):15}  {count:>10}  {cost:>8}  {task}"


def _story(status: LoopStatus) -> Iterator[str]:
    """The lines of `--status`, with all iterations, and the reason and the last words of each."""
    yield f"loop {int(status.folder.name)}: {_task(status)}"
    yield from status_lines(status, _SHOWN_ITERATIONS, tells_words=True)
    yield f"log: {status.folder / LOG_TEXT}"

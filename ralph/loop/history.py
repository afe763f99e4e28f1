"""Implements `ralph loop ls` and `ralph loop show`, which print what is recorded about loops. Nothing is changed, and
no lock is taken.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.loop.record import RecordError
from ralph.loop.status import redact_of, safe_lines, status_of_record
from ralph.loop.store import LoopStore
from ralph.loop.words import LoopStatus, local, status_lines
from ralph.machine.files.opened_file import open_regular_file
from ralph.output.iteration_log import LOG_TEXT, OLDER
from ralph.output.standard_streams import ReaderLeftError, complain, print_bytes, print_lines
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor, redacted
from ralph.values.screen_text import cut_to_columns, dollars, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.loop.record import FileRecord

_UNREADABLE = "unreadable"
_DIRECTORY_COLUMNS = 28
_PIECE_BYTES = 1024 * 1024
_SHOWN_ITERATIONS = 10_000


def list_loops(directory: Path, *, of_all: bool, is_json: bool) -> int:
    """Prints one line per loop, the newest first, and returns the exit code. A loop with an unreadable record is
    listed as unreadable.
    """
    store = LoopStore.to_read(os.environ, directory)
    redact = Redactor(known_secrets(os.environ)).redact_all
    loops = [(record, _status_or_none(record, store)) for record in store.all_records(of_all=of_all)]
    loops.sort(key=lambda loop: "" if loop[1] is None else loop[1].state.started_at, reverse=True)
    if is_json:
        lines = [json.dumps(redacted([_object(*loop) for loop in loops], redact), indent=2)]
    else:
        # COLUMNS counts without a terminal too. A pipe gets whole lines.
        width = shutil.get_terminal_size((80 if sys.stdout.isatty() else 0, 24)).columns
        rows = [_row(record, status, of_all=of_all) for record, status in loops]
        lines = safe_lines([_header(of_all=of_all), *rows], redact)
        lines = [cut_to_columns(line, width) for line in lines] if width else lines
        if not rows:
            where = "in any directory" if of_all else f"in {directory}"
            lines = [f"no loop is recorded {where}"]
    with suppress(ReaderLeftError):
        print_lines(lines)
    return 0


def show_loop(directory: Path, number: str | None, *, prints_log: bool) -> int:
    """Prints the story of a loop of this directory, or its log, and returns the exit code. `number` is the number of
    the loop, or None for the newest. Raises UsageError if there is no such loop.
    """
    store = LoopStore.to_read(os.environ, directory)
    redact = Redactor(known_secrets(os.environ)).redact_all
    try:
        record = store.newest() if number is None else store.numbered(number)
        if prints_log:
            return _print_log(record.folder, redact)
        status = status_of_record(record, directory, store)
    except RecordError as error:
        if error.outcome is Outcome.USAGE:
            raise UsageError(str(error)) from None
        complain(str(error))
        return error.outcome.exit_code()
    with suppress(ReaderLeftError):
        print_lines(safe_lines(_story(status), redact_of(status)))
    return 0


def _status_or_none(record: FileRecord, store: LoopStore) -> LoopStatus | None:
    """The state of a loop, or None if its record cannot be read."""
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


def _header(*, of_all: bool) -> str:
    directory = f"{'DIRECTORY':{_DIRECTORY_COLUMNS}}  " if of_all else ""
    return f"{'ID':4}  {'BEGUN':16}  {directory}{'OUTCOME':15}  ITERATIONS      COST  TASK"


def _row(record: FileRecord, status: LoopStatus | None, *, of_all: bool) -> str:
    begun, count, cost, where = "", "", "", ""
    if status is not None:
        state = status.present
        begun, cost, where = local(state.started_at), dollars(state.spent_usd), state.plan.directory
        count = str(len(state.iterations))
    where = where if len(where) <= _DIRECTORY_COLUMNS else f"…{where[1 - _DIRECTORY_COLUMNS :]}"
    directory = f"{where:{_DIRECTORY_COLUMNS}}  " if of_all else ""
    task = in_one_line(_task(status))
    id_ = str(int(record.folder.name))
    return f"{id_:4}  {begun:16}  {directory}{_outcome(status):15}  {count:>10}  {cost:>8}  {task}"


def _object(record: FileRecord, status: LoopStatus | None) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if status is not None:
        state = status.present
        end = state.ended
        known = {
            "begun_at": state.started_at,
            "exit_code": None if end is None else end.exit_code,
            "reason": None if end is None else end.reason,
            "iterations": len(state.iterations),
            "cost_usd": state.spent_usd,
            "directory": state.plan.directory,
            "task": _task(status),
        }
    return {
        "id": int(record.folder.name),
        "outcome": _outcome(status),
        **known,
        "folder": str(record.folder),
    }


def _story(status: LoopStatus) -> Iterator[str]:
    """The lines of `--status`, with all iterations, and the reason and the last words of each."""
    yield f"loop {int(status.folder.name)}: {_task(status)}"
    yield from status_lines(status, _SHOWN_ITERATIONS, tells_words=True)
    yield f"log: {status.folder / LOG_TEXT} (ralph loop show {int(status.folder.name)} --log)"


def _print_log(folder: Path, redact: Callable[[str], str]) -> int:
    """Prints the log's lines, the older part first. Returns the exit code. They were made safe when they were written,
    by the credentials known then.
    """
    found = False
    with suppress(ReaderLeftError):
        for name in (f"{LOG_TEXT}{OLDER}", LOG_TEXT):
            with suppress(FileNotFoundError), os.fdopen(open_regular_file(folder / name), "rb") as file:
                found = True
                while lines := file.readlines(_PIECE_BYTES):
                    text = b"".join(lines).decode("utf-8", "surrogateescape")
                    print_bytes(redact(text).encode("utf-8", "surrogateescape"))
    if not found:
        complain(f"this loop has no log: {folder / LOG_TEXT} does not exist")
    return 0 if found else Outcome.IO_ERROR.exit_code()

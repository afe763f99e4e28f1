"""Implements `ralph loop --status`, which shows the state of a directory's loop. The loop may be running or not.
Nothing is changed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.loop.git.lock import holder_of
from ralph.loop.record import RecordError
from ralph.loop.state import state_fields
from ralph.loop.store import LoopStore
from ralph.loop.words import status_lines
from ralph.machine.clock import SystemClock
from ralph.output.shown_object import redacted
from ralph.output.standard_streams import ReaderLeftError, complain, print_lines
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from pathlib import Path


def loop_status(directory: Path, *, is_json: bool = False) -> int:
    """Prints the status and returns the exit code. Raises UsageError if the directory has no recorded loop."""
    store = LoopStore.to_read(os.environ, directory)
    try:
        record = store.newest()
        state = record.load()
    except RecordError as error:
        if error.outcome is Outcome.USAGE:
            raise UsageError(str(error)) from None
        complain(str(error))
        return error.outcome.exit_code()
    # The lock is for the checkout, which may contain several directories, and a loop works in one of them.
    is_running = holder_of(directory, store.place) == state.pid
    redactor = Redactor(known_secrets(os.environ))
    if is_json:
        told = {"is_running": is_running, "folder": str(record.folder), **state_fields(state)}
        lines = [json.dumps(redacted(told, redactor.redact_all))]
    else:
        now = SystemClock().utc_now()
        said = status_lines(state, record.folder, is_running=is_running, now=now)
        # Text of a model, a file's name or a record becomes one line, whatever it contains.
        lines = [redactor.redact_all(in_one_line(line)) for line in said]
    with suppress(ReaderLeftError):
        print_lines(lines)
    return 0

"""`ralph loop --status`: how the loop of a directory is doing, from another terminal. It follows and changes nothing."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.core.credentials import known_secrets
from ralph.core.outcome import Outcome, UsageError
from ralph.core.redaction import Redactor
from ralph.core.screen_text import in_one_line
from ralph.effects.checkout.lock import holder_of
from ralph.effects.clock import SystemClock
from ralph.effects.loop.record import FileRecord, RecordError
from ralph.effects.loop.words import status_lines

if TYPE_CHECKING:
    from pathlib import Path


def loop_status(directory: Path) -> int:
    """On standard output; the exit code. Raises UsageError where there is no loop."""
    try:
        state = FileRecord(directory).load()
    except RecordError as error:
        if error.outcome is Outcome.USAGE:
            raise UsageError(str(error)) from None
        with suppress(BrokenPipeError):
            sys.stderr.write(f"ralph: {in_one_line(str(error))}\n")
        return error.outcome.exit_code()
    # Of a checkout that holds several directories one loop at a time works in one of them.
    is_running = holder_of(directory) == state.pid
    redactor = Redactor(known_secrets(os.environ))
    with suppress(BrokenPipeError):  # a reader that left
        for line in status_lines(state, is_running=is_running, now=SystemClock().utc_now()):
            # Names of files may be no text.
            shown = redactor.redact_all(in_one_line(line)).encode("utf-8", "replace")
            sys.stdout.write(shown.decode() + "\n")
        sys.stdout.flush()
    return 0

"""Checks the places that a run writes to, its sessions and the working directory, by writing."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from ralph.cli.checks.finding import Finding, fail, ok, warn
from ralph.sessions.store import SessionStore
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def look_at_sessions(environment: Mapping[str, str], named: Path | None) -> Finding:
    """Makes the directory where it is missing, as a run would."""
    advice = "name another place by --session-dir DIR or RALPH_STATE_DIR"
    try:
        where = SessionStore.to_read(environment, named).root
    except OSError as error:  # no home, and no temporary directory either
        return fail("sessions", f"there is no place for them: {_reason(error)}", advice)
    try:
        store = SessionStore.for_user(environment, named)
        _write_into(store.root)
    except (JournalError, OSError) as error:
        return fail("sessions", f"{where} cannot be written to: {_reason(error)}", advice)
    if store.notice is not None:
        return warn("sessions", store.notice, "set HOME, RALPH_STATE_DIR or --session-dir DIR")
    return ok("sessions", f"{store.root} can be written to")


def look_at_working_directory(cwd: Path | None) -> Finding:
    """`cwd`: None where the directory is gone."""
    if cwd is None:
        return fail("working directory", "it is gone", "change to one that exists, or name one by --cd DIR")
    try:
        _write_into(cwd)
    except OSError as error:
        return warn(
            "working directory",
            f"{cwd} cannot be written to ({_reason(error)}): the agent can read here and change nothing",
            "change its permissions, or name another one by --cd DIR",
        )
    return ok("working directory", f"{cwd} can be written to")


def _write_into(directory: Path) -> None:
    """Writes a file and leaves nothing of it; where the system allows that, it never has a name."""
    with tempfile.TemporaryFile(dir=directory, prefix=".ralph-doctor-") as file:
        file.write(b"?")
        file.flush()


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, JournalError) else error
    if isinstance(cause, FileExistsError | NotADirectoryError):
        return "a file is in the way"
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause or error)

"""Reads from an iteration's journal how it went, when nobody is left who followed its process."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.loop.values import IterationResult, SessionSeen
from ralph.sessions.looking import look_at
from ralph.sessions.store import SessionStore
from ralph.values.outcome import Outcome
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.sessions.history import SessionHistory
    from ralph.sessions.looking import SessionLook


def session_seen(
    session_id: str, environment: Mapping[str, str], directory: str | None
) -> SessionSeen | None:
    """The session as its journal shows it. None: there is no journal, or none with a message; then nothing
    can be resumed, but in the latter case the id is taken. `directory`: as for `ralph run --session-dir`.
    Raises ShortageError, and OSError for a place that cannot be listed.
    """
    look = _look(session_id, environment, directory)
    if look is None or (look.problem is None and not look.history.has_message):
        return None
    try:
        written_at = datetime.fromtimestamp(look.written_at_s, UTC)
        return SessionSeen(look.history.turns, look.history.cost_usd, _end_of(look.history), written_at)
    except ValueError:  # an outcome that a newer ralph knows
        return SessionSeen(0, None)


def _look(session_id: str, environment: Mapping[str, str], directory: str | None) -> SessionLook | None:
    store = SessionStore.to_read(environment, None if directory is None else Path(directory))
    for path in store.starting_with(session_id):
        try:
            _refuse_shortage(path)
            return look_at(path)
        except FileNotFoundError:  # it was removed just now
            continue
    return None


def _refuse_shortage(path: Path) -> None:
    """Checks that the journal can be opened: `look_at` takes one that cannot for unreadable. Raises ShortageError,
    and FileNotFoundError.
    """
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise
    except OSError as error:
        shortage = shortage_of(error)
        if shortage is not None:
            raise shortage from None


def _end_of(history: SessionHistory) -> IterationResult | None:
    ended = history.runs[-1].ended if history.runs else None
    if ended is None:
        return None
    return IterationResult(
        ended.exit_code,
        Outcome(ended.outcome),
        turns=history.turns,
        cost_usd=history.cost_usd,
        last_words=ended.result or "",
        reason="; ".join(ended.errors),
        duration_s=float(ended.duration_s),
    )

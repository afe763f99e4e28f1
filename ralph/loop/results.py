"""Makes an `IterationResult` from the exit code of a `ralph run` process, which decides the outcome, and from its result
object, which adds texts and numbers and is rejected if it has another exit code. For a run whose end this process did not
see, from its session's journal.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, convert

from ralph.loop.values import IterationResult, IterationSession, Setback
from ralph.machine.files.opened_file import open_regular_file, read_regular_file
from ralph.machine.files.paths import leads_into
from ralph.output.stream_json import limit_named
from ralph.sessions.looking import look_to_list
from ralph.sessions.store import SessionStore
from ralph.sessions.story import DAMAGED
from ralph.values.outcome import Outcome
from ralph.values.shortage import shortage_of
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.sessions.looking import SessionLook
    from ralph.sessions.story import SessionStory

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

"""Implements the commands of `ralph sessions`, which print journals and never change them; `rm` removes them. Secrets are
cut where the journal says they are, wherever it is read.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.conversation.journal_lines import RecordView
from ralph.conversation.records import SessionError
from ralph.output.narration import Narration
from ralph.output.standard_streams import Color, ReaderLeftError, complain, has_color, print_lines
from ralph.sessions import story as outcomes
from ralph.sessions.journal import SessionLockedError
from ralph.sessions.looking import SessionLook, holder_of, look_at, look_to_list, named_journal
from ralph.sessions.places import SHORT_ID_CHARS, around, named_session, shortened, written_at
from ralph.sessions.store import NEXT_PROMPT, SessionStore, remove_journal, resume_command
from ralph.sessions.story import RUNNING
from ralph.sessions.story_text import SessionText, as_json, cost_text, markdown, session_export, texts_in
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import WORKING_DIRECTORY_GONE
from ralph.values.redaction import Redactor, redacted
from ralph.values.screen_text import columns_of, counted, cut_to_columns, in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_LONGEST_DIRECTORY = 28
_TASK_JSON_CHARS = 400
_GAP = "  "


class _Column(Struct, frozen=True):
    name: str
    width: int
    is_right: bool = False


_COLUMNS = {
    "id": _Column("ID", SHORT_ID_CHARS),
    "time": _Column("WRITTEN", 11),
    "directory": _Column("DIRECTORY", _LONGEST_DIRECTORY),
    "outcome": _Column("OUTCOME", 15),
    "turns": _Column("TURNS", 5, is_right=True),
    "cost": _Column("COST", 8, is_right=True),
}


class SessionList:
    """Formats one row per session. The columns have fixed widths, and the title takes the remaining width."""

    def __init__(self, *, now: datetime, width: int | None, has_directory: bool, has_color: bool) -> None:
        """`now` is the current time in the local time zone. `width` is the number of columns of the terminal. None
        means that nothing is cut, which a program that reads the rows needs.
        """
        self._now = now
        self._width = width
        self._narration = Narration(is_quiet=False, has_color=has_color)
        self._columns = {
            key: column.width for key, column in _COLUMNS.items() if has_directory or key != "directory"
        }

    def _before_title(self) -> int:
        return sum(self._columns.values()) + len(_GAP) * len(self._columns)

    def header(self) -> str:
        line = self._line({key: _COLUMNS[key].name for key in self._columns}, "TITLE")
        return self._narration.color("dim", line)

    def row(self, look: SessionLook) -> str:
        story = look.story
        directory = in_one_line("?" if story.opening is None else story.opening.cwd)
        if self._width is not None and "directory" in self._columns:
            directory = _tail(directory, self._columns["directory"])
        cells = {
            "id": look.id[:SHORT_ID_CHARS],
            "time": self._time(look.written_at_s),
            "directory": directory,
            "outcome": look.outcome,
            "turns": str(story.turns),
            "cost": cost_text(story.cost_usd),
        }
        return self._line(cells, in_one_line(story.title or ""), _color_of(look.outcome))

    def _line(self, cells: Mapping[str, str], title: str, color: Color | None = None) -> str:
        shown = []
        for key, width in self._columns.items():
            padding = " " * (width - columns_of(cells[key]))
            cell = padding + cells[key] if _COLUMNS[key].is_right else cells[key] + padding
            shown.append(self._narration.color(color, cell) if key == "outcome" and color else cell)
        if self._width is not None:
            title = cut_to_columns(title, self._width - self._before_title())
        return _GAP.join([*shown, title]).rstrip()

    def _time(self, written_at_s: float) -> str:
        written = datetime.fromtimestamp(written_at_s, tz=UTC).astimezone(self._now.tzinfo)
        return f"{written:%m-%d %H:%M}" if written.year == self._now.year else f"{written:%Y-%m-%d}"


def session_object(look: SessionLook) -> dict[str, Any]:
    story, cost_usd = look.story, look.story.cost_usd
    return {
        "id": look.id,
        "outcome": look.outcome,
        "last_written_at": datetime.fromtimestamp(look.written_at_s, tz=UTC).isoformat(),
        "created_at": getattr(story.opening, "created_at", None),
        "cwd": getattr(story.opening, "cwd", None),
        "forked_from": getattr(story.opening, "forked_from", None),
        "ralph": getattr(story.opening, "ralph", None),
        "model": story.runs[-1].opening.model if story.runs else None,
        "runs": len(story.own_runs),
        "turns": story.turns,
        "cost_usd": None if cost_usd is None else round(cost_usd, 6),
        "title": story.title,
        "task": shortened(story.task, _TASK_JSON_CHARS),
        "path": str(look.path),
    }


def _color_of(outcome: str) -> Color:
    if outcome == RUNNING:
        return "blue"
    return "green" if outcome == Outcome.COMPLETED.value else "yellow"


def _tail(path: str, width: int) -> str:
    """The end of the path, which says more than its beginning, in at most `width` columns."""
    if columns_of(path) <= width:
        return path
    while columns_of(path) > width - 1:
        path = path[1:]
    return "\u2026" + path


_MOST_LINES_FOUND = 3
# Where a terminal does not say its width (VT100).
_TERMINAL_COLUMNS = 80


def store_in(directory: str | None) -> SessionStore:
    """The store in which the sessions are. `directory` is the value of `--session-dir`. None means RALPH_STATE_DIR
    or the user's state directory.
    """
    return SessionStore.to_read(os.environ, None if directory is None else Path(directory))


def list_sessions(store: SessionStore, *, of_all: bool, is_json: bool) -> int:
    """Prints one line per session, the most recently written first, and returns the exit code. A session with a
    damaged journal is listed as damaged, and does not change the exit code.
    """
    newest_first = _newest_first(store, of_all=of_all)
    view = _view()

    def looks() -> Iterator[SessionLook]:
        for path in newest_first:
            with suppress(FileNotFoundError):  # removed since it was listed
                yield look_to_list(path, view)

    def lines() -> Iterator[str]:
        listed = _list(of_all=of_all)
        if sys.stdout.isatty():
            yield listed.header()
        for look in looks():
            yield view.redactor.redact_all(listed.row(look))

    with suppress(ReaderLeftError):
        if is_json:
            objects = [session_object(look) for look in looks()]
            print_lines([as_json(redacted(objects, view.redactor.redact_all))])
        elif newest_first:
            print_lines(lines())
    return 0


def _newest_first(store: SessionStore, *, of_all: bool) -> list[Path]:
    newest_first = sorted(store.all() if of_all else store.of(_cwd()), key=written_at, reverse=True)
    _tell_skipped(store, None if of_all else _cwd())
    if not newest_first:
        where = store.root if of_all else _cwd()
        complain(f"there is no session {'in' if of_all else 'of'} {where} yet")
    return newest_first


def search_sessions(store: SessionStore, words: str, *, of_all: bool) -> int:
    """Prints the sessions whose titles, prompts, answers, calls or results contain the words, with the first lines that
    do. Case does not count. Returns the exit code.
    """
    if not words.strip():
        raise UsageError("give the text to look for")
    view, wanted, listed = _view(), words.casefold(), _list(of_all=of_all)

    def output() -> Iterator[str]:
        paths, has_match = _newest_first(store, of_all=of_all), False
        for path in paths:
            try:
                look = look_at(path, view)
            except FileNotFoundError:  # removed since it was listed
                continue
            found = _lines_with(wanted, look, view)
            if look.problem is not None:
                complain(view.redactor.redact_all(f"{look.path} was searched only in part: {look.problem}"))
            if found:
                has_match = True
                yield view.redactor.redact_all(listed.row(look))
                yield from (f"    > {around(line, wanted)}" for line in found[:_MOST_LINES_FOUND])
                if len(found) > _MOST_LINES_FOUND:
                    yield f"    ({counted(len(found) - _MOST_LINES_FOUND, 'more line')})"
        if paths and not has_match:
            complain(f"the text does not occur in any of {counted(len(paths), 'session')}")

    with suppress(ReaderLeftError):
        print_lines(output())
    return 0


def _lines_with(wanted: str, look: SessionLook, view: RecordView) -> list[str]:
    texts = map(view.redactor.redact_all, texts_in(look.story))
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [*dict.fromkeys(line for line in lines if wanted in line.casefold())]


def remove_sessions(store: SessionStore, sessions: Sequence[str]) -> int:
    """Removes the sessions and returns the exit code. Removes none if a name is wrong, and none that a run has open."""
    view, codes = _view(), [0]
    for path in dict.fromkeys(_found(store, name) for name in sessions):
        try:
            look = look_to_list(path, view)
            remove_journal(path)
        except SessionLockedError:
            complain(f"session {path.stem} is in use by {holder_of(path)}: wait for it, or stop it")
            codes.append(Outcome.CONFIG.exit_code())
        except OSError as error:
            complain(f"{path} cannot be removed: {error.strerror}")
            codes.append(Outcome.IO_ERROR.exit_code())
        else:
            removed = named_session(look.id, time.time() - look.written_at_s, look.task)
            with suppress(ReaderLeftError):
                print_lines([view.redactor.redact_all(f"removed {removed}")])
    return max(codes)


def show_session(store: SessionStore, prefix: str | None, directory: str | None) -> int:
    """Prints the course of one session and returns the exit code. If the journal has a damaged record, the output
    ends before it. `directory` is as in `store_in`.
    """
    view = _view()
    look = look_at(_found(store, prefix), view)
    if look.outcome in (outcomes.NEWER_FORMAT, outcomes.UNREADABLE):
        return _refuse(look)
    text = SessionText(has_color=_has_color())
    with suppress(ReaderLeftError):
        print_lines(map(view.redactor.redact_all, text.lines(look)))
        if look.problem is not None:
            print_lines(["", text.damage(look.problem)])
        elif look.outcome != outcomes.RUNNING and look.story.task:
            print_lines(["", text.resume_line(_resume_command_of(look, store, directory))])
    return _code(look.problem)


def export_session(store: SessionStore, prefix: str | None, *, is_json: bool) -> int:
    """Prints everything in one session and returns the exit code. If the journal has a damaged record, the output
    ends before it.
    """
    view = _view()
    look = look_at(_found(store, prefix), view)
    if look.outcome in (outcomes.NEWER_FORMAT, outcomes.UNREADABLE):
        return _refuse(look)
    problem = look.problem
    try:
        if is_json:
            print_lines([as_json(redacted(session_export(look), view.redactor.redact_all))])
        else:
            print_lines(map(view.redactor.redact_all, markdown(look)))
    except ReaderLeftError:
        pass
    except SessionError as error:
        problem = problem or str(error)
    if problem is not None:
        complain(view.redactor.redact_all(f"the journal {look.path} is damaged: {problem}"))
    return _code(problem)


def _list(*, of_all: bool) -> SessionList:
    columns = shutil.get_terminal_size((0, 0)).columns  # COLUMNS counts without a terminal too
    return SessionList(
        now=datetime.now(tz=UTC).astimezone(),
        width=columns or (_TERMINAL_COLUMNS if sys.stdout.isatty() else None),
        has_directory=of_all,
        has_color=_has_color(),
    )


def _view() -> RecordView:
    return RecordView(Redactor(known_secrets(os.environ)))


def _tell_skipped(store: SessionStore, cwd: Path | None) -> None:
    for line in store.skipped(cwd):
        complain(line)


def _found(store: SessionStore, prefix: str | None) -> Path:
    _tell_skipped(store, _here() if prefix is None else None)
    if prefix is not None:
        if not prefix.strip():
            raise UsageError("give the title of a session, or the beginning of its id")
        return named_journal(store, prefix)
    last = store.last_of(_cwd())
    if last is None:
        raise UsageError(f"there is no session of {_cwd()} yet; `ralph sessions ls --all` lists all sessions")
    return last


def _cwd() -> Path:
    here = _here()
    if here is None:
        raise UsageError(WORKING_DIRECTORY_GONE)
    return here


def _here() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _refuse(look: SessionLook) -> int:
    if look.outcome == outcomes.NEWER_FORMAT:
        complain(f"session {look.id} cannot be read: {look.problem}")
        return Outcome.CONFIG.exit_code()
    complain(f"cannot read {look.path}: {look.problem}")
    return Outcome.IO_ERROR.exit_code()


def _resume_command_of(look: SessionLook, store: SessionStore, session_dir: str | None) -> str:
    opening = look.story.opening
    directory = str(_here()) if opening is None else opening.directory
    return resume_command(
        store.short_name(look.id),
        cwd=directory if directory != str(_here()) and Path(directory).is_dir() else None,
        session_dir=session_dir,
        again=look.story.runs[-1].opening.again if look.story.runs else None,
        prompt=NEXT_PROMPT if look.story.is_completed else None,
    )


def _code(problem: str | None) -> int:
    return 0 if problem is None else Outcome.IO_ERROR.exit_code()


def _has_color() -> bool:
    return has_color(1, os.environ)

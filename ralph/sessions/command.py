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
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.conversation.records import SessionError
from ralph.conversation.secret_spans import RecordView
from ralph.output.standard_streams import ReaderLeftError, complain, has_color, print_lines
from ralph.sessions import history as names
from ralph.sessions.document import as_json, markdown, said_in, session_export
from ralph.sessions.journal import SessionLockedError
from ralph.sessions.list_text import SessionList, session_object
from ralph.sessions.looking import SessionLook, holder_of, look_at, look_to_list
from ralph.sessions.naming import around, named_session
from ralph.sessions.retention import remove_journal
from ralph.sessions.store import SessionStore, written_at
from ralph.sessions.story_text import SessionText
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor, redacted
from ralph.values.resume_command import NEXT_PROMPT, resume_command
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_MOST_LINES_FOUND = 3
# Where a terminal does not say its width (VT100).
_TERMINAL_COLUMNS = 80


class SessionsPlace(Struct, frozen=True):
    """The place where sessions are searched for."""

    directory: Path | None = None
    """The value of `--session-dir`. None means RALPH_STATE_DIR or the user's state directory."""

    @property
    def store(self) -> SessionStore:
        return SessionStore.to_read(os.environ, self.directory)


def list_sessions(place: SessionsPlace, *, of_all: bool, is_json: bool) -> int:
    """Prints one line per session and returns the exit code. The most recently written session comes first. A session
    with a damaged journal is listed as damaged, and does not change the exit code.
    """
    newest_first = _newest_first(place.store, of_all=of_all)
    try:
        if is_json:
            view = _view()
            objects = [_object(look) for look in _looks(newest_first, view)]
            print_lines([as_json(redacted(objects, view.redactor.redact_all))])
        elif newest_first:
            print_lines(_list_lines(newest_first, of_all=of_all))
    except ReaderLeftError:
        pass
    return 0


def _newest_first(store: SessionStore, *, of_all: bool) -> list[Path]:
    """The journals of the working directory or all journals, and a line if there is none."""
    paths = store.all() if of_all else store.of(_cwd())
    newest_first = [
        path for _, path in sorted(((written_at(path), path) for path in paths), key=itemgetter(0))[::-1]
    ]
    _tell_skipped(store, None if of_all else _cwd())
    if not newest_first:
        where = store.root if of_all else _cwd()
        complain(f"there is no session {'in' if of_all else 'of'} {where} yet")
    return newest_first


def _object(look: SessionLook) -> dict[str, Any]:
    return session_object(str(look.path), look.id, look.written_at_s, look.outcome, look.history)


def search_sessions(place: SessionsPlace, words: str, *, of_all: bool, is_json: bool) -> int:
    """Prints the sessions whose titles, prompts, answers, calls or results contain the words, with the first lines that
    do. Case does not count. Returns the exit code.
    """
    if not words.strip():
        raise UsageError("give the text to look for")
    view, wanted = _view(), words.casefold()
    listed = _list(of_all=of_all)
    objects: list[dict[str, Any]] = []

    def output() -> Iterator[str]:
        paths, matches = _newest_first(place.store, of_all=of_all), 0
        for path in paths:
            try:
                look = look_at(path, view)
            except FileNotFoundError:  # removed since it was listed
                continue
            texts = map(view.redactor.redact_all, said_in(look.history))
            lines = (line.strip() for text in texts for line in text.splitlines())
            found = [*dict.fromkeys(line for line in lines if wanted in line.casefold())]
            if look.problem is not None:
                complain(view.redactor.redact_all(f"{look.path} was searched only in part: {look.problem}"))
            matches += len(found)
            if found and is_json:
                shown = [around(line, wanted) for line in found[:_MOST_LINES_FOUND]]
                objects.append({**_object(look), "matches": len(found), "lines": shown})
            elif found:
                yield view.redactor.redact_all(
                    listed.row(look.id, look.written_at_s, look.outcome, look.history)
                )
                yield from (f"    > {around(line, wanted)}" for line in found[:_MOST_LINES_FOUND])
                if len(found) > _MOST_LINES_FOUND:
                    yield f"    ({counted(len(found) - _MOST_LINES_FOUND, 'more line')})"
        if is_json:
            yield as_json(redacted(objects, view.redactor.redact_all))
        if paths and not matches:
            complain(f"the text occurs in none of {counted(len(paths), 'session')}")

    with suppress(ReaderLeftError):
        print_lines(output())
    return 0


def remove_sessions(place: SessionsPlace, sessions: Sequence[str]) -> int:
    """Removes the sessions and returns the exit code. Removes none if a name is wrong, and none that a run has open."""
    store, view = place.store, _view()
    codes = [0]
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
            told = named_session(look.id, max(0.0, time.time() - look.written_at_s), look.task)
            with suppress(ReaderLeftError):
                print_lines([view.redactor.redact_all(f"removed {told}")])
    return max(codes)


def show_session(place: SessionsPlace, prefix: str | None) -> int:
    """Prints the course of one session and returns the exit code. If the journal has a damaged record, the output
    ends before that record.
    """
    store = place.store
    view = _view()
    look = look_at(_found(store, prefix), view)
    if look.outcome in (names.NEWER_FORMAT, names.UNREADABLE):
        return _refuse(look)
    text = SessionText(has_color=_has_color())
    try:
        header = text.header(look.id, look.outcome, look.history, _iso(look.written_at_s))
        problem = _guarded(
            map(view.redactor.redact_all, chain(header, text.story(look.outcome, look.history))), look.problem
        )
        if problem is not None:
            print_lines(["", text.damage(problem)])
            return Outcome.IO_ERROR.exit_code()
        if look.outcome != names.RUNNING and look.history.task:
            print_lines(["", text.resume_line(_resume_command_of(look, store, place))])
    except ReaderLeftError:
        pass
    return _code(look.problem)


def export_session(place: SessionsPlace, prefix: str | None, *, is_json: bool) -> int:
    """Prints everything in one session and returns the exit code. If the journal has a damaged record, the output
    ends before that record.
    """
    view = _view()
    look = look_at(_found(place.store, prefix), view)
    if look.outcome in (names.NEWER_FORMAT, names.UNREADABLE):
        return _refuse(look)
    problem = look.problem
    try:
        if is_json:
            problem = _guarded(_json_lines(look, view), problem)
        else:
            lines = markdown(look.id, look.outcome, look.history, problem)
            problem = _guarded(map(view.redactor.redact_all, lines), problem)
    except ReaderLeftError:
        pass
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


def _list_lines(paths: Iterable[Path], *, of_all: bool) -> Iterator[str]:
    listed = _list(of_all=of_all)
    if sys.stdout.isatty():
        yield listed.header()
    view = _view()
    for look in _looks(paths, view):
        yield view.redactor.redact_all(listed.row(look.id, look.written_at_s, look.outcome, look.history))


def _looks(paths: Iterable[Path], view: RecordView) -> Iterator[SessionLook]:
    for path in paths:
        with suppress(FileNotFoundError):  # removed since it was listed
            yield look_to_list(path, view)


def _json_lines(look: SessionLook, view: RecordView) -> Iterator[str]:
    exported = session_export(look.id, look.outcome, look.history, look.records, look.problem)
    yield as_json(redacted(exported, view.redactor.redact_all))


def _view() -> RecordView:
    return RecordView(Redactor(known_secrets(os.environ)))


def _guarded(lines: Iterable[str], problem: str | None) -> str | None:
    """Prints the lines. Returns the problem to report, or None: `problem` if it is given, otherwise the text of a
    SessionError that was raised while the lines were made.
    """
    try:
        print_lines(lines)
    except SessionError as error:
        return problem or str(error)
    return problem


def _tell_skipped(store: SessionStore, cwd: Path | None) -> None:
    for line in store.skipped(cwd):
        complain(line)


def _found(store: SessionStore, prefix: str | None) -> Path:
    _tell_skipped(store, _here() if prefix is None else None)
    if prefix is not None:
        if not prefix.strip():
            raise UsageError("the title or the beginning of the id of a session is needed")
        return store.only_one(prefix, _here())
    last = store.last_of(_cwd())
    if last is None:
        raise UsageError(
            f"there is no session of {_cwd()} yet; `ralph sessions ls --all` lists all there are"
        )
    return last


def _cwd() -> Path:
    here = _here()
    if here is None:
        raise UsageError("the working directory is gone; change to one that exists")
    return here


def _here() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _refuse(look: SessionLook) -> int:
    if look.outcome == names.NEWER_FORMAT:
        complain(f"session {look.id} cannot be read: {look.problem}")
        return Outcome.CONFIG.exit_code()
    complain(f"cannot read {look.path}: {look.problem}")
    return Outcome.IO_ERROR.exit_code()


def _resume_command_of(look: SessionLook, store: SessionStore, place: SessionsPlace) -> str:
    """The command that resumes the session when the user types it in the current directory."""
    opening = look.history.opening
    directory = str(_here()) if opening is None else opening.directory
    return resume_command(
        store.short_name(look.id),
        cwd=directory if directory != str(_here()) and Path(directory).is_dir() else None,
        session_dir=None if place.directory is None else str(place.directory),
        again=look.history.runs[-1].opening.again if look.history.runs else None,
        prompt=NEXT_PROMPT if look.history.is_completed else None,
    )


def _iso(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, tz=UTC).isoformat()


def _code(problem: str | None) -> int:
    return 0 if problem is None else Outcome.IO_ERROR.exit_code()


def _has_color() -> bool:
    return has_color(1, os.environ)

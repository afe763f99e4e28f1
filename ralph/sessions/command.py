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

from ralph.conversation.records import SessionError
from ralph.conversation.secret_spans import RecordView
from ralph.output.standard_streams import ReaderLeftError, complain, has_color, print_lines
from ralph.sessions import story as outcomes
from ralph.sessions.document import as_json, markdown, session_export, texts_in
from ralph.sessions.finding import named_journal
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
    from collections.abc import Iterator, Sequence


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
        paths, has_match = _newest_first(place.store, of_all=of_all), False
        for path in paths:
            try:
                look = look_at(path, view)
            except FileNotFoundError:  # removed since it was listed
                continue
            found = _lines_with(wanted, look, view)
            if look.problem is not None:
                complain(view.redactor.redact_all(f"{look.path} was searched only in part: {look.problem}"))
            has_match = has_match or bool(found)
            parts = [around(line, wanted) for line in found[:_MOST_LINES_FOUND]]
            if found and is_json:
                objects.append({**session_object(look), "matches": len(found), "lines": parts})
            elif found:
                yield view.redactor.redact_all(listed.row(look))
                yield from (f"    > {part}" for part in parts)
                if len(found) > _MOST_LINES_FOUND:
                    yield f"    ({counted(len(found) - _MOST_LINES_FOUND, 'more line')})"
        if is_json:
            yield as_json(redacted(objects, view.redactor.redact_all))
        if paths and not has_match:
            complain(f"the text occurs in none of {counted(len(paths), 'session')}")

    with suppress(ReaderLeftError):
        print_lines(output())
    return 0


def _lines_with(wanted: str, look: SessionLook, view: RecordView) -> list[str]:
    texts = map(view.redactor.redact_all, texts_in(look.story))
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [*dict.fromkeys(line for line in lines if wanted in line.casefold())]


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
            removed = named_session(look.id, time.time() - look.written_at_s, look.task)
            with suppress(ReaderLeftError):
                print_lines([view.redactor.redact_all(f"removed {removed}")])
    return max(codes)


def show_session(place: SessionsPlace, prefix: str | None) -> int:
    """Prints the course of one session and returns the exit code. If the journal has a damaged record, the output
    ends before that record.
    """
    store, view = place.store, _view()
    look = look_at(_found(store, prefix), view)
    if look.outcome in (outcomes.NEWER_FORMAT, outcomes.UNREADABLE):
        return _refuse(look)
    text = SessionText(has_color=_has_color())
    with suppress(ReaderLeftError):
        print_lines(map(view.redactor.redact_all, text.lines(look)))
        if look.problem is not None:
            print_lines(["", text.damage(look.problem)])
        elif look.outcome != outcomes.RUNNING and look.story.task:
            print_lines(["", text.resume_line(_resume_command_of(look, store, place))])
    return _code(look.problem)


def export_session(place: SessionsPlace, prefix: str | None, *, is_json: bool) -> int:
    """Prints everything in one session and returns the exit code. If the journal has a damaged record, the output
    ends before that record.
    """
    view = _view()
    look = look_at(_found(place.store, prefix), view)
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
            raise UsageError("the title or the beginning of the id of a session is needed")
        return named_journal(store, prefix, _here())
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
    if look.outcome == outcomes.NEWER_FORMAT:
        complain(f"session {look.id} cannot be read: {look.problem}")
        return Outcome.CONFIG.exit_code()
    complain(f"cannot read {look.path}: {look.problem}")
    return Outcome.IO_ERROR.exit_code()


def _resume_command_of(look: SessionLook, store: SessionStore, place: SessionsPlace) -> str:
    opening = look.story.opening
    directory = str(_here()) if opening is None else opening.directory
    return resume_command(
        store.short_name(look.id),
        cwd=directory if directory != str(_here()) and Path(directory).is_dir() else None,
        session_dir=None if place.directory is None else str(place.directory),
        again=look.story.runs[-1].opening.again if look.story.runs else None,
        prompt=NEXT_PROMPT if look.story.is_completed else None,
    )


def _code(problem: str | None) -> int:
    return 0 if problem is None else Outcome.IO_ERROR.exit_code()


def _has_color() -> bool:
    return has_color(1, os.environ)

"""Opens an old session, or a copy of it, so that a run can resume it. Also tells the model if its sandbox has changed.

If the requested session cannot be resumed, the run ends with one line of text and an exit code. Ralph never chooses
another session instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph import __version__
from ralph.conversation.journal_lines import JournalDamage, marked_secrets, record_of
from ralph.conversation.records import (
    MovedRecord,
    NewerFormatError,
    Record,
    SessionError,
    SessionRecord,
    forked_record,
    moved_record,
    session_record,
)
from ralph.conversation.session import NoMessageError, Session, apply, replay
from ralph.run.opening import OpenSession, journal_errors_told, store_of
from ralph.sessions.journal import FileJournal, SessionLockedError
from ralph.sessions.looking import holder_of, last_resumable, named_journal
from ralph.sessions.places import named_session, written_at
from ralph.sessions.store import resume_command, shell_word
from ralph.sessions.story import SessionStory
from ralph.settings.tables import OF_VENDOR, Settings
from ralph.values.events import SessionTotal
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.servers import ANTHROPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.run.parts import RunContext
    from ralph.sessions.store import SessionStore


class NoSessionError(UsageError):
    """There is no session in this directory that could be resumed."""


def open_old_session(context: RunContext, new_id: str) -> OpenSession:
    """Opens the old session. `new_id` is the id of the copy if the session is forked.

    The redactor learns the secrets that the journal marks: this environment may not have them. Raises UsageError if
    there is no session that could be resumed in this directory, and CannotError if the session exists but cannot be
    opened.
    """
    with journal_errors_told(context, new_id):
        store, wanted = store_of(context), context.options.session
        old = _Opening(context, store).open(new_id)
        skipped = store.skipped(context.cwd if wanted.resume is None else None)
        return replace(old, notices=(*((store.notice,) if store.notice else ()), *skipped, *old.notices))


class _Opening:
    """The journal of the session is not changed until all checks have passed."""

    def __init__(self, context: RunContext, store: SessionStore) -> None:
        self._context = context
        self._options = context.options.session
        self._store = store
        self._cwd = context.cwd
        self._now = context.clock.utc_now()
        self._redactor = context.redactor

    def open(self, new_id: str) -> OpenSession:
        path = self._found()
        age_s = self._now.timestamp() - written_at(path)
        records = _Records()
        journal, old = self._read(path, records)
        move = moved_record(str(self._cwd)) if old.cwd != str(self._cwd) else None
        try:
            story = records.story
            notices = [f"resuming {named_session(old.id, age_s, story.given_title or story.task)}"]
            total = SessionTotal(story.turns, story.cost_usd)
            self._refuse_another_directory(old)  # first, because other settings may apply in that directory
            again = story.runs[-1].opening.again if story.runs else {}
            _refuse_another_server(old, self._context.settings, again)
            notices += self._about_rights(old)
            if move is not None:
                there, here = shell_word(old.cwd), shell_word(str(self._cwd))
                has = "has moved" if self._options.has_moved else "is gone"
                notices.append(f"the session's directory {there} {has}; it continues in {here}")
                old = apply(old, move)
            if self._options.forks:
                return OpenSession(new_id, self._copy(journal, records, new_id, move), old, tuple(notices))
            journal.fix()
            if move is not None:
                journal.append(move)
        except BaseException:
            journal.close()
            raise
        return OpenSession(old.id, journal, old, tuple(notices), total)

    def _about_rights(self, old: Session) -> Iterator[str]:
        """Yields a notice about directories that do not count any more."""
        if closed := sorted({*old.writable} - {*self._context.options.writable}):
            words = " ".join(f"--add-dir {shell_word(one)}" for one in closed)
            yield f"directories of the session's earlier runs are closed now: name them again ({words})"

    def _found(self) -> Path:
        if self._options.resume is not None:
            return named_journal(self._store, self._options.resume)
        last = last_resumable(self._store, self._cwd)
        if last is None:
            instead = f" ({self._store.notice})" if self._store.notice else ""
            raise NoSessionError(f"there is no session of {self._cwd} to resume{instead}")
        return last

    def _read(self, path: Path, records: _Records) -> tuple[FileJournal, Session]:
        replayed: list[Session] = []
        try:
            journal = FileJournal.open(
                path,
                lambda lines: replayed.append(replay(records.of(lines))),
                is_for_reading=self._options.forks,
                spans_of=self._redactor.spans,
            )
        except SessionLockedError:
            advice = "when that has ended, you can resume a copy: " if self._options.forks else ""
            raise CannotError(
                f"session {path.stem} is in use by {holder_of(path)}: {advice}wait for it, or stop it"
            ) from None
        except NewerFormatError as error:
            raise CannotError(f"session {path.stem} cannot be read: {error}") from error
        except NoMessageError as error:
            kind = NoSessionError if self._options.resume is None else UsageError
            raise kind(f"there is nothing to resume in session {path.stem}: {error}") from error
        except (JournalDamage, SessionError) as error:
            raise CannotError(self._damaged(path, error), Outcome.IO_ERROR) from error
        finally:
            self._redactor.learn(records.secrets)
        return journal, replayed[0]

    def _damaged(self, path: Path, error: Exception) -> str:
        words = ["ralph", "sessions", "show", path.stem]
        if self._options.directory is not None:
            words += ["--session-dir", str(self._options.directory)]
        look = " ".join(map(shell_word, words))
        return (
            f"the journal {path} is damaged: {error}. Nothing was changed, and the session cannot be resumed: "
            f"`{look}` shows what is readable; use that in the prompt of a new session"
        )

    def _refuse_another_directory(self, old: Session) -> None:
        """Raises UsageError if the session belongs to another directory that still exists, unless the user says that
        the session has moved.
        """
        if old.cwd == str(self._cwd) or self._options.has_moved or not Path(old.cwd).is_dir():
            return
        name = self._store.short_name(old.id)
        there = resume_command(name, cwd=old.cwd, session_dir=self._options.directory_text)
        raise UsageError(f"session {old.id} belongs to {shell_word(old.cwd)}; resume it there: {there}")

    def _copy(
        self, journal: FileJournal, records: _Records, new_id: str, move: MovedRecord | None
    ) -> FileJournal:
        copy = self._store.create(new_id, self._cwd, self._redactor.spans)
        opening = session_record(new_id, str(self._cwd), self._now.isoformat(), __version__)
        copy.begin_as_fork(records.forked(opening), journal.lines_behind_first(), move)
        journal.close()
        return copy


class _Records:
    """Decodes the records of a journal. Of the records that have passed, keeps only their story, and what a fork and a
    redactor need.
    """

    def __init__(self) -> None:
        self.story = SessionStory()
        self._first: Record | None = None
        self._number = 0
        self._has_moved = False
        self.secrets: set[str] = set()
        """The secrets at the places that the lines mark."""

    def of(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Record]:
        for number, line in lines:
            self.secrets |= marked_secrets(line)
            record = record_of(line, number)
            self.story.take(record, number)
            self._first = self._first or record
            self._number = number
            self._has_moved = self._has_moved or isinstance(record, MovedRecord)
            yield record

    def forked(self, opening: SessionRecord) -> SessionRecord:
        return forked_record(opening, self._first, self._number, has_moved=self._has_moved)


def _refuse_another_server(old: Session, settings: Settings, again: Mapping[str, str]) -> None:
    """Raises CannotError if the run would send the conversation to another server than before.

    The conversation was meant only for the servers that the user has chosen for it so far. The user can permit another server by
    naming it, its API or a model of its vendor on the command line. If the settings list targets, this check is skipped, because the
    names of the targets identify their servers. `again` are the options that the last run needs again.
    """
    first, origins = settings.targets[0], settings.origins
    recorded = {shape.endpoint for shape in (old.shape, *old.shapes.values())}
    is_implicit = origins.get("targets", "default") == "default"
    named_by = "model.name" if origins.get("model.base_url", "").startswith(OF_VENDOR) else "model.base_url"
    is_named = any(origins.get(name, "default").startswith("flag") for name in (named_by, "model.api"))
    if not is_implicit or is_named or not recorded.isdisjoint({None, first.base_url}):
        return
    before = {name: again[name] for name in ("--api", "--model", "--base-url") if name in again}
    there = before if before.keys() - {"--base-url"} else {"--base-url": old.shape.endpoint}
    here = {} if first.api == ANTHROPIC else {"--api": first.api, "--model": first.model}
    ways = (there, {**here, "--base-url": first.base_url})
    flags = (" ".join(f"{name} {value}" for name, value in way.items()) for way in ways)
    raise CannotError(
        f"session {old.id} used {old.shape.endpoint}, and this run would use {first.base_url}: "
        f"choose one with {' or '.join(flags)}"
    )

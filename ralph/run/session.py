"""The session of a run: the opening of a new one, and the command that resumes it. `old_session.py` opens old ones."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from errno import EACCES, EROFS
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph import __version__
from ralph.conversation.notices import LIMIT_LIFTED, is_bound
from ralph.conversation.records import session_record
from ralph.sessions.journal import FileJournal, NoJournal
from ralph.sessions.store import SessionStore
from ralph.values.events import SessionTotal
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ralph.conversation.session import Session
    from ralph.run.context import RunContext
    from ralph.run.options import SessionOptions

_LIMITS = frozenset({Outcome.LIMIT_REACHED.value, Outcome.TIMED_OUT.value})


class OpenSession(Struct, frozen=True):
    id: str
    journal: FileJournal | NoJournal
    old: Session | None = None
    notices: tuple[str, ...] = ()
    total: SessionTotal = SessionTotal()
    """The totals of the session's earlier runs. They are 0 for a new session and for a copy."""

    @property
    def journal_path(self) -> str:
        """The path of the journal, or an empty text if the session has no journal."""
        return str(self.journal.path) if isinstance(self.journal, FileJournal) else ""

    def forget(self) -> None:
        """Removes the journal of a new session, so that `--continue` does not find the session. Called if no work was
        done in the session. Does not remove the journal of a resumed session.
        """
        if self.old is None and isinstance(self.journal, FileJournal):
            with suppress(OSError):
                self.journal.path.unlink()


def prompt_of_resumed(
    old: Session, prompt: str | None, command_with: Callable[[str], str | None]
) -> str | None:
    """The first prompt for the model in a resumed run. None if the model gets no new prompt.

    If there is no `prompt` and a limit ended the last run, the model is told once that this limit no longer applies.
    Raises UsageError if the session is completed and there is no `prompt`. `command_with` takes a prompt, and returns
    the command that resumes the session with that prompt.
    """
    if prompt is not None:
        return prompt
    if old.is_completed:
        from ralph.values.resume_command import NEXT_PROMPT  # noqa: PLC0415 - few runs are refused

        command = command_with(NEXT_PROMPT)
        shown = "" if command is None else f": {command}"
        raise UsageError(f"session {old.id} is completed: say what is to be done next{shown}")
    was_limited = old.ended is not None and old.ended.outcome in _LIMITS
    was_limited = was_limited or is_bound(old.conversation.messages)
    return LIMIT_LIFTED if was_limited and not _was_told(old, LIMIT_LIFTED) else None


def _was_told(old: Session, words: str) -> bool:
    """Whether the last message comes from the user and its last block is exactly `words`."""
    last = old.conversation.messages[-1]
    return last.role == "user" and last.content[-1].get("text") == words


def resume_command_of(
    session: OpenSession,
    options: SessionOptions,
    *,
    cwd: Path | None,
    again: Mapping[str, str],
    prompt: str | None = None,
) -> str | None:
    """The command that resumes the session of a run, or None if nothing can be resumed.

    `cwd` is the directory that the command should contain. If it is None, the command contains no directory.
    """
    if not isinstance(session.journal, FileJournal) or session.journal.is_gone:
        return None
    from ralph.values.resume_command import resume_command  # noqa: PLC0415 - most runs end without

    return resume_command(
        SessionStore(session.journal.path.parent.parent).short_name(session.id),
        cwd=None if cwd is None else str(cwd),
        session_dir=options.directory_text,
        again=again,
        prompt=prompt,
    )


@contextmanager
def journal_errors_told(context: RunContext, new_id: str) -> Iterator[None]:
    """A context manager that converts errors about journals into UsageError or CannotError."""
    try:
        yield
    except JournalError as error:
        cause = error.__cause__
        if isinstance(cause, FileExistsError):
            raise UsageError(f"there is a session {new_id} already: continue it with --resume") from error
        is_read_only = isinstance(cause, OSError) and cause.errno in {EROFS, EACCES}
        is_old = context.options.session.is_old
        instead = ": --fork-session resumes a copy" if is_read_only and is_old else ""
        raise CannotError(f"{error}{instead}", Outcome.IO_ERROR) from error


def store_of(context: RunContext) -> SessionStore:
    return SessionStore.for_user(context.environment, context.options.session.directory, context.roots())


def open_new_session(context: RunContext, new_id: str) -> OpenSession:
    """Raises UsageError if a session with this id exists, and CannotError if no journal can be created."""
    if not context.options.session.is_kept:
        return OpenSession(new_id, NoJournal())
    with journal_errors_told(context, new_id):
        store = store_of(context)
        journal = store.create(new_id, context.cwd, context.redactor.spans)
        journal.append(
            session_record(new_id, str(context.cwd), context.clock.utc_now().isoformat(), __version__)
        )
        return OpenSession(new_id, journal, None, (store.notice,) if store.notice else ())

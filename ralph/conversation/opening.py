"""The first record of a journal: whose session it is, and in which directory it works. Pure.

A directory's name is bytes, JSON is text: where it is no UTF-8 it stands percent-encoded beside what people read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec.structs import replace

from ralph.conversation.messages import to_json
from ralph.conversation.records import fork_entries, session_entry
from ralph.conversation.session import SessionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.conversation.journal_lines import Record
    from ralph.conversation.messages import RequestShape
    from ralph.conversation.records import Entry
    from ralph.conversation.session import Session

MOVED = "moved"
"""The kind of the record that says in which directory the session works from there on."""


def opening_entry(session_id: str, cwd: str, created_at: str, version: str) -> Entry:
    kind, fields = session_entry(session_id, cwd, created_at, version)
    return kind, fields | _directory_fields(cwd)


def copied_entries(
    records: Iterable[Record], session_id: str, cwd: str, created_at: str, version: str
) -> list[Entry]:
    """A fork's records; its first one says how many of them are the old session's."""
    (kind, fields), *rest = fork_entries(records, session_id, created_at, version)
    return [(kind, fields | _directory_fields(cwd) | {"copied": len(rest)}), *rest]


def moved_entry(cwd: str) -> Entry:
    return MOVED, _directory_fields(cwd)


def directory_of(records: Sequence[Record]) -> str:
    """Where the session works, as the system names it. Raises SessionError for records that no run writes."""
    try:
        opening = records[0].fields
        copied = int(opening.get("copied", 0))
        moves = [record.fields for record in records if record.kind == MOVED and record.seq > copied]
        fields = moves[-1] if moves else opening
        raw = fields.get("cwd_bytes")
        return str(fields["cwd"]) if raw is None else unquote_to_bytes(raw).decode("utf-8", "surrogateescape")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(f"its directory makes no sense ({type(error).__name__}: {error})") from error


def in_directory(session: Session, cwd: str) -> Session:
    """The session with heads of requests that name its present directory."""

    def moved(shape: RequestShape) -> RequestShape:
        head = shape.head().replace(_said(session.cwd), _said(cwd), 1)
        return replace(shape, recorded_head=head)

    shape = moved(session.shape)
    return replace(
        session,
        cwd=cwd,
        shape=shape,
        shapes={name: moved(each) for name, each in session.shapes.items()},
        conversation=session.conversation.under(shape),
    )


def _said(cwd: str) -> bytes:
    """The line of `agent/system_prompt.py`, as it stands in a request."""
    return to_json(f"Working directory: {cwd}\n")[1:-1]


def _directory_fields(cwd: str) -> dict[str, Any]:
    try:
        cwd.encode()
    except UnicodeEncodeError:
        return {"cwd": cwd, "cwd_bytes": quote_from_bytes(cwd.encode("utf-8", "surrogateescape"))}
    return {"cwd": cwd}

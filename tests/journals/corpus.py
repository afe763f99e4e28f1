"""The recorded journals, and what every ralph that can read them must make of them. Records nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.conversation.session import Reading, replay
from tests.journals.reading import read_lines

if TYPE_CHECKING:
    from ralph.conversation.messages import RequestShape
    from ralph.conversation.session import Session

JOURNALS = Path(__file__).parent
EXPECTED = JOURNALS / "expected.json"


def summary_of(journal: bytes) -> dict[str, Any]:
    """The state that a journal leads to: the hash of the next request, and everything that is pending."""
    session = replay(read_lines(journal).records)
    sent = Reading(session.shape).of(session.conversation)
    summary: dict[str, Any] = {
        "request_sha256": _sha256(session, session.shape),
        "roles": "".join(message.role[0] for message in sent.messages),
        "outcome": session.ended.outcome if session.ended else None,
        "calls": len(session.call_ids),
        "pending": [call.id for call in session.answer.calls] if session.answer else None,
        "results": sorted(session.results),
        "intents": {name: change and change.path for name, change in session.intents.items()},
    }
    if session.summary:
        summary["tasks"] = [[block.get("text") for block in task] for task in session.tasks]
        summary["changed_files"] = list(session.changed_files)
        summary["summary"] = session.summary
    if session.target != session.first or session.cooling:
        summary["target"] = session.target
        summary["cooling"] = dict(session.cooling)
        summary["requests_sha256"] = {name: _sha256(session, shape) for name, shape in session.shapes.items()}
    return summary


def _sha256(session: Session, shape: RequestShape) -> str:
    """The hash of the next request to a target."""
    body = Reading(shape).of(session.conversation).request_body().pieces()
    return hashlib.sha256(b"".join(body)).hexdigest()

"""The recorded journals, and what each must lead to as long as ralph reads them. Records nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ralph.core.journal_lines import read_lines
from ralph.core.reading import Reading
from ralph.core.session import replay

JOURNALS = Path(__file__).parent
EXPECTED = JOURNALS / "expected.json"


def summary_of(journal: bytes) -> dict[str, Any]:
    """Where a journal has got to: the request to the byte, and what is pending in it."""
    session = replay(read_lines(journal).records)
    sent = Reading(session.shape).of(session.conversation)
    return {
        "request_sha256": hashlib.sha256(b"".join(sent.request_body())).hexdigest(),
        "roles": "".join(message.role[0] for message in sent.messages),
        "outcome": session.ended["outcome"] if session.ended else None,
        "calls": len(session.call_ids),
        "pending": [call.id for call in session.answer.calls] if session.answer else None,
        "results": sorted(session.results),
        "intents": {name: change and change.path for name, change in session.intents.items()},
    }

"""Changes the directory in journals. Recorded journals contain a made-up directory, which is replaced by a real one
before they are resumed.

This code does not use ralph's own reader, because the journals are to test it.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

OWN = Path(__file__).parent / "journals"
OLDER = Path(__file__).parents[1] / "journals"
MADE_UP = "/home/user/project"
"""The working directory in all recorded journals."""
_CHECKSUM = b',"crc":"'
_LONG_SLEEP = b"sleep 300"
"""A command that was stopped while it was recorded. If the record of its beginning is cut off, a resumed run starts
it again.
"""
_ENDPOINT = re.compile(rb"http://127\.0\.0\.1:\d+")


def recorded_journals() -> dict[str, bytes]:
    """The journals in `tests/journals`, which have older formats too, and those of the scenes, by name."""
    found = {f"older/{path.stem}": path.read_bytes() for path in sorted(OLDER.glob("*.jsonl"))}
    return found | {path.stem: path.read_bytes() for path in sorted(OWN.glob("*.jsonl"))}


def moved(journal: bytes, old: str, new: str, base_url: str) -> bytes:
    """The journal with the directory `new` instead of `old`, and with `base_url` as the address of all targets."""
    return b"".join(map(_with_checksum, _replaced(journal, old, new, base_url)))


def _replaced(journal: bytes, old: str, new: str, base_url: str) -> list[bytes]:
    text = _ENDPOINT.sub(base_url.encode(), journal.replace(old.encode(), new.encode()))
    return text.replace(_LONG_SLEEP, b"sleep 0.1").splitlines()


def _with_checksum(line: bytes) -> bytes:
    body = line.rpartition(_CHECKSUM)[0]
    return b'%s%s%08x"}\n' % (body, _CHECKSUM, zlib.crc32(body))


def kinds(journal: bytes) -> list[str]:
    """The kinds of the journal's records, in order."""
    return [json.loads(line)["kind"] for line in journal.splitlines()]

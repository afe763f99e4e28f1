"""Journals as bytes: recorded ones are kept with a made-up directory, and set into a real one to be resumed.

Written apart from ralph's own reader, which is what they are to prove.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

OWN = Path(__file__).parent / "journals"
OLDER = Path(__file__).parents[1] / "journals"
MADE_UP = "/home/user/project"
"""The working directory in all of them."""
_CHECKSUM = b',"crc":"'
_LONG_SLEEP = b"sleep 300"
"""A command that was stopped runs again where the record of its beginning is cut off."""
_ENDPOINT = re.compile(rb"http://127\.0\.0\.1:\d+")


def recorded_journals() -> dict[str, bytes]:
    """By name: those that `tests/journals` keeps, of older formats too, and those of the scenes."""
    found = {f"older/{path.stem}": path.read_bytes() for path in sorted(OLDER.glob("*.jsonl"))}
    return found | {path.stem: path.read_bytes() for path in sorted(OWN.glob("*.jsonl"))}


def moved(journal: bytes, old: str, new: str, base_url: str) -> bytes:
    """A journal of the directory `new`, whose targets are all at `base_url`."""
    return b"".join(map(_with_checksum, _replaced(journal, old, new, base_url)))


def _replaced(journal: bytes, old: str, new: str, base_url: str) -> list[bytes]:
    text = _ENDPOINT.sub(base_url.encode(), journal.replace(old.encode(), new.encode()))
    return text.replace(_LONG_SLEEP, b"sleep 0.1").splitlines()


def _with_checksum(line: bytes) -> bytes:
    body = line.rpartition(_CHECKSUM)[0]
    return b'%s%s%08x"}\n' % (body, _CHECKSUM, zlib.crc32(body))


def kinds(journal: bytes) -> list[str]:
    """Of its records."""
    return [json.loads(line)["kind"] for line in journal.splitlines()]

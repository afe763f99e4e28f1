"""What the model has seen of files: which content Read showed, or Write and Edit left, so that a change by
somebody else is noticed before it is written over. A new time or mode alone is no change.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from ralph.effects.tools.tool_error import ToolError

if TYPE_CHECKING:
    from pathlib import Path

_MOST_FILES = 10_000
_MOST_BYTES_HASHED = 10_000_000
_CHUNK_BYTES = 1 << 20

Signature = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Seen:
    signature: Signature | None
    """None: it was found changed, and has to be read again."""
    digest: str | None
    """Of the whole content; None where hashing it would cost too much."""


class SeenFiles:
    """By real path, the last 10,000 of one run. Any thread may call."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _Seen] = OrderedDict()
        self._lock = Lock()

    def was_shown(self, path: Path, descriptor: int, before: os.stat_result) -> None:
        """`before`: the stat of the open file before any of it was read."""
        signature = signature_of(before)
        with self._lock:
            known = self._files.get(str(path))
        if known is None or known.signature != signature or known.digest is None:
            known = _Seen(signature, _digest(descriptor, before))
        self._keep(path, known)

    def was_written(self, path: Path, after: os.stat_result, digest: str) -> None:
        self._keep(path, _Seen(signature_of(after), digest))

    def refuse_changed(self, path: Path, now: os.stat_result, digest: str | None, shown: str) -> None:
        """`digest`: of the content now, where it is known. Raises ToolError for what is not as it was seen."""
        with self._lock:
            seen = self._files.get(str(path))
        if seen is None:
            return
        if seen.digest is not None and digest is not None:
            is_same = seen.signature is not None and seen.digest == digest
        else:
            is_same = seen.signature == signature_of(now)
        if not is_same:
            self._keep(path, _Seen(None, None))
            raise ToolError(f"{shown} changed on disk since it was read; read it again. Nothing was written")

    def _keep(self, path: Path, seen: _Seen) -> None:
        with self._lock:
            self._files[str(path)] = seen
            self._files.move_to_end(str(path))
            if len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)


def signature_of(stat: os.stat_result) -> Signature:
    """Differs when the content may."""
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _digest(descriptor: int, before: os.stat_result) -> str | None:
    """None also when the file changes meanwhile: what was shown is then not what would be hashed."""
    if before.st_size > _MOST_BYTES_HASHED:
        return None
    content = hashlib.sha256()
    position = 0
    try:
        while position < before.st_size:
            chunk = os.pread(descriptor, min(_CHUNK_BYTES, before.st_size - position), position)
            if not chunk:
                return None
            content.update(chunk)
            position += len(chunk)
        is_same = signature_of(os.fstat(descriptor)) == signature_of(before)
    except OSError:
        return None
    return content.hexdigest() if is_same else None

"""Remembers the state of each file when Read, Write or Edit last used it. If another program has changed the file
since then, ralph notices this before it overwrites the file. Two states are compared by the digest of the content. If
there is no digest, for example for a very large file, they are compared by size and modification time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.values.answer import ToolError
from ralph.values.strict_json import is_encodable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST_FILES = 10_000
_MOST_BYTES_HASHED = 10_000_000
_CHUNK_BYTES = 1 << 20

Signature = tuple[int, int, int, int]


class _SeenFile(Struct, frozen=True):
    signature: Signature | None
    """The file's signature when the model was shown it. None if only the digest is known."""
    digest: str | None
    """The digest of the whole content. None if the file was too large to hash, or if it changed while it was hashed."""

    def as_text(self) -> str:
        """The digest, or the signature if there is no digest, as text for the journal."""
        return self.digest or ":".join(map(str, self.signature or ()))

    @classmethod
    def of_text(cls, text: str) -> _SeenFile:
        """Parses the result of `as_text`. Raises ValueError for other text."""
        if ":" not in text:
            return cls(None, text)
        device, inode, size, time_ns = map(int, text.split(":"))
        return cls((device, inode, size, time_ns), None)

    def is_of(self, now: os.stat_result, digest: str | None) -> bool:
        if self.digest is not None and digest is not None:
            return self.digest == digest
        return self.signature == signature_of(now)


_CHANGED = _SeenFile(None, None)
"""Replaces the state of a file that has changed since the model was shown it. The model must read the file again."""


class SeenFiles:
    """The last 10,000 files that the model was shown or has written in a session. For any thread. `was_shown` and `was_written`
    return what the caller must store in the journal: the real path and a text about the state.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, _SeenFile] = OrderedDict()
        self._lock = Lock()

    def restore(self, seen: Mapping[str, str]) -> None:
        """Restores what earlier runs of this session have stored in the journal."""
        for path, text in seen.items():
            try:
                self._keep(path, _SeenFile.of_text(text))
            except ValueError:  # written by another version of ralph; the model must read the file again
                self._keep(path, _CHANGED)

    def was_shown(self, path: Path, descriptor: int, before: os.stat_result) -> dict[str, str]:
        """Remembers a file that Read has shown. `before` is the status of the open file before it was read."""
        signature = signature_of(before)
        with self._lock:
            known = self._files.get(str(path))
        if known is None or known.signature != signature or known.digest is None:
            known = _SeenFile(signature, _digest(descriptor, before))
        return self._keep(str(path), known)

    def was_written(self, path: Path, after: os.stat_result | None, digest: str) -> dict[str, str]:
        """Remembers a file that was written. `after` is its status, or None if only the digest is known."""
        return self._keep(str(path), _SeenFile(None if after is None else signature_of(after), digest))

    def refuse_changed(self, path: Path, now: os.stat_result, digest: str | None, shown: str) -> None:
        """Raises ToolError if the file has changed since the model was shown it. `digest` is None if it is unknown."""
        with self._lock:
            seen = self._files.get(str(path))
        if seen is not None and not seen.is_of(now, digest):
            self._keep(str(path), _CHANGED)
            raise ToolError(f"{shown} changed on disk since it was read; read it again. Nothing was written")

    def _keep(self, path: str, seen: _SeenFile) -> dict[str, str]:
        with self._lock:
            self._files[path] = seen
            self._files.move_to_end(path)
            if len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
        # JSON cannot contain a name that is not UTF-8. When the session is resumed, such a file counts as never seen.
        return {path: seen.as_text()} if is_encodable(path) else {}


def signature_of(stat: os.stat_result) -> Signature:
    """A value that almost always changes with the content."""
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _digest(descriptor: int, before: os.stat_result) -> str | None:
    """The digest of an open file. None if it is too large, or has changed since `before`, and might not be what the model was
    shown.
    """
    if before.st_size > _MOST_BYTES_HASHED:
        return None
    # OpenSSL is four times as fast as Python's own function.
    from hashlib import sha256  # noqa: PLC0415 - 5 MB of OpenSSL, which only runs that use files need

    content = sha256()
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

"""Tells a record that ralph wrote here from one that came with a repository, or that somebody edited.

What a record asks for is run with the user's key, so `--continue` follows only one whose seal fits. The seal's key is in
the user's state directory: a repository cannot have it, though an agent that runs as the user can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.effects.sessions.store import SessionStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEY_FILE = "loop.key"
_KEY_BYTES = 32


class Seal:
    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> Seal:
        """Made where there is none yet. Raises OSError, and JournalError where there is no state directory."""
        place = SessionStore.for_user(environment).root
        key = _key_in(place)
        if key is None:
            _make_key(place)
            key = _key_in(place)
        if key is None:
            raise OSError(f"{place / KEY_FILE} cannot be made")
        return cls(key)

    def __call__(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()


def _make_key(place: Path) -> None:
    """Where two loops make one at once the first one stays, as a link never takes another's place. Raises OSError."""
    with suppress(FileNotFoundError):
        if (place / KEY_FILE).stat().st_size != _KEY_BYTES:
            (place / KEY_FILE).unlink()  # what a full disk has left
    with tempfile.NamedTemporaryFile(dir=place, prefix=".loop-key-") as made:
        made.write(os.urandom(_KEY_BYTES))
        made.flush()
        os.fsync(made.fileno())
        with suppress(FileExistsError):
            os.link(made.name, place / KEY_FILE)


def _key_in(place: Path) -> bytes | None:
    """None: there is none, or what a full disk has left."""
    with suppress(FileNotFoundError):
        descriptor = os.open(place / KEY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            key = file.read(_KEY_BYTES + 1)
        return key if len(key) == _KEY_BYTES else None
    return None

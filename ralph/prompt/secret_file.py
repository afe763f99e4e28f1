"""Recognises a secret file behind a link, by its place, its name, and for a hard link by its identity. `places/table.py` lists the
secret places and names.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from ralph.places.gather import files_in, gather_places
from ralph.places.places import is_named
from ralph.places.table import UNQUOTED, named_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Browsers keep some thousands of files. Comparing so many takes a quarter of a second.
_MOST_COMPARED = 20_000


def why_secret(
    real: str, top: str, denied: Sequence[str] = (), status: os.stat_result | None = None
) -> str | None:
    """The reason why a file in the repository `top` is secret, or None. A repository may be a home directory with the user's
    keys, and `.git` may contain a token in an address. By `status`, a secret file is known under another name too.
    """
    places = gather_places((top,), os.environ, denied=denied)
    place = places.why_not_read(real)
    if place is not None:
        return f"it leads to {real}: {place.path} {place.row.why}"
    if status is not None and status.st_nlink > 1:
        other = _hard_link_in(places.unread, status)
        if other is not None:
            return f"it is a hard link, and the same file {other}"
    why = next((why for name, why in named_with(UNQUOTED) if is_named(real, name)), None)
    return None if why is None else f"it leads to {real}, which {why}"


def _hard_link_in(places: Iterable[str], status: os.stat_result) -> str | None:
    """A text that says where in `places` the file with this status is, or could be if they have too many, otherwise None."""
    for compared, path in enumerate(chain.from_iterable(map(files_in, places))):
        if compared >= _MOST_COMPARED:
            return "could lie in a secret place: too many files to compare"
        with suppress(OSError):
            if os.path.samestat(os.lstat(path), status):
                return f"as {path}, which must not be read"
    return None

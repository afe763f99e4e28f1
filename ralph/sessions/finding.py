"""Finds the session that the user means: by the beginning of its id, by its title, or as the newest one."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.sessions.looking import look_to_list
from ralph.sessions.naming import named_session
from ralph.sessions.places import SHORT_ID_CHARS
from ralph.sessions.store import written_at
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ralph.sessions.store import SessionStore

_MOST_NAMED = 3
_MOST_AMBIGUOUS = 5


def last_resumable(store: SessionStore, cwd: Path) -> Path | None:
    """The most recently written journal of the working directory `cwd` that contains a message. None if `cwd` has no
    journal. If no journal contains a message, returns the most recently written one. Opening it then raises an error
    that explains the problem.
    """
    newest_first = sorted(store.of(cwd), key=written_at, reverse=True)
    return next((path for path in newest_first if _has_message(path)), store.last_of(cwd))


def _has_message(path: Path) -> bool:
    """Whether the journal contains a user message, without which it cannot be resumed. Also True if it cannot be read:
    opening it reports why.
    """
    try:
        look = look_to_list(path)
    except FileNotFoundError:  # it was deleted just now
        return False
    return look.problem is not None or look.story.has_message


def named_journal(store: SessionStore, name: str, cwd: Path | None) -> Path:
    """The journal whose id begins with `name`, or whose session has it as its title. Raises UsageError if there is no
    such journal, or more than one. If there is none, the error suggests similar ids or the newest sessions of `cwd`.
    `cwd` is None if the working directory is gone.
    """
    found = store.starting_with(name)
    titled = [] if len(found) == 1 and len(name) >= SHORT_ID_CHARS else _titled(store, name)
    both = [*dict.fromkeys((*found, *titled))]
    if not both:
        none = f"there is no session that begins with {name!r} or has it as its title (in {store.root})"
        raise UsageError(f"{none}{_suggestion(store, name, cwd)}")
    if len(both) > 1:
        newest = sorted(both, key=written_at, reverse=True)[:_MOST_AMBIGUOUS]
        names = _names(newest) if titled else ", ".join(path.stem for path in found[:_MOST_AMBIGUOUS])
        have = "begin with or are called" if titled else "begin with"
        raise UsageError(f"{len(both)} sessions {have} {name!r}: {names}")
    return both[0]


def _titled(store: SessionStore, title: str) -> list[Path]:
    """The journals of the sessions with this title, as a list of sessions shows it. Case and white space do not
    count.
    """

    def plain(text: str | None) -> str:
        return " ".join((text or "").casefold().split())

    wanted = plain(title)
    found: list[Path] = []
    for path in store.all():
        with suppress(FileNotFoundError):  # it was deleted just now
            if plain(look_to_list(path).story.title) == wanted != "":
                found.append(path)
    return found


def _suggestion(store: SessionStore, prefix: str, cwd: Path | None) -> str:
    """Ids that are similar to `prefix`. If no id is similar, the newest sessions of the working directory."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    beginnings = {path.stem[: len(prefix)]: path for path in store.all()}
    alike = get_close_matches(prefix.lower(), beginnings, _MOST_NAMED)
    if alike:
        return f"; the closest: {_names([beginnings[each] for each in alike])}"
    newest = sorted(store.of(cwd) if cwd is not None else (), key=written_at, reverse=True)[:_MOST_NAMED]
    return f"; the newest of this directory: {_names(newest)}" if newest else ""


def _names(paths: Iterable[Path]) -> str:
    now_s = time.time()
    named = []
    for path in paths:
        with suppress(FileNotFoundError):
            look = look_to_list(path)
            named.append(named_session(look.id, now_s - look.written_at_s, look.task))
    return ", ".join(named)

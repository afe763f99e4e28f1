"""The directories in which ralph's state may be, as the environment names them. Imports little, because each run looks
into the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.machine.loading import short_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_CHOSEN_BY = (("RALPH_STATE_DIR", ""),)
_USUALLY_BY = (("XDG_STATE_HOME", "/ralph"), ("HOME", "/.local/state/ralph"))
"""Variables, and the place of the state below the directory that each names. A relative path would lead into the working
directory, so that such a variable names none."""


def chosen_state_directory(environment: Mapping[str, str]) -> str | None:
    """The state directory that the user has chosen for ralph alone. No other may replace it."""
    return next(_named(environment, _CHOSEN_BY), None)


def usual_state_directory(environment: Mapping[str, str]) -> str | None:
    return next(_named(environment, _USUALLY_BY), None)


def named_state_directories(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields them all, the one that counts first."""
    yield from _named(environment, (*_CHOSEN_BY, *_USUALLY_BY))


def _named(environment: Mapping[str, str], by: Sequence[tuple[str, str]]) -> Iterator[str]:
    for variable, below in by:
        place = environment.get(variable, "")
        if place.startswith("/"):
            yield f"{place.rstrip('/')}{below}" or "/"


def running_below(state: str) -> str:
    """The directory with the descriptions of protected files, made while commands run."""
    return f"{state}/running"


def name_for(directories: Sequence[str]) -> str:
    """The part of the name of such a description that says to which directories it belongs."""
    return short_digest("\0".join(directories).encode("utf-8", "surrogateescape"), 16)

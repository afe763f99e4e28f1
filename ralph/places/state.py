"""The directories in which ralph's state may be, as the environment names them. Imports nothing, because each run looks
into the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMED_BY = (("RALPH_STATE_DIR", ""), ("XDG_STATE_HOME", "/ralph"), ("HOME", "/.local/state/ralph"))
"""Variables, and the place of the state below the directory that each names. The first that is set counts."""


def named_state_directories(environment: Mapping[str, str]) -> Iterator[str]:
    for variable, below in _NAMED_BY:
        place = environment.get(variable, "")
        if place.startswith("/"):
            yield f"{place.rstrip('/')}{below}"


def running_below(state: str) -> str:
    """The directory with the descriptions of protected files, made while commands run."""
    return f"{state}/running"

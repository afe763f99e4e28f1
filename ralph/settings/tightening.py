"""What a file that came with a repository may do to a setting: tighten what trusted sources say, and nothing else.

Pure. A rule takes the trusted value and the one that the repository's file wants, and gives the one that counts; None
where the wanted one is looser. Refuses to know where a value came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.values.tool_choice import READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable

# From the tightest to the loosest. "custom" may be either, so that only "off" is known to be tighter.
_POLICY_RANKS = {"off": 0, "standard": 1, "patient": 2}


class Tightening(NamedTuple):
    """One entry in the column of the settings table that says what a repository may do."""

    says: str
    """For people: what such a file may say."""
    apply: Callable[[Any, Any], Any]
    """Takes the trusted value and the wanted one; gives the one that counts, None: the wanted one is looser."""
    joins_stronger: bool = False
    """It counts beside what flags and variables say; else they replace it, as they replace any file's value."""


def _smaller(trusted: float | None, wanted: float) -> float | None:
    """None and 0 are no bound at all."""
    if wanted <= 0 or (trusted and wanted > trusted):
        return None
    return wanted


def _retries(trusted: str, wanted: str) -> str | None:
    if wanted == trusted:
        return wanted
    known = _POLICY_RANKS.get(wanted)
    return wanted if known is not None and known <= _POLICY_RANKS.get(trusted, 0) else None


def _fewer(trusted: tuple[str, ...] | None, wanted: tuple[str, ...]) -> tuple[str, ...] | None:
    """Names that are allowed. None: all are."""
    if trusted is None:
        return wanted
    # Reading is allowed in any case.
    if set(wanted) - set(READ_ONLY) > set(trusted) - set(READ_ONLY):
        return None
    return tuple(name for name in trusted if name in wanted)


def _more(trusted: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...] | None:
    """Names that are taken away."""
    if set(wanted) < set(trusted):
        return None
    return tuple(dict.fromkeys((*trusted, *wanted)))


ANY = Tightening("any", lambda _trusted, wanted: wanted)
SMALLER = Tightening("smaller, not 0", _smaller)
FEWER_RETRIES = Tightening("standard or off", _retries)
NARROWS = Tightening("narrows", _fewer, joins_stronger=True)
ADDS = Tightening("adds", _more, joins_stronger=True)

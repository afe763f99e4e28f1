"""Options that take several words, for typer, and what to say where a prompt was taken for one of them."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typer import BadParameter
from typer.exceptions import TyperException

from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from typer._click import Context, Parameter

_KEY = "ralph.last_list"


def spread(
    words: Sequence[str], parameters: Iterable[Parameter], lists: Collection[str]
) -> tuple[list[str], str | None]:
    """Each word of a list under its option, and the list that reaches to the end of the line, if one does.

    `lists`: names of parameters.
    """
    from ralph.cli.list_options import EmptyListError, spread_lists  # noqa: PLC0415 - not needed for --help

    known = list(parameters)
    of_lists = {spelling for one in known if one.name in lists for spelling in one.opts}
    try:
        found = spread_lists(words, spellings(known), of_lists)
    except EmptyListError as error:
        raise TyperException(f'{error} needs a word at least; {error} "" is an empty list') from None
    return list(found.words), found.last_list


def spellings(parameters: Iterable[Parameter]) -> dict[str, bool]:
    """Whether a value goes with each option."""
    return {
        spelling: not getattr(parameter, "is_flag", False)
        for parameter in parameters
        if parameter.param_type_name == "option"
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    }


def keep_last_list(context: Context, last: str | None) -> None:
    context.meta[_KEY] = last


@contextmanager
def prompt_not_in_list(context: Context, *, has_prompt: bool) -> Iterator[None]:
    """What goes wrong inside is told with where a prompt may stand, if the last list could have swallowed one.

    Raises UsageError at once where standard input cannot give one either.
    """
    last = None if has_prompt else context.meta.get(_KEY)
    if last is None:
        yield
        return
    advice = f"{last} takes all words up to the next option: put the prompt before it, or behind --"
    if not _is_piped():
        raise UsageError(f"no prompt: {advice}")
    try:
        yield
    except BadParameter as error:
        raise UsageError(f"{error.format_message().rstrip('.')} ({advice})") from None
    except UsageError as error:
        raise UsageError(f"{error} ({advice})") from None


def _is_piped() -> bool:
    """A pipe, a socket or a file; a terminal and /dev/null say nothing."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)

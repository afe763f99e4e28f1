"""Says which files go through which filter of git (gitattributes(5)), and refuses to commit those whose filter ralph does not run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError, shown
from ralph.git.runner import nul_ended

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ralph.git.runner import Git
    from ralph.git.settings import GitSettings

# A file whose attributes say nothing about a filter has none.
_WITH_A_FILTER = ("ls-files", "-z", "--", ":(top,exclude,attr:!filter)")


def filters_of(git: Git, paths: Iterable[str], *options: str, **how: Mapping[str, str]) -> dict[str, str]:
    """The filter of each path, by the attributes in the working tree, or as options of git-check-attr(1) say. `how` is as in
    `Git.call`. Raises CheckoutError and Interrupted.
    """
    output = git.change("check-attr", *options, "-z", "--stdin", "filter", given=nul_ended(paths), **how)
    fields = os.fsdecode(output).split("\0")
    return dict(zip(fields[0::3], fields[2::3], strict=False))


def unfiltered(git: Git, settings: GitSettings, paths: Iterable[str]) -> dict[str, str]:
    """Those of the paths that go through a filter which `git`, with these settings, does not run, each with its filter. A commit
    would hold what should be encrypted as plain text. Raises CheckoutError and Interrupted.
    """
    if not settings.dropped_filters:
        return {}
    found = filters_of(git, paths).items()
    return {path: name for path, name in found if name in settings.dropped_filters}


def refuse_unfiltered(git: Git, settings: GitSettings, paths: Iterable[str]) -> None:
    """Raises CheckoutError if one of the paths is `unfiltered`. Raises Interrupted."""
    for path, name in unfiltered(git, settings, paths).items():
        if name in settings.unnamed_filters:
            raise CheckoutError(
                f"{shown([path])} goes through your filter {name!r}, which ralph's own git does not run: {_advice([name])}"
            )
        raise CheckoutError(
            f"{shown([path])} goes through the filter {name!r}, a program that an agent can write, or that only a "
            f"configuration names which it can write; {settings.advice}, with a program where commands may not write"
        )


def refuse_tracked(git: Git, settings: GitSettings) -> None:
    """As `refuse_unfiltered`, for all files that git tracks."""
    if settings.dropped_filters:
        refuse_unfiltered(git, settings, _tracked(git))


def about_unnamed(git: Git, settings: GitSettings) -> list[str]:
    """A notice for people about the user's own filters that tracked files go through and that do not run. Raises CheckoutError
    and Interrupted.
    """
    if not settings.unnamed_filters:
        return []
    found = unfiltered(git, settings, _tracked(git)).items()
    used = {name: path for path, name in found if name in settings.unnamed_filters}
    if not used:
        return []
    named = shown([f"{name} ({path})" for name, path in sorted(used.items())], len(used))
    what = f"ralph's own git does not run these filters of yours, and commits no change of files that go through them: {named}"
    return [f"{what}; {_advice(sorted(used))}"]


def _tracked(git: Git) -> list[str]:
    """The files that git tracks and whose attributes say something about a filter."""
    return os.fsdecode(git.read(*_WITH_A_FILTER)).split("\0")[:-1]


def _advice(names: Iterable[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        "name those that take no code and no settings from the directory, which the model writes, in your own settings: "
        f"[loop] git_filters = [{listed}]"
    )

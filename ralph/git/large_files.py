"""Finds the large files of Git LFS that a push must bring too: a commit has only a pointer to each. `git push` would upload
them in a hook, and ralph runs no hooks. `ralph.git.push.upload` uploads them. Nothing here contacts a remote.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import TYPE_CHECKING

from ralph.git.answer import CheckoutError, shown
from ralph.git.runner import nul_ended
from ralph.places.git_config import LFS_STORAGE, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from ralph.git.runner import Git
    from ralph.git.settings import GitSettings

FILTER = "lfs"
# A pointer is shorter than this (Git LFS specification, docs/spec.md).
_MOST_POINTER_BYTES = 1024
_POINTER = re.compile(
    rb"version https?://(?:git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/[^\n]*\n(?:[^\n]*\n)*?"
    rb"oid sha256:(?P<id>[0-9a-f]{64})\n"
)
_SMALL_FILES = (
    *("rev-list", "--objects", "--ignore-missing", "--missing=allow-any", "--filter-provided-objects"),
    f"--filter=combine:object:type=blob+blob:limit={_MOST_POINTER_BYTES}",
    "--stdin",
)
_CONFIGURATION = ".lfsconfig"


def has_tracked(git: Git, values: Mapping[str, str], storage: Path) -> bool:
    """Whether git tracks a file of git-lfs, by the settings `values` or `storage`. Raises CheckoutError and Interrupted."""
    is_set = any(values.get(f"filter.{FILTER}.{key}") for key in ("clean", "process"))
    tracked = ("ls-files", "-z", "--", f":(top,attr:filter={FILTER})")
    return (is_set or storage.is_dir()) and bool(git.read(*tracked))


def is_elsewhere(values: Mapping[str, str]) -> bool:
    """Whether git settings have git-lfs keep its files in another place than `LFS_STORAGE`."""
    return values.get(*LFS_STORAGE) != LFS_STORAGE[1]


def path_in(storage: Path, identifier: str) -> Path:
    """Where git-lfs keeps the large file with this id, 64 hexadecimal digits."""
    return storage / "objects" / identifier[:2] / identifier[2:4] / identifier


def large_files(git: Git, commit: str, known: Iterable[str]) -> dict[str, str]:
    """The ids of the large files whose pointers the history of `commit` has, and that of the commits `known` has not, each with
    a path. Of `known`, the repository may lack some. Raises CheckoutError and Interrupted.
    """
    revisions = "".join((f"{commit}\n", *(f"^{one}\n" for one in known))).encode()
    found: dict[str, str] = {}
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as contents:
        git.read(*_SMALL_FILES, given=revisions, output_to=listed.fileno())
        listed.seek(0)
        batch = ("cat-file", "--batch=%(objectsize) %(rest)")
        git.read(*batch, input_from=listed.fileno(), output_to=contents.fileno())
        contents.seek(0)
        for path, content in _contents(contents):
            if identifier := pointer_in(content):
                found.setdefault(identifier, path)
    return found


def pointer_in(content: bytes) -> str | None:
    """The id of the large file for which a file with this content stands, or None if it is no pointer."""
    found = _POINTER.match(content) if len(content) < _MOST_POINTER_BYTES else None
    return found["id"].decode() if found else None


def _contents(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yields the path and the content of each file in the output of `git cat-file --batch`."""
    while line := file.readline():
        size, _, path = line.removesuffix(b"\n").partition(b" ")
        if size.isdigit():  # otherwise a partial clone lacks the file
            yield os.fsdecode(path), file.read(int(size) + 1)


def refuse_missing(git: Git, commit: str, found: Mapping[str, str], storage: Path) -> list[str]:
    """The ids of those of the large files that are in `storage`. Raises CheckoutError if another one belongs to git-lfs by the
    attributes in the commit, and is not text that only looks like a pointer. Raises Interrupted.
    """
    missing = {one: path for one, path in found.items() if not path_in(storage, one).is_file()}
    lost = []
    if missing:
        index = {"GIT_INDEX_FILE": f"{git.environment['GIT_DIR']}/attributes"}
        git.change("read-tree", commit, variables=index)
        filters = filters_of(git, missing.values(), "--cached", variables=index)
        lost = [path for path, name in filters.items() if name == FILTER]
    if lost:
        raise CheckoutError(
            f"what the pointers of git-lfs at {shown(lost)} stand for is not in {storage}, so that no clone could check it "
            "out; git lfs fetch --all gets it, if a remote has it"
        )
    return [one for one in found if one not in missing]


def refuse_own_address(git: Git, commit: str, remote: str, values: Mapping[str, str]) -> None:
    """Raises CheckoutError if a commit's `.lfsconfig` says where large files go and git's configuration `values` do not:
    git-lfs would send them, and the user's password, where a file of the repository says. Raises Interrupted.
    """
    answer = git.answer("cat-file", "blob", f"{commit}:{_CONFIGURATION}")
    named = dict(settings(answer.output)) if not answer.status else {}
    for name in address_names(remote):
        if name in named and name not in values:
            raise CheckoutError(
                f"{_CONFIGURATION} says where large files go ({name}), and no file of the repository decides that for ralph; "
                f"if you trust it, say it yourself: git config {name} URL"
            )


def address_names(remote: str) -> tuple[str, ...]:
    """The settings that name the server of large files, in the order in which git-lfs takes them for an upload."""
    return "lfs.pushurl", "lfs.url", f"remote.{remote}.lfspushurl", f"remote.{remote}.lfsurl"


# Says which files go through which filter of git (gitattributes(5)), and refuses to commit those whose filter ralph does not run.

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


def why_unfiltered(settings: GitSettings, path: str, name: str) -> str:
    """Why the filter of one of the `unfiltered` does not run, and what to do."""
    if name in settings.unnamed_filters:
        return f"{shown([path])} goes through your filter {name!r}, which ralph's own git does not run: {_advice([name])}"
    return (
        f"{shown([path])} goes through the filter {name!r}, a program that an agent can write, or that only a "
        f"configuration names which it can write; {settings.advice}, with a program where commands may not write"
    )


def refuse_tracked(git: Git, settings: GitSettings) -> None:
    """Raises CheckoutError if a file that git tracks is `unfiltered`. Raises Interrupted."""
    found = unfiltered(git, settings, _tracked(git)) if settings.dropped_filters else {}
    for path, name in found.items():
        raise CheckoutError(why_unfiltered(settings, path, name))


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

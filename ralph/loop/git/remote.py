"""Runs the git calls that contact a remote, without reading the checkout's current configuration or hooks. They run in a
temporary git directory that has no hooks, remotes or settings and uses only the checkout's objects. All settings are
passed in the environment (`GIT_CONFIG_COUNT`), those of the user's own files too: a condition in these files
(`includeIf`) that tests the checkout would not match in the temporary directory.

A remote may be a repository on this machine. Its configuration may name programs, and a push would run these programs
as the user. So ralph passes settings to `git receive-pack` that override the settings of the remote.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from ralph.loop.git.git import GitAnswer, GitProgram, environment_for_git, failure
from ralph.loop.git.git_settings import settings_before_any, settings_from
from ralph.loop.ports import CheckoutError
from ralph.machine.spill_directory import OwnDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.loop.git.git import GitSeams
    from ralph.loop.git.pins import RemoteSettings

REMOTE_LIMIT_S = 300.0

_OLDEST = (2, 32)
"""The oldest version of git that works. GIT_CONFIG_GLOBAL came with this version, and GIT_CONFIG_COUNT with 2.31."""
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
# ralph's push runs no hook (git-lfs has one), signs nothing, and enters no submodule.
_PUSH = (
    *("push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no"),
)
_PASSED_BY_ENVIRONMENT = re.compile(
    r"GIT_CONFIG_(?:PARAMETERS|COUNT|KEY_\d+|VALUE_\d+|GLOBAL|SYSTEM|NOSYSTEM)"
)
_WHOSE_FILES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_CONFIGURATION = "[core]\n\trepositoryformatversion = {version}\n\tbare = true\n[extensions]\n{extensions}"
# The suffixes that git tries on the path of a repository, in git's order (`enter_repo` in git's path.c).
_SUFFIXES = ("/.git", "", ".git/.git", ".git")
# Settings in force in a remote on this machine. They override the remote's own settings.
_IN_THEIRS = ("core.alternateRefsCommand=true", "receive.autogc=false")


class Source(Struct, frozen=True):
    """The branch to push: its name, its last commit, and the directory with its objects."""

    ref: str
    """The full name of the branch, with `refs/heads/`."""
    head: str
    """The id of the branch's last commit, or "" if the branch has no commit."""
    objects: str
    """The absolute path of the directory that contains the git objects."""
    shallow_file: str
    object_format: str
    """The hash function of the repository, `sha1` or `sha256`."""


class RemoteGit:
    """Runs git calls that contact a remote. Each push uses a new `RemoteGit`."""

    def __init__(self, top: Path, seams: GitSeams, settings: RemoteSettings, source: Source) -> None:
        """`top` is the top directory of the checkout. The path of a remote may be relative to `top`."""
        self._top = top
        self._program = GitProgram(top, seams)
        self._base = environment_for_git(seams.environment, top)
        self._settings = settings
        self._source = source

    def refuse_old(self) -> None:
        """Raises CheckoutError if git is too old: ralph passes all settings in the environment, which old versions do
        not support. Also raises the errors of `GitProgram.call`.
        """
        output = self._program.call(["version"], self._base, name="version").output
        found = _VERSION.match(output)
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise CheckoutError(f"--push needs git {oldest} or newer, this is {output.decode().strip()}")

    def push(self, remote: str, url: str, remote_ref: str, *, is_tried_out: bool) -> GitAnswer:
        """Pushes the branch to the address `url` and nowhere else. If `is_tried_out` is True, the remote is not
        changed. The output in the result includes standard error. Raises CheckoutError and Interrupted.
        """
        options = ["--dry-run"] if is_tried_out else []
        return self._reach(
            remote, url, [*_PUSH, *options], "receive-pack", [f"{self._source.ref}:{remote_ref}"]
        )

    def list_refs(self, remote: str, url: str) -> GitAnswer:
        return self._reach(remote, url, ["ls-remote"], "upload-pack", [])

    def _reach(
        self, remote: str, url: str, command: Sequence[str], service: str, rest: Sequence[str]
    ) -> GitAnswer:
        """Runs a git command that contacts the remote. `service` is the program that git starts at the remote. Its
        name is given without the prefix `git-`.
        """
        started = f"git-{service}"
        path = local_path(url)
        if path is not None:
            started = f"{self._whose_files()}git {' '.join(map(quote, self._for_theirs(path)))} {service}"
        arguments = [*command, f"--{service}={started}", "--", remote, *rest]
        with self._environment(self._settings.with_only_url(remote, url)) as environment:
            return self._program.call(
                arguments, environment, name=command[0], limit_s=REMOTE_LIMIT_S, is_merged=True
            )

    def _for_theirs(self, path: str) -> list[str]:
        """Options for git if the remote is the repository at `path` on this machine. With them, git runs no programs
        that this repository's configuration names. Raises CheckoutError and Interrupted.
        """
        place = self._git_directory_of(path)
        ours = [word for pair in _IN_THEIRS for word in ("-c", pair)]
        if place is None:  # git will report it
            return [*settings_before_any().arguments, *ours]
        # Runs inside the directory, like `git receive-pack`, because conditions (`includeIf`) depend on it.
        arguments = [
            *("-C", place, *settings_before_any().arguments),
            *("config", "--list", "--show-scope", "-z"),
        ]
        answer = self._program.call(arguments, self._base | {"GIT_DIR": "."}, name="config")
        if answer.status:
            raise failure(Path(place), "config", answer)
        settings = settings_from(answer.output)
        if settings.values.get("receive.denycurrentbranch", "").lower() == "updateinstead":
            raise CheckoutError(
                f"a push to {path} would update the files there (receive.denyCurrentBranch=updateInstead), by programs "
                "that it names; push to a bare repository"
            )
        return [*settings.arguments, *ours]

    def _git_directory_of(self, path: str) -> str | None:
        """The git directory that git would use for a remote at `path`, or None if `path` is no repository. Raises
        CheckoutError and Interrupted.
        """
        for suffix in _SUFFIXES:
            asked = ["rev-parse", "--resolve-git-dir", path + suffix]
            arguments = [*settings_before_any().arguments, *asked]
            if os.path.lexists(self._top / (path + suffix)):
                answer = self._program.call(arguments, self._base, name="rev-parse")
                if not answer.status:
                    return os.fsdecode(answer.output.removesuffix(b"\n"))
        return None

    def _whose_files(self) -> str:
        """Shell text that sets environment variables for a git process in a remote on this machine. With them, this
        process reads the same configuration files of the user as git in the checkout.
        """
        theirs = {name: self._base[name] for name in _WHOSE_FILES if name in self._base}
        return f"unset {' '.join(_WHOSE_FILES)}; " + "".join(
            f"{name}={quote(value)} " for name, value in theirs.items()
        )

    @contextmanager
    def _environment(self, settings: RemoteSettings) -> Iterator[dict[str, str]]:
        own = OwnDirectory("ralph-push-")
        try:
            _make_repository(Path(own.path), self._source)
            kept = {
                name: value
                for name, value in self._base.items()
                if not _PASSED_BY_ENVIRONMENT.fullmatch(name)
            }
            yield (
                kept
                | _by_environment(settings)
                | {
                    "GIT_CONFIG_GLOBAL": os.devnull,
                    "GIT_CONFIG_NOSYSTEM": "1",
                    "GIT_DIR": own.path,
                    "GIT_OBJECT_DIRECTORY": self._source.objects,
                    "GIT_SHALLOW_FILE": self._source.shallow_file,
                }
            )
        finally:
            own.remove()


def local_path(url: str) -> str | None:
    """The path of a remote on this machine, or None if the remote is on another machine. Uses git's own rules to tell
    paths from addresses.
    """
    if url.lower().startswith("file://"):
        path = unquote(url[len("file:") :], errors="surrogateescape").replace("\0", "%00")
        return path[2:] if path.startswith("///") else path  # git takes a host for a part of the path
    before_colon, colon, _ = url.partition(":")
    return None if colon and "/" not in before_colon else os.path.expanduser(url)  # noqa: PTH111 - for strings


def _by_environment(settings: RemoteSettings) -> dict[str, str]:
    told = {"GIT_CONFIG_COUNT": str(len(settings.entries))}
    for number, entry in enumerate(settings.entries):
        told |= {f"GIT_CONFIG_KEY_{number}": entry.name, f"GIT_CONFIG_VALUE_{number}": entry.value}
    return told


def _make_repository(place: Path, source: Source) -> None:
    """Writes the smallest repository that git accepts (gitrepository-layout(5)). Its only branch is the branch to
    push.
    """
    (place / "refs").mkdir()
    (place / "HEAD").write_text("ref: refs/heads/none\n")
    if source.head:
        branch = place / source.ref
        branch.parent.mkdir(parents=True, exist_ok=True)
        branch.write_text(f"{source.head}\n")
    is_plain = source.object_format == "sha1"
    extensions = "" if is_plain else f"\tobjectFormat = {source.object_format}\n"
    (place / "config").write_text(_CONFIGURATION.format(version=0 if is_plain else 1, extensions=extensions))

"""Git for calls to a remote. It runs in an empty git directory, and every setting is passed explicitly.

A push needs only the checkout's objects. So git runs in a directory of its own, without hooks, remotes and settings.
Its settings come through the environment (`GIT_CONFIG_COUNT`). That includes the user's own files, because their
conditions (`includeIf`) refer to the checkout. Git never reads the repository's present configuration here.

A remote may be a repository on this machine. Its configuration can name programs, which a push would start as the user.
So `git receive-pack` gets ralph's settings there, which override those of the remote.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from ralph.loop.git.git import GitAnswer, GitProgram, environment_for_git, failure
from ralph.loop.git.git_settings import settings_before_any, settings_from
from ralph.loop.ports import CheckoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.loop.git.git import GitSeams
    from ralph.loop.git.pins import RemoteSettings

REMOTE_LIMIT_S = 300.0

_OLDEST = (2, 32)
"""The oldest git that works: the first with GIT_CONFIG_GLOBAL (GIT_CONFIG_COUNT came with 2.31)."""
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
# Our own call runs no hook (git-lfs has one), signs nothing, and enters no submodule.
_PUSH = (
    *("push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no"),
)
_PASSED_BY_ENVIRONMENT = re.compile(
    r"GIT_CONFIG_(?:PARAMETERS|COUNT|KEY_\d+|VALUE_\d+|GLOBAL|SYSTEM|NOSYSTEM)"
)
_WHOSE_FILES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_CONFIGURATION = "[core]\n\trepositoryformatversion = {version}\n\tbare = true\n[extensions]\n{extensions}"
# The suffixes that git tries on the path of a repository, in its order (its "GIT URLS" and enter_repo()).
_SUFFIXES = ("/.git", "", ".git/.git", ".git")
# In force in a remote on this machine, whatever its own settings are.
_IN_THEIRS = ("core.alternateRefsCommand=true", "receive.autogc=false")


class Source(Struct, frozen=True):
    """The parts of a checkout that a push reads."""

    ref: str
    """The branch, with `refs/heads/`."""
    head: str
    """The branch's commit; empty: there is none yet."""
    objects: str
    """The absolute path of the directory with all objects."""
    shallow_file: str
    object_format: str
    """`sha1` or `sha256`."""


class RemoteGit:
    """Git for calls to a remote. Make one for each operation, between two iterations."""

    def __init__(self, top: Path, seams: GitSeams, settings: RemoteSettings, source: Source) -> None:
        """`top`: the top of the checkout. A remote's relative path starts there."""
        self._top = top
        self._program = GitProgram(top, seams)
        self._base = environment_for_git(seams.environment, top)
        self._settings = settings
        self._source = source

    def refuse_old(self) -> None:
        """Raises CheckoutError for a git version that cannot take its settings from the environment alone."""
        output = self._program.call(["version"], self._base, name="version").output
        found = _VERSION.match(output)
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise CheckoutError(f"--push needs git {oldest} or newer, this is {output.decode().strip()}")

    def push(self, remote: str, url: str, remote_ref: str, *, is_tried_out: bool) -> GitAnswer:
        """Pushes the branch to that address alone. The answer combines standard output and standard error."""
        options = ["--dry-run"] if is_tried_out else []
        return self._reach(
            remote, url, [*_PUSH, *options], "receive-pack", [f"{self._source.ref}:{remote_ref}"]
        )

    def list_refs(self, remote: str, url: str) -> GitAnswer:
        return self._reach(remote, url, ["ls-remote"], "upload-pack", [])

    def _reach(
        self, remote: str, url: str, command: Sequence[str], service: str, rest: Sequence[str]
    ) -> GitAnswer:
        """Contacts the remote. `service`: git's name, without `git-`, for the program that runs at the remote."""
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
        """Git options that keep the repository at `path`, on this machine, from running its own programs.

        Raises CheckoutError, Interrupted.
        """
        place = self._git_directory_of(path)
        ours = [word for pair in _IN_THEIRS for word in ("-c", pair)]
        if place is None:  # git will report it
            return [*settings_before_any().arguments, *ours]
        # From inside, like `git receive-pack`: conditions (`includeIf`) depend on the directory.
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
        """The git directory that git itself would use for this path; None: there is none.

        Raises CheckoutError and Interrupted.
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
        """Shell text that sets environment variables for git in a remote on this machine. With them git reads the same
        configuration files of the user there as in the checkout.
        """
        theirs = {name: self._base[name] for name in _WHOSE_FILES if name in self._base}
        return f"unset {' '.join(_WHOSE_FILES)}; " + "".join(
            f"{name}={quote(value)} " for name, value in theirs.items()
        )

    @contextmanager
    def _environment(self, settings: RemoteSettings) -> Iterator[dict[str, str]]:
        with tempfile.TemporaryDirectory(prefix="ralph-push-") as place:
            _make_repository(Path(place), self._source)
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
                    "GIT_DIR": place,
                    "GIT_OBJECT_DIRECTORY": self._source.objects,
                    "GIT_SHALLOW_FILE": self._source.shallow_file,
                }
            )


def local_path(url: str) -> str | None:
    """The path of a remote on this machine, by git's own rules; None: the remote is elsewhere."""
    if url.lower().startswith("file://"):
        path = unquote(url[len("file:") :], errors="surrogateescape").replace("\0", "%00")
        return path[2:] if path.startswith("///") else path  # a host is a part of the path
    before_colon, colon, _ = url.partition(":")
    return None if colon and "/" not in before_colon else os.path.expanduser(url)  # noqa: PTH111 - `~user` stays


def _by_environment(settings: RemoteSettings) -> dict[str, str]:
    told = {"GIT_CONFIG_COUNT": str(len(settings.entries))}
    for number, entry in enumerate(settings.entries):
        told |= {f"GIT_CONFIG_KEY_{number}": entry.name, f"GIT_CONFIG_VALUE_{number}": entry.value}
    return told


def _make_repository(place: Path, source: Source) -> None:
    """Writes the smallest repository that git accepts (gitrepository-layout(5)). Its only branch is the one to push."""
    (place / "refs").mkdir()
    (place / "HEAD").write_text("ref: refs/heads/none\n")
    if source.head:
        branch = place / source.ref
        branch.parent.mkdir(parents=True, exist_ok=True)
        branch.write_text(f"{source.head}\n")
    is_plain = source.object_format == "sha1"
    extensions = "" if is_plain else f"\tobjectFormat = {source.object_format}\n"
    (place / "config").write_text(_CONFIGURATION.format(version=0 if is_plain else 1, extensions=extensions))

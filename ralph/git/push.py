"""Pushes the branch of a checkout. Never changes git's configuration and never forces a push.

A push reads neither the checkout's current configuration nor its hooks: it runs in a temporary git directory that has only
the checkout's objects. All settings are passed in the environment (`GIT_CONFIG_COUNT`), those of the user's own files too,
whose conditions (`includeIf`) would not match in the temporary directory.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from ralph.git.answer import CheckoutError, without_user
from ralph.git.large_files import (
    address_names,
    has_tracked,
    is_elsewhere,
    large_files,
    refuse_missing,
    refuse_own_address,
)
from ralph.git.runner import Git, environment_for_git, git_directory_of
from ralph.git.settings import ALWAYS, LIST
from ralph.machine.files.paths import common_directory
from ralph.machine.files.trees import OwnDirectory
from ralph.machine.own_programs import programs_by_name
from ralph.places.gather import home_directories
from ralph.places.git_config import LFS_STORAGE
from ralph.places.git_places import foreign_directories
from ralph.places.named_paths import ssh_files, ssh_files_of_agents, used_by_ssh
from ralph.sandbox.left_behind import why_left_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from ralph.git.answer import GitAnswer
    from ralph.git.look import GitStatus
    from ralph.git.runner import CheckoutGit
    from ralph.git.settings import GitSettings, RemoteSettings

REMOTE_LIMIT_S = 300.0
# So long because of some gigabytes. git-lfs ends a connection that is silent for 30 s itself.
_UPLOAD_LIMIT_S = 1800.0

# git-push(1): `<flag>\t<from>:<to>\t<summary>`. The summary of a fast-forward is "<old>..<new>".
_PUSHED = re.compile(
    rb"^(?P<flag>[ *=])\t\S+:\S+\t(?:(?P<old>[0-9a-f]+)\.\.(?P<new>[0-9a-f]+)$)?", re.MULTILINE
)
_LISTED_BRANCH = re.compile(rb"^([0-9a-f]+)\trefs/heads/(.+)$", re.MULTILINE)
_REMOTE_REFS = "refs/remotes/"
_NO_REMOTE = (None, "", ".")  # with a dot, the branch follows another local branch
_PASSED_BY_ENVIRONMENT = re.compile(
    r"GIT_CONFIG_(?:PARAMETERS|COUNT|KEY_\d+|VALUE_\d+|GLOBAL|SYSTEM|NOSYSTEM)"
)


class PushTarget(Struct, frozen=True):
    remote: str
    branch: str
    """The local branch, without `refs/heads/`."""
    remote_branch: str
    elsewhere: str = ""
    """The other remote that the settings name for the branch, which is then not pushed. Empty if they name none."""

    @property
    def remote_ref(self) -> str:
        return f"refs/heads/{self.remote_branch}"

    @property
    def advice(self) -> str:
        return f"try: git push --dry-run {self.remote} {self.branch}:{self.remote_ref}"


def target_of(settings: RemoteSettings, branch: str | None, begun: str | None = None) -> PushTarget:
    """Chooses where a branch is pushed to: to the remote of `begun`, the branch on which the loop began, or None for `branch`
    itself. An agent chooses the current branch, and must not choose the remote by it. `branch` is None if HEAD is detached.
    Raises CheckoutError with advice.
    """
    if branch is None:
        raise CheckoutError("HEAD is detached: there is no branch to push; git switch -c NAME")
    remote, values = _remote_of(settings, begun or branch), settings.values
    of_branch = (values.get(f"branch.{branch}.{name}") for name in ("pushremote", "remote"))
    named = _named_remote(values, branch) if any(one not in _NO_REMOTE for one in of_branch) else None
    elsewhere = named if named and named != remote else ""
    return PushTarget(remote, branch, _remote_branch(settings, branch, remote), elsewhere)


def _remote_of(settings: RemoteSettings, branch: str) -> str:
    """The remote that the settings name for the branch, or the only one, or `origin`."""
    named, remotes = _named_remote(settings.values, branch), settings.remotes
    if named is not None:
        return named
    if not remotes:
        raise CheckoutError("there is no remote to push to; add one: git remote add origin URL")
    if len(remotes) > 1 and "origin" not in remotes:
        raise CheckoutError(
            f"branch {branch} has no remote, and none of {', '.join(remotes)} is named origin; "
            f"git config branch.{branch}.remote NAME"
        )
    return remotes[0] if len(remotes) == 1 else "origin"


def _named_remote(values: Mapping[str, str], branch: str) -> str | None:
    named = (
        values.get(f"branch.{branch}.pushremote")
        or values.get("remote.pushdefault")
        or values.get(f"branch.{branch}.remote")
    )
    return None if named in _NO_REMOTE else named


class Push:
    """Pushes the current branch to one remote. Git uses only the given settings."""

    def __init__(
        self,
        git: CheckoutGit,
        settings: RemoteSettings,
        status: GitStatus,
        *,
        writable: Sequence[Path] = (),
        known: Container[str] = (),
        branch: str | None = None,
        begun: str | None = None,
    ) -> None:
        """`branch` is a branch to push under its own name, with `status.head` as its commit, or None for the current one. `begun`
        is as in `target_of`. `writable` are the directories that an agent may write to. `known` are the identities (`identity_of`) of
        remotes on this machine that existed before the agent started. Raises CheckoutError if there is no remote or branch.
        """
        self.target = target_of(settings, branch or status.branch, begun)
        if branch is not None:
            self.target = replace(self.target, remote_branch=branch)
        self._begun = begun
        self._git = git
        self._head = status.head
        self._settings = settings
        self._writable, self._known = writable, known
        self._ref = f"refs/heads/{self.target.branch}"
        if os.path.normpath(self._ref) != self._ref:
            raise CheckoutError(f"{self.target.branch!r} is not a branch name")
        # It reads the user's configuration, and a relative path of a remote is relative to the checkout.
        self._asking = Git(git.seams, git.top, environment_for_git(git.seams, git.top))

    @cached_property
    def _shared(self) -> Path:
        """The checkout's own git directory, or the one that its linked working trees share. Raises CheckoutError."""
        theirs = git_directory_of(self._git.top)
        return Path(common_directory(str(theirs)) or theirs)

    @property
    def _storage(self) -> Path:
        return self._shared / LFS_STORAGE[1]

    def urls(self) -> list[str]:
        """Raises CheckoutError if the branch is another remote's, or an address leads to what the agent may have made."""
        target = self.target
        if target.elsewhere:
            raise CheckoutError(
                f"branch {target.branch} is tied to the remote {without_user(target.elsewhere)}, but the loop began on "
                f"{self._begun}, so it pushes only to {without_user(target.remote)}: push {target.branch} yourself, or begin a new "
                "loop on it"
            )
        found = self._settings.push_urls(self.target.remote)
        for url in found:
            self._refuse_new_place(url)
        return found

    def _refuse_new_place(self, url: str) -> None:
        """In a push to a repository that the agent has created, git would run programs that this names."""
        top, path = self._git.top, local_path(url)
        if path is None or (place := identity_of(top, path)) is None or place in self._known:
            return
        real = Path(os.path.realpath(top / path))
        if any(real.is_relative_to(directory) for directory in self._writable):
            raise CheckoutError(
                f"{path} lies where the agent may write, and did not exist when the loop began: ralph does not push to it"
            )

    def push(self, refuse: Callable[[Sequence[str]], None] | None = None) -> int:
        """Returns the number of commits that the remote did not have before. `refuse` is called with the commits of each address's
        branches before a push to it, and may raise CheckoutError. Raises CheckoutError and Interrupted.
        """
        answers, problems = [], []
        for url in self.urls():  # fails only after all addresses were tried
            try:
                if refuse is not None:
                    refuse([commit.decode() for commit, _ in self._branches(url, "*")])
                self._upload(url)
            except CheckoutError as problem:
                problems.append(problem)
                continue
            answers.append(self._pushed(url, is_tried_out=False))
        problems += [self._git.failure("push", answer) for answer in answers if answer.status]
        if problems:
            raise problems[0]
        count = max(map(self._count, answers), default=0)
        # Updates the remote-tracking branch, as an ordinary `git push` does.
        fetched = self._settings.all_of(f"remote.{self.target.remote}.fetch")
        for ref in tracking_refs(fetched, self.target.remote_ref):
            self._git.change("update-ref", "--no-deref", ref, self._head)
        return count

    def remote_branches(self, pattern: str) -> list[str]:
        """The remote's branches that match a pattern of git-ls-remote(1). Raises CheckoutError and Interrupted."""
        listed = [found for url in self.urls() for found in self._branches(url, pattern)]
        return [name.decode("utf-8", "replace") for _, name in listed]

    def _branches(self, url: str, pattern: str) -> list[tuple[bytes, bytes]]:
        answer = self._reached(url, ("ls-remote",), f"refs/heads/{pattern}")
        if answer.status:
            raise self._git.failure("ls-remote", answer)
        return _LISTED_BRANCH.findall(answer.output)

    def try_out(self) -> None:
        """Raises Interrupted, and CheckoutError if a push would fail. Does not change the remote."""
        refuse_old(self._asking)
        for url in self.urls():
            if self._head:
                answer = self._pushed(url, is_tried_out=True)
            else:
                answer = self._reached(url, ("ls-remote",))
            if answer.status:
                raise self._git.failure("push" if self._head else "ls-remote", answer)
            if self._has_tracked():
                with self._pushing(url) as git:
                    self._upload_to(git, url, ())

    def unpushed(self) -> int | None:
        """The number of commits that the remote lacked when git last contacted it, or None if that is unknown."""
        return self._missing() if self._settings.all_of(f"remote.{self.target.remote}.fetch") else None

    def _pushed(self, url: str, *, is_tried_out: bool) -> GitAnswer:
        options = ["--dry-run"] if is_tried_out else []
        return self._reached(url, [*PUSH, *options], f"{self._ref}:{self.target.remote_ref}")

    def _upload(self, url: str) -> None:
        if not (self._storage.is_dir() or self._has_tracked()):
            return
        known = [commit.decode() for commit, _ in self._branches(url, "*")]
        with self._pushing(url) as git:
            if found := large_files(git, self._head, known):
                some = refuse_missing(git, self._head, found, self._storage)
                self._upload_to(git, url, some)

    def _has_tracked(self) -> bool:
        return has_tracked(self._git, self._git.settings.values, self._storage)

    def _upload_to(self, git: Git, url: str, identifiers: Sequence[str]) -> None:
        if is_elsewhere(self._git.settings.values):
            raise CheckoutError(
                "git-lfs keeps its files elsewhere (lfs.storage), and ralph pushes none from there; git config lfs.storage lfs"
            )
        values, remote = self._settings.values, self.target.remote
        if self._head:
            refuse_own_address(git, self._head, remote, values)
        given = tuple(map(str, self._writable))
        upload(
            *(git, remote, url, identifiers, values),
            limit_s=_UPLOAD_LIMIT_S,
            asking=self._asking,
            given=given,
        )

    def _reached(self, url: str, command: Sequence[str], *rest: str) -> GitAnswer:
        remote, asking = self.target.remote, self._asking
        limit_s, given = REMOTE_LIMIT_S, tuple(map(str, self._writable))
        with self._pushing(url) as git:
            return reach(git, command, url, rest, remote=remote, limit_s=limit_s, asking=asking, given=given)

    @contextmanager
    def _pushing(self, url: str) -> Iterator[Git]:
        """Yields git in a temporary git directory. The remote has this address alone."""
        with self._environment(self._settings.with_only_url(self.target.remote, url)) as environment:
            yield Git(self._git.seams, self._git.top, environment)

    @contextmanager
    def _environment(self, settings: RemoteSettings) -> Iterator[dict[str, str]]:
        """Makes the temporary git directory, and yields the environment variables of git in it."""
        own = OwnDirectory("ralph-push-")
        try:
            self._make_repository(Path(own.path))
            kept = {
                name: value
                for name, value in self._asking.environment.items()
                if not _PASSED_BY_ENVIRONMENT.fullmatch(name)
            }
            shared = self._shared
            pairs = [*((entry.name, entry.value) for entry in settings.entries), LFS_STORAGE]
            for number, (name, value) in enumerate(pairs):
                kept |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
            yield {
                **kept,
                "GIT_CONFIG_COUNT": str(len(pairs)),
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_DIR": own.path,
                "GIT_OBJECT_DIRECTORY": f"{shared}/objects",
                "GIT_SHALLOW_FILE": f"{shared}/shallow",
            }
        finally:
            own.remove()

    def _make_repository(self, place: Path) -> None:
        """Writes a repository whose only branch is the branch to push."""
        form = self._git.settings.object_format
        extensions = "" if form == "sha1" else f"[extensions]\n\tobjectFormat = {form}\n"
        make_git_directory(place, f"\tbare = true\n{extensions}", version=int(bool(extensions)))
        (place / LFS_STORAGE[1]).symlink_to(self._storage)
        if self._head:
            branch = place / self._ref
            branch.parent.mkdir(parents=True, exist_ok=True)
            branch.write_text(f"{self._head}\n")

    def _count(self, answer: GitAnswer) -> int:
        """The number of commits that a push brought to the remote. The remote-tracking branch is not updated yet."""
        said = _PUSHED.search(answer.output)
        if said is None or said["flag"] == b"*":
            return self._missing()
        if said["flag"] == b"=" or said["old"] is None:
            return 0
        return count_commits(self._git, f"{said['old'].decode()}..{said['new'].decode()}")

    def _missing(self) -> int:
        return count_commits(self._git, self._head, "--not", f"--remotes={self.target.remote}")


def tracking_refs(refspecs: Iterable[str], remote_ref: str) -> list[str]:
    """The local refs in which git stores the last known state of a ref of the remote, by the values of `remote.*.fetch`."""
    found = []
    for refspec in refspecs:
        source, _, kept = refspec.removeprefix("+").partition(":")
        before, star, after = source.partition("*")
        name = remote_ref.removeprefix(before).removesuffix(after) if star else ""
        if f"{before}{name}{after}" == remote_ref and kept.startswith(_REMOTE_REFS):
            found.append(kept.replace("*", name, 1))
    return found


def identity_of(top: Path, path: str) -> str | None:
    """The device and inode of a directory, which no other one has. None if there is none. `path` may be relative to `top`."""
    with suppress(OSError):
        status = (top / path).stat()
        return f"{status.st_dev}:{status.st_ino}"
    return None


def count_commits(git: Git, *revisions: str) -> int:
    """The number of commits that git-rev-list(1) finds."""
    return int(git.read("rev-list", "--count", *revisions))


def _remote_branch(settings: RemoteSettings, branch: str, remote: str) -> str:
    """The local name, unless the user has set `push.default` to `upstream`: a branch made from `main` is not pushed to `main`."""
    values = settings.values
    merge = values.get(f"branch.{branch}.merge", "")
    is_upstream = values.get("push.default") in {"upstream", "tracking"}
    if is_upstream and remote == values.get(f"branch.{branch}.remote") and merge.startswith("refs/heads/"):
        return merge.removeprefix("refs/heads/")
    return branch


# Runs the git calls that contact a remote.
#
# A remote may be a repository on this machine. Its configuration may name programs, and a push or a fetch would run these
# programs as the user. So ralph passes settings to `git receive-pack` and `git upload-pack` that override the settings of
# the remote.

_MOST_IDENTIFIERS = 1000  # in one command line
COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# ralph's push runs no hook (git-lfs has one), signs nothing, and enters no submodule.
PUSH = (
    *("push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no"),
)

_OLDEST = (2, 32)
"""The oldest version of git that works. GIT_CONFIG_GLOBAL came with this version, and GIT_CONFIG_COUNT with 2.31."""
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
_WHOSE_FILES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
# git-clone(1): an address with a scheme, or HOST:PATH.
_SSH = re.compile(r"(?:git\+)?ssh(?:\+git)?://|(?!\w[\w+.-]*://|\w+::)", re.IGNORECASE)
_SSH_COMMAND = "core.sshcommand"
_OPEN_PROGRAM = "commands may write what {} leads to: keep it where they may not"
# The suffixes that git tries on the path of a repository, in git's order (`enter_repo` in git's path.c).
_SUFFIXES = ("/.git", "", ".git/.git", ".git")
# Settings in force in a remote on this machine. They override the remote's own settings.
_IN_THEIRS = ("core.alternateRefsCommand=true", "receive.autogc=false")


def reach(
    git: Git,
    command: Sequence[str],
    url: str,
    rest: Sequence[str],
    *,
    limit_s: float,
    asking: Git,
    remote: str | None = None,
    refuses_checked_out: bool = False,
    held: int | None = None,
    given: Sequence[str] = (),
) -> GitAnswer:
    """Runs `git COMMAND URL REST`, which contacts the remote at `url` and no other. `remote` is the name under which the
    settings of `git` have this address, or None. `asking` runs calls about a remote on this machine, to whose directory a
    path is relative. Such a remote refuses a push that would update files there, and with `refuses_checked_out`, each to a
    branch that is checked out. It may lead to the directories `given`, which the user has named. `held` is as in `Git.call`.
    Raises CheckoutError and Interrupted.
    """
    service = "receive-pack" if command[0] == "push" else "upload-pack"
    path = local_path(url)
    started = f"git-{service}"
    _refuse_open_programs(git, "git-remote-")
    if path is not None:
        options = " ".join(
            map(quote, _for_theirs(asking, path, given, refuses_checked_out=refuses_checked_out))
        )
        started = f"{_whose_files(asking)}git {options} {service}"
    elif _SSH.match(url if remote else os.fsdecode(git.read("ls-remote", "--get-url", "--", url))):
        _refuse_unsafe_ssh(git)
    words = (*command, f"--{service}={started}", "--", remote or url, *rest)
    return git.call(*words, limit_s=limit_s, held=held, is_remote=True)


def upload(
    git: Git,
    remote: str,
    url: str,
    identifiers: Sequence[str],
    values: Mapping[str, str],
    *,
    limit_s: float,
    asking: Git,
    given: Sequence[str] = (),
) -> None:
    """Uploads large files, by their ids, with the user's own git-lfs to the server that belongs to `remote`. `values` are the
    settings of `git`, in which the address of `remote` is `url`. `asking` and `given` are as in `reach`. Without ids, it only
    looks whether that is possible, and contacts nothing. Raises CheckoutError and Interrupted.
    """
    _refuse_open_programs(git, "git-lfs")
    if git.answer("lfs", "version").status:
        raise CheckoutError(
            "the repository has large files of git-lfs, and there is no git-lfs on PATH to upload them; install git-lfs"
        )
    for named in (url, *filter(None, map(values.get, address_names(remote)))):
        address = os.fsdecode(git.read("ls-remote", "--get-url", "--", named)).removesuffix("\n")
        if (path := local_path(address)) is not None:
            place = _git_directory_of(asking, path, given)
            if place is not None and is_elsewhere(_settings_there(asking, place).values):
                raise CheckoutError(
                    f"{path} keeps its large files elsewhere (lfs.storage), where ralph does not write"
                )
        elif _SSH.match(address):
            _refuse_unsafe_ssh(git)
    for first in range(0, len(identifiers), _MOST_IDENTIFIERS):
        some = identifiers[first : first + _MOST_IDENTIFIERS]
        answer = git.call("lfs", "push", "--object-id", remote, *some, limit_s=limit_s, is_remote=True)
        if answer.status:
            raise git.failure("lfs push", answer)


def _refuse_open_programs(git: Git, begin: str) -> None:
    for name, program in programs_by_name(git.agents_places).items():
        if name.startswith(begin) and not git.agents_places.is_safe(program):
            raise CheckoutError(_OPEN_PROGRAM.format(program))


def _refuse_unsafe_ssh(git: Git) -> None:
    """Raises CheckoutError if commands can decide what ssh runs: by its configuration, or by a program that this names."""
    environment = git.environment
    named = [
        environment[name.replace("KEY", "VALUE")]
        for name, key in environment.items()
        if key.lower() == _SSH_COMMAND
    ]
    commands = [environment["GIT_SSH_COMMAND"]] if "GIT_SSH_COMMAND" in environment else named[-1:]
    homes = home_directories(environment)
    _refuse_open_programs(git, "ssh")
    advice = "keep it where commands may not write, or let ssh do without it (GIT_SSH_COMMAND='ssh -F none')"
    for file, _ in ssh_files_of_agents(commands, git.agents_places, homes, environment):
        raise CheckoutError(f"commands may write {file}, where ssh finds what to run: {advice}")
    for file in ssh_files(commands, homes, environment):
        if why := why_left_behind(file, environment):
            raise CheckoutError(f"{file} {why}")
        for value in used_by_ssh(file, homes, environment):
            if git.names_writable(value):
                raise CheckoutError(f"{file} makes ssh use what commands may write ({value}): {advice}")


def refuse_old(git: Git) -> None:
    """Raises CheckoutError if git is too old for settings in the environment, with which ralph pushes."""
    output = git.call("version").output
    found = _VERSION.match(output)
    if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise CheckoutError(f"--push needs git {oldest} or newer, this is {output.decode().strip()}")


def _for_theirs(asking: Git, path: str, given: Sequence[str], *, refuses_checked_out: bool) -> list[str]:
    """Options with which git runs no programs that the configuration of the repository at `path` names."""
    pairs = (*_IN_THEIRS, *(["receive.denyCurrentBranch=refuse"] if refuses_checked_out else []))
    ours = [word for pair in pairs for word in ("-c", pair)]
    place = _git_directory_of(asking, path, given)
    if place is None:  # git will report it
        return [*ALWAYS, *ours]
    settings = _settings_there(asking, place)
    updates = settings.values.get("receive.denycurrentbranch", "").lower() == "updateinstead"
    if updates and not refuses_checked_out:
        raise CheckoutError(
            f"a push to {path} would update the files there (receive.denyCurrentBranch=updateInstead), by programs "
            "that it names; push to a bare repository"
        )
    return [*settings.arguments, *ours]


def _settings_there(asking: Git, place: str) -> GitSettings:
    # Runs inside the directory, like `git receive-pack`, because conditions (`includeIf`) depend on it.
    there = Git(asking.seams, asking.directory / place, {**asking.environment, "GIT_DIR": "."})
    return there.settings_of(there.read(*LIST))


def _git_directory_of(asking: Git, path: str, given: Sequence[str]) -> str | None:
    """The git directory that git would use for a remote at `path`, or None if `path` is not a repository."""
    for suffix in _SUFFIXES:
        place = asking.directory / (path + suffix)
        if os.path.lexists(place):
            answer = asking.call("rev-parse", "--resolve-git-dir", path + suffix)
            if not answer.status:
                _refuse_foreign(path, place, given)
                return os.fsdecode(answer.output.removesuffix(b"\n"))
    return None


def _refuse_foreign(path: str, place: Path, given: Sequence[str]) -> None:
    is_bare = place.name != ".git"
    if is_bare and place.is_file():
        raise CheckoutError(f"the remote {path} is a file that names another repository: use that one")
    top = os.path.realpath(place if is_bare else place.parent)
    for foreign, why in foreign_directories(top, given, is_bare=is_bare):
        raise CheckoutError(
            f"the remote {path} leads to {foreign}, which is not its own ({why}): name the repository itself"
        )


def _whose_files(asking: Git) -> str:
    """Shell text with which git in a remote on this machine reads the same files of the user as in the checkout."""
    theirs = {name: asking.environment[name] for name in _WHOSE_FILES if name in asking.environment}
    return f"unset {' '.join(_WHOSE_FILES)}; " + "".join(
        f"{name}={quote(value)} " for name, value in theirs.items()
    )


def local_path(url: str) -> str | None:
    """The path of a remote on this machine, by git's own rules, or None if the remote is on another machine."""
    if url.lower().startswith("file://"):
        path = unquote(url[len("file:") :], errors="surrogateescape").replace("\0", "%00")
        return path[2:] if path.startswith("///") else path  # git takes a host for a part of the path
    before_colon, colon, _ = url.partition(":")
    return None if colon and "/" not in before_colon else os.path.expanduser(url)  # noqa: PTH111 - for strings


def make_git_directory(place: Path, core: str, *, version: int = 0, borrowed: Path | None = None) -> None:
    """Writes the smallest repository that git accepts (gitrepository-layout(5)). `core` are further lines of this section
    of its configuration, `version` is that of its format. It borrows the objects in the directory `borrowed`.
    """
    for folder in ("refs/heads", "refs/tags", "objects/info", "objects/pack"):
        (place / folder).mkdir(parents=True)
    (place / "config").write_text(f"[core]\n\trepositoryformatversion = {version}\n{core}")
    (place / "HEAD").write_text("ref: refs/heads/none\n")
    if borrowed is not None:
        (place / "objects/info/alternates").write_bytes(os.fsencode(borrowed) + b"\n")

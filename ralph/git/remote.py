"""Runs the git calls that contact a remote.

A remote may be a repository on this machine. Its configuration may name programs, and a push or a fetch would run these
programs as the user. So ralph passes settings to `git receive-pack` and `git upload-pack` that override the settings of
the remote.
"""

from __future__ import annotations

import os
import re
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ralph.git.answer import CheckoutError
from ralph.git.large_files import address_names, is_elsewhere
from ralph.git.runner import Git
from ralph.git.settings import ALWAYS, LIST
from ralph.machine.own_programs import programs_by_name
from ralph.places.gather import home_directories
from ralph.places.git_places import foreign_directories
from ralph.places.ssh_files import ssh_files, ssh_files_of_agents, used_by_ssh
from ralph.sandbox.left_behind import why_left_behind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ralph.git.answer import GitAnswer
    from ralph.git.settings import GitSettings

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

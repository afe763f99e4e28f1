"""Installs programs of npm that tests ask, into a folder of their own. Needs only the standard library.

`python3 -m tests.npm_programs` installs all of them and fails if one cannot be installed. CI calls that before the tests.
"""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".npm-programs"
EVERYTHING = "@modelcontextprotocol/server-everything"
VERSIONS = {EVERYTHING: "2026.8.31"}
INSTALL_S = 300


class NotInstalledError(Exception):
    """A program cannot be installed here. The message is one line."""


@functools.cache
def folder_of(package: str) -> Path:
    """The folder of an installed package. Installs it if necessary. Raises NotInstalledError."""
    FOLDER.mkdir(exist_ok=True)
    home = FOLDER / "node_modules" / package
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests side by side
        wanted, stamp = f"{package}@{VERSIONS[package]}", FOLDER / f"{package.replace('/', '-')}.ready"
        if not home.exists() or not stamp.exists() or stamp.read_text() != wanted:
            _install(wanted)
            stamp.write_text(wanted)
    return home


def _install(wanted: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("there is no npm on PATH")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(FOLDER), wanted]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"npm was not ready within {INSTALL_S} s") from None
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip() or "no words").splitlines()[-1]
        raise NotInstalledError(f"npm exit {ran.returncode}: {said}")


if __name__ == "__main__":
    for name in VERSIONS:
        try:
            print(folder_of(name))  # noqa: T201 - a program for CI
        except NotInstalledError as error:
            sys.exit(f"{name}: {error}")

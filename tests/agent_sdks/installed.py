"""Installs the Agent SDKs of Claude Code into a folder of their own. Needs only the standard library.

`python -m tests.agent_sdks.installed` installs both and fails if one cannot be installed. CI calls that before the tests.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".agent-sdks"
WANTED = {
    "python": "claude-agent-sdk==0.2.187",
    "typescript": "@anthropic-ai/claude-agent-sdk@0.3.330",
}
INSTALL_S = 300


class NotInstalledError(Exception):
    """An SDK cannot be installed here. The message is one line."""


@functools.cache
def folder_of(sdk: str) -> Path:
    """The folder of an installed SDK. Installs it if necessary. Raises NotInstalledError."""
    FOLDER.mkdir(exist_ok=True)
    home, stamp = FOLDER / sdk, FOLDER / f"{sdk}.ready"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests side by side
        wanted = f"{WANTED[sdk]} {sys.version_info[:2]}"
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            _call(_python(home) if sdk == "python" else _typescript(home))
            stamp.write_text(wanted)  # an installation that was cut short has none
    return home


def _python(home: Path) -> list[str]:
    # The wheel holds a whole claude (364 MB), the source distribution none. Developers have what builds it.
    from_source = ["--no-binary", "claude-agent-sdk", "--no-build-isolation", WANTED["python"]]
    uv = shutil.which("uv")
    if uv is not None:
        return [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            "--target",
            str(home),
            *from_source,
        ]
    if importlib.util.find_spec("pip") is None:
        raise NotInstalledError("there is neither uv nor pip")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    return [*pip, "--target", str(home), *from_source]


def _typescript(home: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("there is no npm on PATH")
    # A whole claude is among the optional ones.
    options = ["--loglevel=error", "--no-audit", "--no-fund", "--omit=optional"]
    return [npm, "install", *options, "--prefix", str(home), WANTED["typescript"]]


def _call(command: list[str]) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{command[0]} was not ready within {INSTALL_S} s") from None
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip() or "no words").splitlines()[-1]
        raise NotInstalledError(f"{command[0]} exit {ran.returncode}: {said}")


if __name__ == "__main__":
    for name in WANTED:
        try:
            print(folder_of(name))  # noqa: T201 - a program for CI
        except NotInstalledError as error:
            sys.exit(f"{name}: {error}")

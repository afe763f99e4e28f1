"""Programs of the shell that tests put in the place of others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def script(path: Path, text: str) -> Path:
    """Makes a program of the shell, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def first_on_path(environment: dict[str, str], path: Path, text: str) -> None:
    """Makes a program of the shell, which the PATH of this environment then finds before others of its name."""
    environment["PATH"] = f"{script(path, text).parent}:{environment['PATH']}"


def before_git(environment: dict[str, str], folder: Path, text: str) -> None:
    """Lets the git of this environment do something first."""
    first_on_path(environment, folder / "git", f'{text}\nexec {shutil.which("git")} "$@"')

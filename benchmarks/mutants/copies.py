"""Copies of the repository, and the place of a mistake in its modules."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.mutants.mutants import Mutant
    from benchmarks.mutants.seeds import Break

REPOSITORY = Path(__file__).parents[2]
COPIED = (
    "ralph",
    "tests",
    "docs",
    "specs",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "loop.sh",
    "action.yml",
    *(path.name for path in REPOSITORY.glob("constraints*.txt")),
)


def modules_of(package: Path) -> dict[Path, str]:
    """The text of each module of a package."""
    return {path: path.read_text() for path in sorted(package.rglob("*.py"))}


def place_of(mutant: Mutant | Break, modules: Mapping[Path, str]) -> Path:
    """The module that contains the mutant's old text. Raises ValueError unless the text occurs exactly once in the
    modules.
    """
    found = [path for path, text in modules.items() if mutant.old in text]
    if len(found) != 1 or modules[found[0]].count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its text is in {len(found)} modules, or twice in one")
    return found[0]


def copied_to(directory: Path) -> None:
    """Copies the files that the tests need to `directory`."""
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copyfile(source, directory / name)

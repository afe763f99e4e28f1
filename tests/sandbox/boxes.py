"""Sandboxes of commands for tests, with given means of confinement."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.machine.own_programs import ProgramSearch
from ralph.places.gather import gather_places
from ralph.sandbox.box_plan import BoxPlan
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.detection import find_means
from ralph.sandbox.self_test import run_as_command
from tests.program.namespaces import MEANS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.sandbox.box_plan import Means

LEVELS = {"namespaces": MEANS, "landlock": replace(MEANS, bwrap=None, has_network_namespace=False)}
WITH_OVERLAYS = find_means(ProgramSearch(os.environ.get("PATH", "")), has_overlays=True)
needs_overlays = pytest.mark.skipif(
    WITH_OVERLAYS.bwrap is None or bool(WITH_OVERLAYS.why_not_own_sockets),
    reason=f"no overlays: {WITH_OVERLAYS.why_not_own_sockets}",
)


def means_of(level: str) -> Means:
    """The means of one of `LEVELS`. Skips the test if this machine lacks them."""
    if level == "namespaces" and MEANS.bwrap is None:
        pytest.skip("no namespaces can be made here")
    if MEANS.landlock.abi == 0:
        pytest.skip("this kernel has no Landlock")
    return LEVELS[level]


@contextmanager
def box_of(
    means: Means, roots: Sequence[object], environment: Mapping[str, str] | None = None, **plan: Any
) -> Iterator[CommandBox]:
    """The sandbox of commands that may write `roots`. `plan` has fields of `BoxPlan`."""
    work, variables = [*map(str, roots)], environment or {}
    made = BoxPlan(means, **plan)
    box = CommandBox(made, work, variables, lambda: gather_places(work, variables, given=made.given))
    try:
        yield box
    finally:
        box.close()


def run_in(
    box: CommandBox,
    directory: object,
    code: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code as a command of the sandbox."""
    return _ran(box, directory, [sys.executable, "-I", "-S", "-c", code, *arguments], environment)


def shell_in(
    box: CommandBox, directory: object, script: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a shell script as a command of the sandbox."""
    return _ran(box, directory, ["/bin/sh", "-c", script], environment)


def _ran(
    box: CommandBox, directory: object, words: list[str], environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    variables = box.variables(environment or {"PATH": "/usr/bin:/bin"})
    ending, output, errors = run_as_command(words, str(directory), variables, box.confinement)
    return subprocess.CompletedProcess(words, ending.status, output, errors)

"""Sandboxes of commands for tests, with given means of confinement."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ralph.places.gather import gather_places
from ralph.sandbox.box_plan import BoxPlan
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.trial.self_test import words_before
from tests.patience import TEST_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.sandbox.levels import Means


def box_of(
    means: Means, roots: Sequence[object], environment: Mapping[str, str] | None = None, **plan: Any
) -> CommandBox:
    """The sandbox of commands that may write `roots`. `plan` has fields of `BoxPlan`."""
    work, variables = [*map(str, roots)], environment or {}
    made = BoxPlan(means, **plan)
    return CommandBox(made, work, variables, lambda: gather_places(work, variables, given=made.given))


def run_in(
    box: CommandBox,
    directory: object,
    code: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code as a command of the sandbox."""
    confinement = box.confinement(str(directory))
    return subprocess.run(
        [*words_before(confinement), sys.executable, "-I", "-S", "-c", code, *arguments],
        cwd=str(directory),
        env=box.variables(environment or {"PATH": "/usr/bin:/bin"}),
        pass_fds=confinement.descriptors,
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )

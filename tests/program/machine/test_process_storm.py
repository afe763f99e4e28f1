"""A tree of processes that grows faster than it can be listed must end with its command, in time."""

from __future__ import annotations

import shlex
import sys

import pytest

from tests.patience import PATIENCE_S
from tests.program.conftest import processes_of
from tests.program.machine import process_storm
from tests.program.model_answers import DONE, bash

SELF_LIMIT_S = int(2 * PATIENCE_S)
"""Longer than `ralph` is waited for."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere orphans cannot be found")
def test_a_storm_of_processes_stands_still_before_it_is_killed(ralph, serve) -> None:
    words = [sys.executable, "-I", "-S", process_storm.__file__, str(ralph.cwd), str(SELF_LIMIT_S)]
    serve(bash(shlex.join(words)), DONE)
    ran = ralph("go", "--sandbox", "off")  # the end of a namespace would end all of them
    assert (ran.code, processes_of(ralph)) == (0, {})
    assert (ralph.cwd / "all there").exists()
    assert not (ralph.cwd / "respawned").exists(), "something could act while the others were being killed"

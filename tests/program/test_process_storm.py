"""A tree of processes that grows faster than it can be listed must end with its command, in time."""

from __future__ import annotations

import shlex
import sys
import time

import pytest

from tests.patience import AT_ONCE_S
from tests.program import process_storm
from tests.program.conftest import processes_of
from tests.program.model_answers import DONE, bash

SELF_LIMIT_S = int(2 * AT_ONCE_S)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere orphans cannot be found")
def test_a_storm_of_processes_stands_still_before_it_is_killed(ralph, serve) -> None:
    words = [sys.executable, "-I", "-S", process_storm.__file__, str(ralph.cwd), str(SELF_LIMIT_S)]
    serve(bash(shlex.join(words)), DONE)
    started_s = time.monotonic()
    ran = ralph("go", "--sandbox", "off")  # the end of a namespace would end all of them
    assert (ran.code, processes_of(ralph)) == (0, [])
    assert (ralph.cwd / "all there").exists()
    assert not (ralph.cwd / "respawned").exists(), "something could act while the others were being killed"
    assert time.monotonic() - started_s < AT_ONCE_S

"""A tree of processes that grows faster than it can be listed must end with its command, in time."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys

import pytest

from tests.patience import AT_ONCE_S, wait_until
from tests.program import process_storm
from tests.program.conftest import processes_of
from tests.program.model_answers import bash

SELF_LIMIT_S = int(2 * AT_ONCE_S)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere orphans cannot be found")
def test_a_storm_of_processes_stands_still_before_it_is_killed(ralph, serve) -> None:
    # A copy, because commands do not see a checkout that lies in /tmp.
    script = shutil.copy(process_storm.__file__, ralph.cwd)
    words = [sys.executable, "-S", script, str(ralph.cwd), str(SELF_LIMIT_S)]
    serve(bash(shlex.join(words)))
    process = ralph.start("go")
    wait_until((ralph.cwd / "all there").exists)
    stopped, took_s = ralph.stopped_by(process, signal.SIGTERM)
    assert (stopped.code, processes_of(ralph)) == (143, [])
    assert not (ralph.cwd / "respawned").exists(), "something could act while the others were being killed"
    assert took_s < AT_ONCE_S

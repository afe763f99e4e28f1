"""A core dump would contain the API key. SIGQUIT must leave none, from ralph's first line on. Commands keep their
limit on core dumps.

Some machines pipe core dumps to a program or allow none, so that no file would appear in any case. There the tests
check the limit.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.mock_api import Fault, Turn
from tests.patience import PATIENCE_S, wait_until
from tests.program.model_answers import bash

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no dump goes to a file here"),
    pytest.mark.sandboxed,
]

ALLOW = 'ulimit -S -c "$(ulimit -H -c)"; exec "$@"'
# Replaces the first module that ralph imports after it has cleaned its import path.
QUIT = "import os\nos.kill(os.getpid(), 3)\n"


def allowed_to_dump(ralph, *arguments: str, limit: str = ALLOW) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["bash", "-c", limit, "bash", sys.executable, "-m", "ralph", *arguments],
        cwd=ralph.cwd,
        env=ralph.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def dumps(*directories: Path) -> list[Path]:
    return [path for directory in directories for path in directory.glob("**/core*") if path.is_file()]


def soft_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_CORE)[0]


@pytest.mark.parametrize("command", [["-p", "go"], ["loop", "-p", "go"]], ids=" ".join)
def test_before_anything_is_imported_no_dump_can_come(ralph, tmp_path, command) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "signal.py").write_text(QUIT)
    ralph.environment["PYTHONPATH"] = f"{planted}{os.pathsep}{ralph.environment['PYTHONPATH']}"
    process = allowed_to_dump(ralph, *command)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGQUIT
    assert dumps(ralph.cwd) == []


def test_while_a_loop_waits_for_an_answer_neither_it_nor_its_iteration_can_be_dumped(ralph, serve) -> None:
    """Neither process can be dumped even if somebody else raises its limit. The kernel ignores the limit if it
    pipes core dumps to a program.
    """
    server = serve(Fault(stall_before_headers_s=60))
    loop = allowed_to_dump(ralph, "loop", "-p", "go", "--max-iterations", "1")
    wait_until(lambda: len(server.requests) == 1)
    (iteration,) = map(int, Path(f"/proc/{loop.pid}/task/{loop.pid}/children").read_text().split())
    assert [soft_limit(pid) for pid in (loop.pid, iteration)] == [0, 0]
    most = resource.prlimit(loop.pid, resource.RLIMIT_CORE)[1]
    for pid in (iteration, loop.pid):
        resource.prlimit(pid, resource.RLIMIT_CORE, (most, most))
        os.kill(pid, signal.SIGABRT)
    loop.communicate(timeout=PATIENCE_S)
    assert loop.returncode == -signal.SIGABRT
    assert dumps(ralph.cwd) == []


def test_commands_without_a_sandbox_have_the_limit_that_ralph_was_started_with(
    ralph, serve, iterations
) -> None:
    limit = 'ulimit -S -c 8; exec "$@"'
    given = subprocess.run(
        ["bash", "-c", "ulimit -S -c 8; ulimit -S -c"], capture_output=True, text=True, check=False
    )
    serve(bash("ulimit -S -c >limit"), Turn("Done."))
    allowed_to_dump(ralph, "-p", "go", "--sandbox", "off", limit=limit).communicate(timeout=PATIENCE_S)
    iterations([bash("ulimit -S -c >>limit")])
    until = ("--until", "ulimit -S -c >>limit", "--at-least-once", "--sandbox", "off")
    allowed_to_dump(ralph, "loop", "-p", "go", *until, limit=limit).communicate(timeout=PATIENCE_S)
    # A run, a check before the first iteration, the iteration, the check after it.
    assert (ralph.cwd / "limit").read_text().splitlines() == 4 * given.stdout.splitlines()

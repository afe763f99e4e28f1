"""Takes away all threads and processes from one `ralph`, with a real limit of the kernel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.program.conftest import as_prompt, without_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.program.conftest import Ralph

_GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


class Scarcity(Protocol):
    def start(self, ralph: Ralph, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Starts `ralph`, the process whose threads and children are limited."""
        ...

    def start_python(self, ralph: Ralph, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Starts another Python program instead of `ralph`."""
        ...

    def begin(self) -> None:
        """From now on, no thread and no process can be started."""
        ...

    def end(self) -> None: ...

    def wait_for_refusals(self, number: int) -> None:
        """Waits until this many starts were refused since `begin`, as far as the machine counts them."""
        ...


class _PidsGroup:
    """Limits the processes by a control group, which root may make. The kernel counts the refusals."""

    def __init__(self, place: Path) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="ralph-test-", dir=place))
        self._before = 0
        self._has_member = threading.Event()
        self._is_short = False

    def start(self, ralph: Ralph, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Starts a fork and lets it enter the group, unless it is short already: then it must be inside before it
        begins. The iterations of a forked loop are made outside the group, but all else is inside.
        """
        if self._is_short:
            return self.start_python(
                ralph,
                "-m",
                "ralph",
                *as_prompt(arguments if ralph.is_sandboxed else without_sandbox(arguments)),
                **popen,
            )
        process = ralph.start(*arguments, **popen)
        (self._place / "cgroup.procs").write_text(str(process.pid))
        self._has_member.set()
        return process

    def start_python(self, ralph: Ralph, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        entering = f'echo $$ > "{self._place}/cgroup.procs" && exec "$@"'
        return _started(["sh", "-c", entering, "sh"], ralph, arguments, popen)

    def begin(self) -> None:
        """A server's thread may call this before the fork, which has begun to ask, is in the group."""
        if threading.current_thread() is not threading.main_thread():
            assert self._has_member.wait(PATIENCE_S)
        self._is_short = True
        self._before = self._refused()
        (self._place / "pids.max").write_text("1")  # as many as there are in any case

    def end(self) -> None:
        (self._place / "pids.max").write_text("max")

    def wait_for_refusals(self, number: int) -> None:
        wait_until(lambda: self._refused() >= self._before + number)

    def close(self) -> None:
        wait_until(lambda: not (self._place / "cgroup.procs").read_text())
        self._place.rmdir()

    def _refused(self) -> int:
        return int((self._place / "pids.events").read_text().split()[1])


class _UserLimit:
    """Limits the processes of an ordinary user. No process can start while the limit is below the number of running
    processes.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._usual = resource.getrlimit(resource.RLIMIT_NPROC)
        self._is_short = False

    def start(self, ralph: Ralph, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        return self.start_python(
            ralph,
            *("-m", "ralph"),
            *as_prompt(arguments if ralph.is_sandboxed else without_sandbox(arguments)),
            **popen,
        )

    def start_python(self, ralph: Ralph, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        limit = "ulimit -S -u 0; " if self._is_short else ""
        process = self._process = _started(
            ["bash", "-c", f'{limit}exec "$@"', "bash"], ralph, arguments, popen
        )
        if self._is_short:  # a limit that is lifted before it is set would stay
            wait_until(lambda: resource.prlimit(process.pid, resource.RLIMIT_NPROC)[0] == 0)
        return process

    def begin(self) -> None:
        self._is_short = True
        self._set(0)

    def end(self) -> None:
        self._set(self._usual[0])

    def wait_for_refusals(self, number: int) -> None:
        """Waits half a second, because nobody counts the refusals. A burst of other programs takes about as
        long.
        """
        with pytest.raises(AssertionError):
            wait_until(lambda: False, seconds=0.5)

    def close(self) -> None:
        """Does nothing, because the limit ends with the process."""

    def _set(self, most: int) -> None:
        if self._process is not None and self._process.poll() is None:
            resource.prlimit(self._process.pid, resource.RLIMIT_NPROC, (most, self._usual[1]))


def _started(
    before: list[str], ralph: Ralph, arguments: tuple[str, ...], popen: dict[str, Any]
) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*before, sys.executable, *arguments]
    return subprocess.Popen(command, cwd=ralph.cwd, env=ralph.environment, **{**pipes, **popen})


@pytest.fixture
def scarcity() -> Iterator[Scarcity]:
    if sys.platform != "linux":
        pytest.skip("the limit of a process is set from outside on Linux only")
    limit = _UserLimit() if os.geteuid() else _group()
    yield limit
    limit.end()
    limit.close()


def _group() -> _PidsGroup:
    for place in _GROUPS:
        try:
            group = _PidsGroup(place)
        except OSError:
            continue
        try:
            group.end()
        except OSError:  # no controller for processes here
            group.close()
        else:
            return group
    pytest.skip("root is bound by no limit of processes, and no control group can be made")

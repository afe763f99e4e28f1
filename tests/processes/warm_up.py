"""Runs ralph in this interpreter before it is forked. Its forks then have specialized bytecode and full caches.

A fork takes a quarter less CPU time: it writes to fewer shared pages, and the system copies each page that is written.
The run must leave nothing behind that a fork could notice: no thread, descriptor, handler, variable or directory.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ralph.machine.starting import end_idle_threads
from ralph.mock_api import MockApi, Scenario, Step, Text, ToolUse, Turn
from ralph.output import writer
from ralph.values.outcome import ShortageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURNS = (
    Turn([Text("I write."), ToolUse("Write", {"file_path": "a.txt", "content": "one\n"})]),
    Turn([ToolUse("Read", {"file_path": "a.txt"})]),
    Turn([ToolUse("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "two"})]),
    Turn("Done."),
)
_SAME_IN_EVERY_FORK = "ralph.sandbox.detection._started_trial"
"""A cache that stays: whether bubblewrap works, which takes two processes to find out."""
_RUNS = (["-p", "go"], ["-c", "on", "--output-format", "stream-json"])


def warm_up() -> None:
    """Runs ralph twice. The runs start no commands and no searches, because starting processes would change this
    process for good. Raises AssertionError if a run fails or leaves something behind.
    """
    from ralph.cli.command_line import run_cli

    before = _state()
    with (
        tempfile.TemporaryDirectory() as place,
        _no_threads_of_spools(),
        _surroundings(place),
        _api() as base_url,
    ):
        codes = [run_cli([*words, "--base-url", base_url]) for words in _RUNS]
    _forget()
    left = {name: (before[name], after) for name, after in _state().items() if after != before[name]}
    if any(codes) or left:
        raise AssertionError(f"exit codes {codes}, and this is another than before: {left}")


@contextmanager
def _api() -> Iterator[str]:
    """Serves the scripted API in a process of its own and yields its URL. Its threads must not be in this process. It ends
    with the block, and with this process.
    """
    reading, writing = os.pipe()
    watched, held = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(held)
        _serve(writing, watched)
    os.close(writing)
    os.close(watched)
    try:
        with os.fdopen(reading, "rb") as said:
            base_url = said.readline().decode().strip()
        yield base_url
    finally:
        os.close(held)
        os.waitpid(server, 0)


def _serve(writing: int, watched: int) -> NoReturn:
    """Serves until the other end of the pipe `watched` is closed."""
    try:
        api = MockApi(Scenario([Step(turn) for _ in _RUNS for turn in _TURNS])).start()
        os.write(writing, f"{api.base_url}\n".encode())
        os.close(writing)
        os.read(watched, 1)
    finally:
        os._exit(0)


@contextmanager
def _surroundings(place: str) -> Iterator[None]:
    """Sets a home directory, a working directory and output streams that nobody reads, and restores them afterwards."""
    variables, directory = dict(os.environ), Path.cwd()
    streams = [os.dup(fd) for fd in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)
    os.environ.update(HOME=place, TMPDIR=place, ANTHROPIC_API_KEY="sk-ant-warm-0123456789")
    work = Path(place, "work")
    work.mkdir()
    os.chdir(work)
    try:
        yield
    finally:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(variables)
        sys.stdout.flush()
        for fd, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, fd)
            os.close(stream)


@contextmanager
def _no_threads_of_spools() -> Iterator[None]:
    """Makes a spool write from the main thread, because the thread of a spool ends only with its process."""

    def refuse(*_work: object, **_options: object) -> NoReturn:
        raise ShortageError("thread")

    names = vars(writer)
    usual = names["start_thread"]
    names["start_thread"] = refuse
    try:
        yield
    finally:
        names["start_thread"] = usual


def _forget() -> None:
    """Closes the connections to the API and clears ralph's caches, because the surroundings of a fork are different."""
    gc.unfreeze()  # a run freezes what exists when its session opens, and frozen connections would stay open
    gc.collect()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "ralph":
            for key, value in list(vars(module).items()):
                with suppress(AttributeError):
                    if f"{name}.{key}" != _SAME_IN_EVERY_FORK:
                        value.cache_clear()
    tempfile.tempdir = None


def _state() -> dict[str, object]:
    """The parts of this process in which a run could leave something behind."""
    until_s = time.monotonic() + 60
    while threading.active_count() > 1 and time.monotonic() < until_s:
        end_idle_threads()
        time.sleep(0.001)
    status = Path("/proc/self/status").read_text().splitlines()
    return {
        "descriptors": {fd: Path(f"/proc/self/fd/{fd}").readlink() for fd in range(200) if _is_open(fd)},
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "directory": Path.cwd(),
        "variables": dict(os.environ),
        "status": [line for line in status if line.startswith(("Umask", "Threads", "SigBlk"))],
    }


def _is_open(fd: int) -> bool:
    with suppress(OSError):
        os.fstat(fd)
        return True
    return False

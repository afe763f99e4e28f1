"""Reads what a search program prints, record by record, within bounds of time and memory, and ends it."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from ralph.machine.starting import start_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from ralph.tools.tool_room import ToolRoom

_CHUNK_BYTES = 65_536
_LOOK_UP_EVERY_MS = 100
_MAX_RECORD_BYTES = 65_536
_MAX_ERROR_BYTES = 65_536

Record = tuple[bytes, int]
"""The beginning of a record, and the number of bytes it has in all."""


class SearchProcess:
    """Use on a worker thread, in a `with` statement: leaving it ends the program. Raises OSError, a ShortageError for one."""

    def __init__(self, command: Sequence[str], *, cwd: str, room: ToolRoom) -> None:
        import subprocess  # noqa: PLC0415 - 8 ms that only a run with searches pays

        from ralph.machine.processes import protect_this_process  # noqa: PLC0415

        protect_this_process()
        self._room = room
        self._deadline_s = room.clock.now_s() + room.settings.search_timeout_s
        self._process = start_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(room.settings.environment),
            start_new_session=True,
            bufsize=0,
        )
        self._errors = bytearray()
        self.skipped = 0
        """Files and directories that could not be read."""
        self.is_cut_short = False
        """The time limit came first, or nobody wants the result any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def records(self, separator: bytes) -> Iterator[Record]:
        """Each without its separator, and cut at 64 KiB."""
        beginning, size = b"", 0
        for chunk in self._chunks():
            *ends, rest = chunk.split(separator)
            for end in ends:
                yield (beginning + end)[:_MAX_RECORD_BYTES], size + len(end)
                beginning, size = b"", 0
            beginning, size = (beginning + rest)[:_MAX_RECORD_BYTES], size + len(rest)
        if size:
            yield beginning, size

    def failure(self) -> str | None:
        """What the program itself objected to, once all records are read; files it could not read are no failure."""
        status = self._process.wait()
        if status < 0:
            return f"the search was ended by signal {-status}"
        text = self._errors.decode("utf-8", "replace")
        if status != _FAILED and "Traceback" not in text:
            return None
        objections = [line.removeprefix("rg: ") for line in text.splitlines() if "(os error " not in line]
        return "\n".join(objections).strip() or None

    def _chunks(self) -> Iterator[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - both were asked for
        assert self._process.stderr is not None  # noqa: S101
        output, errors = self._process.stdout.fileno(), self._process.stderr.fileno()
        poller = select.poll()
        for descriptor in (output, errors):
            poller.register(descriptor, select.POLLIN | select.POLLHUP)
        open_descriptors = {output, errors}
        while open_descriptors:
            if self._room.give_up.is_set() or self._room.clock.now_s() >= self._deadline_s:
                self.is_cut_short = True
                return
            for descriptor, _events in poller.poll(_LOOK_UP_EVERY_MS):
                chunk = os.read(descriptor, _CHUNK_BYTES)
                if not chunk:
                    poller.unregister(descriptor)
                    open_descriptors.discard(descriptor)
                elif descriptor == output:
                    yield chunk
                else:
                    self._note_errors(chunk)

    def _note_errors(self, chunk: bytes) -> None:
        self.skipped += chunk.count(b"(os error ")
        self._errors += chunk[: _MAX_ERROR_BYTES - len(self._errors)]


# ripgrep's exit status for a bad pattern or an unreadable file; our own worker's too.
_FAILED = 2

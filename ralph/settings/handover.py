"""Passes the settings files and other values of a loop to its iterations, and records the files that `--continue` needs later.

The loop reads each file once and keeps the content. Each iteration gets the content through a new file descriptor. So
an iteration cannot change the settings of another iteration, neither by changing a file nor by writing to the
descriptor. Over the same descriptor the loop and the iteration tell each other the secrets that they know, such as keys that
programs have printed: both cut them out of all that they write.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.settings.files import RecordedFile, SettingsFile
from ralph.settings.toml_file import SettingsFileError, read_settings_file
from ralph.values.claude_file import ClaudeFile  # noqa: TC001 - decoded by its hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.machine.own_programs import ProgramSearch


def recorded_files(files: Iterable[SettingsFile], search: ProgramSearch) -> tuple[RecordedFile, ...]:
    """The files whose contents must be recorded, because an agent could change them before the loop is resumed."""
    return tuple(
        RecordedFile(str(file.path), _text(file.data))
        for file in files
        if not file.is_trusted or search.why_open(str(file.path))
    )


def changed_since(recorded: Iterable[RecordedFile]) -> list[str]:
    """The paths of those recorded files whose content has changed since the recording."""
    return [file.path for file in recorded if _now(file.path) != file.text]


class LoopHandover(Struct, frozen=True):
    """The values that a loop passes to an iteration beside the options of `ralph run`."""

    files: tuple[SettingsFile, ...]
    claude_files: tuple[ClaudeFile, ...]
    folder: str
    """The folder of the loop. The run appends to the loop's log there."""
    number: int
    """The number of the iteration, counted from 1."""
    task_chars: int | None = None
    """The number of characters at the end of the prompt that are the user's own, because the loop wrote the rest.
    None if the iteration has no prompt."""
    guards: dict[str, str] = {}
    """The files of hooks that commands could change, each with the digest of its content when the loop began."""
    directories: tuple[str, ...] = ()
    """Where commands may write besides the working directory."""
    secrets: frozenset[str] = frozenset()
    descriptor: int = -1
    """Where the iteration writes the secrets that it knows. It is the descriptor from which it has read these values."""

    def tell(self, secrets: Iterable[str]) -> None:
        """Tells the loop that these are secrets."""
        os.write(self.descriptor, _line(secrets))


def _line(secrets: Iterable[str]) -> bytes:
    """A line with secrets. Unlike msgspec, `json` writes half of a surrogate pair, which the environment may hold."""
    return json.dumps(sorted(secrets)).encode() + b"\n"


_HANDOVER = msgspec.json.Decoder(LoopHandover, dec_hook=lambda kind, text: kind(text))


@contextmanager
def handed_over(handover: LoopHandover, learn: Callable[[Iterable[str]], None]) -> Iterator[int]:
    """A context manager that returns a file descriptor, from which a child process can read the handover once. At
    the end, `learn` gets the secrets that the process has told, also if it was killed, and the descriptor is
    closed. Raises OSError if the handover cannot be written.
    """
    data = msgspec.json.encode(replace(handover, secrets=frozenset()), enc_hook=str)
    with _private_file() as descriptor:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data + b"\n" + _line(handover.secrets))
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            yield descriptor
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
            with os.fdopen(os.dup(descriptor), "rb") as file:
                for line in file.read().split(b"\n")[:-1]:  # a kill may have cut the last one
                    if line.startswith(b"["):
                        learn(json.loads(line))


def taken_over(descriptor: int) -> LoopHandover:
    """Reads what `handed_over` wrote to the descriptor, and removes it from there. No program that this process starts gets the
    descriptor. Raises ValueError if the descriptor contains anything else.
    """
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            told, _, secrets = file.read().partition(b"\n")
        handover = replace(
            _HANDOVER.decode(told), secrets=frozenset(json.loads(secrets)), descriptor=descriptor
        )
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.set_inheritable(descriptor, False)
    except (OSError, ValueError) as error:  # msgspec.ValidationError is a ValueError
        raise ValueError(f"descriptor {descriptor} holds nothing of a loop") from error
    return handover


@contextmanager
def _private_file() -> Iterator[int]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ralph-settings")
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryFile() as file:
        yield file.fileno()


def _now(path: str) -> str | None:
    try:
        return _text(read_settings_file(Path(path)))
    except SettingsFileError:
        return ""  # the file exists but cannot be used any more


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")

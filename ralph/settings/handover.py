"""Passes the settings files of a loop to its iterations, and records the files that `--continue` needs later.

The loop reads each file once and keeps the content. Each iteration gets the content through a new file descriptor. So
an iteration cannot change the settings of another iteration, neither by changing a file nor by writing to the
descriptor.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, convert, to_builtins

from ralph.settings.files import RecordedFile, SettingsFile, find_settings_files, leads_through
from ralph.settings.toml_file import SettingsFileError, read_settings_file
from ralph.values.claude_file import ClaudeFile  # noqa: TC001 - decoded by its hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


def recorded_files(files: Iterable[SettingsFile], reach: Sequence[Path]) -> tuple[RecordedFile, ...]:
    """Selects the files whose contents must be recorded, because an agent could change the files before the loop is
    resumed.

    These are the untrusted files, and the files whose path leads through a directory in `reach`. `reach` lists the
    directories that the agent may write to.
    """
    return tuple(
        RecordedFile(str(file.path), _text(file.data))
        for file in files
        if not file.is_trusted or any(leads_through(file.path, directory) for directory in reach)
    )


def files_of_loop(
    environment: Mapping[str, str],
    cwd: Path,
    config_file: Path | None,
    recorded: Iterable[RecordedFile],
    mcp_files: Iterable[Path] = (),
) -> tuple[SettingsFile, ...]:
    """Returns the settings files of a loop and the files with MCP servers. For a recorded file, uses the recorded
    content. Reads all other files now. Raises SettingsFileError.
    """
    known = {file.path: _data(file.text) for file in recorded}
    return find_settings_files(environment, cwd, config_file, known, mcp_files)


def changed_since(recorded: Iterable[RecordedFile]) -> list[str]:
    """The paths of those recorded files whose content has changed since the recording."""
    return [file.path for file in recorded if _now(file.path) != file.text]


class HandedOver(Struct, frozen=True):
    """The settings files that a loop has read for its iterations."""

    files: tuple[SettingsFile, ...]
    claude_files: tuple[ClaudeFile, ...]


class _Handover(Struct, frozen=True):
    """The files of `HandedOver`, in the form in which a loop passes them to an iteration."""

    files: tuple[tuple[str, bool, str | None, bool, bool], ...]
    claude_files: tuple[ClaudeFile, ...]


@contextmanager
def handed_over(files: Iterable[SettingsFile], claude_files: Iterable[ClaudeFile] = ()) -> Iterator[int]:
    """A context manager that returns a file descriptor. A child process can read the contents of the files from this
    descriptor, but only once. The descriptor is closed at the end. Raises OSError if the contents cannot be written.
    """
    entries = tuple(
        (str(file.path), file.is_trusted, _text(file.data), file.is_named, file.is_mcp) for file in files
    )
    data = json.dumps(to_builtins(_Handover(entries, tuple(claude_files)))).encode()
    with _private_file() as descriptor:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor


def taken_over(descriptor: int) -> HandedOver:
    """Reads the files that `handed_over` wrote to the descriptor, and closes the descriptor. Raises SettingsFileError
    if the descriptor contains anything else.
    """
    try:
        with os.fdopen(descriptor, "rb") as file:
            handover = convert(json.load(file), _Handover)
    except (OSError, ValueError) as error:  # msgspec.ValidationError is a ValueError
        raise SettingsFileError(f"--settings-fd {descriptor} holds no settings files of a loop") from error
    files = tuple(
        SettingsFile(Path(path), is_trusted, _data(text), is_named, is_mcp)
        for path, is_trusted, text, is_named, is_mcp in handover.files
    )
    return HandedOver(files, handover.claude_files)


@contextmanager
def _private_file() -> Iterator[int]:
    """A context manager that returns the descriptor of a new file without a name. If the system supports it, the file
    is in memory.
    """
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
    """Converts bytes to text. `_data` converts the text back to exactly the same bytes."""
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _data(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")

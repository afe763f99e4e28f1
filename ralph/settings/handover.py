"""An outer loop's settings files on their way to its iterations, and what of them a later `--continue` goes by.

The loop reads each file once and keeps what it held. An iteration gets that over an inherited descriptor, made anew
from the loop's memory for each: what an iteration writes to a file, or to its own descriptor, reaches nobody.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.settings.files import (
    RecordedFile,
    SettingsFile,
    SettingsFileError,
    find_settings_files,
    leads_through,
    read_settings_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


def recorded_files(files: Iterable[SettingsFile], reach: Sequence[Path]) -> tuple[RecordedFile, ...]:
    """Those that an agent could have written when the loop goes on: what lies beneath the directories of `reach`."""
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
) -> tuple[SettingsFile, ...]:
    """What a loop goes by: of recorded files what they held when it began, of all others what they hold now.

    Raises SettingsFileError.
    """
    known = {file.path: _data(file.text) for file in recorded}
    return find_settings_files(environment, cwd, config_file, known)


def changed_since(recorded: Iterable[RecordedFile]) -> list[str]:
    """Paths of recorded files that hold something else now."""
    return [file.path for file in recorded if _now(file.path) != file.text]


@contextmanager
def handed_over(files: Iterable[SettingsFile]) -> Iterator[int]:
    """A descriptor from which a process that inherits it reads them once. Raises OSError."""
    entries = [[str(file.path), file.is_trusted, _text(file.data), file.is_named] for file in files]
    data = json.dumps(entries).encode()
    with _private_file() as descriptor:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor


def taken_over(descriptor: int) -> tuple[SettingsFile, ...]:
    """What `handed_over` gave; the descriptor is closed. Raises SettingsFileError where nothing of that kind is there."""
    try:
        with os.fdopen(descriptor, "rb") as file:
            entries = json.load(file)
        return tuple(
            SettingsFile(Path(path), is_trusted is True, _data(text), is_named is True)
            for path, is_trusted, text, is_named in entries
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingsFileError(f"--settings-fd {descriptor} holds no settings files of a loop") from error


@contextmanager
def _private_file() -> Iterator[int]:
    """In memory, where the system can; else without a name."""
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
        return ""  # it is there, and can be used no more


def _text(data: bytes | None) -> str | None:
    """Whatever the bytes are, they come back from it."""
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _data(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")

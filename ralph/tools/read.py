"""Implements Read, which shows some lines of a text file, or an image. It reads only regular files, and at most a
limited part of a file.
"""

from __future__ import annotations

import difflib
import os
import stat
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.opened_file import closed_after
from ralph.tools.content import (
    MAX_IMAGE_BYTES,
    LineRange,
    binary_type,
    image_media_type,
    is_binary,
    kind_of,
    marked_encoding,
    read_range,
    shown_image,
)
from ralph.values.answer import ToolError, ToolOutput, os_error_text, tool_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.tools.tool_context import Arguments, ToolContext

_DEFAULT_LINES = 2000
_CHUNK_BYTES = 1 << 18
_MOST_NAMES_COMPARED = 2000


def run(arguments: Arguments, context: ToolContext) -> ToolOutput:
    path = context.resolve(arguments["file_path"])
    with opened_regular(path, arguments["file_path"], context) as (descriptor, real):
        before = os.fstat(descriptor)
        output = _output(descriptor, arguments, context)
        seen = context.seen.was_shown(Path(real), descriptor, before)
    return replace(output, seen=seen)


@contextmanager
def opened_regular(path: Path, shown: str, context: ToolContext) -> Iterator[tuple[int, str]]:
    """The descriptor and the real path of a regular file, open for reading during the block. Never blocks, and opens no device,
    which can have an effect. Raises ToolError.
    """
    judged = context.guard.refuse_read(path, shown)
    try:
        _refuse_special(path.stat().st_mode, shown)
        # A FIFO may have taken the file's place since the check: do not block on it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ToolError(f"{shown} does not exist.{_similar_names(path)}") from None
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    with closed_after(descriptor):
        _refuse_special(os.fstat(descriptor).st_mode, shown)
        real = context.guard.refuse_opened(descriptor, path, shown, judged)
        with tool_errors(shown):
            yield descriptor, real


def _output(descriptor: int, arguments: Arguments, context: ToolContext) -> ToolOutput:
    start = _read_chunk(descriptor)
    media_type = image_media_type(start)
    if media_type is not None:
        return _image(descriptor, start, media_type, context)
    marked = marked_encoding(start)
    if marked is None and is_binary(start):
        size = os.fstat(descriptor).st_size
        raise ToolError(f"{arguments['file_path']} is a binary file: {binary_type(start)}, {size:,} bytes")
    if not start:
        return ToolOutput("(the file is empty)")
    # Some models count from 0 and mean the first line by it.
    first = max(arguments.get("offset", 1), 1)
    wanted = LineRange(first, arguments.get("limit", _DEFAULT_LINES))
    return ToolOutput(read_range(_chunks(descriptor, start), wanted, marked))


def _refuse_special(mode: int, shown: str) -> None:
    if stat.S_ISREG(mode):
        return
    advice = "; list it with Glob or `ls`" if stat.S_ISDIR(mode) else "; only regular files can be read"
    raise ToolError(f"{shown} is {kind_of(mode)}{advice}")


def _chunks(descriptor: int, start: bytes) -> Iterator[bytes]:
    chunk = start
    while chunk:
        yield chunk
        chunk = _read_chunk(descriptor)


def _read_chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:  # /proc/kmsg looks like a regular file, but has no data now
        return b""


def _image(descriptor: int, start: bytes, media_type: str, context: ToolContext) -> ToolOutput:
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes > MAX_IMAGE_BYTES:
        raise ToolError(
            f"the image has {size_bytes:,} bytes; at most {MAX_IMAGE_BYTES:,} can be shown. Scale it down first"
        )
    # A file that grows meanwhile is read only up to the limit.
    data = b"".join(islice(_chunks(descriptor, start), MAX_IMAGE_BYTES // _CHUNK_BYTES + 1))
    return ToolOutput((shown_image(data, media_type, context.images),))


def _similar_names(path: Path) -> str:
    if not path.parent.is_dir():
        existing = next(parent for parent in path.parents if parent.is_dir())
        return f" Its directory does not exist either; {existing} does."
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MOST_NAMES_COMPARED)]
    except OSError:
        return ""
    same = [name for name in names if name.lower() == path.name.lower()]
    similar = same + [
        name for name in difflib.get_close_matches(path.name, sorted(names)) if name not in same
    ]
    return f" Similar names there: {', '.join(similar)}." if similar else ""

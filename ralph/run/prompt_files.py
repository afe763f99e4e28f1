"""Puts the files that a prompt names by `@path` below the prompt's text. ralph reads each file by a Read call, to which
all rules of the run apply.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ralph.prompt.imports import imported_paths, is_meant_as_path
from ralph.prompt.judged_file import path_of_file
from ralph.values.events import Notice
from ralph.values.tool_calls import Runnable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.agent.tool_turn import PromptCalls
    from ralph.values.ports import Events
    from ralph.values.tool_calls import Block

# Each costs a call and a part of the prompt. Nobody names more.
_MOST_FILES = 20
_MOST_BYTES = 1_000_000
# A long text is a log or source code, in which most names are no files.
_MOST_SEARCHED = 1_000_000
_MOST_NAMES = 1000


def with_files(
    text: str, naming: str, calls: PromptCalls, *, cwd: Path, events: Events, command: str = ""
) -> str | list[Block]:
    """The text with the contents of the files that its part `naming` names. The result is a list of blocks if one of
    the files is an image.

    `command` is the command whose file contains the names, or empty if the user's own prompt contains them. A notice
    names each file that is left out.
    """
    teller = command or "the prompt"
    texts = [text]
    images: list[Block] = []
    left = _MOST_BYTES
    for name, path in _files(naming, teller, cwd, events):
        judged = calls.judge("Read", {"file_path": path})
        output = calls.run(command, judged) if isinstance(judged, Runnable) else judged
        size = len(str(output.content).encode("utf-8", "replace"))
        if output.is_error or size > left:
            why = output.content if output.is_error else "files in a prompt have 1 MB at most together"
            events.emit(Notice(f"{teller} names @{name}, which is not in the prompt: {why}"))
            continue
        left -= size
        if isinstance(output.content, str):
            texts.append(f"Contents of {name}:\n\n{output.content}")
        else:
            images += output.content
    whole = "\n\n".join(filter(None, texts))
    return [{"type": "text", "text": whole}, *images] if images else whole


def _files(naming: str, teller: str, cwd: Path, events: Events) -> Iterator[tuple[str, str]]:
    """Yields the name and the path of each file to read. Leaves out names that lead to no file."""
    count = 0
    for name in islice(imported_paths(naming[:_MOST_SEARCHED]), _MOST_NAMES):
        path = path_of_file(name, cwd)
        if path is not None and path.endswith("/"):
            events.emit(
                Notice(f"{teller} names @{name}, which is a directory: none of its files is in the prompt")
            )
        elif path is not None:
            count += 1
            if count <= _MOST_FILES:
                yield name, path
        elif is_meant_as_path(name):
            events.emit(Notice(f"{teller} names @{name}, which is no file"))
    if count > _MOST_FILES:
        events.emit(Notice(f"{teller} names {count} files: the first {_MOST_FILES} are in the prompt"))

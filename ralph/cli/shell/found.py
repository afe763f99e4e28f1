"""Finds the sessions and the loops that a shell may offer. Nothing else that `answer.py` answers needs what this imports."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

from ralph.cli.shell.answer import one_line
from ralph.machine.files.opened_file import open_regular_file
from ralph.sessions.places import (
    SHORT_ID_CHARS,
    age_text,
    directory_name,
    journals_in,
    listed,
    places_to_read,
    shortened,
    state_directory,
    title_from,
    written_at,
)

TYPE_CHECKING = False  # `typing` takes longer to load than this module

if TYPE_CHECKING:
    from ralph.cli.shell.answer import Completion, Values

_MOST_SESSIONS = 50
"""Nobody reads a longer list. The newest sessions are listed."""
_HEAD_BYTES = 64 * 1024
"""The title of a session is looked for in this many bytes at the beginning of its journal."""
_TITLE_CHARS = 60
_HEX = frozenset("0123456789abcdef-")


def sessions(one: Completion, *, with_titles: bool) -> Values:
    places, typed = _places(one), one.typed.lower()
    everything = [path for place in places for folder in listed(place) for path in journals_in(folder)]
    everything = [path for path in everything if _HEX.issuperset(path.stem)]
    folder = directory_name(_directory(one))
    here = [path for path in everything if path.parent.name == folder and path.stem.startswith(typed)]
    dated = sorted(((written_at(path), path) for path in here or everything), reverse=True)[:_MOST_SESSIONS]
    counts = Counter(path.stem[:SHORT_ID_CHARS] for path in everything)
    now_s = time.time()
    for written_s, path in dated:
        short = path.stem[:SHORT_ID_CHARS]
        is_short = len(typed) <= SHORT_ID_CHARS and counts[short] == 1
        says = f"{age_text(now_s - written_s)}: {_title(path)}" if with_titles else ""
        yield short if is_short else path.stem, says


def _title(path: Path) -> str:
    title = ""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            lines = file.read(_HEAD_BYTES).split(b"\n")[:-1]
        for line in lines:
            kind = line[:60].partition(b',"kind":"')[2].partition(b'"')[0]
            if kind == b"run":
                title = title or str(json.loads(line).get("title") or "")
            elif kind == b"user":
                content = json.loads(line)["content"]
                text = content if isinstance(content, str) else content[0].get("text", "")
                return shortened(one_line(title or title_from(text)), _TITLE_CHARS)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # Damaged; the id is offered all the same.
        pass
    return shortened(one_line(title), _TITLE_CHARS)


def loops(one: Completion) -> Values:
    folder = directory_name(_directory(one))
    numbers = {
        int(path.name)
        for place in _places(one)
        for path in listed(state_directory(place) / "loops" / folder)
        if path.name.isdecimal()
    }
    return [(str(number), "loop of this directory") for number in sorted(numbers, reverse=True)]


def _places(one: Completion) -> tuple[Path, ...]:
    named = one.given.get("--session-dir")
    return places_to_read(os.environ, path_of(named) if named else None)


def _directory(one: Completion) -> Path:
    return path_of(one.given.get("--cd", "")).resolve()


def path_of(typed: str) -> Path:
    return Path.cwd() / Path(typed).expanduser()

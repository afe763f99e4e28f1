"""The places on disk where sessions are stored, and short descriptions of a session: its id, its age, its task and a title.
This module imports little, because the shell's completion looks for sessions while the user waits. `store.py` reads and
makes the sessions in these places.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine.loading import short_digest
from ralph.machine.own_process import temporary_directory
from ralph.places.state import chosen_state_directory, usual_state_directory
from ralph.values.screen_text import in_one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUFFIX = ".jsonl"
SHORT_ID_CHARS = 8


def places_to_read(environment: Mapping[str, str], named: Path | None = None) -> tuple[Path, ...]:
    """The root directories in which sessions of this user may be, the one for new sessions first. A directory may
    be missing. `named` is the value of `--session-dir`.
    """
    chosen = chosen_place(environment, named)
    if chosen is not None:
        return (chosen,)
    usual, others = usual_place(environment), temporary_if_ours()
    if usual is None:
        return (temporary_path(),)
    if others and not os.access(usual, os.W_OK | os.X_OK):
        return (others[0], usual)
    return (usual, *others)


def journals_in(directory: Path) -> Iterator[Path]:
    """The journals in a directory. Raises OSError as `listed` does. A pipe, device, socket or directory is not a journal."""
    return (path for path in listed(directory, files_only=True) if path.name.endswith(SUFFIX))


def listed(directory: Path, *, files_only: bool = False) -> list[Path]:
    """The entries of a directory, or only regular files and links to them. Empty if it is missing or may not be read."""
    # `Path.glob` would not do: since Python 3.12 it ignores every error, so that a session would seem to be missing.
    try:
        with os.scandir(directory) as entries:
            return [directory / entry.name for entry in entries if not files_only or entry.is_file()]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def directory_name(cwd: Path) -> str:
    """The name of the directory for the sessions of the working directory `cwd`. It ends with a hash of the whole
    path, because two working directories may have the same name.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", cwd.name)[:40] or "root"
    return f"{name}-{short_digest(os.fsencode(cwd), 12)}"


def chosen_place(environment: Mapping[str, str], named: Path | None) -> Path | None:
    """The root directory that the user has chosen, by `--session-dir` or a variable of ralph's own."""
    state = chosen_state_directory(environment)
    return named or (None if state is None else Path(state, "sessions"))


def usual_place(environment: Mapping[str, str]) -> Path | None:
    state = usual_state_directory(environment)
    return None if state is None else Path(state, "sessions")


def state_directory(root: Path) -> Path:
    """The state directory of a store. For the store in the temporary directory, this is the store itself, because
    the directory above it is shared with other users.
    """
    return root if root.name == temporary_name() else root.parent


def temporary_path() -> Path:
    return Path(temporary_directory(), temporary_name())


def temporary_name() -> str:
    return f"ralph-sessions-{os.getuid()}"


def temporary_if_ours() -> tuple[Path, ...]:
    """The store in the temporary directory, in which earlier runs may have left sessions. Empty if it does not
    exist, or if other users can access it.
    """
    try:
        place = temporary_path()
    except OSError:  # there is no temporary directory at all
        return ()
    return (place,) if is_ours_alone(place) else ()


def written_at(path: Path) -> float:
    """The time of the last write to the file, in seconds since the epoch. 0 if the file was just deleted."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_ours_alone(place: Path) -> bool:
    try:
        status = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


# --- A session in short

_LONGEST_TITLE = 120
_MOST_TASK_CHARS = 10_000
"""A title is looked for in this many characters."""
# The marks of a heading, a quotation or a list item of Markdown, and a line that is only a tag.
_MARK = r"(?:#{1,6}|>|[-*+])\s+"
_TAG = r"</?[\w-]+>"
_TASK_CHARS = 60
_AROUND_CHARS = 50

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def named_session(session_id: str, age_s: float, task: str) -> str:
    """A session in short: the beginning of its id, the time since its last write, and the beginning of its task."""
    words = shortened("".join(char if char.isprintable() else " " for char in task), _TASK_CHARS)
    return f"{session_id[:SHORT_ID_CHARS]} (last written to {age_text(age_s)}: {words or 'no task yet'})"


def title_from(task: str) -> str:
    """The first heading or paragraph of the task that has a letter or a digit, as a title of at most 120
    characters. Empty if there is none.
    """
    found: list[str] = []
    for line in visible(task[:_MOST_TASK_CHARS]).split("\n"):
        words = line.strip()
        if found and (not words or re.match(_MARK, words)):
            break
        is_heading = words.startswith("#")
        while mark := re.match(_MARK, words):
            words = words[mark.end() :]
        if found or (any(char.isalnum() for char in words) and not re.fullmatch(_TAG, words)):
            found.append(words)
        if found and is_heading:
            break
    return shortened(" ".join(found), _LONGEST_TITLE)


def age_text(age_s: float) -> str:
    """The age in seconds, minutes, hours or days, such as "3 h ago". If the clock was set back, `age_s` can be
    negative, and 0 is shown.
    """
    age_s = max(0.0, age_s)
    if age_s < _MINUTE_S:
        return f"{age_s:.0f} s ago"
    if age_s < _HOUR_S:
        return f"{age_s // _MINUTE_S:.0f} min ago"
    if age_s < 2 * _DAY_S:
        return f"{age_s // _HOUR_S:.0f} h ago"
    return f"{age_s // _DAY_S:.0f} days ago"


def around(line: str, wanted: str) -> str:
    """The part of a line around a text that it contains, safe to show. Case does not count."""
    at = max(0, line.casefold().find(wanted) - _AROUND_CHARS)
    part = in_one_line(line[at : at + len(wanted) + 2 * _AROUND_CHARS]).strip()
    return f"{'…' if at else ''}{part}{'…' if at + len(wanted) + 2 * _AROUND_CHARS < len(line) else ''}"


def shortened(text: str, width: int) -> str:
    """The text in one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: max(0, width - 1)].rstrip() + "…"

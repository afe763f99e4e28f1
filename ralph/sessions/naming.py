"""Short descriptions of a session for the user: its id, its age, its task and a title. No I/O happens here."""

from __future__ import annotations

import re

from ralph.sessions.places import SHORT_ID_CHARS
from ralph.values.screen_text import in_one_line, visible

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

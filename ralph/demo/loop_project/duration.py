"""Converts durations from seconds to text and back. specs/duration.md defines the form of the text."""

import re

UNIT_S = {"m": 60, "s": 1}


def as_text(seconds):
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def as_seconds(text):
    parts = re.findall(r"(\d+)([hms])", text)
    return sum(int(number) * UNIT_S[unit] for number, unit in parts)

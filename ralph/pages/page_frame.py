"""The frame that all pages have: the template engine with its filters, the style and the script of ralph in one HTML
file, and the layout of a timeline.

Every text that a model, a tool or a server wrote is text in the file, never markup. The file asks for nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from datetime import datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct

from ralph.pages.drawing import Axis, Bar, Curve, Tick, step_of, ticks_of
from ralph.values.screen_text import counted, dollar_limit, dollars, duration, time_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ralph.pages.content import PageContent
    from ralph.pages.fleet_page import FleetContent

_HERE = Path(__file__).parent
_MINUTE_S, _DAY_S = 60, 86_400

# Control characters, characters that change the direction of text or that nobody sees, and half characters, which have
# no UTF-8. SGR sequences, which colour the output of programs, are left out of the page.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u200c\u200d\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff](?:(?<=\x1b)\\[[0-9;:]*m)?"
)
# Scripts and emoji need these. Behind ASCII, a joiner makes two names of a program look the same. Selectors in a row
# can hold hidden bytes.
_JOINERS, _SELECTORS = "\u200c\u200d", "\ufe0e\ufe0f"

_OUTCOMES = {
    "completed": "Done",
    "running": "Still running",
    "killed": "Killed",
    "unknown": "End unknown",
    "task_failed": "The task failed",
    "limit_reached": "Stopped at a limit",
    "timed_out": "Out of time",
    "no_progress": "No progress",
    "api_unavailable": "API unavailable",
    "api_rejected": "Rejected by the API",
    "interrupted": "Interrupted",
    "auth": "Not authorised",
    "config": "Wrong configuration",
    "io_error": "Disk or git failed",
    "internal_error": "A bug in ralph",
    "usage": "Wrong command line",
}


class Block(Struct, frozen=True):
    """A part on the timeline of its section."""

    x: float
    width: float
    name: str
    title: str
    href: str
    is_problem: bool


class Lane(Struct, frozen=True):
    """A row of a timeline, with its place in pixels."""

    kind: str
    """`parts`, `bars`, `marks` or `curve`."""
    name: str
    top: int
    height: int
    blocks: Sequence[Block] = ()
    bars: Sequence[Bar] = ()
    curve: Curve | None = None
    most: str = ""
    """The highest value of a curve, in words."""
    limit: str = ""
    """The limit that is drawn, in words."""
    mark: str = ""


class Timeline(Struct, frozen=True):
    id: str
    label: str
    height: int
    rows: list[Lane]
    ticks: list[Tick]
    clock: str
    """The form of the times at the ticks."""


def rendered(template: str, content: PageContent | FleetContent, zone: tzinfo | None, **values: Any) -> bytes:
    """The HTML file that a template makes of the content and the values, in UTF-8. `zone` is the time zone of its times.
    None is the machine's.
    """
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    page = (
        _environment(zone)
        .get_template(template)
        .render(
            **values,
            content=content,
            place=content.place,
            version=content.version,
            made_at_s=content.made_at_s,
            zone=_zone_name(content.made_at_s, zone),
            style=Markup(style),  # noqa: S704 - a file of ralph
            script=Markup(script),  # noqa: S704 - a file of ralph
            style_hash=_hash_of(style),
            script_hash=_hash_of(script),
        )
    )
    return _HIDDEN.sub(_named, page).encode()


@lru_cache(maxsize=4)
def _environment(zone: tzinfo | None) -> Environment:
    """The template engine for times in this zone. It keeps the templates that it has compiled."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clock": _clock_in(zone),
        "diff": _diff_blocks,
        "money": money,
        "dollar_limit": dollar_limit,
        "time_limit": time_limit,
        "took": _took,
        "counted": counted,
        "headline": headline_of,
        "share": _share,
    }
    return environment


def timeline_of(
    name: str,
    label: str,
    top: int,
    rows: list[Lane],
    *,
    axis: Axis,
    zone: tzinfo | None,
) -> Timeline:
    """The rows on their axis, with ticks below them. `top` is the place below the last row, in pixels."""
    step_s = step_of(axis)
    form = "%H:%M:%S" if step_s < _MINUTE_S else "%H:%M"
    if axis.ended_s - axis.began_s > _DAY_S:
        form = "%d %b" if step_s >= _DAY_S else "%a %H:%M"
    return Timeline(name, label, top + 20, rows, ticks_of(axis, _offset_s(axis.began_s, zone)), form)


def headline_of(outcome: str) -> str:
    """The outcome as people say it. Words that ralph does not know stay as they are."""
    return _OUTCOMES.get(outcome) or outcome or "unknown"


def money(cost_usd: float | None) -> str:
    return dollars(cost_usd) if cost_usd is not None and math.isfinite(cost_usd) else "$?"


def _took(seconds: float) -> str:
    return duration(seconds) if 0 <= seconds < math.inf else "?"


def _share(part: float, whole: float | None) -> float:
    return round(min(max(100 * part / whole, 0.0), 100.0), 1) if whole and part >= 0 else 0.0


def _clock_in(zone: tzinfo | None) -> Callable[[float | None, str], str]:
    def clock(at_s: float | None, form: str) -> str:
        try:
            return datetime.fromtimestamp(at_s, zone).strftime(form) if at_s is not None else ""
        except (OverflowError, ValueError, OSError):  # no clock ever showed this
            return "?"

    return clock


def _offset_s(at_s: float, zone: tzinfo | None) -> float:
    try:
        offset = datetime.fromtimestamp(at_s, zone).astimezone(zone).utcoffset()
    except (OverflowError, ValueError, OSError):
        return 0.0
    return offset.total_seconds() if offset is not None else 0.0


def _zone_name(at_s: float, zone: tzinfo | None) -> str:
    minutes = round(_offset_s(at_s, zone) / 60)
    return (
        f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
        if minutes
        else "UTC"
    )


def _diff_blocks(diff: str) -> Iterator[tuple[str, str]]:
    """The lines of a unified diff in blocks of one kind: `names`, `place`, `ins`, `del` or `same`."""
    is_head = "\n@@" in f"\n{diff}"

    def kind_of(line: str) -> str:
        nonlocal is_head
        is_head = is_head and not line.startswith("@@")
        if is_head:
            return "names"
        return {"@": "place", "+": "ins", "-": "del"}.get(line[:1], "same")

    for kind, lines in itertools.groupby(diff.rstrip("\n").split("\n"), key=kind_of):
        yield kind, "\n".join(lines)


def _named(hidden: re.Match[str]) -> str:
    """A visible name for a hidden character, such as the symbol ESC. Empty for a sequence that only sets colours."""
    if len(hidden[0]) > 1 or hidden[0] == "\r":
        return ""
    before = hidden.string[hidden.start() - 1]
    if hidden[0] in _JOINERS and not before.isascii():
        return hidden[0]
    if hidden[0] in _SELECTORS and not _HIDDEN.match(before):
        return hidden[0]
    code = ord(hidden[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"  # the symbols of control characters


def _hash_of(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""Turns the content of a page into one HTML file: a template in the frame of all pages, with the style and the script of ralph,
and the layout of the timelines. Every text that a model, a tool or a server wrote is text in the file, never markup. The file
asks for nothing else.
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

from ralph.pages.content import LOOP_WAITS, Mark, MarkKind, Point, Stretch, StretchKind
from ralph.values.screen_text import counted, dollar_limit, dollars, duration, time_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ralph.pages.content import CheckRun, Mark, PageContent, Section, SectionPart
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


def _timeline_of(
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


# --- The page of runs and loops

KINDS = {
    StretchKind.MODEL: "model",
    StretchKind.TOOL: "tools",
    StretchKind.CHECK: "check",
    StretchKind.WAITING: "waiting",
    StretchKind.OUTAGE: "outage",
    StretchKind.IDLE: "idle",
}
# The rows of marks under the timeline, from the one that a person looks for first.
_ROWS = {
    MarkKind.COMMIT: "commits",
    MarkKind.RETRY: "retries",
    MarkKind.FALLBACK: "fallbacks",
    MarkKind.DENIAL: "denials",
    MarkKind.GUARD: "guards",
    MarkKind.COMPACTION: "compactions",
    MarkKind.NOTICE: "notices",
    MarkKind.ENDED: "ends",
}

# A page has bars in at most so many places of its sections' timelines, so that it stays small.
_MOST_BARS, _FEWEST_BARS = 250, 100
_MOST_POINTS = 600
_MOST_MARKS = 600
_MOST_PROBLEMS = 8
# Longer diffs are folded in an unfolded commit.
_LONG_DIFF_LINES = 150


class Problem(Struct, frozen=True):
    text: str
    href: str | None = None


class SectionView(Struct, frozen=True):
    """A section with what the template needs beside it."""

    id: str
    section: Section
    verdict: str
    """`good`, `bad` or `open`."""
    headline: str
    check: CheckRun | None
    problems: list[Problem]
    timeline: Timeline
    shares: list[tuple[str, float, float]]
    """The kinds of time with their seconds and their per cent."""
    busy_s: float | None
    """The seconds that were not idle, or None if none were idle."""
    axis: Axis
    clock: str
    """The form of times of day. Contains the weekday if the work is longer than a day."""
    added: int
    removed: int
    parts: list[PartView]


class PartView(Struct, frozen=True):
    id: str
    part: SectionPart
    name: str
    headline: str


def html_of(content: PageContent, zone: tzinfo | None = None) -> bytes:
    """The page as one HTML file in UTF-8. `zone` is the time zone of its times, by default the machine's."""
    bars = max(_MOST_BARS // max(len(content.sections), 1), _FEWEST_BARS)
    return rendered(
        "page.html",
        content,
        zone,
        views=[
            _view_of(section, f"work{number}", bars, zone) for number, section in enumerate(content.sections)
        ],
        kinds=KINDS,
        long_diff=_LONG_DIFF_LINES,
    )


def _view_of(section: Section, name: str, bars: int, zone: tzinfo | None) -> SectionView:
    of_parts = [stretch for part in section.parts if not part.is_copied for stretch in part.stretches]
    known = {stretch.began_s for stretch in of_parts if stretch.kind is StretchKind.OUTAGE}
    between = [outage for outage in section.outages if outage.began_s not in known]
    stretches = [*with_gaps([*of_parts, *between])]
    axis = axis_of(section.began_s, section.ended_s)
    noun = "iteration" if section.is_loop else "run"
    parts = [
        PartView(
            f"{name}-part{at}",
            part,
            f"{noun} {part.number}",
            headline_of(part.outcome),
        )
        for at, part in enumerate(section.parts)
    ]
    totals = totals_of(stretches)
    whole_s = sum(totals.values()) or 1.0
    checks = [check for part in section.parts if (check := part.check) is not None]
    return SectionView(
        id=name,
        section=section,
        verdict="open" if section.outcome == "running" else "bad" if section.is_problem else "good",
        headline=headline_of(section.outcome),
        check=checks[-1] if checks else section.first_check,
        problems=_problems_of(section, name, parts),
        timeline=_section_timeline(
            section, f"{name}-time", axis=axis, stretches=stretches, parts=parts, bars=bars, zone=zone
        ),
        shares=[
            (kind.value, totals[kind.value], 100 * totals[kind.value] / whole_s)
            for kind in KINDS
            if kind.value in totals
        ],
        busy_s=whole_s - idle_s if (idle_s := totals.get(StretchKind.IDLE.value, 0.0)) else None,
        axis=axis,
        clock="%H:%M:%S" if section.ended_s - section.began_s < _DAY_S else "%a %H:%M:%S",
        added=sum(file.added or 0 for file in section.files),
        removed=sum(file.removed or 0 for file in section.files),
        parts=parts,
    )


def _problems_of(section: Section, name: str, parts: list[PartView]) -> list[Problem]:
    bad = [
        Problem(
            f"{view.name.capitalize()}: {view.headline[0].lower()}{view.headline[1:]}"
            + (f" ({view.part.reason})" if view.part.reason else ""),
            f"#{view.id}",
        )
        for view in parts
        if view.part.is_problem and not view.part.is_copied and (section.is_loop or len(parts) > 1)
    ]
    broken = [
        Problem(f"{view.name.capitalize()}: {view.part.problem}", f"#{view.id}")
        for view in parts
        if view.part.problem
    ]
    if section.is_problem and not bad:
        why = f" ({section.reason})" if section.reason else ""
        bad = [
            Problem(
                f"The {'loop' if section.is_loop else 'run'} ended early: {section.outcome.replace('_', ' ')}{why}"
            )
        ]
    bad, broken = _first_of(bad, section), _first_of(broken, section)
    if section.outages:
        lost_s = sum(length_s(outage) for outage in section.outages)
        times = "once" if len(section.outages) == 1 else f"{len(section.outages)} times"
        waited = f"The loop waited {times} for the API or the machine: {duration(lost_s)}"
        bad.append(Problem(waited, f"#{name}-time"))
    counts = [f"{count.name} ({count.number})" for count in section.counts if count.name != LOOP_WAITS]
    if counts:
        bad.append(Problem(f"On the way: {', '.join(counts)}", f"#{name}-counts"))
    return [*bad, *broken, *map(Problem, section.notes)]


def _first_of(problems: list[Problem], section: Section) -> list[Problem]:
    more = len(problems) - _MOST_PROBLEMS
    rest = [Problem(f"and {counted(more, _noun_of(section))} more")] if more > 0 else []
    return [*problems[:_MOST_PROBLEMS], *rest]


def _noun_of(section: Section) -> str:
    return "iteration" if section.is_loop else "run"


def _section_timeline(
    section: Section,
    name: str,
    *,
    axis: Axis,
    stretches: list[Stretch],
    parts: list[PartView],
    bars: int,
    zone: tzinfo | None,
) -> Timeline:
    rows = [
        Lane("parts", f"{_noun_of(section)}s", 0, 22, blocks=[*_blocks_of(parts, axis)]),
        Lane("bars", "work", 24, 40, bars=bars_of(stretches, axis, bars)),
    ]
    marks = [
        mark
        for part in section.parts
        if not part.is_copied
        for mark in part.marks
        if mark.kind is not MarkKind.ENDED
    ]
    top = _add_marks(rows, marks, axis, 70, _MOST_MARKS)
    cost = curve_of(section.costs, axis, limit=section.budget_usd, most=_MOST_POINTS)
    context = curve_of(section.contexts, axis, most=_MOST_POINTS)
    if cost is not None:
        limit = f"budget {dollar_limit(section.budget_usd or 0.0)}" if cost.limit_y is not None else ""
        rows.append(Lane("curve", "cost", top + 16, 64, curve=cost, most=money(cost.most), limit=limit))
        top += 84
    if context is not None:
        rows.append(
            Lane("curve", "context", top + 10, 64, curve=context, most=f"{_short(context.most)} tokens")
        )
        top += 78
    label = f"Timeline of {_noun_of(section)}s, model time, tools, checks, waits and outages, with cost and context"
    return _timeline_of(name, label, top, rows, axis=axis, zone=zone)


def _add_marks(rows: list[Lane], marks: Sequence[Mark], axis: Axis, top: int, most: int) -> int:
    """Adds a row for each kind of mark that there is. Returns the place of the next row."""
    found = marks_of(marks, axis, most)
    for kind, title in _ROWS.items():
        if kind.value in found:
            rows.append(Lane("marks", title, top, 18, bars=found[kind.value], mark=kind.value))
            top += 18
    return top


def _blocks_of(parts: list[PartView], axis: Axis) -> Iterator[Block]:
    for view in parts:
        part = view.part
        if part.began_s is None or part.is_copied:
            continue
        x = axis.place(part.began_s)
        width = max(round(axis.place(part.ended_s or axis.ended_s) - x, 3), 0.15)
        title = f"{view.name}: {view.headline}, {counted(part.turns, 'turn')}, {money(part.cost_usd)}"
        # A narrower block has no room for its number on a phone.
        number = str(part.number) if width > 0.9 + 1.6 * len(str(part.number)) else ""
        yield Block(x, width, number, title, f"#{view.id}", part.is_problem)


def _short(number: float) -> str:
    return f"{number / 1000:.0f}k" if number >= 10_000 else f"{number:,.0f}"


# The drawings of the page are values: bars, marks, curves and ticks on one axis of time. All places on the axis are
# percentages of its width, so that a drawing fits a phone and can be made wider.

WHOLE = 100.0
"""The width of the axis, in per cent."""

NARROWEST = 0.15
"""The width of the narrowest bar and mark, in per cent: a pixel or two of a wide screen."""

_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400 * days for days in (1, 2, 7, 14, 28, 91, 364)),
)
_MOST_TICKS = 7
_IDLE_FROM_S = 60.0
# In the year 5138: later times come from a damaged file.
_LATEST_S = 1e11


class Axis(Struct, frozen=True):
    """An axis of time, in seconds since 1970."""

    began_s: float
    ended_s: float

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s

    def place(self, at_s: float) -> float:
        """The place of a moment in per cent, at the nearest end if the moment is outside the axis."""
        if not math.isfinite(at_s):
            return 0.0
        return round(min(max((at_s - self.began_s) / self.length_s, 0.0), 1.0) * WHOLE, 3)


class Bar(Struct, frozen=True):
    kind: str
    x: float
    width: float
    title: str
    entry: str | None
    top: float = 0.0
    """The part of the row's height above the bar, from 0 to 1."""
    height: float = 1.0
    """The part of the row's height that the bar fills."""


class Tick(Struct, frozen=True):
    x: float
    at_s: float


class Curve(Struct, frozen=True):
    """A curve in a box that is 1000 wide and 100 high."""

    line: str
    """The path of an SVG."""
    area: str
    most: float
    """The value at the top of the box."""
    limit_y: float | None
    """The height at which a limit is drawn, or None."""


def axis_of(began_s: float, ended_s: float) -> Axis:
    """The axis from a beginning to an end, at least a second long. It begins in 1970 if the times are none of a clock."""
    if not (0 <= began_s < _LATEST_S and ended_s < _LATEST_S):
        return Axis(0.0, 1.0)
    return Axis(began_s, max(ended_s, began_s + 1))


def with_gaps(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """The stretches in order of time, with an idle stretch where nothing is recorded for longer than a minute."""
    before_s = math.inf
    for stretch in sorted(stretches, key=lambda stretch: stretch.began_s):
        if stretch.began_s - before_s > _IDLE_FROM_S:
            yield Stretch(StretchKind.IDLE, before_s, stretch.began_s, "nothing is recorded")
        yield stretch
        before_s = stretch.ended_s if before_s == math.inf else max(before_s, stretch.ended_s)


def bars_of(stretches: Iterable[Stretch], axis: Axis, most: int) -> list[Bar]:
    """Bars in at most about `most` places. Neighbours that are too narrow for that share a place: the height of each kind
    is its share of the time, and the title says what the place stands for.
    """
    slot_s = axis.length_s / most
    bars: list[Bar] = []
    narrow: list[Stretch] = []
    for stretch in stretches:
        if narrow and stretch.ended_s - narrow[0].began_s > slot_s:
            bars += _bars_at(narrow, axis)
            narrow = []
        if stretch.ended_s - stretch.began_s > slot_s:
            bars += _bars_at([stretch], axis)
        else:
            narrow.append(stretch)
    return [*bars, *_bars_at(narrow, axis)] if narrow else bars


def _bars_at(stretches: Sequence[Stretch], axis: Axis) -> Iterator[Bar]:
    first, last = stretches[0], stretches[-1]
    x = axis.place(first.began_s)
    width = max(round(axis.place(last.ended_s) - x, 3), NARROWEST)
    if first is last:
        title = f"{first.label}: {first.kind.value}, {duration(length_s(first))}"
        yield Bar(first.kind.value, x, width, title, first.entry)
        return
    totals = totals_of(stretches)
    words = ", ".join(f"{kind} {duration(took_s)}" for kind, took_s in totals.items())
    title = f"{first.label} to {last.label}: {words}"
    entry = next((stretch.entry for stretch in stretches if stretch.entry is not None), None)
    whole_s = sum(totals.values())
    bottom = 1.0
    for kind in (kind.value for kind in type(first.kind)):
        height = totals.get(kind, 0.0) / whole_s if whole_s else float(kind == first.kind.value)
        if height:
            bottom -= height
            yield Bar(kind, x, width, title, entry, round(max(bottom, 0.0), 3), round(height, 3))


def totals_of(stretches: Iterable[Stretch]) -> dict[str, float]:
    """The seconds of each kind of stretch."""
    totals: dict[str, float] = {}
    for stretch in stretches:
        totals[stretch.kind.value] = totals.get(stretch.kind.value, 0.0) + length_s(stretch)
    return totals


def length_s(stretch: Stretch) -> float:
    """The seconds of a stretch; 0 if a clock was set back meanwhile."""
    took_s = stretch.ended_s - stretch.began_s
    return took_s if 0 < took_s < math.inf else 0.0


def marks_of(marks: Iterable[Mark], axis: Axis, most: int) -> dict[str, list[Bar]]:
    """The marks by kind. Marks of a kind at the same of `most` places become one, which says how many it stands for."""
    of_kind: dict[str, list[Mark]] = {}
    for mark in sorted(marks, key=lambda mark: mark.at_s):
        of_kind.setdefault(mark.kind.value, []).append(mark)
    slot = max(NARROWEST, WHOLE / most)
    return {kind: [*_joined(kind, ordered, axis, slot)] for kind, ordered in of_kind.items()}


def _joined(kind: str, marks: Sequence[Mark], axis: Axis, slot: float) -> Iterator[Bar]:
    for _, group in itertools.groupby(marks, key=lambda mark: int(axis.place(mark.at_s) / slot)):
        first, *more = group
        title = first.label + (f" and {len(more)} more" if more else "")
        yield Bar(kind, axis.place(first.at_s), 0.0, title, first.entry)


def ticks_of(axis: Axis, offset_s: float) -> list[Tick]:
    """Round times of day along the axis. `offset_s` is what the clock of the reader is ahead of UTC."""
    step_s = step_of(axis)
    first = math.ceil((axis.began_s + offset_s) / step_s)
    last = math.floor((axis.ended_s + offset_s) / step_s)
    round_times = (number * step_s - offset_s for number in range(first, last + 1))
    return [Tick(axis.place(at_s), at_s) for at_s in round_times]


def step_of(axis: Axis) -> float:
    """The seconds between two ticks."""
    return next(
        (step for step in _STEPS_S if axis.length_s / step <= _MOST_TICKS), axis.length_s / _MOST_TICKS
    )


def curve_of(points: Sequence[Point], axis: Axis, *, limit: float | None = None, most: int) -> Curve | None:
    """The curve of values that stay until the next point. At most `most` points are drawn, the highest of each group.
    None without points.
    """
    finite = [point for point in points if math.isfinite(point.value)]
    if not finite:
        return None
    size = math.ceil(len(finite) / most)
    kept = [max(finite[at : at + size], key=lambda point: point.value) for at in range(0, len(finite), size)]
    kept = kept if kept[-1] is finite[-1] else [*kept, finite[-1]]
    highest = max(point.value for point in kept)
    # A limit far above the curve would press it to the ground.
    is_near = limit is not None and 0 < limit <= highest * 2
    top = max(highest, limit if is_near and limit is not None else 0.0) or 1.0

    def y(value: float) -> float:
        return round(98 - 96 * max(value, 0.0) / top, 2)

    steps = [(axis.place(point.at_s) * 10, y(point.value)) for point in kept]
    line = f"M{steps[0][0]:g} {steps[0][1]:g}" + "".join(f"H{x:g}V{height:g}" for x, height in steps[1:])
    area = f"{line}V100H{steps[0][0]:g}Z"
    return Curve(line, area, highest, y(limit) if is_near and limit is not None else None)

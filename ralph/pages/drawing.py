"""Lays out the drawings of the page as values: bars, marks, curves and ticks on one axis of time.

All places on the axis are percentages of its width, so that a drawing fits a phone and can be made wider. Pure.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.pages.content import Mark, Point, Stretch, StretchKind
from ralph.values.screen_text import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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

"""Turns a `Night` into one HTML file: the template `page.html` in the frame of all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.pages.drawing import axis_of, bars_of, curve_of, length_s, marks_of, totals_of, with_gaps
from ralph.pages.night import LOOP_WAITS, MarkKind, StretchKind
from ralph.pages.page_frame import Block, Lane, Timeline, headline_of, money, rendered, timeline_of
from ralph.values.screen_text import counted, dollar_limit, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from ralph.pages.drawing import Axis
    from ralph.pages.night import CheckRun, Mark, Night, Stretch, Work, WorkPart

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

# A page has bars in at most so many places of its works' timelines, and of those of its parts, so that it stays small.
_MOST_BARS, _FEWEST_BARS = 250, 100
_MOST_PART_BARS, _FEWEST_PART_BARS = 16_000, 40
# Parts before the last ones of so many have no timeline of their own, which takes 1 KB or more.
_MOST_PART_TIMELINES = 1_000
_MOST_POINTS = 600
_MOST_PROBLEMS = 8
_DAY_S = 86_400
# Longer diffs are folded in an unfolded commit.
_LONG_DIFF_LINES = 150


class Problem(Struct, frozen=True):
    text: str
    href: str | None = None


class WorkView(Struct, frozen=True):
    """A work with what the template needs beside it."""

    id: str
    work: Work
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
    part: WorkPart
    name: str
    headline: str
    timeline: Timeline | None


def html_of(night: Night, zone: tzinfo | None = None) -> bytes:
    """The page of a night, as one HTML file in UTF-8. `zone` is the time zone of its times, by default the machine's."""
    return rendered(
        "page.html",
        place=night.place,
        version=night.version,
        made_at_s=night.made_at_s,
        zone=zone,
        night=night,
        views=_views_of(night, zone),
        kinds=KINDS,
        long_diff=_LONG_DIFF_LINES,
    )


def _views_of(night: Night, zone: tzinfo | None) -> list[WorkView]:
    bars = max(_MOST_BARS // max(len(night.works), 1), _FEWEST_BARS)
    parts = sum(len(work.parts) for work in night.works)
    part_bars = max(_MOST_PART_BARS // max(parts, 1), _FEWEST_PART_BARS)
    return [
        _view_of(work, f"work{number}", bars, min(part_bars, 2 * _MOST_BARS), zone)
        for number, work in enumerate(night.works)
    ]


def _view_of(work: Work, name: str, bars: int, part_bars: int, zone: tzinfo | None) -> WorkView:
    stretches = [*with_gaps(_all_stretches(work))]
    axis = axis_of(work.began_s, work.ended_s, stretches)
    noun = "iteration" if work.is_loop else "run"
    parts = [
        PartView(
            f"{name}-part{at}",
            part,
            f"{noun} {part.number}",
            headline_of(part.outcome),
            _part_timeline(part, f"{name}-part{at}-time", part_bars, zone)
            if len(work.parts) - at <= _MOST_PART_TIMELINES
            else None,
        )
        for at, part in enumerate(work.parts)
    ]
    totals = totals_of(stretches)
    whole_s = sum(totals.values()) or 1.0
    checks = [check for part in work.parts if (check := part.check) is not None]
    return WorkView(
        id=name,
        work=work,
        verdict="open" if work.outcome == "running" else "bad" if work.is_problem else "good",
        headline=headline_of(work.outcome),
        check=checks[-1] if checks else work.first_check,
        problems=_problems_of(work, name, parts),
        timeline=_work_timeline(
            work, f"{name}-time", axis=axis, stretches=stretches, parts=parts, bars=bars, zone=zone
        ),
        shares=[
            (kind.value, totals[kind.value], 100 * totals[kind.value] / whole_s)
            for kind in KINDS
            if kind.value in totals
        ],
        busy_s=whole_s - idle_s if (idle_s := totals.get(StretchKind.IDLE.value, 0.0)) else None,
        axis=axis,
        clock="%H:%M:%S" if work.ended_s - work.began_s < _DAY_S else "%a %H:%M:%S",
        added=sum(file.added or 0 for file in work.files),
        removed=sum(file.removed or 0 for file in work.files),
        parts=parts,
    )


def _all_stretches(work: Work) -> list[Stretch]:
    """The stretches of all parts, and the outages between them."""
    of_parts = [stretch for part in work.parts if not part.is_copied for stretch in part.stretches]
    known = {stretch.began_s for stretch in of_parts if stretch.kind is StretchKind.OUTAGE}
    between = [outage for outage in work.outages if outage.began_s not in known]
    return [*of_parts, *between]


def _problems_of(work: Work, name: str, parts: list[PartView]) -> list[Problem]:
    """The problems of a night, in sentences: parts, outages, the last check, and what ralph told at the end."""
    bad = [
        Problem(
            f"{view.name.capitalize()}: {view.headline[0].lower()}{view.headline[1:]}"
            + (f" ({view.part.reason})" if view.part.reason else ""),
            f"#{view.id}",
        )
        for view in parts
        if view.part.is_problem and not view.part.is_copied and (work.is_loop or len(parts) > 1)
    ]
    broken = [
        Problem(f"{view.name.capitalize()}: {view.part.problem}", f"#{view.id}")
        for view in parts
        if view.part.problem
    ]
    bad, broken = _first_of(bad, work), _first_of(broken, work)
    if work.outages:
        lost_s = sum(length_s(outage) for outage in work.outages)
        times = "once" if len(work.outages) == 1 else f"{len(work.outages)} times"
        waited = f"The loop waited {times} for the API or the machine: {duration(lost_s)}"
        bad.append(Problem(waited, f"#{name}-time"))
    counts = [f"{count.name} ({count.number})" for count in work.counts if count.name != LOOP_WAITS]
    if counts:
        told = ", ".join(counts)
        bad.append(Problem(f"On the way: {told}", f"#{name}-counts"))
    return [*bad, *broken, *map(Problem, work.notes)]


def _first_of(problems: list[Problem], work: Work) -> list[Problem]:
    """The first problems of parts, and how many more there are."""
    more = len(problems) - _MOST_PROBLEMS
    rest = [Problem(f"and {counted(more, _noun_of(work))} more")] if more > 0 else []
    return [*problems[:_MOST_PROBLEMS], *rest]


def _noun_of(work: Work) -> str:
    return "iteration" if work.is_loop else "run"


def _work_timeline(
    work: Work,
    name: str,
    *,
    axis: Axis,
    stretches: list[Stretch],
    parts: list[PartView],
    bars: int,
    zone: tzinfo | None,
) -> Timeline:
    rows = [
        Lane("parts", f"{_noun_of(work)}s", 0, 22, blocks=[*_blocks_of(parts, axis)]),
        Lane("bars", "work", 24, 40, bars=bars_of(stretches, axis, bars)),
    ]
    marks = [
        mark
        for part in work.parts
        if not part.is_copied
        for mark in part.marks
        if mark.kind is not MarkKind.ENDED
    ]
    top = _add_marks(rows, marks, axis, 70)
    cost = curve_of(work.costs, axis, limit=work.budget_usd, most=_MOST_POINTS)
    context = curve_of(work.contexts, axis, most=_MOST_POINTS)
    if cost is not None:
        limit = f"budget {dollar_limit(work.budget_usd or 0.0)}" if cost.limit_y is not None else ""
        rows.append(Lane("curve", "cost", top + 16, 64, curve=cost, most=money(cost.most), limit=limit))
        top += 84
    if context is not None:
        rows.append(
            Lane("curve", "context", top + 10, 64, curve=context, most=f"{_short(context.most)} tokens")
        )
        top += 78
    label = (
        f"Timeline of {_noun_of(work)}s, model time, tools, checks, waits and outages, with cost and context"
    )
    return timeline_of(name, label, top, rows, axis=axis, zone=zone)


def _part_timeline(part: WorkPart, name: str, bars: int, zone: tzinfo | None) -> Timeline | None:
    if not part.stretches or part.began_s is None or part.ended_s is None:
        return None
    axis = axis_of(part.began_s, part.ended_s, part.stretches)
    rows = [Lane("bars", "work", 0, 28, bars=bars_of(part.stretches, axis, bars))]
    top = _add_marks(rows, [mark for mark in part.marks if mark.kind is not MarkKind.ENDED], axis, 34)
    return timeline_of(name, f"Timeline of {part.number}", top, rows, axis=axis, zone=zone)


def _add_marks(rows: list[Lane], marks: Sequence[Mark], axis: Axis, top: int) -> int:
    """Adds a row for each kind of mark that there is. Returns the place of the next row."""
    found = marks_of(marks, axis)
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

"""Turns the content of a page, of runs and loops or of a fleet, into one HTML file: a template in the frame of all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.pages.content import LOOP_WAITS, MarkKind, StretchKind
from ralph.pages.drawing import Axis, axis_of, bars_of, curve_of, length_s, marks_of, totals_of, with_gaps
from ralph.pages.page_frame import Block, Lane, Timeline, headline_of, money, rendered, timeline_of
from ralph.values.screen_text import counted, dollar_limit, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from ralph.pages.content import CheckRun, Mark, PageContent, Section, SectionPart, Stretch

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
_DAY_S = 86_400
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
    stretches = [*with_gaps(_all_stretches(section))]
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


def _all_stretches(section: Section) -> list[Stretch]:
    of_parts = [stretch for part in section.parts if not part.is_copied for stretch in part.stretches]
    known = {stretch.began_s for stretch in of_parts if stretch.kind is StretchKind.OUTAGE}
    between = [outage for outage in section.outages if outage.began_s not in known]
    return [*of_parts, *between]


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
    return timeline_of(name, label, top, rows, axis=axis, zone=zone)


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

"""Turns a `FleetContent` into one HTML file: the template `fleet.html` in the frame of all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.pages.content import Stretch, StretchKind
from ralph.pages.drawing import axis_of, bars_of, totals_of, with_gaps
from ralph.pages.fleet_content import AttemptKind
from ralph.pages.page_frame import Join, Lane, Timeline, headline_of, rendered, timeline_of
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from datetime import tzinfo

    from ralph.pages.fleet_content import FleetContent, SlotRow

_MOST_BARS, _FEWEST_BARS, _WIDEST_ROW_BARS = 6_000, 100, 400
_HEIGHT, _PITCH = 18, 23
_NAME_CHARS = 12
"""A longer name has no room beside the time line. The bars say it in full."""


class FleetTotals(Struct, frozen=True, kw_only=True):
    """The sums of all sets, for the head of the page."""

    headline: str
    verdict: str
    """`good`, `bad` or `open`."""
    jobs: int
    done: int
    states: list[tuple[str, int]]
    cost_usd: float
    reserved_usd: float
    budget_usd: float | None
    """None if a set has no budget."""
    turns: int
    began_s: float
    ended_s: float


def fleet_html_of(content: FleetContent, zone: tzinfo | None = None) -> bytes:
    """The page as one HTML file in UTF-8. `zone` is the time zone of its times, by default the machine's."""
    time_line = _time_line(content, zone)
    spent = totals_of(bar for row in content.rows for bar in row.bars)
    return rendered(
        "fleet.html",
        place=content.place,
        version=content.version,
        made_at_s=content.made_at_s,
        zone=zone,
        content=content,
        totals=totals_of_sets(content),
        time_line=time_line,
        legend=[(kind.value, spent[kind.value]) for kind in AttemptKind if kind.value in spent],
        signs={"done": "✓", "failed": "✗", "blocked": "✗", "cancelled": "✗"},
    )


def totals_of_sets(content: FleetContent) -> FleetTotals:
    """The sums over all sets of the page, and the one sentence that says how they are."""
    numbers: dict[str, int] = {}
    for one in content.sets:
        for count in one.states:
            numbers[count.state] = numbers.get(count.state, 0) + count.number
    jobs, done = sum(one.jobs for one in content.sets), numbers.get("done", 0)
    bad = [f"{numbers[state]} {state}" for state in ("failed", "blocked", "cancelled") if state in numbers]
    still_open = sum(one.open_jobs for one in content.sets)
    is_open = [f"{still_open} open"] if still_open else []
    headline = f"{', '.join([*bad, *is_open])} of {counted(jobs, 'job')}"
    budgets = [one.budget_usd for one in content.sets if one.budget_usd is not None]
    return FleetTotals(
        headline=headline if bad or is_open else f"All done: {counted(jobs, 'job')}",
        verdict="bad" if bad else "open" if is_open else "good",
        jobs=jobs,
        done=done,
        states=list(numbers.items()),
        cost_usd=sum(one.cost_usd for one in content.sets),
        reserved_usd=sum(one.reserved_usd for one in content.sets),
        budget_usd=sum(budgets) if budgets and len(budgets) == len(content.sets) else None,
        turns=sum(one.turns for one in content.sets),
        began_s=min((one.began_s for one in content.sets), default=content.made_at_s),
        ended_s=max((one.ended_s for one in content.sets), default=content.made_at_s),
    )


def _time_line(content: FleetContent, zone: tzinfo | None) -> Timeline | None:
    bars = [bar for row in content.rows for bar in row.bars]
    if not bars:
        return None
    busy = [Stretch(StretchKind.MODEL, bar.began_s, bar.ended_s, "") for bar in bars]
    axis = axis_of(min(bar.began_s for bar in bars), max(bar.ended_s for bar in bars), with_gaps(busy))
    most = min(max(_MOST_BARS // len(content.rows), _FEWEST_BARS), _WIDEST_ROW_BARS)
    lanes = [
        Lane("bars", _short_name(row), place * _PITCH, _HEIGHT, bars=bars_of(row.bars, axis, most))
        for place, row in enumerate(content.rows)
    ]
    joins = [
        Join(
            axis.place(one.at_s),
            _middle_of(one.row),
            axis.place(one.to_s),
            _middle_of(one.to_row),
            one.label,
            one.is_after_loss,
        )
        for one in content.takeovers
    ]
    label = f"Time line of {counted(len(bars), 'attempt')} on {counted(len(lanes), 'row')}"
    return timeline_of("time", label, len(lanes) * _PITCH, lanes, axis=axis, zone=zone, joins=joins)


def _middle_of(row: int) -> int:
    return row * _PITCH + _HEIGHT // 2


def _short_name(row: SlotRow) -> str:
    """The beginning and the end of the name, because the end has the number of the row."""
    name = row.name
    return name if len(name) <= _NAME_CHARS else f"{name[:5]}…{name[-6:]}"


def headline_of_fleet(content: FleetContent) -> str:
    """One line about all sets."""
    totals = totals_of_sets(content)
    first = next(iter(content.exits), None)
    worst = "" if first is None else f"; the worst: exit {first.exit_code}, {headline_of(first.outcome)}"
    return f"{content.place}: {totals.headline}{worst}"

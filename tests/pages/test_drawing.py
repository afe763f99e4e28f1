"""Bars, gaps, ticks and curves on an axis of time."""

from __future__ import annotations

from msgspec.structs import replace

from ralph.pages.content import Mark, MarkKind, Point, Stretch, StretchKind
from ralph.pages.page import axis_of, bars_of, curve_of, marks_of, ticks_of

MODEL, TOOL, OUTAGE, IDLE = StretchKind.MODEL, StretchKind.TOOL, StretchKind.OUTAGE, StretchKind.IDLE
BEGAN_S = 1_795_476_600.0  # 2026-11-23 23:30 UTC


def stretch(kind: StretchKind, began: float, ended: float, label: str = "x") -> Stretch:
    return Stretch(kind, BEGAN_S + began, BEGAN_S + ended, label)


def test_neighbours_that_are_too_narrow_share_a_place_by_their_times() -> None:
    axis = axis_of(BEGAN_S, BEGAN_S + 1000)
    narrow = [
        replace(
            stretch(MODEL if at % 2 else TOOL, at, at + (0.9 if at % 2 else 0.2), f"turn {at}"),
            entry=f"e{at}",
        )
        for at in range(10)
    ]
    bars = bars_of([*narrow, stretch(OUTAGE, 10, 500, "529")], axis, most=100)
    assert [(bar.kind, bar.x, bar.width, bar.top, bar.height, bar.entry) for bar in bars] == [
        ("model", 0.0, 0.99, 0.182, 0.818, "e0"),
        ("tool", 0.0, 0.99, 0.0, 0.182, "e0"),
        ("outage", 1.0, 49.0, 0.0, 1.0, None),
    ]
    assert bars[0].title == bars[1].title == "turn 0 to turn 9: tool 1.0s, model 4.5s"
    assert bars[2].title == "529: outage, 8m10s"


def test_marks_at_one_place_are_one_that_says_how_many() -> None:
    axis = axis_of(BEGAN_S, BEGAN_S + 10_000)
    marks = [Mark(MarkKind.RETRY, BEGAN_S + at, f"at {at}") for at in (5000, 1, 2, 3)]
    marks.append(Mark(MarkKind.COMMIT, BEGAN_S + 2, "c"))
    found = marks_of(marks, axis, 1_000)
    assert [(bar.x, bar.title) for bar in found["retry"]] == [(0.01, "at 1 and 2 more"), (50.0, "at 5000")]
    assert [bar.title for bar in found["commit"]] == ["c"]


def test_ticks_are_round_times_of_the_readers_day() -> None:
    axis = axis_of(BEGAN_S, BEGAN_S + 7200)
    assert [tick.at_s - BEGAN_S for tick in ticks_of(axis, 0)] == [0, 1800, 3600, 5400, 7200]
    quarter = [tick.at_s - BEGAN_S for tick in ticks_of(axis, 900.0)]
    assert quarter == [900, 2700, 4500, 6300]


def test_a_curve_keeps_its_highest_and_its_last_point() -> None:
    axis = axis_of(BEGAN_S, BEGAN_S + 1000)
    points = [Point(BEGAN_S + at, 5.0 if at == 501 else 1.0) for at in range(1000)]
    curve = curve_of(points, axis, most=50)
    assert curve is not None
    assert (curve.most, curve.line.count("H")) == (5.0, 50)
    assert "V2" in curve.line
    assert curve.line.endswith("V78.8")

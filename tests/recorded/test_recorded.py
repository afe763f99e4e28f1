"""Every scene must do what was recorded: output, exit codes, requests, journals, a loop's record, and files that
are left.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.recorded.kept_text import readable, text_of
from tests.recorded.play import play
from tests.recorded.record import KEPT
from tests.recorded.scenes import SCENES

_MOST_LINES = 120


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_ends_as_it_was_recorded(name) -> None:
    scene = SCENES[name]
    kept = (KEPT / f"{name}.txt").read_text()
    came = text_of(play(scene), shows_all=scene.shows_all)
    if came != kept:
        pytest.fail(difference(name, kept, came), pytrace=False)


def test_every_recording_has_its_scene() -> None:
    assert sorted(path.stem for path in KEPT.glob("*.txt")) == sorted(SCENES)
    assert sorted(path.name for path in Path(__file__).parent.glob("kept/*")) == sorted(
        f"{n}.txt" for n in SCENES
    )


def difference(name: str, kept: str, came: str) -> str:
    """The difference as text for people, with each object over several lines."""
    lines = list(
        difflib.unified_diff(
            readable(kept.splitlines()), readable(came.splitlines()), "recorded", "now", lineterm="", n=4
        )
    )
    if not lines:
        lines = ["a difference in white space alone"]
    more = len(lines) - _MOST_LINES
    if more > 0:
        lines = [*lines[:_MOST_LINES], f"... and {more} lines more"]
    advice = f"If it is meant: python -m tests.recorded.record {name}, and look at the difference."
    return "\n".join([f"{name} is not as it was recorded:", *lines, advice])

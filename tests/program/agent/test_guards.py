"""A model that repeats itself, as a user meets it (D6): its calls are refused, and then the run ends. A run that
makes progress continues. tests/agent/test_loop_guards.py tests which calls are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.program.model_answers import calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.mock_api import Playable, RecordedRequest, Turn


def for_ever(*round_: Turn) -> Callable[[RecordedRequest, int], Playable]:
    return lambda _request, index: round_[index % len(round_)]


def ran_lines(ralph) -> list[str]:
    path = ralph.cwd / "ran"
    return path.read_text().splitlines() if path.exists() else []


def test_d6_edits_that_change_nothing_are_ended_exits_4(ralph, serve) -> None:
    (ralph.cwd / "a.py").write_text("x = 1\n")
    edits = [("Write", {"file_path": path, "content": "x = 1\n"}) for path in ("a.py", "./a.py")]
    serve(calls(("Read", {"file_path": "a.py"})), *[calls(edits[n % 2]) for n in range(9)])
    ran = ralph("go", "--output-format", "json")
    assert (ran.code, ran.result["guard"]["name"]) == (4, "no_change")
    assert (ralph.cwd / "a.py").read_text() == "x = 1\n"

"""The variables by which the environment names the directory of ralph's state, for sessions and for what is protected."""

from __future__ import annotations

from pathlib import Path

from ralph.places.state import chosen_state_directory, named_state_directories, usual_state_directory
from ralph.sessions.places import places_to_read
from tests.rows import every_row


@every_row(
    ("environment", "chosen", "usual", "named"),
    [
        ({}, None, None, ()),
        ({"HOME": "/h"}, None, "/h/.local/state/ralph", ("/h/.local/state/ralph",)),
        ({"HOME": "h", "XDG_STATE_HOME": "", "RALPH_STATE_DIR": "x"}, None, None, ()),
        ({"HOME": "/h/", "XDG_STATE_HOME": "/x"}, None, "/x/ralph", ("/x/ralph", "/h/.local/state/ralph")),
        (
            {"HOME": "/h", "XDG_STATE_HOME": "x", "RALPH_STATE_DIR": "/r/"},
            "/r",
            "/h/.local/state/ralph",
            ("/r", "/h/.local/state/ralph"),
        ),
        ({"RALPH_STATE_DIR": "/", "XDG_STATE_HOME": "/"}, "/", "/ralph", ("/", "/ralph")),
    ],
)
def test_the_first_variable_that_is_set_counts(
    environment, chosen, usual, named, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the system's may hold sessions of the user
    assert (chosen_state_directory(environment), usual_state_directory(environment)) == (chosen, usual)
    assert tuple(named_state_directories(environment)) == named
    if named:
        assert places_to_read(environment)[0] == Path(named[0], "sessions")
    assert places_to_read(environment, Path("/named")) == (Path("/named"),)

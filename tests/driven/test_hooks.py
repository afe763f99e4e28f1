"""Tests which hooks of a driver are called."""

from __future__ import annotations

import pytest

from ralph.driven.setup import DEFAULT_S, hook_table
from tests.rows import every_row


def test_each_hook_is_called_once_with_its_own_time() -> None:
    table = hook_table(
        {
            "PreToolUse": [
                {"matcher": "Bash", "hookCallbackIds": ["h1", "h2"], "timeout": 5},
                {"hookCallbackIds": ["h2", "h3"]},
            ],
            "Stop": [{"matcher": "never", "hookCallbackIds": ["s"]}],
        }
    )
    assert table.matching("PreToolUse", lambda _: True) == {"h1": 5, "h2": 5, "h3": DEFAULT_S}
    assert [*table.matching("PreToolUse", lambda _: True)] == ["h1", "h2", "h3"], (
        "in the order of their entries"
    )
    others = table.matching("PreToolUse", lambda matcher: "Bash" not in matcher.names)
    assert others == {"h2": DEFAULT_S, "h3": DEFAULT_S}
    assert table.matching("Stop", lambda _: True) == {"s": DEFAULT_S}, "only hooks of tools have a matcher"
    assert table.matching("PostToolUse", lambda _: True) == {}


@every_row(
    ("hooks", "error"),
    [
        (
            {"BeforeEverything": [{"hookCallbackIds": ["h"]}]},
            "ralph has no hook BeforeEverything; it calls PreToolUse",
        ),
        ({"PermissionRequest": [{"hookCallbackIds": ["h"]}]}, "ralph has no hook PermissionRequest"),
        ({"PreToolUse": [{"matcher": "bash", "hookCallbackIds": ["h"]}]}, "did you mean Bash?"),
        ({"PreToolUse": [{"matcher": "/Bash/", "hookCallbackIds": ["h"]}]}, "it matches the name of no tool"),
        ({"PreToolUse": [{"matcher": "(", "hookCallbackIds": ["h"]}]}, "is not a regular expression"),
        ({"PreToolUse": [{"hookCallbackIds": []}]}, "hooks: Expected `array` of length >= 1"),
        ({"PreToolUse": [{"hookCallbackIds": ["h"], "timeout": 0}]}, "hooks: Expected `float` > 0"),
        ({"PreToolUse": [{"hookCallbackIds": ["h"], "onFailure": "x"}]}, "hooks: Invalid enum value 'x'"),
        (["what"], "hooks: Expected `object`, got `array`"),
    ],
)
def test_hooks_that_cannot_be_honoured_are_refused(hooks, error) -> None:
    with pytest.raises(ValueError, match="initialize") as caught:
        hook_table(hooks)
    assert error in str(caught.value)

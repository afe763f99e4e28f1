from __future__ import annotations

import pytest

from ralph.permissions.rule import Effect, RuleError, parse_rule
from ralph.run.permission_rules import judge_by
from ralph.values.answer import ToolCall


def test_only_an_absolute_home_counts(tmp_path) -> None:
    """By a relative one, a rule would forbid files of the working directory instead of those at home."""
    denied, call = (
        [parse_rule("Read(~/x)", Effect.DENY, "a test")],
        ToolCall("1", "Read", {"file_path": "/home/me/x"}),
    )
    assert judge_by(denied, None, str(tmp_path), "/home/me").judge(call).denied
    with pytest.raises(RuleError, match="there is no home directory"):
        judge_by(denied, None, str(tmp_path), "home/me")

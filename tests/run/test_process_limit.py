"""A limit on processes that the user asks for is kept, or nothing runs."""

from __future__ import annotations

import pytest

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.run import wiring
from ralph.settings.merge import SettingsError
from ralph.tools.tool_room import ToolSettings

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def test_a_limit_that_cannot_be_set_is_refused_with_its_reason(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(CommandSupervisor, "why_unlimited", lambda _supervisor: "no control groups here")
    with pytest.raises(
        SettingsError, match=r"sandbox\.max_processes = 7 cannot be kept: no control groups here"
    ):
        wiring._expect_process_limit(ToolSettings(tmp_path, ENVIRONMENT, most_processes=7))

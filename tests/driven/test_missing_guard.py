"""Tests which safeguard of a driver is missing, and for how long."""

from __future__ import annotations

from ralph.driven.setup import MissingGuard, after_initialize, after_refused_mode, after_set_mode
from ralph.values.controls import PermissionMode

HOOKS: dict[str, object] = {"agents": {"reviewer": {"prompt": "x"}}}


def test_a_guard_of_initialize_stays_missing_under_its_first_name() -> None:
    missing = after_initialize(MissingGuard(), HOOKS)
    assert missing.reason is not None
    assert 'asked for "agents"' in missing.reason
    for later in ({}, {"sandbox": True}):
        assert after_initialize(missing, later) == missing
    assert after_set_mode(missing) == missing


def test_a_refused_mode_is_missing_until_one_is_set() -> None:
    missing = after_refused_mode(MissingGuard(), "no such mode", PermissionMode.BYPASS)
    assert missing.reason is not None
    assert "no such mode" in missing.reason
    assert after_set_mode(missing) == MissingGuard()


def test_in_plan_nothing_tighter_can_be_missing() -> None:
    assert after_refused_mode(MissingGuard(), "no such mode", PermissionMode.PLAN) == MissingGuard()


def test_a_guard_of_initialize_outlasts_a_refused_mode() -> None:
    both = after_refused_mode(after_initialize(MissingGuard(), HOOKS), "no", PermissionMode.AUTO)
    assert after_set_mode(both) == after_initialize(MissingGuard(), HOOKS)

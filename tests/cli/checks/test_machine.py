from __future__ import annotations

import os
import subprocess
import sys

from ralph.cli.checks import machine
from ralph.cli.checks.checkout import look_at_git
from ralph.cli.checks.finding import Finding, Level
from ralph.machine.waiter import SystemClock
from ralph.sandbox.sandbox_settings import SandboxSettings


def found(subject: str) -> Finding:
    (finding,) = [
        finding
        for finding in machine.look_at_machine({}, "1.2.3", SandboxSettings())
        if finding.subject == subject
    ]
    return finding


def test_a_system_that_ralph_is_not_tested_on_is_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert found("system").level is Level.WARN
    assert "tested on Linux" in found("system").text


def test_a_push_that_is_not_possible_here_is_a_note_and_not_ok(tmp_path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "--quiet", tmp_path], env=environment, check=True)
    findings = look_at_git(environment, None, tmp_path, SystemClock(), tries_push=True)
    (push,) = [finding for finding in findings if finding.subject == "push"]
    assert (push.level, push.advice) == (Level.NOTE, None)

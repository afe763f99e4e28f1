from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from ralph.cli.checks import machine
from ralph.cli.checks.checkout import look_at_git
from ralph.cli.checks.finding import Finding, Level
from ralph.machine.waiter import SystemClock
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.rows import every_row


def found(subject: str) -> Finding:
    (finding,) = [
        finding
        for finding in machine.look_at_machine({}, "1.2.3", SandboxSettings())
        if finding.subject == subject
    ]
    return finding


@pytest.mark.parametrize("error", [OSError(errno.ENOSYS, "no such call"), OSError(errno.EPERM, "filtered")])
def test_without_the_kernels_help_the_other_way_of_confinement_is_named(monkeypatch, error: OSError) -> None:
    def refuse(*_: Any) -> int:
        raise error

    monkeypatch.setattr(machine, "open_by_kernel", refuse)
    assert found("file confinement").level is Level.OK
    assert "follows each path itself" in found("file confinement").text


def test_a_system_that_ralph_is_not_tested_on_is_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert found("system").level is Level.WARN
    assert "tested on Linux" in found("system").text


@every_row(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space on its disk, or "),
        (errno.EDQUOT, "remove files of yours there or raise your quota, or "),
        (errno.EROFS, "mount it for writing, or "),
        (errno.EACCES, "change its permissions, or "),
        (errno.EIO, ""),
    ],
)
def test_a_directory_that_cannot_be_written_to_has_the_remedy_that_fits(
    monkeypatch, tmp_path, number: int, remedy: str
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert machine.look_at_working_directory(tmp_path).advice == f"{remedy}name another one with --cd DIR"
    sessions = machine.look_at_sessions({"HOME": str(tmp_path)}, None)
    assert sessions.advice == f"{remedy}name another place with --session-dir DIR or RALPH_STATE_DIR"


def test_a_push_that_is_not_possible_here_is_a_note_and_not_ok(tmp_path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "--quiet", tmp_path], env=environment, check=True)
    findings = look_at_git(environment, None, tmp_path, SystemClock(), tries_push=True)
    (push,) = [finding for finding in findings if finding.subject == "push"]
    assert (push.level, push.advice) == (Level.NOTE, None)

"""`ralph doctor --sandbox`: the probe in the strongest sandbox of this machine, row by row, with a verdict."""

from __future__ import annotations

import platform
import sys

import pytest

from ralph.cli.checks import Level
from ralph.cli.checks.probe import _verdict
from ralph.sandbox import probe
from ralph.sandbox.box_plan import Means, box_level
from ralph.sandbox.landlock import Support
from ralph.sandbox.seccomp import MACHINES
from ralph.sandbox.self_test import ProbeResult

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
    pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this architecture"),
]
LEVEL = box_level(Means(Support(6), bwrap="bwrap", has_network_namespace=True), "off")


def test_every_row_is_shown_and_the_verdict_names_what_is_not_protected(ralph) -> None:
    secret = ralph.cwd.parent / "home" / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("the secret itself")
    (ralph.cwd / ".git").write_text(f"gitdir: {secret.parent}")
    shown = ralph("doctor", "--sandbox")
    assert shown.code == 0, shown.stdout + shown.stderr
    shown_of_home, _, verdict = shown.stdout.partition("Verdict\n")
    head = shown_of_home.partition("\n  of ")[0]
    assert head.startswith("Sandbox: ")
    verdicts = {
        line[13:].partition("  (")[0].strip(): line.split()[0]
        for line in head.splitlines()
        if line.startswith("    ")
    }
    assert {*verdicts} == {row.name for row in probe.ROWS}
    assert verdicts["read a secret by a hard link that is there"] == "allowed"
    assert "keeps its promises" in verdict
    assert "not protected, " in verdict
    assert f"commands may not write the git directory {secret.parent} (it does not name" in verdict
    assert "read a secret by a hard link that is there" in verdict
    assert "the secret itself" not in shown.stdout + shown.stderr
    assert "Settings" not in shown.stdout


def test_the_network_full_is_not_beside_a_list(ralph_here) -> None:
    ran = ralph_here("doctor", "--sandbox", "--net", "full", "--allow-host", "a.example", code=2)
    assert "leave out one of them" in ran.stderr


def result(verdict: str, *, is_promised: bool) -> ProbeResult:
    return ProbeResult("change a file outside", "write", verdict, "", is_promised)


def test_a_broken_promise_is_a_failure_and_names_the_row() -> None:
    finding, *_ = _verdict(LEVEL, [result(probe.ALLOWED, is_promised=True)])
    assert finding.level is Level.FAIL
    assert "change a file outside" in finding.text
    first, *_ = _verdict(LEVEL, [result(probe.DENIED, is_promised=True)])
    assert first.level is Level.OK


def test_the_findings_name_each_protection_that_is_not_in_force() -> None:
    level = box_level(Means(Support(6), why_no_namespaces="no bubblewrap"), "off")
    text = " ".join(finding.line for finding in _verdict(level, [result(probe.ALLOWED, is_promised=False)]))
    assert "not protected, 1 attempts allowed: change a file outside" in text
    for name in level.missing():
        assert name in text

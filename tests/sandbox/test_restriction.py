"""Tests the restriction between a command's fork and its exec, on this kernel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.machine import restriction
from ralph.sandbox.seccomp import ALLOW, Assembler
from tests.patience import TEST_S
from tests.sandbox.restricted import run_restricted

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
# With root's user id and without capabilities, as in many containers.
WITHOUT_CAPABILITIES = ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all")
SHOW = "print(open('/proc/self/status').read()); import resource; print(resource.getrlimit(4))"


def status_of(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def answering(value: int) -> bytes:
    lines = Assembler()
    lines.answer(value)
    return lines.packed()


def test_a_restricted_process_has_no_capability_and_gets_none() -> None:
    ran = run_restricted(SHOW, program=answering(ALLOW))
    status = status_of(ran.stdout)
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}, ran.stderr
    before = status_of(Path("/proc/self/status").read_text())
    if int(before["CapEff"], 16) >> 8 & 1:  # CAP_SETPCAP
        assert int(status["CapBnd"], 16) == 0
    assert ((status["NoNewPrivs"], status["Seccomp"]), resource.RLIMIT_CORE) == (("1", "2"), 4)
    assert "(0, 0)" in ran.stdout


def test_root_without_capabilities_restricts_itself_too() -> None:
    ran = run_restricted(SHOW, program=answering(ALLOW), before=WITHOUT_CAPABILITIES if may_setpriv() else ())
    assert status_of(ran.stdout)["NoNewPrivs"] == "1", ran.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_capabilities_go_also_where_the_bounding_set_must_stay() -> None:
    ran = run_restricted(SHOW, program=answering(ALLOW), before=("setpriv", "--bounding-set=-setpcap"))
    status = status_of(ran.stdout)
    assert int(status["CapBnd"], 16) != 0, ran.stderr
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff")} == {0}


def test_a_step_that_fails_is_named_and_nothing_is_executed() -> None:
    no_ruleset = os.open("/", os.O_RDONLY)
    ran = run_restricted("print('executed')", ruleset=no_ruleset)
    os.close(no_ruleset)
    assert "'landlock'" in ran.stderr
    assert "executed" not in ran.stdout
    ran = run_restricted("print('executed')", program=b"\xff" * 8)
    assert "'seccomp'" in ran.stderr
    assert "executed" not in ran.stdout


def test_it_is_loaded_without_a_library() -> None:
    """A launcher's interpreter has no site-packages, and each import would delay its command."""
    code = (
        f"import sys; sys.path.append({str(Path(restriction.__file__).parent)!r}); import restriction; "
        "restriction.prepare(); print(*sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, timeout=TEST_S
    )
    assert not {"ctypes", "msgspec", "typing", "struct", "re"} & set(ran.stdout.split())


def may_setpriv() -> bool:
    ran = subprocess.run([*WITHOUT_CAPABILITIES, "true"], capture_output=True, check=False, timeout=TEST_S)
    return ran.returncode == 0

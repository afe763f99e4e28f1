"""Runs the tests of missing permissions without root's capabilities, if the suite runs as root. With these
capabilities they could not fail.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import may_pass_over_permissions
from tests.patience import TEST_S

TESTS = Path(__file__).parent
MARK = "@pytest.mark." + "ordinary_user"


@pytest.mark.skipif(not may_pass_over_permissions(), reason="these tests run by themselves")
def test_missing_permissions_are_met_without_roots_rights(tmp_path) -> None:
    """The user stays root, because the interpreter may be readable by root only. The capabilities are dropped, so
    that permissions hold.
    """
    files = [str(path) for path in TESTS.rglob("test_*.py") if MARK in path.read_text()]
    assert len(files) >= 7
    setpriv = shutil.which("setpriv")
    assert setpriv is not None, "it is part of util-linux"
    ran = subprocess.run(
        [
            *(setpriv, "--bounding-set=-all", "--inh-caps=-all"),
            *(sys.executable, "-m", "pytest", "-m", "ordinary_user", "-p", "no:cacheprovider", "-rs"),
            *("--basetemp", str(tmp_path / "own"), *files),
        ],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout, ran.stdout

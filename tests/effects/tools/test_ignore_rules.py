"""A rules file that is none. What the rules of good ones mean is in `test_search.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WALK = "from ralph.effects.tools.ignore_rules import walk; print(*walk(None, print))"


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "directory", "link to nothing"])
def test_what_is_no_file_has_no_rules_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    rules = tmp_path / "in/.gitignore"
    rules.parent.mkdir()
    (rules.parent / "a.py").touch()
    match kind:
        case "fifo":
            os.mkfifo(rules)
        case "link to a fifo":
            os.mkfifo(tmp_path / "fifo")
            rules.symlink_to("../fifo")
        case "directory":
            rules.mkdir()
        case "link to nothing":
            rules.symlink_to("no/such")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", WALK]  # a process, as one that waits could not be stopped here
    walked = subprocess.check_output(command, cwd=rules.parent, env=environment, timeout=60)
    assert walked == b"a.py\n"

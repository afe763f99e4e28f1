"""Many commands must leave nothing behind in the process that ran them (P16)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.children import children


def test_p16_thirty_commands_leave_no_descriptor_no_thread_and_no_child(tools: Any) -> None:
    tools.ok("Bash", command="true")
    before = len(list(Path("/dev/fd").iterdir())), threading.active_count(), children()
    for number in range(30):
        assert tools.ok("Bash", command=f"echo {number} & echo {number}; wait").count(str(number)) == 2
    assert (len(list(Path("/dev/fd").iterdir())), threading.active_count(), children()) == before

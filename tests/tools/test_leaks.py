"""Many commands must leave nothing behind in the process that ran them (P16)."""

from __future__ import annotations

import threading
from typing import Any

from ralph.machine.starting import IDLE_THREAD
from tests.processes.children import children
from tests.processes.descriptors import open_descriptors, wait_until_closed


def busy_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name != IDLE_THREAD])


def test_p16_thirty_commands_leave_no_descriptor_no_thread_and_no_child(tools: Any) -> None:
    tools.ok("Bash", command="true")
    descriptors, threads, before = open_descriptors(), busy_threads(), children()
    for number in range(30):
        assert tools.ok("Bash", command=f"echo {number} & echo {number}; wait").count(str(number)) == 2
    wait_until_closed(descriptors)
    assert busy_threads() <= threads, "one of another test may have ended meanwhile"
    assert children() - before == set()

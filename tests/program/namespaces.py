"""Finds out whether this machine can make namespaces, and starts processes that cannot."""

from __future__ import annotations

import errno
import os
import platform
from typing import Any

import pytest

from ralph.machine import restriction
from ralph.machine.own_programs import ProgramSearch
from ralph.sandbox.detection import find_means
from ralph.sandbox.seccomp import ALLOW, MACHINES, NUMBER, Assembler, argument, refuse

MEANS = find_means(ProgramSearch(os.environ.get("PATH", "")))
needs_namespaces = pytest.mark.skipif(not MEANS.has_own_network, reason="no namespaces can be made here")
_NEW_NAMESPACES = 0x7E02_0000  # CLONE_NEW*


def forbidding_namespaces() -> dict[str, Any]:
    """Arguments for `subprocess.Popen` that start a process as in a container: without capabilities, and with a filter
    that refuses new namespaces.
    """
    numbers = MACHINES[platform.machine()].numbers
    lines = Assembler()
    lines.load(NUMBER)
    lines.go_if_equal(numbers["clone3"], "unknown")
    for name in ("clone", "unshare"):
        lines.go_if_equal(numbers[name], "flags")
    lines.answer(ALLOW)
    lines.label("flags")
    lines.load(argument(0))
    lines.go_if_any_bit(_NEW_NAMESPACES, "refused")
    lines.answer(ALLOW)
    lines.label("refused")
    lines.answer(refuse(errno.EPERM))
    lines.label("unknown")
    lines.answer(refuse(errno.ENOSYS))
    program = lines.packed()
    restriction.prepare()
    return {"preexec_fn": lambda: restriction.restrict(restriction.NO_RULESET, program)}

"""Runs Python code in a process that is restricted like a command's process: after the fork and before the exec."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ralph.machine import restriction
from tests.patience import TEST_S

FOLDER = str(Path(restriction.__file__).parent)
# Loads the module as a supervisor does: from the directory that contains it, without the rest of ralph.
START = """
import os, sys
sys.path.append(sys.argv[1])
import restriction
restriction.prepare()
if os.fork() == 0:
    restriction.restrict(int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", sys.argv[4], *sys.argv[5:]])
_, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status) % 256)
"""
# Names an attempt's errno, so that tables can be compared.
_TRYING = """
import errno, json, os, signal, socket, sys, ctypes, fcntl
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(*[ctypes.c_long(one) for one in (number, *arguments)])
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def tried(attempt):
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "done"
"""


def run_restricted(
    code: str,
    *arguments: str,
    ruleset: int = restriction.NO_RULESET,
    program: bytes = restriction.NO_FILTER,
    before: tuple[str, ...] = (),
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a restricted process. `before` is a command that starts the process, such as setpriv."""
    return subprocess.run(
        [
            *(*before, python, "-I", "-S", "-c", START),
            *(FOLDER, str(ruleset), program.hex(), code, *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
        pass_fds=() if ruleset == restriction.NO_RULESET else (ruleset,),
        cwd="/",
    )


def verdicts(
    attempts: dict[str, str],
    *,
    ruleset: int = restriction.NO_RULESET,
    program: bytes = restriction.NO_FILTER,
    before: tuple[str, ...] = (),
    setup: str = "",
) -> dict[str, str]:
    """Tries Python expressions in a restricted process. Each result is "done" or the name of an errno."""
    tries = "".join(f"    {name!r}: tried(lambda: {attempt}),\n" for name, attempt in attempts.items())
    code = f"{_TRYING}{setup}\nprint(json.dumps({{\n{tries}}}))"
    ran = run_restricted(code, ruleset=ruleset, program=program, before=before)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: Any = json.loads(ran.stdout)
    assert isinstance(found, dict)
    return found

"""Simulates containers that forbid what their kernel supports, by real seccomp filters. Each must get one of the
named levels, and commands must run: for root, for root without capabilities, and for an ordinary user.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from ralph.sandbox import landlock
from ralph.sandbox.seccomp import ALLOW, KILL_PROCESS, MACHINES, NUMBER, Assembler, argument, refuse
from tests.patience import TEST_S
from tests.rows import every_row
from tests.sandbox.test_self_test import MEANS, NOBODY, python_for_others

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    platform.machine() not in MACHINES or sys.platform != "linux", reason="no filter for this architecture"
)
NUMBERS = MACHINES.get(platform.machine(), MACHINES["x86_64"]).numbers
PRCTL, SECCOMP, CAPSET = {"x86_64": (157, 317, 126), "aarch64": (167, 277, 91)}.get(
    platform.machine(), (157, 317, 126)
)
CREATE_RULESET, RESTRICT_SELF = 444, 446
NO_NEW_PRIVS, SET_SECCOMP = 38, 22
LEVEL = "landlock" if landlock.support().abi else "none"
# Runs two commands as a run does, in each container by a process that has restricted itself to it. The first command
# writes outside the sandbox.
RUN = """
import json, os, sys; sys.path += sys.argv[2:]; sys.dont_write_bytecode = True
from pathlib import Path
from ralph.machine import restriction
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.sandbox.planning import plan_box
from ralph.sandbox.command_box import CommandBox
from ralph.places.gather import gather_places
from ralph.sandbox.sandbox_settings import SandboxSettings

def run(place):
    work, outside = f"{place}/work", f"{place}/outside"
    environment = {"PATH": os.environ["PATH"], "HOME": place}
    os.chdir(work)
    plan = plan_box(SandboxSettings(), environment, (Path(work),))
    box, confinement = None, None
    if plan.is_confined:
        box = CommandBox(plan, (work,), environment, lambda: gather_places([work], environment))
        confinement = box.confinement
    supervisor = CommandSupervisor(environment, confinement=confinement)
    said = []
    for command in (f"echo x > {outside}/x", "echo ran"):
        started = supervisor.start(["/bin/sh", "-c", command], cwd=Path(work), environment=environment, grace_s=1)
        started.wait_for_end()
        said.append(os.read(started.output_descriptor, 10_000).decode())
    supervisor.close()
    if box is not None:
        box.close()
    missing = plan.level.missing()
    return plan.level.name, missing, said, os.path.exists(f"{outside}/x")

restriction.prepare()
for number, program in enumerate(json.load(sys.stdin)):
    if os.fork() == 0:
        place = f"{sys.argv[1]}/{number}"
        for name in ("work", "outside"):
            os.makedirs(f"{place}/{name}")
        restriction.drop_capabilities()  # before a filter that may refuse it
        restriction.restrict_ahead(restriction.NO_RULESET, bytes.fromhex(program))
        print(json.dumps(run(place)), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"the process in container {number} failed")
"""


def container(
    *calls: int, options: tuple[int, ...] = (), answer: int, allows_namespaces: bool = False
) -> bytes:
    """A filter that answers these calls, and these options of prctl(2), with `answer`. As in most containers, it also
    refuses new namespaces, unless `allows_namespaces` is True.
    """
    lines = Assembler()
    lines.load(NUMBER)
    if not allows_namespaces:
        lines.go_if_equal(NUMBERS["clone3"], "unknown")
        for name in ("clone", "unshare"):
            lines.go_if_equal(NUMBERS[name], "namespaces")
    for number in calls:
        lines.go_if_equal(number, "refused")
    lines.go_if_equal(PRCTL, "options")
    lines.answer(ALLOW)
    lines.label("options")
    lines.load(argument(0))
    for option in options:
        lines.go_if_equal(option, "refused")
    lines.answer(ALLOW)
    lines.label("refused")
    lines.answer(answer)
    if not allows_namespaces:
        lines.label("namespaces")
        lines.load(argument(0))
        lines.go_if_any_bit(0x7E02_0000, "denied")  # CLONE_NEW*
        lines.answer(ALLOW)
        lines.label("denied")
        lines.answer(refuse(errno.EPERM))
        lines.label("unknown")
        lines.answer(refuse(errno.ENOSYS))
    return lines.packed()


def users() -> dict[str, tuple[str, ...]]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return {"user": ()}
    return {
        "root": (),
        "root without capabilities": ("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
        "user": NOBODY,
    }


def ran(place: Path, programs: Sequence[bytes], before: tuple[str, ...]) -> list[Any]:
    """Runs the commands in each container. Returns its level, what it lacks, what the commands said, and whether the
    first one wrote.
    """
    place.chmod(0o777)
    python = python_for_others() if before == NOBODY else sys.executable
    if python is None or not os.access(__file__, os.R_OK):
        pytest.skip("other users may not run this Python")
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    done = subprocess.run(
        [*before, python, "-I", "-S", "-c", RUN, str(place), *paths],
        input=json.dumps([program.hex() for program in programs]),
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


REFUSED = refuse(errno.EPERM)
CONTAINERS: dict[str, tuple[bytes, str, str]] = {
    name: (program, level, says)
    for name, program, level, says in (
        ("nothing is forbidden", container(answer=REFUSED), LEVEL, ""),
        ("landlock answers", container(RESTRICT_SELF, answer=REFUSED), "none", "Landlock cannot be applied"),
        ("landlock kills", container(RESTRICT_SELF, answer=KILL_PROCESS), "none", "signal 31 ended the process"),
        ("asking kills", container(CREATE_RULESET, answer=KILL_PROCESS), "none", "signal 31 ended the process"),
        ("no landlock", container(CREATE_RULESET, answer=refuse(errno.ENOSYS)), "none", "has no Landlock"),
        ("forbidden landlock", container(CREATE_RULESET, answer=REFUSED), "none", "a seccomp filter of the container forbids Landlock"),
        ("switched off", container(CREATE_RULESET, answer=refuse(errno.EOPNOTSUPP)), "none", "switched off"),
        ("gVisor's seccomp", container(SECCOMP, options=(SET_SECCOMP,), answer=refuse(errno.EINVAL)), LEVEL, "takes no seccomp filter"),
        ("seccomp answers", container(options=(SET_SECCOMP,), answer=REFUSED), LEVEL, "filter cannot be applied"),
        ("seccomp kills", container(options=(SET_SECCOMP,), answer=KILL_PROCESS), LEVEL, "signal 31 ended the process"),
        ("no_new_privs", container(options=(NO_NEW_PRIVS,), answer=REFUSED), "none", "privileges cannot be given up: no_new_privs"),
        ("capset", container(CAPSET, answer=REFUSED), "none", "privileges cannot be given up: capabilities"),
        ("both", container(RESTRICT_SELF, SECCOMP, options=(SET_SECCOMP,), answer=REFUSED), "none", "Landlock cannot be applied"),
    )
}  # fmt: skip
"""For each container its filter, the level that must be named, and a part of what must be said about it."""
DEPENDS_ON_THE_USER = ("nothing is forbidden", "landlock kills", "seccomp answers", "no_new_privs", "capset")
"""The containers that are tried for all users: there, privileges are given up, or a process ends."""


@every_row("user", users())
def test_commands_run_at_the_level_that_is_named(user) -> None:
    rows = CONTAINERS if user == "root" or len(users()) == 1 else DEPENDS_ON_THE_USER
    with TemporaryDirectory() as place:  # pytest's own is closed to other users
        came = ran(Path(place), [CONTAINERS[row][0] for row in rows], users()[user])
    for row, (name, missing, said, is_written) in zip(rows, came, strict=True):
        _, level, says = CONTAINERS[row]
        assert (name, said[1]) == (level, "ran\n"), row
        assert any(says in why for why in missing.values()), (row, missing)
        assert is_written == ("write" in missing), row


@pytest.mark.skipif(not MEANS.has_own_network, reason="no namespaces can be made here")
@pytest.mark.skipif(users().get("user") != NOBODY, reason="only root can become somebody else")
def test_an_ordinary_user_has_namespaces_where_nothing_forbids_them() -> None:
    """The network stays the machine's own, which only root could enter again."""
    with TemporaryDirectory(dir="/var/tmp") as place:
        program = container(answer=REFUSED, allows_namespaces=True)
        [(name, missing, said, is_written)] = ran(Path(place), [program], NOBODY)
    assert (name, missing, said[1], is_written) == ("namespaces", {}, "ran\n", False)

"""Simulates containers that forbid what their kernel supports, by real seccomp filters. Each must get one of the
named levels, and commands must run: for root, for root without capabilities, and for an ordinary user.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.bpf import ALLOW, KILL_PROCESS, NUMBER, Assembler, argument, refuse
from ralph.sandbox.kernel.seccomp import MACHINES
from tests.rows import every_row
from tests.sandbox.restricted import run_restricted
from tests.sandbox.test_self_test import MEANS, NOBODY, python_for_others

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
# Runs two commands as a run does. The first writes outside of the sandbox.
RUN = """
import json, os, sys; sys.path += sys.argv[2:]; sys.dont_write_bytecode = True
from pathlib import Path
from tempfile import TemporaryDirectory
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.sandbox.box_plan import plan_box
from ralph.sandbox.command_box import BoxPlaces, CommandBox
from ralph.sandbox.protected_places import gather_paths
from ralph.sandbox.sandbox_settings import SandboxSettings
place = sys.argv[1]
work, outside = f"{place}/work", f"{place}/outside"
environment = {"PATH": os.environ["PATH"], "HOME": place}
os.chdir(work)
plan = plan_box(SandboxSettings(), environment, (Path(work),), Path(work))
box, confinement = None, None
if plan.means is not None:
    box = CommandBox(plan, BoxPlaces((work,), environment, lambda: gather_paths([work], environment)))
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
missing = {one.name: one.why_not for one in plan.level.missing()}
print(json.dumps([plan.level.name, missing, said, os.path.exists(f"{outside}/x")]))
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


def ran(place: Path, program: bytes, before: tuple[str, ...]) -> Any:
    for name in ("work", "outside"):
        (place / name).mkdir(parents=True)
    for directory in (place, place / "work", place / "outside"):
        directory.chmod(0o777)
    python = python_for_others() if before == NOBODY else sys.executable
    if python is None or not os.access(__file__, os.R_OK):
        pytest.skip("other users may not run this Python")
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    done = run_restricted(RUN, str(place), *paths, program=program, before=before, python=python)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


REFUSED = refuse(errno.EPERM)


@every_row(
    ("program", "level", "says"),
    [
        pytest.param(container(answer=REFUSED), LEVEL, "", id="nothing is forbidden"),
        pytest.param(container(RESTRICT_SELF, answer=REFUSED), "none", "Landlock cannot be applied", id="landlock answers"),
        pytest.param(container(RESTRICT_SELF, answer=KILL_PROCESS), "none", "signal 31 ended the process", id="landlock kills"),
        pytest.param(container(CREATE_RULESET, answer=KILL_PROCESS), "none", "signal 31 ended the process", id="asking kills"),
        pytest.param(container(CREATE_RULESET, answer=refuse(errno.ENOSYS)), "none", "has no Landlock", id="no landlock"),
        pytest.param(container(SECCOMP, options=(SET_SECCOMP,), answer=refuse(errno.EINVAL)), LEVEL, "takes no seccomp filter", id="gVisor's seccomp"),
        pytest.param(container(options=(SET_SECCOMP,), answer=REFUSED), LEVEL, "filter cannot be applied", id="seccomp answers"),
        pytest.param(container(options=(SET_SECCOMP,), answer=KILL_PROCESS), LEVEL, "signal 31 ended the process", id="seccomp kills"),
        pytest.param(container(options=(NO_NEW_PRIVS,), answer=REFUSED), "none", "privileges cannot be given up: no_new_privs", id="no_new_privs"),
        pytest.param(container(CAPSET, answer=REFUSED), "none", "privileges cannot be given up: capabilities", id="capset"),
        pytest.param(container(RESTRICT_SELF, SECCOMP, options=(SET_SECCOMP,), answer=REFUSED), "none", "Landlock cannot be applied", id="both"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("user", users())
def test_commands_run_at_the_level_that_is_named(user, program, level, says) -> None:
    with TemporaryDirectory() as place:  # pytest's own is closed to other users
        name, missing, said, is_written = ran(Path(place), program, users()[user])
    assert (name, said[1]) == (level, "ran\n")
    assert any(says in why for why in missing.values()), missing
    assert is_written == ("write" in missing)


@pytest.mark.skipif(not MEANS.has_own_network, reason="no namespaces can be made here")
@pytest.mark.skipif(users().get("user") != NOBODY, reason="only root can become somebody else")
def test_an_ordinary_user_has_namespaces_where_nothing_forbids_them() -> None:
    """The network stays the machine's own, which only root could enter again."""
    with TemporaryDirectory(dir="/var/tmp") as place:
        program = container(answer=REFUSED, allows_namespaces=True)
        name, missing, said, is_written = ran(Path(place), program, NOBODY)
    assert (name, missing, said[1], is_written) == ("namespaces", {}, "ran\n", False)

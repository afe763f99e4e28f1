"""Tests which device nodes of GPUs are found, and that commands use the devices that they are given, and no others, at each
level. Root alone can make the stand-in nodes. They have the number of `/dev/null`, and lie on a file system that allows devices.
"""

from __future__ import annotations

import os
import platform
import socket
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from ralph.cli.checks.machine import look_at_sandbox
from ralph.machine import restriction
from ralph.sandbox import planning
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.detection import gpu_devices
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.sandbox.seccomp import make_filter
from tests.rows import every_row
from tests.sandbox.boxes import LEVELS, box_of, means_of, run_in, shell_in
from tests.sandbox.restricted import FOLDER, START, run_restricted
from tests.sandbox.test_box_plan import FULL, NOTHING, planned

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")

NODES = """
nvidia0 nvidia1 nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset kfd dri/card0 dri/renderD128 dri/renderD129 sda
nvidia-caps/nvidia-cap1 nvidia-caps/nvidia-cap2 nvidia-caps/nvidia-cap21 nvidia-caps/nvidia-cap22
"""
NVIDIA = ("nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl")
INSTANCES = ("nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22")
TELLS = {
    # The minor 1 is the right to divide the GPUs anew, 2 to watch them.
    "proc/driver/nvidia/capabilities/mig/config": "DeviceFileMinor: 1\nDeviceFileMode: 256\n",
    "proc/driver/nvidia/capabilities/mig/monitor": "DeviceFileMinor: 2\nDeviceFileMode: 292\n",
    "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": "DeviceFileMinor: 21\nDeviceFileMode: 292\n",
    "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access": "DeviceFileMinor: 22\nDeviceFileMode: 292\n",
    "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 8\ndrm_render_minor 0\n",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 304\ndrm_render_minor 129\n",
}


def made(top: Path, nodes: str = NODES) -> Path:
    for name in nodes.split():
        path = top / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    for name, text in TELLS.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


def names(wanted: str, top: Path) -> tuple[str, ...]:
    return tuple(path.removeprefix(f"{top}/dev/") for path in gpu_devices(wanted, str(top)))


@every_row(
    "wanted, nodes, given",
    [
        ("auto", NODES, (*NVIDIA, *INSTANCES, "kfd", "dri/renderD129")),
        ("all", NODES, (*NVIDIA, *INSTANCES, "kfd", "dri/renderD129", "dri/renderD128")),
        ("off", NODES, ()),
        ("auto", "nvidia0 nvidiactl", ("nvidia0", "nvidiactl")),
        # A screen's GPU of another maker computes for none who has not asked.
        ("auto", "dri/card0 dri/renderD128", ()),
        ("all", "dri/card0 dri/renderD128", ("dri/renderD128",)),
        ("all", "sda null", ()),
    ],
)
def test_the_nodes_are_those_that_the_setting_names(tmp_path_factory, wanted, nodes, given) -> None:
    assert names(wanted, made(tmp_path_factory.mktemp("top"), nodes)) == given


def test_what_is_no_device_is_not_given(tmp_path) -> None:
    top = made(tmp_path, "sda")
    (top / "dev/nvidia0").symlink_to("sda")
    (top / "dev/nvidiactl").write_text("")
    (top / "dev/nvidia1").mkdir()
    assert (names("all", top), names("all", tmp_path / "none")) == ((), ())


@pytest.fixture
def nodes() -> Iterator[Path]:
    with TemporaryDirectory(dir="/var/tmp") as top:
        for name in ("dev/nvidia0", "dev/nvidiactl", "dev/dri/renderD128", "dev/other", "work/x"):
            path = Path(top, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        yield Path(top)


def may_use(level: str, top: Path, node: str, **plan: object) -> bool:
    """Whether a command can open a node to read and write."""
    with box_of(means_of(level), [top / "work"], {"HOME": str(top)}, **plan) as box:
        return shell_in(box, top / "work", f"[ -c {node} ] && exec 3<>{node}").returncode == 0


@pytest.mark.parametrize("level", LEVELS)
def test_gpus_and_written_devices_work_and_no_others(level, nodes) -> None:
    dev = f"{nodes}/dev"
    given = gpu_devices("auto", str(nodes))
    assert given == (f"{dev}/nvidia0", f"{dev}/nvidiactl")
    for name in ("nvidia0", "nvidiactl"):
        assert may_use(level, nodes, f"{dev}/{name}", gpus=given), name
        assert not may_use(level, nodes, f"{dev}/{name}"), name
    for name in ("other", "dri/renderD128"):
        assert not may_use(level, nodes, f"{dev}/{name}", gpus=given), name
    assert may_use(level, nodes, f"{dev}/other", write=(f"{dev}/other",))


@pytest.mark.parametrize("level", LEVELS)
def test_a_device_of_this_machine_is_given_by_the_settings_alone(level, nodes) -> None:
    """`/dev` is the box's own with namespaces, so that a node of it must be mounted."""
    node = next(
        (one for one in ("/dev/loop-control", "/dev/fuse", "/dev/hwrng") if os.access(one, os.W_OK)), ""
    )
    if not node:
        pytest.skip("this machine has none that can be opened")
    assert not may_use(level, nodes, node)
    assert may_use(level, nodes, node, write=(node,))
    assert may_use(level, nodes, node, gpus=(node,))


def test_terminals_and_shared_memory_stay_the_commands_own(nodes) -> None:
    """A terminal of the user's is not mounted into the box's own file system, where it could not be."""
    ours, theirs = os.openpty()
    try:
        for place in ("/dev/pts", os.ttyname(theirs), "/dev/shm"):
            assert may_use("namespaces", nodes, "/dev/null", write=(place,)), place
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (SandboxSettings(), 2),
        (SandboxSettings(gpu="all"), 3),
        (SandboxSettings(gpu="off"), 0),
        (SandboxSettings(mode="strict"), 0),
        (SandboxSettings(mode="strict", gpu="auto"), 2),
        (SandboxSettings(mode="off"), 0),
    ],
)
def test_strict_gives_gpus_only_to_those_who_ask(monkeypatch, nodes, wanted, count) -> None:
    monkeypatch.setattr(planning, "gpu_devices", lambda wanted: gpu_devices(wanted, str(nodes)))
    assert len(planned(monkeypatch, FULL, wanted).gpus) == count
    if wanted.mode != "strict":
        assert not planned(monkeypatch, NOTHING, wanted).gpus


def test_doctor_names_the_gpus_of_commands(monkeypatch, nodes) -> None:
    monkeypatch.setattr(planning, "gpu_devices", lambda wanted: gpu_devices(wanted, str(nodes)))
    for wanted, said in (
        ("auto", [f"commands may use {nodes}/dev/nvidia0, {nodes}/dev/nvidiactl"]),
        ("off", []),
    ):
        found = look_at_sandbox(SandboxSettings(gpu=wanted), {"PATH": os.environ["PATH"]}, nodes)
        assert [one.text for one in found if one.subject == "gpu"] == said


def test_gpus_cannot_be_refused_without_a_sandbox(monkeypatch) -> None:
    with pytest.raises(CannotConfineError, match=r"sandbox\.gpu cannot be kept with sandbox\.mode = off"):
        planned(monkeypatch, FULL, SandboxSettings(mode="off", gpu="off"))


# As cuInit does it (driver 580), and what must not be possible with such a socket. Prints the error of each line, or ok.
SEQUENCED = """
import errno, os, socket, sys, threading
KIND = socket.SOCK_SEQPACKET
def tried(name, attempt):
    try:
        attempt()
        print(name, 'ok')
    except OSError as error:
        print(name, errno.errorcode[error.errno])
one = socket.socket(socket.AF_UNIX, KIND | socket.SOCK_CLOEXEC)
one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
tried('bind', lambda: one.bind('\\0cuda-uvmfd-%d' % os.getpid()))
tried('listen', lambda: one.listen(16))
one.setblocking(False)
tried('accept', one.accept)
for name, place in (('path', sys.argv[1]), ('abstract', '\\0' + sys.argv[2])):
    tried('connect ' + name, lambda: one.connect(place))
    other = socket.socket(socket.AF_UNIX, KIND)
    tried('connect another ' + name, lambda: other.connect(place))
    other.setblocking(False)
    tried('send ' + name, lambda: other.sendto(b'x', place))
for family, kind in ((socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_UNIX, socket.SOCK_DGRAM)):
    tried('socket %d' % kind, lambda: socket.socket(family, kind))
tcp = socket.socket()
tcp.bind(('127.0.0.1', 0))
tried('tcp listen', tcp.listen)
tried('tcp connect', lambda: socket.create_connection(tcp.getsockname()))
tried('many', lambda: [socket.socket(socket.AF_UNIX, KIND).close() for _ in range(3000)])
sys.stdout.flush()
child = os.fork()
if not child:
    tried('child', lambda: socket.socket(socket.AF_UNIX, KIND).bind('\\0child'))
    sys.stdout.flush()
    os._exit(0)
print('status', os.waitpid(-1, 0)[1])
try:
    print('unknown child', os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print('no other child')
"""
TRIED = """
bind ok
listen ok
accept EINVAL
connect path EISCONN
connect another path EISCONN
send path ok
connect abstract EISCONN
connect another abstract EISCONN
send abstract ok
socket 1 EACCES
socket 2 EACCES
tcp listen ok
tcp connect ok
many ok
child ok
status 0
no other child
"""


@pytest.mark.skipif(LEVELS["landlock"].landlock.abi == 0, reason="this kernel has no Landlock")
@pytest.mark.skipif(
    LEVELS["landlock"].landlock.has_socket_paths, reason="Landlock judges all Unix sockets here"
)
def test_without_namespaces_the_socket_of_cuinit_can_be_bound_and_reaches_nobody(nodes) -> None:
    work, name = str(nodes / "work"), f"ralph-test-{os.getpid()}"
    kind = socket.SOCK_SEQPACKET
    with socket.socket(socket.AF_UNIX, kind) as outside, socket.socket(socket.AF_UNIX, kind) as abstract:
        outside.bind(f"{nodes}/outside")
        abstract.bind(f"\0{name}")
        for one in (outside, abstract):
            one.listen()
            one.setblocking(False)
        gpus = gpu_devices("auto", str(nodes))
        with box_of(LEVELS["landlock"], [work], {"HOME": str(nodes)}, gpus=gpus) as box:
            ran = run_in(box, work, SEQUENCED, f"{nodes}/outside", name)
        for one in (outside, abstract):
            with pytest.raises(BlockingIOError):
                one.accept()
    assert ran.stdout.splitlines() == TRIED.split("\n")[1:-1], ran.stderr


INSIDE = """
import socket
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
except PermissionError:
    print('refused')
socket.socket().listen()
print('listens')
"""


@pytest.mark.skipif(not LEVELS["landlock"].landlock.abi, reason="there is no filter that asks on this system")
def test_a_sandbox_in_a_sandbox_asks_nobody_and_listens_all_the_same() -> None:
    program = make_filter(platform.machine(), internet="all", unix_sockets=False, sequenced=True)
    assert program is not None
    inside = (FOLDER, str(restriction.NO_RULESET), program.hex(), INSIDE)
    ran = run_restricted(START, *inside, program=program)
    assert (ran.returncode, ran.stdout) == (0, "refused\nlistens\n"), ran.stderr

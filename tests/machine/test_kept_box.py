"""The box of a run is kept, and no command finds in it what another one has left, but while one runs in the background."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import launcher, restriction
from ralph.machine.command_supervisor import CommandSupervisor, SupervisedCommand
from ralph.places.gather import gather_places
from ralph.sandbox import command_box, kept_box
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.kept_box import KeptBox
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.patience import TEST_S, wait_until
from tests.program.namespaces import needs_namespaces
from tests.rows import every_row
from tests.sandbox.boxes import run_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = needs_namespaces
OTHERS = Path(__file__).parents[2]
LIBC = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); name = lambda: os.strerror(ctypes.get_errno()); "


class Run:
    """The commands of one run."""

    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        self.work.mkdir()
        (self.work / ".git").mkdir()
        roots = [str(self.work)]
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        plan = plan_box(SandboxSettings(net="off"), self.environment, (self.work,))
        self.box = CommandBox(plan, roots, self.environment, lambda: gather_places(roots, self.environment))
        self.supervisors = [self.supervisor()]

    def supervisor(self) -> CommandSupervisor:
        return CommandSupervisor(self.environment, most_processes=0, confinement=self.box.confinement)

    def start(
        self, command: str, supervisor: CommandSupervisor | None = None, *, lasts: bool = False
    ) -> SupervisedCommand:
        return (supervisor or self.supervisors[0]).start(
            ["/bin/bash", "-c", command],
            cwd=self.work,
            environment=self.box.variables(self.environment),
            grace_s=1,
            lasts=lasts,
        )

    def background(self, command: str) -> SupervisedCommand:
        self.supervisors.append(self.supervisor())
        return self.start(command, self.supervisors[-1])

    def status(self, command: str) -> tuple[int, str]:
        process = self.start(command)
        return process.wait_for_end(), ended(process)

    def said(self, command: str) -> str:
        return ended(self.start(command))

    def python(self, code: str) -> str:
        return self.said(f"{sys.executable} -I -S -c '{LIBC}{code}'")

    def close(self) -> None:
        for supervisor in self.supervisors:
            supervisor.close()
        self.box.close()


def ended(process: SupervisedCommand) -> str:
    process.wait_for_end()
    said = b""
    while chunk := os.read(process.output_descriptor, 65_536):
        said += chunk
    wait_until(process.kill_what_is_left)
    process.close()
    return said.decode().strip()


@pytest.fixture
def run(tmp_path, monkeypatch) -> Iterator[Run]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = Run(tmp_path)
    yield made
    made.close()


def inside(directory: Path) -> list[int]:
    """The processes that work in a directory, and do not wait for a command."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == directory:
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


@every_row(
    "remnant",
    [
        "setsid sleep 600 >/dev/null 2>&1 &",
        "(trap '' TERM HUP; while :; do sleep 0.01; done) >/dev/null 2>&1 &",
        "r() { (r & exec sleep 0.01) & }; r >/dev/null 2>&1",  # starts itself again
        "sleep 600 >/dev/null 2>&1 & kill -STOP $!",
    ],
)
def test_the_next_command_is_alone(run, remnant) -> None:
    """Nothing of the last command runs, so that nothing can enter, read or slow the next one."""
    run.said(f"{remnant} echo $!")
    assert (inside(run.work), run.said("cd /proc && echo [0-9]*")) == ([], "2")


@every_row(
    ("make", "find"),
    [
        ("echo x > /dev/shm/left", "cat /dev/shm/left"),
        ("echo x > /dev/left || ln -s /etc/passwd /dev/left", "ls -d /dev/left"),
        ("rm -f /dev/stdin /dev/null", "ls /dev/stdin /dev/null >&2 && exit 1"),
        (
            f"{sys.executable} -c '{LIBC}print(c.shmget(0x5241, 4096, 0o1600))'",  # of System V
            f"{sys.executable} -c '{LIBC}raise SystemExit(c.shmget(0x5241, 0, 0) < 0)'",
        ),
    ],
)
def test_a_command_finds_nothing_that_another_one_has_left(run, make, find) -> None:
    run.said(f"{make} 2>/dev/null")
    assert run.said(f"({find}) >/dev/null 2>&1 && echo found") == ""


def test_the_mounts_of_one_command_are_not_those_of_the_next(run) -> None:
    first, second = (run.said("cut -d ' ' -f 4- /proc/self/mountinfo").splitlines() for _ in range(2))
    assert [line.split(" - ")[0] for line in first] == [line.split(" - ")[0] for line in second]


@every_row(
    ("code", "denied"),
    [
        ('f = os.open("/proc/1/ns/mnt", os.O_RDONLY); print(c.setns(f, 0), name())', "No such file"),
        (
            'f = os.open("/proc/self/ns/mnt", os.O_RDONLY); print(c.setns(f, 0), name())',
            "Operation not permitted",
        ),
        ('print([os.readlink(f"/proc/1/fd/{n}") for n in os.listdir("/proc/1/fd")])', "No such file"),
        ('os.open("/proc/1/mem", os.O_RDONLY)', "No such file"),
        ('print(open("/proc/1/environ").read())', "No such file"),
        ('print(os.listdir("/proc/1/root"))', "No such file"),
        ("print(c.ptrace(16, 1, 0, 0), name())", "Operation not permitted"),
        (
            "v = (ctypes.c_size_t * 2)(id(c), 8); print(c.process_vm_readv(1, v, 1, v, 1, 0), name())",
            "Operation not permitted",
        ),
        ('print(c.mount(b"x", b"/tmp", b"tmpfs", 0, None), name())', "Operation not permitted"),
        ('print(c.umount2(b"/proc", 2), name())', "Operation not permitted"),
        ('os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)', "Read-only file system"),
    ],
)
def test_the_box_resists(run, code, denied) -> None:
    """By these ways a command would get out of the box, or at its first process."""
    run.said(":")  # so that a first process has waited for the command
    assert denied in run.python(code)


def test_no_signal_ends_the_first_process(run) -> None:
    signals = "for n in KILL STOP TERM HUP INT SEGV; do kill -$n 1; done 2>/dev/null"
    assert run.said(f"{signals}; sleep 0.05; echo alive") == "alive"


def test_a_command_inherits_no_descriptor_of_the_box(run) -> None:
    look = "for one in /proc/self/fd/*; do readlink $one; done"
    for _ in range(2):
        streams = run.said(look).splitlines()
        assert len(streams) <= 4, streams  # of which one is that of the shell's directory
        assert not [one for one in streams if "mnt:" in one or "user:" in one or "socket:" in one]


def waiting(run: Run) -> list[int]:
    """The first process that waits for the next command."""
    assert run.supervisors[0].pid is not None
    (its_launcher,) = launcher.children_of(run.supervisors[0].pid)
    return [
        pid
        for pid in launcher.children_of(its_launcher)
        if b"\t1\n" in Path(f"/proc/{pid}/status").read_bytes().partition(b"NSpid:")[2][:30]
        and Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or has closed its descriptors and only waits to be reaped."""
    try:
        return b"State:\tZ" in Path(f"/proc/{pid}/status").read_bytes()
    except FileNotFoundError:
        return True


def test_nothing_of_the_box_runs_between_commands_but_the_first_process_of_the_next(run) -> None:
    run.said(":")
    wait_until(lambda: len(waiting(run)) == 1)
    assert {*launcher.children_of(os.getpid())} & {*brought_by_bubblewrap()} == set()


def brought_by_bubblewrap() -> Iterator[int]:
    for pid in launcher.children_of(os.getpid()):
        if b"bwrap" in Path(f"/proc/{pid}/cmdline").read_bytes():
            yield pid


def test_the_first_process_can_do_no_more_than_its_command(run) -> None:
    run.said(":")  # so that one has waited for the command
    process = run.start("touch there; exec sleep 600")
    wait_until((run.work / "there").exists)
    [first] = waiting(run)
    status = Path(f"/proc/{first}/status").read_text()
    for line in (f"CapPrm:\t{0:016x}", f"CapBnd:\t{0:016x}", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in status
    process.ask_to_stop()
    ended(process)


def test_a_command_after_the_first_process_was_killed_runs(run) -> None:
    run.said(":")
    seen: list[int] = []

    def is_waiting() -> bool:
        seen.extend(waiting(run))
        return bool(seen)

    wait_until(is_waiting)
    killed = seen[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: has_ended(killed))
    assert run.said("echo ran") == "ran"


def test_a_changed_list_of_places_makes_a_new_box(run) -> None:
    settings = run.work / ".mcp.json"
    assert run.said("readlink /proc/self/ns/user; echo mine > .mcp.json; cat .mcp.json").endswith("mine")
    descriptors = len(open_descriptors())
    settings.write_text("{}")  # as by the user
    assert "Read-only file system" in run.said("echo other > .mcp.json")
    assert settings.read_text() == "{}"
    assert len(open_descriptors()) <= descriptors


def test_what_somebody_outside_replaces_is_mounted_again(run) -> None:
    """The kernel takes the mount of a replaced file away, and the list of places is the same."""
    settings, new = run.work / ".mcp.json", run.work / "new"
    settings.write_text("{}")
    assert "Read-only file system" in run.said("echo other > .mcp.json")
    new.write_text("[]")
    new.replace(settings)  # as editors save a file
    assert "Read-only file system" in run.said("echo other > .mcp.json")
    assert settings.read_text() == "[]"


def test_a_place_that_is_gone_or_a_link_by_now_keeps_no_command_from_starting(tmp_path) -> None:
    gone, link, npmrc, elsewhere = (tmp_path / name for name in ("gone", "link", ".npmrc", "elsewhere"))
    for place in (tmp_path / "work", gone, link, elsewhere):
        place.mkdir()
    npmrc.write_text("//registry.example/:_authToken=x\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    settings = SandboxSettings(net="off", write=(str(gone), str(link)))
    plan, roots = plan_box(settings, environment, (tmp_path / "work",)), [str(tmp_path / "work")]
    box = CommandBox(plan, roots, environment, lambda: gather_places(roots, environment))
    try:
        write = f"import os\nfor one in {[str(gone), str(link)]}:\n try: open(one + '/x', 'w'); print('written')\n except OSError: pass"
        assert run_in(box, roots[0], write).stdout.split() == ["written"] * 2
        (gone / "x").unlink()
        gone.rmdir()
        link.rename(tmp_path / "before")
        link.symlink_to(elsewhere)
        npmrc.unlink()
        npmrc.symlink_to(elsewhere / "npmrc")
        (elsewhere / "npmrc").write_text("x")
        (tmp_path / "work/.mcp.json").write_text("{}")  # so that there is another box
        assert run_in(box, roots[0], f"{write}\nprint('ran')").stdout == "ran\n", (
            "what a link leads to is not opened"
        )
        gone.mkdir()
        assert run_in(box, roots[0], write).stdout == "written\n"
        gone.rename(tmp_path / "moved")
        gone.mkdir()
        assert run_in(box, roots[0], write).stdout == "written\n"
        assert (gone / "x").exists(), "not in the directory that was moved away"
    finally:
        box.close()


def test_while_a_command_runs_in_the_background_later_ones_find_it(run) -> None:
    run.said(":")
    end = run.box.share_namespaces()
    server = 'import socket, time; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True)'
    background = run.background(
        f"{sys.executable} -I -S -c '{server}; time.sleep(600)' > port & echo $! > number; wait $!; echo $?"
    )
    wait_until(lambda: (run.work / "port").exists() and (run.work / "port").read_text().endswith("\n"))
    client = 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])))'
    assert run.said(f"{sys.executable} -I -S -c '{client}' $(cat port) && echo connected") == "connected"
    # What a command in the foreground leaves running is ended as always.
    before = run.said("sleep 600 >/dev/null 2>&1 & echo x > /dev/shm/x; cd /proc; echo [0-9]*")
    after = run.said("cat /dev/shm/x; cd /proc; echo [0-9]*")
    assert after.startswith("x")
    assert len(after.split()) - 1 == len(before.split()) - 1
    assert background.hear() is None
    assert (run.said("kill $(cat number) && echo asked"), ended(background)) == ("asked", "143")
    end()
    assert (run.said("ls /dev/shm; cd /proc; echo [0-9]*"), [*brought_by_bubblewrap()]) == ("2", [])


def test_a_shared_box_that_a_command_has_ended_is_not_used_again(run) -> None:
    end = run.box.share_namespaces()
    run.said("kill -9 2; sleep 600")
    assert run.said("echo ran") == "ran"
    end()
    assert [*brought_by_bubblewrap()] == []


def test_a_changed_list_of_places_is_for_new_commands_which_find_those_in_the_background(run) -> None:
    end = run.box.share_namespaces()
    background = run.background(
        "echo $$ > number; echo x > /dev/shm/x; cat /dev/shm/go >/dev/null 2>&1; exec sleep 600"
    )
    wait_until(lambda: (run.work / "number").exists() and (run.work / "number").read_text())
    for name in (".mcp.json", ".git/config"):
        (run.work / name).write_text("{}")  # as by the user
        said = run.said(f"echo other > {name}; cat /dev/shm/x && kill -0 $(cat number) && echo found")
        assert "Read-only file system" in said
        assert said.endswith("x\nfound")
        assert len([*brought_by_bubblewrap()]) == 1
    assert run.said("kill $(cat number) && echo asked") == "asked"
    ended(background)
    end()
    assert [*brought_by_bubblewrap()] == []


def test_what_must_be_alone_has_namespaces_of_its_own_also_then(run) -> None:
    end = run.box.share_namespaces()
    shared = run.said("readlink /proc/self/ns/pid")
    alone = CommandSupervisor(run.environment, most_processes=0, confinement=run.box.confine(is_alone=True))
    run.supervisors.append(alone)
    run.box.prepare()  # as before each command, and before a server starts
    seen = ended(run.start("readlink /proc/self/ns/pid; cd /proc; echo [0-9]*", alone)).split()
    assert seen[0] not in (shared, str(Path("/proc/self/ns/pid").readlink()))
    assert seen[1:] == ["2"]
    end()


def test_an_mcp_server_and_commands_find_each_other_on_the_loopback_while_the_run_lasts(run) -> None:
    """Whichever began first, in the background or not, and after a change of what is mounted."""
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], file=open(sys.argv[1], 'w'), flush=True); "
    connect = "socket.create_connection(('127.0.0.1', int(open(sys.argv[1]).read())), 5); print('connected', flush=True)"
    python = f"{sys.executable} -I -S -c"
    waiting = "until [ -s dev ]; do sleep 0.01; done"
    alone = CommandSupervisor(
        run.environment, most_processes=0, confinement=run.box.confine(lasts=True, is_alone=True)
    )
    run.supervisors.append(alone)
    server = run.start(
        f'{python} "import sys; {listen}time.sleep(600)" own & {waiting}; {python} "import socket, sys; {connect}" dev; kill $!',
        alone,
        lasts=True,
    )
    wait_until(lambda: (run.work / "own").exists() and (run.work / "own").read_text().endswith("\n"))
    client = f'{python} "import socket, sys; {connect}" own'
    assert run.said(client) == "connected"
    (run.work / ".mcp.json").write_text("{}")  # as by the user: makes another box
    assert run.said(f"{client}; echo x > .mcp.json").startswith("connected")
    end = run.box.share_namespaces()
    background = run.background(f'{python} "import sys; {listen}time.sleep(600)" new')
    assert run.said(client) == "connected"
    wait_until(lambda: (run.work / "new").exists() and (run.work / "new").read_text().endswith("\n"))
    (run.work / "new").rename(run.work / "dev")
    assert ended(server) == "connected"
    background.ask_to_stop()
    ended(background)
    end()


def test_datagrams_reach_the_loopback_of_the_commands_and_nothing_else(run) -> None:
    """Programs look for the address of this machine by a datagram socket, and end if they get none: Streamlit 1.67.0."""
    code = """
import errno, socket
one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
one.bind(("127.0.0.1", 0))
other.sendto(b"heard", one.getsockname())
print(one.recv(9).decode())
try:
    other.connect(("192.0.2.1", 1))
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    (run.work / "datagrams.py").write_text(code)
    assert run.said(f"{sys.executable} -I -S datagrams.py") == "heard\nENETUNREACH"


# As ps(1) and pgrep(1) look for processes.
LIST = "for one in /proc/[0-9]*; do tr '\\0' ' ' 2>/dev/null < $one/cmdline && echo; done"


def test_a_command_that_shares_namespaces_finds_no_process_of_ralphs(run) -> None:
    end = run.box.share_namespaces()
    background = run.background(f"touch there; until [ -e go ]; do sleep 0.01; done; {LIST}")
    wait_until((run.work / "there").exists)
    foreground = run.start(f"touch also; {LIST}; touch go; until [ -e done ]; do sleep 0.01; done")
    seen = [ended(background)]
    (run.work / "done").touch()
    seen.append(ended(foreground))
    end()
    for listed in seen:
        assert "touch there" in listed
        assert "touch also" in listed
        own = ("tr ", "sleep ", "/bin/bash ")
        lines = [line for line in listed.splitlines() if line and not line.startswith(own)]
        assert lines == [], "bubblewrap, its shell, or a first process"


@pytest.mark.parametrize("lasts", [False, True])
def test_what_a_command_leaves_that_has_killed_its_first_process_is_ended(run, *, lasts) -> None:
    end = run.box.share_namespaces()
    background = run.background("touch there; exec sleep 600")
    wait_until((run.work / "there").exists)
    leaving = (
        "(trap '' TERM HUP; touch left; while :; do sleep 0.01; done) >/dev/null 2>&1 & setsid sleep 600 >/dev/null 2>&1 & "
        "until [ -e left ]; do :; done; kill -9 $PPID; sleep 600"
    )
    others = {*inside(run.work)}  # one of them may end by itself
    one = run.start(leaving, lasts=lasts)
    assert one.wait_for_end() == 128 + signal.SIGKILL
    assert {*inside(run.work)} <= others
    assert one.kill_what_is_left()
    one.close()
    assert background.hear() is None
    assert run.said("kill -0 $(cat /dev/null) 2>/dev/null; echo ran") == "ran"
    background.ask_to_stop()
    ended(background)
    end()


def test_a_command_in_the_background_can_be_stopped(run) -> None:
    end = run.box.share_namespaces()
    background = run.background("trap 'echo cleaned; exit' TERM; touch there; while :; do sleep 0.01; done")
    wait_until((run.work / "there").exists)
    background.ask_to_stop()
    assert ended(background).splitlines()[-1] == "cleaned"
    end()
    assert inside(run.work) == []


KILLED = """
import sys
from pathlib import Path
from tests.machine.test_kept_box import Run
run = Run(Path(sys.argv[1]))
run.said(":")
run.box.share_namespaces()
background = run.background("touch background; exec setsid sleep 600")
foreground = run.start("touch foreground; exec setsid sleep 600")
while True: sys.stdin.readline()
"""


def test_nothing_is_left_when_ralph_is_killed(tmp_path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ralph = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, cwd=OTHERS, env=environment
    )
    try:
        wait_until((tmp_path / "work" / "background").exists)
        wait_until((tmp_path / "work" / "foreground").exists)
        tree = launcher.tree_below([ralph.pid])
        assert len(tree) > 6
    finally:
        ralph.kill()
        ralph.communicate(timeout=TEST_S)
    wait_until(lambda: all(map(has_ended, tree)))
    assert inside(tmp_path / "work") == []


@pytest.mark.parametrize(
    ("bwrap", "why"),
    [
        (("/nowhere/bwrap",), "No such file or directory"),
        (("/bin/false",), "bubblewrap failed"),
        (("/bin/sh", "-c", "echo no >&2; exit 1"), "bubblewrap failed: no"),
    ],
)
def test_a_box_that_cannot_be_made_has_a_reason(bwrap, why) -> None:
    with pytest.raises(OSError, match=why):
        KeptBox(bwrap, restriction.NO_FILTER, 0)


@pytest.mark.parametrize("to", ["../outside", "other"])
def test_a_link_in_the_way_of_a_mount_makes_no_box(tmp_path, to) -> None:
    """A command in the background may make one when ralph has looked."""
    work = tmp_path / "work"
    for directory in (work / "kept", work / "other", tmp_path / "outside"):
        directory.mkdir(parents=True)
    bwrap = run_words(tmp_path)
    words = [*bwrap, "--bind", str(work), str(work), "--bind", f"{work}/kept", f"{work}/kept"]
    KeptBox(words, restriction.NO_FILTER, 0, [str(work)]).close()
    (work / "kept").rmdir()
    (work / "kept").symlink_to(to)
    with pytest.raises(OSError, match="another place"):
        KeptBox(words, restriction.NO_FILTER, 0, [str(work)])


def test_a_box_whose_mounts_cannot_be_seen_is_not_used(tmp_path, monkeypatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(kept_box, "mounts", lambda *_: "")
    with pytest.raises(ProcessLookupError):
        KeptBox(run_words(tmp_path), restriction.NO_FILTER, 0)


def run_words(directory: Path) -> list[str]:
    """The words of a box in which nothing can be written."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
    plan = plan_box(SandboxSettings(net="off"), environment, (directory / "work",))
    assert plan.means.bwrap is not None
    return [plan.means.bwrap, "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]


@pytest.mark.parametrize("failures", [1, 3])
def test_a_box_is_made_of_what_is_there_when_something_was_removed_meanwhile(
    run, monkeypatch, failures
) -> None:
    seen = []

    def made(words: Sequence[str], *arguments: Any, **options: Any) -> KeptBox:
        seen.append("--ro-overlay" in words)
        if len(seen) <= failures:
            words = [*words, "--ro-bind", "/removed", "/removed"]
        return KeptBox(words, *arguments, **options)

    monkeypatch.setattr(command_box, "KeptBox", made)
    assert (run.said("echo ran"), len(seen)) == ("ran", failures + 1)
    assert not any(seen[3:]), "at last without overlays"


def open_descriptors() -> set[str]:
    return {one.name for one in Path("/proc/self/fd").iterdir()}


def test_a_bubblewrap_that_is_never_ready_is_ended_and_told(monkeypatch) -> None:
    monkeypatch.setattr(kept_box, "_READY_WITHIN_S", 0.05)
    before, descriptors = launcher.children_of(os.getpid()), open_descriptors()
    with pytest.raises(TimeoutError, match="was not ready within"):
        kept_box.KeptBox(("/bin/sh", "-c", "exec sleep 600"), b"", 0, ())
    assert (launcher.children_of(os.getpid()), open_descriptors()) == (before, descriptors)


@pytest.mark.parametrize("made", range(4))
def test_where_no_descriptor_is_left_none_is_kept(monkeypatch, made) -> None:
    made_by_system, left, descriptors = os.pipe, [*range(made)], open_descriptors()

    def pipe() -> tuple[int, int]:
        if not left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        left.pop()
        return made_by_system()

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many open files"):
        kept_box.KeptBox(("/bin/true",), b"x", 0, ())
    assert open_descriptors() == descriptors


# --- A command in namespaces ends like any other: with its status, its grace period, and everything that it has started


@every_row(("command", "status"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_a_command_has_its_own_status(run, command, status) -> None:
    assert run.status(command) == (status, "")


def test_a_request_to_stop_reaches_the_command_and_leaves_it_time(run) -> None:
    process = run.start("trap 'echo cleaned; exit 3' TERM; touch there; while :; do sleep 0.01; done")
    wait_until((run.work / "there").exists)
    process.ask_to_stop()
    assert process.wait_for_end() == 3
    assert ended(process).splitlines()[-1] == "cleaned"  # bash also tells of its `sleep`


def test_what_a_command_leaves_behind_may_finish_and_is_then_ended(run) -> None:
    # A busy machine may let it start too late. Without time for it, it never writes.
    wait_until(lambda: run.said("exec > >(sleep 0.03; cat); echo late") == "late")
    asked = "(trap 'echo asked; exit' TERM; touch there; while :; do sleep 0.01; done) & until [ -e there ]; do :; done"
    assert run.said(asked).splitlines()[-1] == "asked"


@every_row(("command", "stopped"), [(":", 0), ("sleep 600 & setsid sleep 600 & :", 2)])
def test_what_a_command_leaves_running_is_counted(run, command, stopped) -> None:
    process = run.start(f"exec >/dev/null 2>&1; {command}")
    assert (process.wait_for_end(), ended(process), process.stopped) == (0, "", stopped)


def test_everything_ends_with_the_launcher(run) -> None:
    process = run.start("r() { setsid sh -c 'touch there; sleep 0.01' & wait; r; }; r & sleep 600")
    wait_until((run.work / "there").exists)
    (its_launcher,) = launcher.children_of(run.supervisors[0].pid)
    os.kill(its_launcher, signal.SIGKILL)
    wait_until(lambda: inside(run.work) == [])
    ended(process)


def mounts(of_test: Path) -> list[str]:
    """The mounts of this process, without those that tests of other workers make in their directories meanwhile."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if "/popen-gw" not in line or str(of_test) in line]


def test_many_commands_leave_nothing_behind(run, tmp_path) -> None:
    """No process, so no namespace either, which would need a process, a mount or a descriptor."""
    run.said(":")
    before = {*launcher.children_of(os.getpid())}, open_descriptors(), mounts(tmp_path)
    for _ in range(4):
        assert run.status("setsid sleep 600 >/dev/null 2>&1 & echo x > /tmp/x; :") == (0, "")
    assert {*launcher.children_of(os.getpid())} - before[0] == set()
    wait_until(lambda: not open_descriptors() - before[1])
    assert (mounts(tmp_path), inside(run.work)) == (before[2], [])

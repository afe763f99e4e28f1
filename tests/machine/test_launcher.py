"""The launcher, run as a process of its own: killed, asked to stop or started at any moment, it leaves no process
alive.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine import launcher
from tests.patience import PATIENCE_S, wait_until, within_s
from tests.processes.children import is_gone
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")

KILLS = 2
"""How many times each kind of command is killed, besides once at once. The kills are spread over its start and its first
moments."""
_OF_THE_C_LIBRARY = {32, 33}

# Becomes the launcher, with the signals it is told to have. What is blocked and pending survives an exec.
WITH_SIGNALS = """
import os, signal, sys
blocked, ignored, pending = ([int(word) for word in argument.split()] for argument in sys.argv[1:4])
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # as a job in the background the tests ignore some
    signal.signal(number, signal.SIG_DFL)
for number in ignored:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
for number in pending:
    os.kill(os.getpid(), number)
os.execv(sys.argv[4], sys.argv[4:])
"""

# Becomes the launcher of a command. `CHANGES` may change what the launcher finds.
LAUNCH = """
import os, sys, time
folder, parent_pid, grace_s, *command = sys.argv[1:]
sys.path.append(folder)
CHANGES
import launcher
os._exit(launcher.Launcher(int(parent_pid), float(grace_s), 0).run(command))
"""
FOLDER = str(Path(launcher.__file__).parent)

# Where neither the kernel nor /proc tells anything, and there is no wait for a signal that ends.
AS_ON_MACOS = """
import _signal
vars(_signal).pop("sigtimedwait", None), vars(_signal).pop("sigwaitinfo", None)
sys.platform = "darwin"
os.path.isdir = lambda path: False
"""

WITH_OLD_GLIBC = """
def none(*_, **options):
    raise NotImplementedError("setsid")
os.posix_spawn = none
"""

AS_IF_FIVE_WERE_MANY = "import launcher; launcher._MOST_ASKED = 5"

# The command starts another process between the listing of its tree and the signal.
ASKS_LATE = """
import launcher
below = launcher.tree_below
def tree_below(roots, most):
    tree = below(roots, most)
    if not os.path.exists(LISTED):
        open(LISTED, "x").close()
        while not launcher.children_of(tree[0]): time.sleep(0.001)
    return tree
launcher.tree_below = tree_below
"""

# Forks parents with a command each, kills them at any moment of its start and life, and prints what is left of a
# tree, or for each kind of command how many had been started. All of it is below this process, which adopts every orphan.
KILL_PARENTS = """
import os, random, signal, subprocess, sys, threading, time
from pathlib import Path
from ralph.machine import launcher
from ralph.machine.command_supervisor import CommandSupervisor

kills, started, lines = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
environment = {"PATH": os.environ["PATH"], "STARTED": str(started)}
launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1)

def parent():
    for _ in range(3):  # the kernel tells of each thread's end
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
    supervisor = CommandSupervisor(environment)
    running = supervisor.start(["/bin/sh", "-c", line], cwd=Path("/"), environment=environment, grace_s=60)
    time.sleep(99)
    os._exit(0)

def kill_after(wait):
    started.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        parent()
    wait()
    os.kill(process, signal.SIGKILL)
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return started.exists()
    left = launcher.tree_below(launcher.children_of(os.getpid()))
    names = [Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\\0") for pid in left]
    launcher.send_signal(left, signal.SIGKILL)
    sys.exit(f"left of {line}: {names}")

def start_s():
    times_s = [time.monotonic()]
    def until_started():
        while not started.exists():
            time.sleep(0.001)
        times_s.append(time.monotonic())  # what follows is the end
    kill_after(until_started)
    return times_s[1] - times_s[0]

line = lines[0]
latest_s = 2 * min(start_s() for _ in range(2))  # one alone may be slow, and all kills would wait for it
for line in lines:
    moments_s = [0, *((part + random.random()) * latest_s / kills for part in range(kills))]
    print(sum(kill_after(lambda: time.sleep(moment_s)) for moment_s in moments_s))
"""


@pytest.fixture(autouse=True)
def _reaped() -> Iterator[None]:
    """Reaps processes that have lost their parent, because other tests made this process adopt its orphaned
    descendants.
    """
    before = set(launcher.children_of(os.getpid()))
    yield
    for pid in set(launcher.children_of(os.getpid())) - before:
        os.waitpid(pid, 0)


def line_for(
    command: Iterable[str], *, grace_s: float = 60, parent_pid: int | None = None, changes: str = ""
) -> list[str]:
    """The command line of a launcher. `changes` are statements before it begins."""
    script = LAUNCH.replace("CHANGES", changes)
    arguments = (FOLDER, str(parent_pid or os.getpid()), str(grace_s))
    return [sys.executable, "-I", "-S", "-c", script, *arguments, *command]


def with_signals(
    line: list[str], *, blocked: Iterable[int] = (), ignored: Iterable[int] = (), pending: Iterable[int] = ()
) -> list[str]:
    words = [" ".join(str(int(number)) for number in numbers) for numbers in (blocked, ignored, pending)]
    return [sys.executable, "-I", "-S", "-c", WITH_SIGNALS, *words, *line]


@contextmanager
def started(line: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the launcher. Reaps at once all processes that the launcher could not adopt, as an init process does,
    for example if the launcher runs as on macOS.
    """
    before = set(launcher.children_of(os.getpid()))
    is_over = threading.Event()
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        bufsize=0,
    ) as process:
        reaper = threading.Thread(target=_reap_until, args=(is_over, {*before, process.pid}))
        reaper.start()
        try:
            yield process
        finally:
            try:
                process.wait(within_s(120))
            finally:
                process.kill()  # otherwise a test that fails would wait for ever
                is_over.set()
                reaper.join()


def _reap_until(is_over: threading.Event, others: set[int]) -> None:
    while not is_over.wait(0.01):
        for pid in set(launcher.children_of(os.getpid())) - others:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def finished(line: list[str]) -> tuple[int, str]:
    """The exit code and the output of a command line."""
    with started(line) as process:
        output, _ = process.communicate(timeout=within_s(30))
        return process.returncode, output.decode()


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def signal_sets(status: str) -> dict[str, set[int]]:
    """The signals that a process blocks, ignores and handles, from its status in /proc. Leaves out the two signals
    that the C library reserves, because its posix_spawn, which newer Pythons use, ignores them.
    """
    lines = (line.split(":") for line in status.splitlines())
    sets = {name: int(value, 16) for name, value in lines if name in ("SigBlk", "SigIgn", "SigCgt")}
    return {
        name: {bit + 1 for bit in range(64) if bits >> bit & 1} - _OF_THE_C_LIBRARY
        for name, bits in sets.items()
    }


def outlived(commands: Iterable[str], started_file: Path) -> list[int]:
    """Kills the parent of each command at once, and `KILLS` times at random moments. Returns for each command how many of these
    kills came after the command had started. Fails if a process outlives a kill. Two more kills, which wait until the
    first command has started, measure how long a start takes.
    """
    line = [sys.executable, "-c", KILL_PARENTS, str(KILLS), str(started_file), *commands]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(count) for count in done.stdout.split()]


HARD_TO_END = {
    "ignores TERM": "trap '' TERM; : >$STARTED; while :; do sleep 99; done",
    "has a daemon": "(setsid sh -c 'trap \"\" TERM; : >$STARTED; sleep 99; sleep 99' >/dev/null 2>&1 &); sleep 99",
    "leaves one that holds the pipe": ": >$STARTED; (trap '' TERM; sleep 99; sleep 99) & exit 0",
    "always has a new one": "trap '' TERM; : >$STARTED; while :; do /bin/true & wait; done",
}


@linux_only
def test_nothing_outlives_a_parent_that_is_killed_at_any_moment(tmp_path) -> None:
    started_at_the_kill = outlived(HARD_TO_END.values(), tmp_path / "started")
    assert len(started_at_the_kill) == len(HARD_TO_END)
    assert sum(started_at_the_kill) < (KILLS + 1) * len(HARD_TO_END), "no kill came before a start"


@every_row(
    ("command", "status", "changed"),
    [
        (["true"], 0, [""]),
        (shell("exit 255"), 255, [""]),
        (shell("kill -KILL $$"), 137, [""]),
        (shell("kill -TERM $$"), 143, ["", AS_ON_MACOS]),
        (shell("sleep 99 & exit 3"), 3, ["", AS_ON_MACOS]),
        (["/"], 126, ["", WITH_OLD_GLIBC]),
        (["/no/such"], 127, ["", WITH_OLD_GLIBC]),
        (shell("kill -TERM $PPID; sleep 99"), 143, ["", AS_ON_MACOS]),
    ],
)
def test_the_status_is_the_commands(command, status, changed) -> None:
    """The changes are those that start or end a command of this kind in another way."""
    for changes in changed:
        assert finished(line_for(command, changes=changes))[0] == status


@linux_only
@every_row("changes", ["", WITH_OLD_GLIBC])
def test_the_command_leads_a_session_of_its_own_without_a_terminal(changes) -> None:
    status, output = finished(line_for(shell("echo $$; cut -d' ' -f6,7 /proc/$$/stat"), changes=changes))
    pid, session, terminal = output.split()
    assert (status, session, terminal) == (0, pid, "0")


@every_row(
    ("number", "changes"),
    [(signal.SIGTERM, ""), (signal.SIGINT, ""), (signal.SIGHUP, ""), (signal.SIGTERM, AS_ON_MACOS)],
)
def test_however_often_it_is_asked_the_tree_is_asked_once_and_has_its_grace(number, changes) -> None:
    command = shell(
        "trap 'echo asked; sleep 0.3; echo ready; exit 5' TERM; sh -c 'echo runs; exec sleep 99' & wait"
    )
    with started(with_signals(line_for(command, changes=changes))) as process:
        assert process.stdout
        assert process.stdout.readline() == b"runs\n"
        for _ in range(50):
            process.send_signal(number)
            time.sleep(0.002)
        output, _ = process.communicate(timeout=within_s(30))
    assert (process.returncode, output) == (5, b"asked\nready\n")


@linux_only
def test_a_process_that_starts_while_the_others_are_asked_to_end_is_asked_too(tmp_path) -> None:
    listed = tmp_path / "listed"
    command = shell(f"kill -TERM $PPID; until [ -e {listed} ]; do :; done; sleep 99; :")
    changes = ASKS_LATE.replace("LISTED", repr(str(listed)))
    assert finished(line_for(command, grace_s=within_s(90), changes=changes))[0] == 143


def test_asked_in_the_moment_before_the_start_it_starts_nothing(tmp_path) -> None:
    line = line_for(["touch", str(tmp_path / "started")])
    assert finished(with_signals(line, blocked=[signal.SIGTERM], pending=[signal.SIGTERM]))[0] == 143
    assert not (tmp_path / "started").exists()


def test_without_its_parent_it_starts_nothing(tmp_path) -> None:
    assert finished(line_for(["touch", str(tmp_path / "started")], parent_pid=os.getppid()))[0] == 143
    assert not (tmp_path / "started").exists()


@linux_only
def test_asked_at_any_moment_of_its_start_it_ends_and_leaves_nothing(tmp_path) -> None:
    """Before the launcher handles SIGTERM, the signal ends it, because it has started nothing yet. Later the
    command, which ignores SIGTERM, is killed.
    """
    note = tmp_path / "pid"
    line = line_for(shell(f"trap '' TERM; echo $$ >{note}; sleep 99; sleep 99"), grace_s=0.02)

    def asked_after(delay_ms: int) -> int:
        note.unlink(missing_ok=True)
        with started(line) as process:
            time.sleep(delay_ms / 1000)
            process.terminate()
            status = process.wait(PATIENCE_S)
        assert not note.exists() or is_gone(int(note.read_text() or -1))
        return status

    statuses = {asked_after(delay_ms) for delay_ms in range(0, 50, 5)}
    assert statuses <= {-signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGKILL}
    wait_until(lambda: asked_after(0) == -signal.SIGTERM)  # a busy machine may ask too late


@linux_only
@every_row("changes", ["", WITH_OLD_GLIBC])
@every_row(
    ("blocked", "ignored", "kept"),
    [
        pytest.param(
            *(signal.valid_signals(), [signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGPIPE], []),
            id="blocked and ignored",
        ),
        pytest.param([], [signal.SIGHUP, signal.SIGINT], [signal.SIGHUP, signal.SIGINT], id="nohup"),
    ],
)
def test_the_commands_signals_are_the_defaults_but_for_what_nohup_ignores(
    blocked, ignored, kept, changes
) -> None:
    line = line_for(["cat", "/proc/self/status"], changes=changes)
    sets = signal_sets(finished(with_signals(line, blocked=blocked, ignored=ignored))[1])
    assert sets == {"SigBlk": set(), "SigIgn": set(kept), "SigCgt": set()}


@linux_only
def test_the_launcher_handles_no_signal() -> None:
    sets = signal_sets(finished(with_signals(line_for(shell("cat /proc/$PPID/status; :"))))[1])
    assert (sets["SigIgn"], sets["SigCgt"]) == (set(), set())


@every_row("number", [signal.SIGINT, signal.SIGHUP])
def test_what_nohup_ignores_does_not_end_the_command(number) -> None:
    line = line_for(shell(f"kill -{number} $PPID; sleep 0.1; exit 6"))
    assert finished(with_signals(line, ignored=[number]))[0] == 6


@linux_only
def test_a_stopped_command_is_killed_when_its_grace_is_over() -> None:
    with started(line_for(shell("echo $$; kill -STOP $$"), grace_s=0.1)) as process:
        assert process.stdout
        shell_pid = int(process.stdout.readline())
        deadline = time.monotonic() + within_s()
        while "\nState:\tT" not in Path(f"/proc/{shell_pid}/status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL


def test_stopped_and_continued_the_launcher_continues() -> None:
    with started(line_for(shell("echo; sleep 0.2; exit 4"))) as process:
        assert process.stdout
        process.stdout.readline()
        for number in (signal.SIGSTOP, signal.SIGCONT) * 10:
            process.send_signal(number)
        assert process.wait(PATIENCE_S) == 4


@linux_only
def test_where_the_kernel_does_not_tell_of_the_parents_end_the_launcher_sees_it() -> None:
    """The parent is a shell, and `:` keeps it from becoming the launcher itself. The command holds the output
    open.
    """
    command = shell("trap '' TERM; echo $$; sleep 99; sleep 99")
    own = 'python=$1; script=$2; folder=$3; shift 3; "$python" -ISc "$script" "$folder" $$ 60 "$@"; :'
    script = LAUNCH.replace("CHANGES", AS_ON_MACOS)
    with started([*shell(own), "sh", sys.executable, script, FOLDER, *command]) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == b""
    assert is_gone(pid)


# --- Many, and faster than they can be looked for


def guarded() -> tuple[int, int, int]:
    """A process, a guard that would write if the process died, and the descriptor from which that could be read."""
    is_alive, held = os.pipe()
    told, tell = os.pipe()
    first = os.fork()
    if first == 0:
        signal.pause()
    os.close(held)
    guard = os.fork()
    if guard == 0:
        os.read(is_alive, 1)
        os.write(tell, b"it died before me")
        signal.pause()
    os.close(is_alive)
    os.close(tell)
    return first, guard, told


@linux_only
def test_nothing_can_act_while_others_are_killed(monkeypatch) -> None:
    others = launcher.children_of(os.getpid())

    def send_slowly(pids: list[int], number: int) -> None:
        for pid in sorted(pids):  # the first one has time to die, and its guard to see it
            os.kill(pid, number)
            if number == signal.SIGKILL:
                time.sleep(0.1)

    monkeypatch.setattr(launcher, "send_signal", send_slowly)
    first, guard, told = guarded()
    launcher.kill_below(os.getpid(), others)
    for pid in (first, guard):
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert os.read(told, 99) == b""
    os.close(told)


@linux_only
@pytest.mark.parametrize("within_s", [0, 2])
def test_stopped_in_time_or_not_all_are_killed_but_who_was_there_before(monkeypatch, within_s) -> None:
    monkeypatch.setattr(launcher, "_STOP_WITHIN_S", within_s)
    with subprocess.Popen(shell("sleep 99 & wait")) as other:
        others = launcher.children_of(os.getpid())
        with (
            subprocess.Popen(shell("kill -STOP $$")) as stopped,
            subprocess.Popen(shell("sleep 99; :")) as usual,
        ):
            launcher.kill_below(os.getpid(), others)
            assert (stopped.wait(PATIENCE_S), usual.wait(PATIENCE_S)) == (-signal.SIGKILL, -signal.SIGKILL)
        assert other.poll() is None
        launcher.kill_below(os.getpid(), [pid for pid in others if pid != other.pid])


@linux_only
def test_a_tree_of_more_processes_than_anybody_works_with_gets_no_grace() -> None:
    many = shell("trap '' TERM; for n in 1 2 3 4 5 6 7 8; do sleep 99 & done; echo; wait")
    with started(line_for(many, grace_s=2 * PATIENCE_S, changes=AS_IF_FIVE_WERE_MANY)) as process:
        assert process.stdout
        assert process.stdout.readline() == b"\n"
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL

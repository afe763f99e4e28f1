"""Measures what each level of the sandbox costs. First how much time it adds to a command: from the request to the supervisor until
the command's status arrives. Then the tool turn: the time from one request of a whole `ralph` process to the next with a command in
between, beside that of `pi`, which has no sandbox. At last the system calls of ralph's own process for each command, where there is
`strace`. In each round, all levels are measured by turns.

On a busy machine, the ratio of the minimums says more than that of the medians: what waits for the next command is made while
the model answers, and the scripted server answers at once.

`python -m benchmarks.sandbox COUNT` runs COUNT commands at each level instead, and prints what they have left behind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from benchmarks.harness import PYTHON, Row, figure, ralph, show
from benchmarks.peers import FOLDER, Program, conversation, gap_ms, installed_peers
from ralph.machine import launcher
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.places.gather import gather_places
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.harness import Workplace
    from ralph.sandbox.box_plan import BoxPlan

    Command = Callable[[], float]

ROUNDS = 60
TURN_ROUNDS = 9
OFF = "off"
MOST_OF_OFF = {"landlock": 1.3, "namespaces": 1.6}
"""The targets of a tool turn, as multiples of the one without a sandbox."""
MOST_OF_PI = 0.9
"""That of a tool turn with namespaces, as a multiple of pi's."""
MOST_CALLS = 20
"""That of the system calls of ralph's own process, beyond those without a sandbox."""
WITHOUT_NAMESPACES = Path(__file__).with_name("without_namespaces.py")


def main() -> None:
    environment = {name: os.environ[name] for name in ("PATH", "HOME")}
    # Not in /tmp, which is another directory in namespaces.
    with ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
        work = Path(os.path.realpath(top), "work")
        subprocess.run(("git", "init", "-q", work), check=True)
        if len(sys.argv) > 1:
            _show_leftovers(work, environment, int(sys.argv[1]))
        else:
            _show_times(work, environment)
            with _in_quiet_folder():
                levels = _levels()
                _show_turns(levels)
                _show_calls(levels)


def _show_times(work: Path, environment: dict[str, str]) -> None:
    with ExitStack() as stack:
        commands = {
            name: stack.enter_context(_level(plan, work, environment))
            for name, plan in _plans(work, environment).items()
        }
        for command in commands.values():
            command()
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(ROUNDS):
            for name in [*commands][:: 1 if number % 2 else -1]:
                taken[name].append(commands[name]())
    show("One command, bash -c :", [Row(name, figure(times)) for name, times in taken.items()], unit="ms")
    added = {
        name: [with_box - without for with_box, without in zip(times, taken[OFF], strict=True)]
        for name, times in taken.items()
        if name != OFF
    }
    targets = {name: "5" if name == "landlock" else "15" for name in added}
    rows = [Row(name, figure(times), targets[name]) for name, times in added.items()]
    show("Added to a command without a sandbox", rows, unit="ms")


@contextmanager
def _in_quiet_folder() -> Iterator[None]:
    """Lets the runs work in a folder beside which nobody makes files: others in /tmp and /var/tmp would be looked at."""
    FOLDER.mkdir(exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(FOLDER)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _levels() -> dict[str, Program]:
    """A run at each level that this machine supports, by name."""
    levels = {OFF: Program(OFF, "", ralph("run", "hi", "--sandbox", "off"), "Bash")}
    plan = plan_box(SandboxSettings(), dict(os.environ), (Path("/var/tmp"),))
    if plan.is_confined:
        run = ralph("run", "hi")
        levels["landlock"] = Program("landlock", "", (PYTHON, str(WITHOUT_NAMESPACES), *run), "Bash")
        if plan.has_namespaces:
            levels["namespaces"] = Program("namespaces", "", run, "Bash")
    return levels


def _make_repository(place: Workplace) -> None:
    subprocess.run(("git", "init", "-q", place.directory), check=True)


def _show_turns(levels: Mapping[str, Program]) -> None:
    programs = [*levels.values(), *installed_peers(("pi",))]
    taken: dict[str, list[float]] = {program.name: [] for program in programs}
    for number in range(TURN_ROUNDS + 1):
        for program in programs[:: 1 if number % 2 else -1]:
            gap = gap_ms(program, _make_repository)
            taken[program.name] += [gap] if number else []
    figures = {name: figure(gaps) for name, gaps in taken.items()}
    print("\n| tool turn | median | minimum | x off | minimum x off | at most |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, one in figures.items():
        ratios = one.median / figures[OFF].median, one.minimum / figures[OFF].minimum
        print(
            f"| {name} | {one.median:.1f} ms | {one.minimum:.1f} ms | {ratios[0]:.2f} | {ratios[1]:.2f} |"
            f" {MOST_OF_OFF.get(name, '')} |"
        )
    if {"pi", "namespaces"} <= {*figures}:
        ratio = figures["namespaces"].median / figures["pi"].median
        print(f"namespaces beside pi: {ratio:.2f}, at most {MOST_OF_PI}")


def _show_calls(levels: Mapping[str, Program]) -> None:
    strace = shutil.which("strace")
    if strace is None:
        print("\nThe system calls are not counted: there is no strace on PATH")
        return
    counts = {name: _calls_per_command(program, strace) for name, program in levels.items()}
    print("\n| system calls of ralph's own process for a command | | beyond off | at most |")
    print("| --- | --- | --- | --- |")
    for name, count in counts.items():
        print(f"| {name} | {count:.0f} | {count - counts[OFF]:.0f} | {'' if name == OFF else MOST_CALLS} |")


def _calls_per_command(program: Program, strace: str) -> float:
    few, many = (_own_calls(program, commands, strace) for commands in (5, 25))
    return (many - few) / 20


def _own_calls(program: Program, commands: int, strace: str) -> int:
    """The system calls of all threads of a run's process, but not of its children."""
    with conversation(program, commands) as (_, place):
        _make_repository(place)
        log = place.home / "calls"
        subprocess.run(
            (strace, "-f", "-o", log, *program.command),
            cwd=place.directory,
            env=place.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        lines = log.read_text(errors="replace").splitlines()
    threads, count = {lines[0].split()[0]}, 0
    for line in lines:
        thread, _, call = line.partition(" ")
        if thread in threads and not call.lstrip().startswith(("+++", "---")):
            count += "resumed>" not in call
            # A call that another one interrupts in the log names its result, and the flag, at its end.
            made = re.search(r"CLONE_THREAD\b.* = (\d+)", call) or re.search(
                r"clone3? resumed>.*parent_tid.* = (\d+)", call
            )
            threads |= {made[1]} if made else set()
    return count


def _plans(work: Path, environment: dict[str, str]) -> dict[str, BoxPlan | None]:
    """The sandbox plan of each level that this machine supports, by name. None stands for no sandbox."""
    plan, closed = (plan_box(SandboxSettings(net=net), environment, (work,)) for net in (None, "off"))
    plans: dict[str, BoxPlan | None] = {OFF: None}
    if plan.is_confined:
        plans["landlock"] = replace(plan, means=replace(plan.means, bwrap=None, has_network_namespace=False))
        if plan.has_namespaces:
            plans |= {"namespaces": plan, "namespaces, network off": closed}
    return plans


@contextmanager
def _level(plan: BoxPlan | None, work: Path, environment: dict[str, str]) -> Iterator[Command]:
    """Yields a function that runs a command at one level and returns its time in milliseconds."""
    roots = [str(work)]
    box = None
    if plan is not None:
        box = CommandBox(plan, roots, environment, lambda: gather_places(roots, environment))
    supervisor = CommandSupervisor(
        environment, most_processes=0, confinement=None if box is None else box.confinement
    )

    def run() -> float:
        started_s = time.perf_counter()
        variables = environment if box is None else box.variables(environment)
        process = supervisor.start(["bash", "-c", ":"], cwd=work, environment=variables, grace_s=1)
        status = process.wait_for_end()
        taken_ms = (time.perf_counter() - started_s) * 1000
        if status or not process.kill_what_is_left():
            raise RuntimeError(f"status {status}: {os.read(process.output_descriptor, 4096)!r}")
        process.close()
        return taken_ms

    try:
        yield run
    finally:
        supervisor.close()
        if box is not None:
            box.close()


def _show_leftovers(work: Path, environment: dict[str, str], count: int) -> None:
    for name, plan in _plans(work, environment).items():
        before = _traces(work)
        with _level(plan, work, environment) as command:
            for _ in range(count):
                command()
        after = _traces(work)
        left = ", ".join(f"{kind} {len(after[kind] - before[kind])}" for kind in before)
        print(f"{name}: after {count} commands there are new {left}")


def _traces(work: Path) -> dict[str, set[str]]:
    """Everything that commands could leave behind, by kind. A namespace exists only as long as a process, a mount or
    a descriptor keeps it. Orphans of the supervisor become children of this process.
    """
    processes = set(map(str, launcher.children_of(os.getpid())))
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if entry.name.isdigit() and bytes(work) in (entry / "cmdline").read_bytes():
                processes.add(entry.name)
    return {
        "processes": processes,
        "mounts": {*Path("/proc/self/mounts").read_text().splitlines()},
        "temporary files": {entry.name for entry in Path(tempfile.gettempdir()).glob("ralph-tmp-*")},
        "descriptors": {entry.name for entry in Path("/proc/self/fd").iterdir()},
    }


if __name__ == "__main__":
    main()

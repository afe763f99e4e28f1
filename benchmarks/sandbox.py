"""Measures how much time each level of the sandbox adds to a command: from the request to the supervisor until the
command's status arrives. In each round, all levels are compared with a command without a sandbox.

`python -m benchmarks.sandbox COUNT` runs COUNT commands at each level instead, and prints what they have left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from benchmarks.harness import Row, figure, show
from ralph.machine import launcher
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.places.gather import gather_places
from ralph.sandbox.box_plan import BoxPlan, plan_box
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.sandbox_settings import SandboxSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[[], float]

ROUNDS = 60
OFF = "off"


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

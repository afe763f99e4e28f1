"""Tools for tests of iterations: a directory to work in, scripts in place of `ralph run`, and signals at a known
moment.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from ralph.loop.processes import RalphIterations
from ralph.loop.values import IterationOrder, LoopPlan
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.values.redaction import Redactor
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.loop.values import IterationResult

SESSION_ID = "3f2a9c1e-0000-4000-8000-000000000001"
KEY = "sk-ant-test-0123456789abcdef"
# Sets $RESULT to the path of the result file.
_FIND_RESULT = 'for word in "$@"; do [ "$last" = --result-file ] && RESULT=$word; last=$word; done\n'


@dataclass
class Iterating:
    """Runs iterations that work in `work` and are started in `launch`. They get no variable of the developer's
    environment except PATH.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    redactor: Redactor = field(default_factory=Redactor)
    waiter: InboxWaiter = field(default_factory=lambda: InboxWaiter(SystemClock()))

    def __post_init__(self) -> None:
        for name in ("work", "launch", "home", "tmp"):
            (self.root / name).mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "ANTHROPIC_API_KEY": KEY,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    @property
    def work(self) -> Path:
        return self.root / "work"

    def plan(self, *run_arguments: str) -> LoopPlan:
        return LoopPlan(
            directory=str(self.work),
            launch_directory=str(self.root / "launch"),
            run_arguments=run_arguments,
        )

    def run(
        self,
        *run_arguments: str,
        prompt: str | None = "Do it.",
        budget_usd: float | None = None,
        time_s: float | None = None,
        program: tuple[str, ...] | None = None,
        **options: Any,
    ) -> IterationResult:
        order = IterationOrder(SESSION_ID, prompt, budget_usd, time_s)
        return self.iterations(*run_arguments, program=program, **options).run(order)

    def iterations(self, *run_arguments: str, **options: Any) -> RalphIterations:
        return RalphIterations(
            self.plan(*run_arguments),
            folder=self.root / "folder",
            environment=self.environment,
            waiter=self.waiter,
            clock=SystemClock(),
            settings=(),
            redactor=self.redactor,
            **options,
        )

    def run_substitute(self, script: str, **options: Any) -> IterationResult:
        """Runs a shell script in place of `ralph`. It starts in `launch`."""
        return self.run(program=("/bin/sh", "-c", _FIND_RESULT + script, "stand-in"), **options)

    def once_there(self, name: str, act: Callable[[str], object]) -> None:
        """Starts a thread that calls `act` with the line in `launch/name` as soon as this file has one."""
        Thread(target=_act_once_there, args=(self.root / "launch" / name, act), daemon=True).start()

    def noted(self, name: str) -> str:
        return (self.root / "launch" / name).read_text()


def _act_once_there(path: Path, act: Callable[[str], object]) -> None:
    deadline_s = time.monotonic() + within_s()
    while time.monotonic() < deadline_s:
        if path.exists() and (line := path.read_text()).endswith("\n"):
            act(line.strip())
            return
        time.sleep(0.005)

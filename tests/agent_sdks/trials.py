"""Runs the trials of the table with the real SDKs. Each trial has a scripted server of its own, and all trials of one
SDK run in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.mock_api import MockApi, Playable, Scenario
from tests.patience import within_s
from tests.program.model_answers import DONE
from tests.services.outside_programs import PYTHON_SDK, TYPESCRIPT_SDK, folder_of

if TYPE_CHECKING:
    from ralph.mock_api import RecordedRequest

PACKAGES = {"python": PYTHON_SDK, "typescript": TYPESCRIPT_SDK}
SDKS = tuple(PACKAGES)
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
KEY = "sk-ant-test-0123456789abcdef"
SAY = ({"say": "go"},)
EXECUTABLE = f"""#!/bin/sh
test -z "$ERRORS" || exec 2>>"$ERRORS"
exec "{sys.executable}" -m ralph "$@"
"""
"""A script that runs ralph. It can write standard error to a file, because Python's SDK does not read all of it."""
Options = Mapping[str, Any]


class Run(Struct, frozen=True, kw_only=True):
    """One run of ralph by an SDK. In an option, `$HERE` stands for the trial's working directory, and `$SESSION` for
    the id of the session before.
    """

    both: Options = {}
    """Options that are spelled the same in both SDKs."""
    python: Options = {}
    typescript: Options = {}
    steps: Sequence[Mapping[str, Any]] = SAY

    def options(self, sdk: str) -> dict[str, Any]:
        return {**self.both, **(self.python if sdk == "python" else self.typescript)}


class Trial(Struct, frozen=True, kw_only=True):
    name: str
    runs: Sequence[Run]
    answers: Sequence[Playable] = (DONE,)
    """The model's answers to all requests of the trial, in order."""
    files: Mapping[str, str] = {}
    """Files of the working directory, by name."""
    shows_errors: bool = False
    """Whether the SDK gets ralph's standard error. Otherwise it goes to a file."""


class Ran(Struct, frozen=True):
    """The requests and results of the runs of one trial."""

    cwd: Path
    requests: Sequence[RecordedRequest]
    runs: Sequence[dict[str, Any]]

    def sent(self, nth: int = 0) -> dict[str, Any]:
        """The body of the nth request."""
        body: dict[str, Any] = self.requests[nth].json()
        return body

    @property
    def tools(self) -> set[str]:
        return {tool["name"] for tool in self.sent().get("tools", [])}

    def told(self, nth: int = -1) -> str:
        """The last message of the nth request, as JSON."""
        return json.dumps(self.sent(nth)["messages"][-1])

    def messages(self, kind: str, run: int = -1) -> list[dict[str, Any]]:
        """The messages of one kind, such as `result`, `init` or `stream_event`."""
        return [
            one
            for one in map(_plain, self.runs[run]["messages"])
            if kind in (one["type"], one.get("subtype"))
        ]

    def result(self, run: int = -1) -> dict[str, Any]:
        (result, *_) = self.messages("result", run) or [{}]
        return result

    @property
    def stderr(self) -> str:
        """The text that all runs wrote to standard error."""
        file = self.cwd.parent / "stderr"
        return file.read_text() if file.exists() else "\n".join(self.runs[-1]["stderr"])

    @property
    def says(self) -> str:
        """Everything that the SDK's user sees of a failure."""
        run = self.runs[-1]
        return "\n".join([str(run["error"]), self.stderr, *(self.result().get("errors") or [])])


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the form of TypeScript's SDK. Python's SDK has classes of messages instead."""
    kinds = {
        "ResultMessage": "result",
        "StreamEvent": "stream_event",
        "UserMessage": "user",
        "AssistantMessage": "assistant",
    }
    if "class" not in message:
        return message
    data = message.get("data")
    return (
        data if isinstance(data, dict) else {"type": kinds.get(message["class"], message["class"]), **message}
    )


def play(sdk: str, trials: Sequence[Trial], directory: Path) -> dict[str, Ran]:
    """Runs all trials in one process of the SDK."""
    executable = directory / "ralph"
    executable.write_text(EXECUTABLE)
    executable.chmod(0o755)
    with ExitStack() as stack:
        servers = {one.name: stack.enter_context(MockApi(Scenario(one.answers))) for one in trials}
        orders = [_order(sdk, one, servers[one.name].base_url, directory) for one in trials]
        gave = _gave(sdk, orders)
        return {
            one.name: Ran(directory / one.name / "work", list(servers[one.name].requests), gave[one.name])
            for one in trials
        }


def _order(sdk: str, trial: Trial, base_url: str, directory: Path) -> dict[str, Any]:
    cwd, home = directory / trial.name / "work", directory / trial.name / "home"
    cwd.mkdir(parents=True)
    home.mkdir()
    for name, text in trial.files.items():
        path = cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    errors = "" if trial.shows_errors else str(home.parent / "stderr")
    environment = {
        "ERRORS": errors,
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": base_url,
        "PYTHONPATH": str(REPOSITORY),
    }
    executable = "cli_path" if sdk == "python" else "pathToClaudeCodeExecutable"
    runs = []
    for run in trial.runs:
        options = run.options(sdk)
        variables: dict[str, str] = options.get("env", {})
        options["env"] = {**environment, **variables}
        options = {executable: str(directory / "ralph"), "cwd": str(cwd), **options}
        runs.append({"options": options, "steps": list(run.steps)})
    filled: dict[str, Any] = json.loads(
        json.dumps({"name": trial.name, "runs": runs}).replace("$HERE", str(cwd))
    )
    return filled


def _gave(sdk: str, orders: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    program = [sys.executable, "drive.py"] if sdk == "python" else ["node", "drive.mjs"]
    ran = subprocess.run(
        [program[0], str(HERE / program[1]), str(folder_of(PACKAGES[sdk]))],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        timeout=within_s(240),
        env={"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": KEY},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    gave: dict[str, list[dict[str, Any]]] = json.loads(ran.stdout.splitlines()[-1])
    return gave


Check = Callable[[Ran], object]

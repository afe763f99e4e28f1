"""Plays workloads in the sandbox of one level, as an ordinary user's commands of Bash:

    python -m tests.sandbox.workloads.play LEVEL NAME...

Prints one JSON object a workload: its name, whether its command failed, and the text that the model gets. Each workload gets
a new home with a new repository in it. The toolbox is the one of a run, and so is the way in which the sandbox is planned.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from ralph.machine.files.trees import remove_tree
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.tools.tool_context import ToolSettings
from ralph.tools.toolbox import LocalToolbox
from ralph.values.answer import ToolCall
from tests.patience import within_s
from tests.sandbox.workloads.programs import FOLDER, interpreter_of, search_path
from tests.sandbox.workloads.table import WORKLOADS

if TYPE_CHECKING:
    from tests.sandbox.workloads.table import Workload

LEVELS = ("off", "landlock", "namespaces")
_RESTRICTED = "--restricted"
_NOBODY_ELSE = 1000
"""The user of root's workloads: Postgres, Chromium and others refuse to work for root, or work otherwise."""
_IDENTITY = "[user]\nname = A Developer\nemail = developer@example.com\n"
_PLACE = "/var/tmp"
_LEFT_OUT = ("GIT_", "XDG_", "PYTEST_", "RALPH_", "PYTHON", "VIRTUAL_ENV")
"""How the variables of these tests begin. The others may say where packages come from."""


def command_line(level: str, names: list[str]) -> list[str]:
    """The words that play these workloads. Root becomes another user of a user namespace, whose files are root's."""
    unshare = ["unshare", "--user", f"--map-user={_NOBODY_ELSE}", f"--map-group={_NOBODY_ELSE}", "--"]
    return [
        *(unshare if os.geteuid() == 0 else []),
        sys.executable,
        "-m",
        "tests.sandbox.workloads.play",
        level,
        *names,
    ]


def _restrict_and_start_again() -> None:
    """Makes this process one that can make no namespaces, as in a container."""
    from tests.program.namespaces import forbidding_namespaces

    forbidding_namespaces()["preexec_fn"]()
    os.execv(
        sys.executable, [sys.executable, "-m", "tests.sandbox.workloads.play", _RESTRICTED, *sys.argv[1:]]
    )


class _Server(ThreadingMixIn, UnixStreamServer):
    """A program outside the sandbox that answers like a Docker with no containers. Agents get no answer."""

    daemon_threads = True

    def handle_error(self, _request: object, _address: object) -> None:
        """Says nothing of clients that went away."""


class _Answer(BaseRequestHandler):
    def handle(self) -> None:
        asked = self.request.recv(65536)
        if b" HTTP/1.1\r\n" in asked:
            self.request.sendall(
                b"HTTP/1.1 200 OK\r\nAPI-Version: 1.41\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"
            )
        else:
            self.request.recv(65536)


def box_has_sockets(toolbox: LocalToolbox) -> bool:
    """Whether the sandbox lets commands make Unix sockets."""
    box = toolbox.context.box
    return box._plan.unix_sockets != "none" and box.is_covered


def play(workload: Workload, level: str) -> dict[str, Any]:
    """Plays one workload. Returns the object that is printed."""
    place = Path(tempfile.mkdtemp(prefix="ralph-workload-", dir=_PLACE))
    home, outside = place / "home", place / "outside"
    work = home / "work"
    outside.mkdir()
    server = _Server(str(outside / "server"), _Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        work.mkdir(parents=True)
        (home / ".gitconfig").write_text(_IDENTITY)
        for name in workload.home:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(name)
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith(_LEFT_OUT)},
            "PATH": search_path(),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "USER": "developer",
            "TOOLS": str(FOLDER),
            "INTERPRETER": interpreter_of(workload.needs.split()[0]),
            "OUTSIDE": str(outside),
            "SSH_AUTH_SOCK": str(outside / "server"),
        }
        if workload.has_repository:
            subprocess.run(["git", "init", "-q", "-b", "main"], cwd=work, env=environment, check=True)
        wanted = SandboxSettings(mode="off" if level == "off" else "auto", **workload.sandbox)
        plan = plan_box(wanted, environment, (work,))
        assert plan.has_namespaces == (level == "namespaces"), plan.means
        assert plan.is_confined == (level != "off"), plan.means
        clock = SystemClock()
        settings = ToolSettings(work, environment, box_plan=plan, sandbox=wanted, kill_grace_s=0.5)
        toolbox = LocalToolbox(settings, waiter=InboxWaiter(clock), clock=clock)
        try:
            steps = (workload.commands,) if isinstance(workload.commands, str) else workload.commands
            for nth, step in enumerate(steps):
                tool, arguments = ("Bash", {"command": step}) if isinstance(step, str) else step
                if tool == "Bash":
                    arguments = {"timeout": within_s(workload.timeout_s) * 1000, **arguments}
                [(output, took_s)] = toolbox.run([ToolCall(f"toolu_{nth}", tool, arguments)])
                if output.is_error:
                    break
        finally:
            toolbox.close()
        return {
            "name": workload.name,
            "has_failed": output.is_error,
            "text": output.content,
            "has_sockets": level == "off" or box_has_sockets(toolbox),
            "took_s": round(took_s, 2),
        }
    finally:
        server.shutdown()
        server.server_close()
        remove_tree(place)


def main() -> None:
    words = sys.argv[1:]
    if words[0] == "landlock":
        _restrict_and_start_again()
    if words[0] == _RESTRICTED:
        words = words[1:]
    level, *names = words
    by_name = {one.name: one for one in WORKLOADS}
    for name in names:
        print(json.dumps(play(by_name[name], level)), flush=True)  # noqa: T201 - a program for the tests


if __name__ == "__main__":
    main()

"""Real agents from npm inside `ralph loop --agent`, on scripted servers: through an outage, and while the loop is killed with
SIGKILL again and again. `make agents` and `.ci/nightly` run it.

`python -m tests.services.real_agents [--kills N] [NAME ...]`. Exit 1 if an agent cannot be installed, or if something is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from ralph.mock_api import Fault, MockApi, Turn
from ralph.mock_api.scenario import Playable, ToolUse
from tests.patience import PATIENCE_S

VERSIONS = {
    "claude": "@anthropic-ai/claude-code@2.1.332",
    "codex": "@openai/codex@0.171.0",
    "opencode": "opencode-ai@1.18.33",
    "pi": "@mariozechner/pi-coding-agent@0.73.1",
}
COMMANDS = {"claude": "claude -p", "codex": "codex exec", "opencode": "opencode run", "pi": "pi -p"}
TOP = Path(__file__).parents[2]
FOLDER = TOP / ".real-agents"
KEY = "sk-ant-of-a-test-0000000000000000"
ITERATIONS = 3
_SLOW_S = 0.4
_LIMIT_S = 7 * PATIENCE_S


class Answers:
    """The model: in each conversation, it adds a line to a file by a command, and then says that it is done. It is away for a while
    if `outages` is more than 0.
    """

    def __init__(self, outages: int) -> None:
        self._left = outages
        self._lock = threading.Lock()

    def is_away(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0


def command_after(text: str) -> str | None:
    """The command for a conversation in this JSON, or None if a tool has answered since the last message of the user."""
    return None if "ADDED" in text else "sleep 0.3; echo x >> lines.txt; echo ADD''ED"


def messages_script(answers: Answers) -> Any:
    def script(request: Any, _number: int) -> Playable:
        asked = request.json()
        tools = [tool["name"] for tool in asked.get("tools", [])]
        shell = next((name for name in tools if name.lower() == "bash"), None)
        if shell is None:  # the title of a session
            return Turn("A title")
        if answers.is_away():
            return Fault(status=529)
        time.sleep(_SLOW_S)
        command = command_after(json.dumps(asked["messages"][-3:]))
        if command is None:
            return Turn("All done.")
        return Turn([ToolUse(shell, {"command": command, "description": "add a line"})])

    return script


class Responses(BaseHTTPRequestHandler):
    """OpenAI's Responses API, as much as codex needs."""

    answers: Answers
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(404, "application/json", b"{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.answers.is_away():
            return self._send(503, "application/json", b'{"error": {"message": "at capacity"}}')
        time.sleep(_SLOW_S)
        command = command_after(json.dumps(asked["input"][-3:]))
        names = [tool.get("name", "") for tool in asked.get("tools", [])]
        if command is None:
            item: dict[str, Any] = {
                "type": "message",
                "role": "assistant",
                "id": "m1",
                "content": [{"type": "output_text", "text": "All done."}],
            }
        else:
            name = next(one for one in ("exec_command", "shell_command", "shell") if one in names)
            words: object = ["bash", "-c", command] if name == "shell" else command
            arguments = json.dumps({"cmd" if name == "exec_command" else "command": words})
            item = {
                "type": "function_call",
                "id": "f1",
                "call_id": f"c{time.monotonic_ns()}",
                "name": name,
                "arguments": arguments,
            }
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": "r1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "r1", "usage": usage}},
        ]
        body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
        return self._send(200, "text/event-stream", body.encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


class Server:
    def __init__(self, name: str, answers: Answers) -> None:
        self._messages: MockApi | None = None
        self._responses: ThreadingHTTPServer | None = None
        if name == "codex":
            handler = type("Handler", (Responses,), {"answers": answers})
            self._responses = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            self.url = f"http://127.0.0.1:{self._responses.server_port}"
        else:
            self._messages = MockApi(script=messages_script(answers))

    def __enter__(self) -> Self:
        if self._responses is not None:
            threading.Thread(target=self._responses.serve_forever, daemon=True).start()
        if self._messages is not None:
            self.url = self._messages.start().base_url
        return self

    def __exit__(self, *_: object) -> None:
        if self._responses is not None:
            self._responses.shutdown()
        if self._messages is not None:
            self._messages.close()


class World:
    """A home, a repository, and the agent's settings for a server."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.top = Path(tempfile.mkdtemp(prefix="real-agent-", dir="/var/tmp"))
        self.home, self.work = self.top / "home", self.top / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.environment = {
            "PATH": f"{FOLDER / name / 'node_modules' / '.bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PYTHONPATH": str(TOP),
            "ANTHROPIC_API_KEY": KEY,
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": url,
        }
        self._write(".config/ralph/config.toml", "[loop]\noutage_waits_s = [1]\n")
        getattr(self, f"_settings_of_{name}")(url)
        settings = ("init -q", "config user.name n", "config user.email n@example.com")
        for words in (*settings, "commit -q --allow-empty -m first"):
            self.git(*words.split())

    def _write(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _settings_of_claude(self, _url: str) -> None:
        self._write(".claude/plugins/config.json", "{}")

    def _settings_of_codex(self, url: str) -> None:
        self._write(
            ".codex/config.toml",
            'model = "m"\nmodel_provider = "mock"\n[model_providers.mock]\nname = "mock"\nwire_api = "responses"\n'
            f'base_url = "{url}/v1"\nenv_key = "OPENAI_API_KEY"\nrequest_max_retries = 0\nstream_max_retries = 0\n',
        )

    def _settings_of_opencode(self, url: str) -> None:
        options = {"baseURL": f"{url}/v1", "apiKey": KEY}
        models: dict[str, object] = {"claude-sonnet-4-5": {}}
        settings = {
            "model": "anthropic/claude-sonnet-4-5",
            "provider": {"anthropic": {"options": options, "models": models}},
            "autoupdate": False,
        }
        self._write(".config/opencode/opencode.json", json.dumps(settings))

    def _settings_of_pi(self, url: str) -> None:
        provider = {
            "baseUrl": url,
            "api": "anthropic-messages",
            "apiKey": "ANTHROPIC_API_KEY",
            "models": [{"id": "mock-model"}],
        }
        self._write(".pi/agent/models.json", json.dumps({"providers": {"mock": provider}}))
        self._write(
            ".pi/agent/settings.json", json.dumps({"defaultProvider": "mock", "defaultModel": "mock-model"})
        )

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.work, env=self.environment, check=True, capture_output=True, text=True
        ).stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ralph", "loop", *words],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def new_loop(self) -> subprocess.Popen[str]:
        words = [
            "add a line",
            "--agent",
            COMMANDS[self.name],
            "--max-iterations",
            str(ITERATIONS),
            "--commit",
        ]
        return self.start(*words)

    def has_loop(self) -> bool:
        return any(self.home.glob(".local/state/ralph/loops/*/*/loop.json"))

    def record(self) -> dict[str, Any]:
        shown = subprocess.run(
            [sys.executable, "-m", "ralph", "loop", "--status", "--json"],
            cwd=self.work,
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        return json.loads(shown.stdout) if shown.returncode == 0 else {"iterations": []}

    def lines(self) -> int:
        path = self.work / "lines.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def left(self) -> list[str]:
        """The processes whose environment names this home."""
        mark, found = f"HOME={self.home}".encode(), []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100])
            except OSError:
                continue
        return found


def through_an_outage(name: str) -> list[str]:
    """The faults of a loop whose server is away at first."""
    # claude asks eleven times before it gives up.
    with Server(name, Answers(4)) as server:
        world = World(name, server.url)
        said, _ = world.new_loop().communicate(timeout=_LIMIT_S)
        return faults(world, said)


def killed_again_and_again(name: str, kills: int) -> list[str]:
    """The faults of a loop that is killed at any moment."""
    chance = random.Random(7)
    with Server(name, Answers(0)) as server:
        world = World(name, server.url)
        done, said = 0, ""
        process = world.new_loop()
        while done < kills:
            try:
                said, _ = process.communicate(timeout=chance.uniform(0.5, 8.0))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
                done += 1
                until_gone(world)
                process = world.start("--continue") if world.has_loop() else world.new_loop()
                continue
            if process.returncode and "is done" not in said:
                return [f"after {done} kills, the loop ended with {process.returncode}: {said[-600:]}"]
            if found := faults(world, said, is_killed=True):
                return found
            world = World(name, server.url)
            process = world.new_loop()
        said, _ = process.communicate(timeout=_LIMIT_S)
        return faults(world, said, is_killed=True)


def until_gone(world: World) -> None:
    for _ in range(100):
        if not world.left():
            return
        time.sleep(0.1)
    raise AssertionError(f"after a kill there is still {world.left()}")


def faults(world: World, said: str, *, is_killed: bool = False) -> list[str]:
    """The faults at the end of a loop. A command that was cut off may have added its line before the agent knew it."""
    found = []
    record = world.record()
    outcomes = [one["outcome"] for one in record["iterations"]]
    if outcomes != ["completed"] * ITERATIONS:
        found.append(f"iterations: {outcomes}: {said[-900:]}")
    lines = world.lines()
    if lines < ITERATIONS or (lines > ITERATIONS and not is_killed):
        found.append(f"{lines} lines: {said[-900:]}")
    if world.git("status", "--porcelain"):
        found.append("not all is committed")
    if left := world.left():
        found.append(f"left: {left}")
    if not found:
        shutil.rmtree(world.top, ignore_errors=True)
    return found


def install(name: str) -> str | None:
    """Why an agent cannot be installed, or None."""
    place = FOLDER / name
    if (place / "node_modules" / ".bin" / name).exists():
        return None
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    words = [
        npm,
        "install",
        "--loglevel=error",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(place),
        VERSIONS[name],
    ]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    return None if ran.returncode == 0 else ran.stderr.strip() or "npm failed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*COMMANDS], metavar="NAME")
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    is_good = True
    for name in given.names:
        why = install(name)
        found = [f"cannot be installed: {why}"] if why else through_an_outage(name)
        if not found:
            found = killed_again_and_again(name, given.kills)
        said = "; ".join(found) or f"good: an outage, and {given.kills} kills"
        print(f"{name} ({VERSIONS[name]}): {said}", flush=True)  # noqa: T201 - a program for people
        is_good = is_good and not found
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

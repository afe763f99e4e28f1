"""Records the journals that are missing here with the current ralph: `python -m tests.journals.record DIRECTORY`.

Recorded journals are kept for ever: this program refuses to change an existing one. It works in DIRECTORY, which
must be empty or missing, and whose path appears in the journals.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.mock_api import Fault, MockApi, Scenario, Step, Text, Thinking, ToolUse, Turn
from tests.journals.corpus import EXPECTED, JOURNALS, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.mock_api import Playable

_REPOSITORY = Path(__file__).parents[2]
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_DIE = "of() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }; kill -9 $(of $(of $PPID)); sleep 30"
"""A command that kills the ralph that runs it. Its launcher and the supervisor are the processes between the
two.
"""
_TARGETS = """
[[targets]]
name = "main"
model = "opus"
base_url = "{main}"
[[targets]]
name = "spare"
model = "sonnet"
base_url = "{spare}"
"""
THOUGHT = Thinking("Hm, 世界? Let me look.", signature="c2lnbmF0dXJl")


class Recording:
    """One session in an empty directory, which is recorded run by run."""

    def __init__(self, cwd: Path, state: Path) -> None:
        self._cwd = cwd
        self._state = state
        _empty(cwd)
        (cwd / "notes.txt").write_text("one\ntwo\nthree\n")
        (cwd / "pixel.png").write_bytes(_PIXEL)

    def run(
        self,
        *words: str,
        answers: Sequence[Playable],
        spare: Sequence[Playable] = (),
        retry: str = "off",
        says: Sequence[dict[str, object]] = (),
    ) -> None:
        """Plays one run. `spare` are the answers of a second target. `says` are the lines of a driver."""
        with MockApi(Scenario([*answers])) as server, MockApi(Scenario([*spare])) as second:
            environment = {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(_REPOSITORY),
                "HOME": str(self._state),
                "RALPH_STATE_DIR": str(self._state),
                "ANTHROPIC_API_KEY": "sk-ant-journal-0123456789",
                "ANTHROPIC_BASE_URL": server.base_url,
            }
            command = [sys.executable, "-m", "ralph", *words, "--retry", retry, "--quiet"]
            if spare:
                config = self._state / "targets.toml"
                config.write_text(_TARGETS.format(main=server.base_url, spare=second.base_url))
                command += ["--config", str(config)]
            else:
                command += [
                    "--base-url",
                    server.base_url,
                ]  # each run has its own server, so the address in the journal is out of date
            if says:
                command += ["--input-format", "stream-json", "--output-format", "stream-json"]
            lines = "".join(json.dumps(line) + "\n" for line in says).encode()
            subprocess.run(command, cwd=self._cwd, env=environment, input=lines, check=False)

    @property
    def journal(self) -> Path:
        """The path of the journal that was written last."""
        return max(self._state.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)


def every_tool(recording: Recording) -> None:
    """A run with thinking, every tool, an image, a malformed call, a tool that does not exist and an argument that
    does not exist.
    """
    malformed = ToolUse("Edit", input_json='{"file_path": "notes.txt", "old_str')
    recording.run(
        "Look around, then change something.",
        answers=[
            Turn(
                [
                    THOUGHT,
                    Text("I look."),
                    ToolUse("Read", {"file_path": "notes.txt"}),
                    ToolUse("Read", {"file_path": "pixel.png"}),
                    ToolUse("Grep", {"pattern": "t.o"}),
                    ToolUse("Glob", {"pattern": "*.txt"}),
                ]
            ),
            Turn(
                [
                    {"type": "redacted_thinking", "data": "b3BhcXVl"},
                    ToolUse("Write", {"file_path": "new.txt", "content": "ä 🙂\n", "mode": "x"}),
                    ToolUse("Edit", {"file_path": "notes.txt", "old_string": "two", "new_string": "2"}),
                    ToolUse("Edit", {"file_path": "notes.txt", "old_string": "two", "new_string": "2"}),
                    ToolUse("Bash", {"command": "cat *.txt; exit 3"}),
                ]
            ),
            Turn([Text("And now:"), malformed, ToolUse("Browse", {"url": "x"})]),
            Turn([THOUGHT, Text("Done.")]),
        ],
    )


def killed_in_a_command(recording: Recording) -> None:
    """A run that is killed in a command. The last record is the command's intent, and two more calls have not
    started.
    """
    calls = [
        ToolUse("Write", {"file_path": "new.txt", "content": "new\n"}),
        ToolUse("Bash", {"command": _DIE}),
        ToolUse("Edit", {"file_path": "notes.txt", "old_string": "two", "new_string": "2"}),
        ToolUse("Read", {"file_path": "notes.txt"}),
    ]
    recording.run("Go on until told.", answers=[Turn([THOUGHT, Text("I work."), *calls])])


def forked(recording: Recording) -> None:
    """A copy of a killed session, which is then resumed to its end."""
    killed_in_a_command(recording)
    recording.run("--continue", "--fork-session", answers=[Turn("All done.")])


def amended(recording: Recording) -> None:
    """A prompt without an answer, to which the next runs add further prompts; then an answer, and one more
    prompt.
    """
    recording.run("Say hello.", answers=[Fault(status=529)])
    recording.run("--continue", "Loudly.", answers=[Fault(status=529)])
    recording.run("--continue", answers=[Turn([THOUGHT, Text("HELLO")])])
    recording.run("--continue", "Again.", answers=[Fault(status=529)])


def stopped_in_a_command(recording: Recording) -> None:
    """A run that a signal stops in a command. The journal has the result that says so, and the end of the run."""
    stop = _DIE.replace("kill -9", "kill -TERM")
    turn = Turn([ToolUse("Bash", {"command": stop}), ToolUse("Bash", {"command": "touch never"})])
    recording.run("Go on until told.", answers=[turn])


def out_of_time(recording: Recording) -> None:
    """A run that its time limit ends. The next run tells the model that this limit no longer holds, and fails."""
    read = Turn([THOUGHT, ToolUse("Read", {"file_path": "notes.txt"})])
    silence = Step(Turn("never"), Fault(stall_before_headers_s=60))
    recording.run("Go on until told.", "--max-time", "1.5", answers=[read, silence])
    recording.run("--continue", answers=[Fault(status=529)])


def another_model(recording: Recording) -> None:
    """Two runs with different models. The second model does not see the thinking of the first."""
    recording.run("Say hello.", answers=[Turn([THOUGHT, Text("Hello.")])])
    recording.run("--continue", "Again.", "--model", "claude-opus-5", answers=[Turn([THOUGHT, Text("Hi!")])])


def cut_answers(recording: Recording) -> None:
    """A text and a call that `max_tokens` cut off, a pause of the server, a block of an unknown type, and a refusal
    that contains a call.
    """
    call = ToolUse("Bash", {"command": "touch never"})
    recording.run(
        "Go on until told.",
        answers=[
            Turn("The first half, ", stop_reason="max_tokens"),
            Turn([Text("the second."), call], stop_reason="max_tokens"),
            Turn([{"type": "of_tomorrow", "x": [1, None]}, Text("A pause.")], stop_reason="pause_turn"),
            Turn([Text("I will not."), call], stop_reason="refusal"),
        ],
    )


def retried(recording: Recording) -> None:
    """Failures that passed. The events about them stand between the other records."""
    broken = Step(Turn("never whole"), Fault(cut_after_events=3, framing="close"))
    answers: list[Playable] = [Fault(status=529), broken, Turn([THOUGHT, Text("At last.")])]
    recording.run("Say hello.", answers=answers, retry="standard")


def fell_back(recording: Recording) -> None:
    """The first target thinks, and then must not be asked for an hour. The second target thinks too, and the run is
    killed.
    """
    read = ToolUse("Read", {"file_path": "notes.txt"})
    recording.run(
        "Go on until told.",
        answers=[Turn([THOUGHT, read]), Fault(status=529, headers={"retry-after": "3600"})],
        spare=[
            Turn([Thinking("I do not know what it thought.", signature="b3RoZXI="), Text("I read."), read]),
            Turn([THOUGHT, ToolUse("Bash", {"command": _DIE})]),
        ],
    )


def several_tasks(recording: Recording) -> None:
    """A run with a driver: a task, a change of the model, a task with an answer, and one without."""
    tasks: list[dict[str, object]] = [
        {"type": "user", "message": {"role": "user", "content": words}}
        for words in ("Say hello.", "Again.", "And again.")
    ]
    requested: dict[str, object] = {"subtype": "set_model", "model": "haiku"}
    recording.run(
        answers=[Turn([THOUGHT, Text("Hello.")]), Turn([THOUGHT, Text("Hi!")]), Fault(status=529)],
        says=[tasks[0], {"type": "control_request", "request_id": "r1", "request": requested}, *tasks[1:]],
    )


def compacted(recording: Recording) -> None:
    """Two full contexts, of which the second is cut without a summary; then a prompt, and a kill in a command."""
    full = {"input_tokens": 900_000, "output_tokens": 50}
    read = ToolUse("Read", {"file_path": "notes.txt"})
    write = ToolUse("Write", {"file_path": "ä new.txt", "content": "ä\n"})
    edit = ToolUse("Edit", {"file_path": "notes.txt", "old_string": "two", "new_string": "2"})
    recording.run(
        "Look around,\n\n  then change `something`.",
        answers=[
            Turn([THOUGHT, read, write], usage=full),
            Turn("The notes are read, new.txt is written."),
            Turn([THOUGHT, Text("On with it."), edit], usage=full),
            Turn([Text("I look first."), read]),
            Turn(),
            Turn([THOUGHT, Text("Done.")]),
        ],
    )
    recording.run(
        "--continue", "Go on until told.", answers=[Turn([THOUGHT, ToolUse("Bash", {"command": _DIE})])]
    )


def reported(recording: Recording) -> None:
    """A report that does not fit its schema, then one that does."""
    schema = '{"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}'
    said = {"status": "success", "summary": "Counted."}
    recording.run(
        "Count the lines.",
        "--json-schema",
        schema,
        answers=[
            Turn([THOUGHT, ToolUse("Read", {"file_path": "notes.txt"})]),
            Turn([THOUGHT, ToolUse("final_report", {**said, "payload": {"lines": "three"}})]),
            Turn([THOUGHT, ToolUse("final_report", {**said, "payload": {"lines": 3}})]),
        ],
    )


def refused_thinking(recording: Recording) -> None:
    """A server that refuses the thinking, then misses it, and fails before the next prompt."""
    refused = "messages.1.content.0: Invalid `signature` in `thinking` block"
    missed = "Expected `thinking` or `redacted_thinking`, but found `tool_use`."
    read = ToolUse("Read", {"file_path": "notes.txt"})
    recording.run(
        "Look around.",
        answers=[
            Turn([THOUGHT, read]),
            Fault(status=400, message=refused),
            Fault(status=400, message=missed),
            Turn([Text("I look again."), read]),
            Fault(status=529),
        ],
    )


SCENES: dict[str, Callable[[Recording], None]] = {
    "every-tool": every_tool,
    "killed-in-a-command": killed_in_a_command,
    "forked": forked,
    "amended": amended,
    "stopped-in-a-command": stopped_in_a_command,
    "out-of-time": out_of_time,
    "another-model": another_model,
    "cut-answers": cut_answers,
    "retried": retried,
    "fell-back": fell_back,
    "several-tasks": several_tasks,
    "compacted": compacted,
    "reported": reported,
    "refused-thinking": refused_thinking,
}


def main() -> None:
    cwd = Path(sys.argv[1])
    cwd.mkdir(parents=True, exist_ok=True)
    if any(cwd.iterdir()):
        sys.exit(f"{cwd} is not empty")
    for name, scene in SCENES.items():
        target = JOURNALS / f"{name}.jsonl"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as state:
            recording = Recording(cwd, Path(state))
            scene(recording)
            shutil.copyfile(recording.journal, target)
        known = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
        known[name] = summary_of(target.read_bytes())
        EXPECTED.write_text(json.dumps(known, indent=1) + "\n")
    _empty(cwd)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


if __name__ == "__main__":
    main()

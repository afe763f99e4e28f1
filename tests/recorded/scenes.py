"""The recorded scenes. Each has one subject, and none waits for more than a second."""

from __future__ import annotations

import base64
from typing import Any

from ralph.mock_api import ErrorEvent, Fault, Step, Text, Thinking, ToolUse, Turn
from tests.program.model_answers import DONE, bash, calls
from tests.recorded.loop_scenes import LOOP_SCENES
from tests.recorded.scene import Await, AwaitFile, AwaitRequest, Run, Say, Scene, Send

STREAM = ("--output-format", "stream-json")
DRIVEN = ("--input-format", "stream-json", *STREAM)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
THOUGHT = Thinking("Hm, 世界? Let me look.", signature="c2lnbmF0dXJl")
KILL_RALPH = "of() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }; kill -9 $(of $(of $PPID)); sleep 30"
"""A command that kills the ralph that runs it. Its launcher and the supervisor are the processes between the
two.
"""
FULL = {"input_tokens": 900_000, "output_tokens": 50}
SCHEMA = '{"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}'
UUID = "3f2a9c1e-0000-4000-8000-000000000001"


def quickly(retries: int = 4, base_delay_s: float = 0.01) -> str:
    """Settings with short retry waits. Scenes in which a target cools down need a longer wait than a slow machine
    takes for a step.
    """
    return f"[retry]\npolicy = 'custom'\nbase_delay_s = {base_delay_s}\nmax_retries = {retries}\n"


COUNTED = {"input_tokens": 1500, "output_tokens": 20}
"""Counts of a server as they can be. The usual ones of the mock API are too low to be believed."""


def report(status: str = "success", summary: str = "Counted.", **more: Any) -> Turn:
    return calls(("final_report", {"status": status, "summary": summary, **more}))


def user(text: str | list[dict[str, Any]]) -> Say:
    return Say({"type": "user", "message": {"role": "user", "content": text}})


def ask(subtype: str, request_id: str, **fields: Any) -> tuple[Say, Await]:
    """A control request, and the wait for its response."""
    request = {"subtype": subtype, **fields}
    line = {"type": "control_request", "request_id": request_id, "request": request}
    return Say(line), Await({"type": "control_response", "request_id": request_id})


READ = ("Read", {"file_path": "notes.txt"})
EDIT = ("Edit", {"file_path": "notes.txt", "old_string": "two", "new_string": "2"})
WRITE = ("Write", {"file_path": "new.txt", "content": "ä 🙂\n"})
RESULT = Await({"type": "result"})
TWO_TARGETS = """
[[targets]]
name = "main"
model = "opus"
base_url = "{main}"
[[targets]]
name = "spare"
model = "sonnet"
base_url = "{spare}"
"""
COSTLY = """
[[targets]]
name = "costly"
model = "claude-sonnet-5-5"
base_url = "{main}"
price = {{ input = 1000, output = 100, cache_write = 1000, cache_read = 1000 }}
"""

OUTPUTS = (
    Scene("hello-text", [Run(["Say hello."])], [Turn([THOUGHT, Text("Hello there.")])], shows_all=True),
    Scene("hello-json", [Run(["-p", "Say hello.", "--output-format", "json"])], [DONE]),
    Scene(
        "partial-messages",
        [Run(["Look.", *STREAM, "--include-partial-messages", "--verbose"])],
        [Turn([THOUGHT, Text("I look."), ToolUse(*READ)], ping_every=3), Turn("Three lines, and 🙂.")],
    ),
    Scene(
        "files-for-others",
        [
            Run(
                ["Look.", "-q", "--result-file", "result.json", "--metrics-file", "metrics.prom", *STREAM],
                environment={"GITHUB_STEP_SUMMARY": "{work}/summary.md", "CI": "true"},
            ),
            Run(["Look.", "--no-session-persistence"], combined=True),
        ],
        [calls(READ), Turn("Three."), DONE],
    ),
    Scene(
        "prompts",
        [
            Run(["-p", "Review this."], stdin=b"diff --git a b\n"),
            Run(["-f", "PROMPT.md", "--system-prompt", "You are terse."]),
            Run(["-", "--append-system-prompt", "Be brief."], stdin="Grüße\n".encode()),
            Run(["  "]),
            Run(["-f", "latin.txt"]),
        ],
        [DONE, DONE, DONE],
        {"PROMPT.md": "A task\nof two lines.\n", "latin.txt": b"\xe9\n"},
        shows_all=True,
    ),
    Scene(
        "instructions",
        [Run(["Go."])],
        [DONE],
        {"CLAUDE.md": "# House rules\n\nTabs.\n", "AGENTS.md": "Others' rules.\n", "sub/x": ""},
        is_checkout=True,
        shows_all=True,
    ),
)

TOOLS = (
    Scene(
        "every-tool",
        [Run(["Look around, then change something.", *STREAM])],
        [
            Turn(
                [
                    THOUGHT,
                    Text("I look."),
                    ToolUse(*READ),
                    ToolUse("Read", {"file_path": "pixel.png"}),
                    ToolUse("Read", {"file_path": "notes.txt", "offset": 2, "limit": 1}),
                    ToolUse("Grep", {"pattern": "t.o", "output_mode": "content"}),
                    ToolUse("Glob", {"pattern": "*.txt"}),
                ]
            ),
            Turn(
                [
                    {"type": "redacted_thinking", "data": "b3BhcXVl"},
                    ToolUse(*WRITE),
                    ToolUse(*EDIT),
                    ToolUse(*EDIT),
                    ToolUse("Bash", {"command": "cat *.txt; echo bad >&2; exit 3", "description": "show"}),
                ]
            ),
            Turn([THOUGHT, Text("Done.")]),
        ],
    ),
    Scene(
        "tool-limits",
        [Run(["Go."])],
        [
            bash("seq 20000"),
            calls(("Bash", {"command": "echo before; sleep 60", "timeout": 1500})),
            bash("sleep 300 & echo left; read x; echo \"$x\"; printf '\\033[31mred\\033[0m\\n'"),
            bash("env | grep -c ANTHROPIC; echo sk-ant-recorded-0123456789; cat"),
            bash("setsid sleep 300 & [ $(cut -d' ' -f6 /proc/$$/stat) = $$ ] && echo a session of its own"),
            DONE,
        ],
        settings="[tools]\nmax_output_bytes = 2000\n",
    ),
    Scene(
        "tool-lists",
        [
            Run(["Go.", "--tools", "Read,Bash"]),
            Run(["Go.", "--allowed-tools", "Edit WebFetch"]),
            Run(["Go.", "--disallowedTools", "Bash", "Write"]),
            Run(["-p", "Go.", "--disallowedTools", "Bash", "Write"]),
            Run(["Go.", "--tools", "bash"]),
            Run(["-p", "Go.", "--tools", ""]),
        ],
        [calls(READ, EDIT), DONE, calls(("Bash", {"command": "touch never"})), *[DONE] * 4],
    ),
    Scene(
        "plan-mode",
        [Run(["Go.", "--permission-mode", "plan", *STREAM]), Run(["Go.", "--permission-mode", "maybe"])],
        [calls(READ, WRITE, ("Bash", {"command": "touch never"})), DONE],
    ),
    Scene(
        "protected-paths",
        [Run(["Go.", "--add-dir", "../beside"])],
        [
            calls(
                ("Write", {"file_path": ".git/hooks/pre-commit", "content": "x"}),
                ("Write", {"file_path": "ralph.toml", "content": "x"}),
                ("Write", {"file_path": ".claude/settings.json", "content": "x"}),
                ("Write", {"file_path": "../outside.txt", "content": "x"}),
                ("Write", {"file_path": "../beside/fine.txt", "content": "x"}),
                ("Read", {"file_path": "/proc/self/environ"}),
                ("Read", {"file_path": "environ"}),
                ("Read", {"file_path": "../home/.config/ralph/config.toml"}),
                ("Edit", {"file_path": "../home/.bashrc", "old_string": "a", "new_string": "b"}),
                ("Read", {"file_path": "out/x"}),
                ("Write", {"file_path": "out/y", "content": "x"}),
            ),
            DONE,
        ],
        {
            "../beside/a": "",
            "../home/.bashrc": "a\n",
            "environ": "-> /proc/self/environ",
            "out": "-> ../outside",
            "../outside/x": "beyond\n",
        },
        settings=quickly(),
        is_checkout=True,
    ),
    Scene(
        "malformed-calls",
        [Run(["Go.", *STREAM])],
        [
            Turn(
                [
                    Text("And now:"),
                    ToolUse("Edit", input_json='{"file_path": "notes.txt", "old_str'),
                    ToolUse("Browse", {"url": "x"}),
                    ToolUse(*READ),
                ]
            ),
            calls(("Read", {"path": "notes.txt"})),
            calls(("Bash", {"command": 3})),
            calls(("WebSearch", {})),
        ],
    ),
)

FAULTS = (
    Scene(
        "retry-http",
        [Run(["Go.", *STREAM])],
        [
            Fault(status=529),
            Fault(status=429, headers={"retry-after": "0"}),
            Fault(status=408),
            Fault(status=500, body="<h1>no</h1>", headers={"content-type": "text/html"}),
            calls(READ),
            Fault(status=409),
            DONE,
        ],
        settings=quickly(),
    ),
    Scene(
        "retry-exhausted",
        [Run(["Go."]), Run(["--continue"])],
        [Fault(status=503), Fault(status=502), Fault(status=529, headers={"retry-after": "0.01"}), DONE],
        settings=quickly(2),
    ),
    Scene(
        "retry-off-and-patient",
        [Run(["Go.", "--retry", "off"]), Run(["Go.", "--retry", "patient", "--output-format", "json"])],
        [Fault(status=529), Fault(status=429, headers={"retry-after": "99999"})],
    ),
    Scene(
        "retry-stream",
        [Run(["Go.", *STREAM])],
        [
            Step(Turn("never whole"), Fault(cut_after_events=3, framing="close")),
            Step(Turn("overloaded"), Fault(error_event=ErrorEvent(after_events=3))),
            Step(Turn("no end"), Fault(omit_message_stop=True)),
            Step(bash("echo x >> effects"), Fault(cut_after_bytes=600, framing="reset")),
            bash("echo once >> effects"),
            Step(Turn("torn"), Fault(cut_after_events=1)),
            Fault(body="", content_type="text/event-stream"),
            DONE,
        ],
        settings=quickly(),
    ),
    Scene(
        "retry-clocks",
        [Run(["Go.", *STREAM])],
        [
            Step(Turn("late"), Fault(stall_before_headers_s=60)),
            Step(Turn("silent " * 9), Fault(stall_after_events=4)),
            Step(Turn("pings " * 9), Fault(stall_after_events=4, ping_interval_s=0.02)),
            DONE,
        ],
        settings=quickly() + "[clocks]\nfirst_byte_s = 1.5\nbytes_idle_s = 1.5\nprogress_idle_s = 2\n",
    ),
    Scene(
        "retry-no-answer",
        [Run(["Go.", *STREAM])],
        [
            Fault(reset_before_headers=True),
            Fault(close_before_headers=True),
            Fault(garbage="SSH-2.0-OpenSSH\r\n"),
            Fault(partial_headers_bytes=20),
            DONE,
        ],
        settings=quickly(),
    ),
    Scene(
        "no-server",
        [
            Run(["Go.", "--base-url", "http://127.0.0.1:9"]),
            Run(["Go.", "--base-url", "http://no-such-host.invalid", "--output-format", "json"]),
            Run(["Go.", "--base-url", "ftp://127.0.0.1"]),
        ],
        settings=quickly(1),
    ),
    Scene(
        "rejected",
        [
            Run(["Go.", *STREAM]),
            Run(["Go."]),
            Run(["Go."]),
            Run(["Go."]),
            Run(["Go."]),
            Run(["Go."]),
        ],
        [
            Fault(status=400, message="messages: odd"),
            Fault(status=401),
            Fault(status=404),
            Fault(status=400, message="Your credit balance is too low to access the Anthropic API."),
            Fault(status=307, headers={"location": "http://127.0.0.1:9/v1/messages"}),
            Step(Turn("x"), Fault(error_event=ErrorEvent("permission_error", "No.", 2))),
        ],
        settings=quickly(),
    ),
    Scene(
        "should-retry",
        [Run(["Go.", *STREAM]), Run(["Go.", *STREAM])],
        [
            Fault(status=400, headers={"x-should-retry": "true"}),
            DONE,
            Fault(status=529, headers={"x-should-retry": "false", "retry-after": "7"}),
        ],
        settings=quickly(),
    ),
    Scene(
        "spend-limit",
        [Run(["Go.", "--output-format", "json"])],
        [
            Fault(
                status=429,
                headers={"x-should-retry": "true"},
                body={
                    "type": "error",
                    "error": {
                        "type": "rate_limit_error",
                        "message": "no",
                        "details": {"error_code": "enforced_spend_limit_reached"},
                    },
                },
            )
        ],
    ),
    Scene(
        "damaged-answers",
        [Run(["Go.", *STREAM]), Run(["Go.", "--retry", "off"])],
        [
            Step(Turn("damaged"), Fault(malformed_json_at_event=3)),
            calls(READ),
            Fault(body="<html>", content_type="text/html"),
            DONE,
            Step(Turn("damaged"), Fault(malformed_json_at_event=3)),
            Step(Turn("damaged"), Fault(malformed_json_at_event=3)),
            Turn("A whole one."),
        ],
        settings=quickly(),
    ),
    Scene(
        "other-servers",
        [Run(["Go.", *STREAM])],
        [
            Step(calls(READ, READ), Fault(interleaved=True, omit_tool_input=True)),
            Step(Turn("No delta."), Fault(omit_message_delta=True, line_ending="\r\n")),
        ],
    ),
    Scene(
        "fallback",
        [Run(["Go.", *STREAM]), Run(["--continue", "More.", *STREAM])],
        [
            Turn([THOUGHT, ToolUse(*READ)]),
            Fault(status=529, headers={"retry-after": "3600"}),
        ],
        spare=[
            Fault(status=500),
            Turn([Thinking("I do not know what it thought.", signature="b3RoZXI="), ToolUse(*READ)]),
            DONE,
            Turn("More is done."),
        ],
        settings=quickly(2, 0.4) + TWO_TARGETS,
    ),
    Scene(
        "fallback-and-back",
        [Run(["Go.", *STREAM])],
        [Fault(status=529), DONE],
        spare=[Fault(status=529), Turn("never")],
        settings=quickly(2, 0.4) + TWO_TARGETS,
    ),
    Scene(
        "fallback-damaged",
        [Run(["Go.", *STREAM])],
        [Step(Turn("damaged"), Fault(malformed_json_at_event=3))],
        spare=[Fault(status=401)],
        settings=quickly(2, 0.4) + TWO_TARGETS,
    ),
    Scene(
        "fallback-models",
        [Run(["Go.", "--model", "opus", "--fallback-model", "sonnet,haiku", *STREAM])],
        [Fault(status=404), Fault(status=529), Turn("From the third.")],
        settings=quickly(1, 30),
    ),
    Scene(
        "round-robin",
        [Run(["Go.", *STREAM])],
        [calls(READ), Fault(status=529, headers={"retry-after": "3600"})],
        spare=[calls(READ), calls(READ), DONE],
        settings=quickly(2) + "strategy = 'round_robin'\n" + TWO_TARGETS,
    ),
)

TURNS = (
    Scene(
        "compaction",
        # Without the sentence about the sandbox, because the size of the context would depend on the machine.
        [
            Run(["Look around,\n\n  then change `something`.", *STREAM, "--sandbox", "off"]),
            Run(["--continue", "Go on.", "--sandbox", "off"]),
        ],
        [
            Turn([THOUGHT, ToolUse(*READ), ToolUse(*WRITE)], usage=FULL),
            Turn("The notes are read, new.txt is written."),
            Turn([THOUGHT, Text("On with it."), ToolUse(*EDIT)], usage=FULL),
            Turn([Text("I look first."), ToolUse(*READ)]),
            Turn(),
            Turn([THOUGHT, Text("Done.")]),
            Turn("Gone on."),
        ],
    ),
    Scene(
        "compaction-on-overflow",
        [Run(["Go.", *STREAM, "--sandbox", "off"])],
        [
            calls(("Bash", {"command": "seq 3000"}), usage=COUNTED),
            Fault(status=400, message="prompt is too long: 1001000 tokens > 1000000 maximum"),
            Turn("Counted to three thousand.", usage=COUNTED),
            Turn("half", stop_reason="model_context_window_exceeded", usage=COUNTED),
            Turn("Summed up once more.", usage=COUNTED),
            DONE,
        ],
        settings=quickly(),
    ),
    Scene(
        "report-schema",
        [Run(["Count the lines.", "--json-schema", SCHEMA, *STREAM])],
        [
            Turn([THOUGHT, ToolUse(*READ)]),
            report(payload={"lines": "three"}),
            report(payload={"lines": 3}),
        ],
    ),
    Scene(
        "report-missing",
        [Run(["Go.", "--require-report", "--output-format", "json"])],
        [Turn("Done, I think."), Turn([THOUGHT]), Turn("Really."), Turn("Yes."), Turn("No."), Turn("So.")],
    ),
    Scene(
        "report-of-failure",
        [Run(["Go.", "--require-report"]), Run(["--continue"]), Run(["--continue", "Again."])],
        [
            Turn([ToolUse(*READ), ToolUse("final_report", {"status": "failure", "summary": "Cannot."})]),
            report("failure", "Cannot."),
            report(),
        ],
    ),
    Scene(
        "report-in-text",
        [Run(["Go.", "--json-schema", SCHEMA, "--max-turns", "2", *STREAM])],
        [
            calls(READ),
            Turn('{"lines": 3}'),
            Turn('```json\n{"lines": 3}\n```'),
            Turn('{"status": "success", "summary": "Counted.", "payload": {"lines": 3}}'),
            Turn("I cannot."),
        ],
    ),
    Scene(
        "max-turns",
        [Run(["Go.", "--max-turns", "2", *STREAM]), Run(["--continue", "--max-turns", "3"])],
        [calls(READ), calls(EDIT), Turn("What I did."), calls(READ), calls(READ), Turn("The end.")],
    ),
    Scene(
        "budget",
        [Run(["Go.", "--max-budget-usd", "12", *STREAM]), Run(["Go.", "--max-budget-usd", "0.01"])],
        [
            Turn([ToolUse(*READ)], usage={"input_tokens": 1200, "output_tokens": 8000}),
            Turn([ToolUse(*EDIT)], usage={"input_tokens": 2000, "output_tokens": 18000}),
            DONE,
        ],
        settings=COSTLY,
    ),
    Scene(
        "max-time",
        [Run(["Go.", "--max-time", "2.5s", *STREAM]), Run(["--continue"])],
        [calls(READ), Step(Turn("late"), Fault(stall_before_headers_s=60)), DONE],
    ),
    Scene(
        "doom-loop",
        [Run(["Go.", *STREAM])],
        [bash("cat notes.txt")] * 9,
    ),
    Scene(
        "doom-cycle-and-work",
        [Run(["Go."])],
        [
            *[calls(READ), bash("wc -l notes.txt")] * 4,
            calls(EDIT),
            calls(READ),
            calls(("Edit", {"file_path": "notes.txt", "old_string": "2", "new_string": "two"})),
            calls(READ),
            DONE,
        ],
    ),
    Scene(
        "no-use",
        [Run(["Go.", *STREAM]), Run(["Go."])],
        [
            Turn(),
            Turn([THOUGHT]),
            Turn("Now."),
            Turn(),
            Turn(),
            Turn(),
            Turn(),
        ],
    ),
    Scene(
        "stop-reasons",
        [Run(["Go.", *STREAM]), Run(["Go."])],
        [
            Turn("The first half, ", stop_reason="max_tokens"),
            Turn([Text("the second."), ToolUse(*WRITE)], stop_reason="max_tokens"),
            Turn([{"type": "of_tomorrow", "x": [1, None]}, Text("A pause.")], stop_reason="pause_turn"),
            Turn("Odd.", stop_reason="of_tomorrow"),
            Turn([Text("I will not."), ToolUse(*WRITE)], stop_reason="refusal"),
        ],
    ),
    Scene(
        "effort-and-thinking",
        [
            Run(["Go.", "--effort", "high", "--max-tokens", "5000"]),
            Run(["-c", "On."]),
        ],
        [Turn([THOUGHT, Text("Hello.")]), DONE],
        settings="[[targets]]\nname = 'plain'\nmodel = 'opus'\nthinking = 'none'\nbase_url = '{main}'\n",
    ),
)

SESSIONS = (
    Scene(
        "killed-and-resumed",
        [Run(["Go on until told.", "--sandbox", "off"]), Run(["--continue", "--sandbox", "off", *STREAM])],
        [
            Turn(
                [
                    THOUGHT,
                    Text("I work."),
                    ToolUse(*WRITE),
                    ToolUse("Bash", {"command": f"echo x >> effects; {KILL_RALPH}"}),
                    ToolUse(*EDIT),
                    ToolUse(*READ),
                ]
            ),
            DONE,
        ],
    ),
    Scene(
        "continue-and-fork",
        [
            Run(["Say hello.", "--session-id", UUID]),
            Run(["-c", "Again.", "--model", "opus"]),
            Run(["-r", UUID, "Otherwise.", "--fork-session", *STREAM]),
            Run(["--resume", UUID]),
            Run(["--resume", "00000000-0000-4000-8000-000000000009", "x"]),
        ],
        [Turn([THOUGHT, Text("Hello.")]), Turn([THOUGHT, Text("Hi!")]), DONE],
    ),
    Scene(
        "nothing-to-continue",
        [Run(["--continue"]), Run(["--continue", "Begin."])],
        [DONE],
    ),
    Scene(
        "amended",
        [
            Run(["Say hello.", "--retry", "off"]),
            Run(["--continue", "Loudly.", "--retry", "off"]),
            Run(["--continue", "--retry", "off"]),
        ],
        [Fault(status=529), Fault(status=529), Turn("HELLO")],
    ),
    Scene(
        "sessions-shown",
        [
            Run(["Look.", "--session-id", UUID]),
            Run(["Fail.", "--retry", "off"]),
            Run(["sessions", "ls"]),
            Run(["sessions", "ls", "--format", "json"]),
            Run(["sessions", "show", UUID]),
            Run(["sessions", "show", UUID, "--format", "md"]),
            Run(["sessions", "export", UUID]),
            Run(["sessions", "show", "nothing"]),
        ],
        [Turn([THOUGHT, Text("I look."), ToolUse(*READ)]), Turn("`Three`."), Fault(status=529)],
    ),
    Scene(
        "damaged-journal",
        [
            Run(["Look.", "--session-dir", "../kept", "--session-id", UUID]),
            Run(["sh", "torn"]),
            Run(["-c", "On.", "--session-dir", "../kept"]),
            Run(["sh", "changed"]),
            Run(["-c", "On.", "--session-dir", "../kept"]),
        ],
        [calls(READ), DONE, DONE],
        {
            "torn": 'for f in $(find ../kept -name "*.jsonl"); do printf \'{"seq":99,"ki\' >> "$f"; done',
            "changed": 'for f in $(find ../kept -name "*.jsonl"); do sed -i "s/Look/Loot/" "$f"; done',
        },
    ),
)

DRIVER = (
    Scene(
        "driven",
        [
            Run(
                DRIVEN,
                actions=[
                    *ask("initialize", "r0"),
                    *ask("get_status", "r1"),
                    user("Say hello."),
                    RESULT,
                    *ask("set_model", "r2", model="haiku"),
                    user([{"type": "text", "text": "Again."}]),
                    Await({"type": "result"}, 2),
                    *ask("set_permission_mode", "r3", mode="plan"),
                    *ask("of_tomorrow", "r4"),
                    Say("no json"),
                    Say({"type": "odd"}),
                    user("And again."),
                    Await({"type": "result"}, 3),
                ],
            )
        ],
        [Turn([THOUGHT, Text("Hello.")]), Turn([THOUGHT, Text("Hi!")]), calls(WRITE), Fault(status=400)],
        settings=quickly(),
    ),
    Scene(
        "driven-interrupts",
        [
            Run(
                DRIVEN,
                actions=[
                    user("Wait."),
                    AwaitRequest(1),
                    *ask("interrupt", "r1"),
                    RESULT,
                    user("Work."),
                    AwaitFile("started"),
                    *ask("interrupt", "r2"),
                    Await({"type": "result"}, 2),
                    user("Go on."),
                    Await({"type": "result"}, 3),
                ],
            )
        ],
        [
            Step(Turn("late"), Fault(stall_before_headers_s=60)),
            calls(("Bash", {"command": "touch started; sleep 300"}), ("Bash", {"command": "touch never"})),
            DONE,
        ],
    ),
    Scene(
        "driven-retry",
        [
            Run(
                DRIVEN,
                actions=[
                    user("Go."),
                    Await({"subtype": "api_retry"}),
                    *ask("abort_retry", "r1"),
                    RESULT,
                    *ask("set_auto_retry", "r2", enabled=False),
                    user("Again."),
                    Await({"type": "result"}, 2),
                ],
            )
        ],
        [Fault(status=529, headers={"retry-after": "50"}), Fault(status=529)],
    ),
    Scene(
        "driven-image",
        [
            Run(
                DRIVEN,
                actions=[
                    user(
                        [
                            {"type": "text", "text": "What is it?"},
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": base64.b64encode(PIXEL).decode(),
                                },
                            },
                        ]
                    ),
                    RESULT,
                ],
            )
        ],
        [Turn("A pixel.")],
    ),
)

LOOP_RETRY = "[retry]\npolicy = 'off'\n[loop]\noutage_waits_s = [0.05]\noutage_budget_s = 5\n"
LOOPS = (
    Scene(
        "loop-commits",
        [
            Run(
                [
                    "loop",
                    "Count.",
                    "--until",
                    "cat done; test $(wc -l < done) = 2",
                    "--commit",
                    "--max-iterations",
                    "3",
                ],
                environment={"GITHUB_STEP_SUMMARY": "{work}/../summary.md"},
            ),
            Run(["loop", "--status"]),
            Run(["sessions", "ls"]),
        ],
        [bash("echo 1 >> done; git add done; git commit -qm one"), DONE, bash("echo 2 >> done"), DONE],
        is_checkout=True,
    ),
    Scene(
        "loop-outage",
        [Run(["loop", "Go.", "--max-iterations", "1", "--until", "test -e new.txt"])],
        [calls(READ), Fault(status=529), calls(WRITE), DONE],
        settings=LOOP_RETRY,
    ),
    Scene(
        "loop-stopped-and-continued",
        [
            Run(
                ["loop", "-f", "PROMPT.md", "--max-iterations", "2"],
                actions=[AwaitFile("started"), Send("SIGTERM")],
            ),
            Run(["loop", "--continue"]),
        ],
        [bash("touch started; sleep 300"), DONE, bash("echo enough > .ralph/stop"), DONE],
        {"PROMPT.md": "The plan.\n"},
    ),
    Scene(
        "loop-refused",
        [
            Run(["loop", "Go.", "--until", "no-such-program-at-all"]),
            Run(["loop", "Go.", "--until", "true"]),
            Run(["loop", "--continue", "--max-iterations", "x"]),
            Run(["loop", "Go.", "--push"]),
            Run(["loop", "--status"]),
        ],
    ),
)

PROCESS = (
    Scene(
        "bad-settings",
        [
            Run(["Go."], environment={"ANTHROPIC_API_KEY": None, "ANTHROPIC_BASE_URL": None}),
            Run(["Go.", "--config", "odd.toml"]),
            Run(["Go.", "--config", "typed.toml"]),
            Run(["Go.", "--max-turns", "0"]),
            Run(["Go.", "--model"]),
            Run(["doctr"]),
            Run(["Go.", "--no-such-flag"]),
            Run(["Go.", "--output-format", "json", "--config", "none.toml"]),
            Run(["Go."], environment={"ANTHROPIC_BASE_URL": "nonsense"}),
        ],
        files={"odd.toml": "[retry]\npolicy = 'mostly'\n", "typed.toml": "[limits]\nmax_turn = 3\n"},
    ),
    Scene(
        "repository-settings",
        [Run(["Go.", *STREAM]), Run(["Go.", "-C", "aimed"])],
        [calls(("Bash", {"command": "touch never"})), DONE],
        {
            "ralph.toml": "[limits]\nmax_turns = 50\n[tools]\ndisallowed = ['Bash']\n[clocks]\nfirst_byte_s = 900\n",
            "aimed/ralph.toml": "[model]\nbase_url = 'http://127.0.0.1:9'\n",
        },
        settings="[limits]\nmax_turns = 9\n",
    ),
    Scene("doctor", [Run(["doctor"])], settings=quickly() + TWO_TARGETS, is_boxed=True),
    Scene(
        "signals",
        [
            Run(
                ["Go.", *STREAM, "--include-partial-messages"],
                actions=[Await({"type": "stream_event"}, 4), Send("SIGINT")],
            ),
            Run(["Go.", *STREAM], actions=[AwaitFile("started"), Send("SIGTERM")]),
            Run(["--continue", "--output-format", "json"]),
        ],
        [
            Step(Turn("late " * 9), Fault(stall_after_events=4)),
            calls(("Bash", {"command": "touch started; sleep 300"}), WRITE),
            DONE,
        ],
    ),
    Scene(
        "secrets",
        [
            Run(
                ["My key is sk-ant-recorded-0123456789, keep it.", *STREAM, "--pass-env", "PASSED"],
                environment={
                    "PASSED": "for the tools",
                    "MY_TOKEN": "token-0123456789",
                    "ANTHROPIC_CUSTOM_HEADERS": "X-Team: night\nX-Secret-Token: hush-0123456789",
                },
            )
        ],
        [bash("echo $PASSED $MY_TOKEN hush-0123456789 c2stYW50LXJlY29yZGVkLTAxMjM0NTY3ODk="), DONE],
    ),
)

SCENES: dict[str, Scene] = {
    scene.name: scene
    for scene in (*OUTPUTS, *TOOLS, *FAULTS, *TURNS, *SESSIONS, *DRIVER, *LOOPS, *LOOP_SCENES, *PROCESS)
}

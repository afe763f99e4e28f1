"""`ralph loop --agent`: another agent does the iterations. Small programs stand for the agents and print events of their shapes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import wait_until
from tests.program.conftest import loop_record, processes_of
from tests.program.namespaces import forbidding_namespaces, needs_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not followed")

SECRET = "sk-ant-of-the-agent-000000000000"
PROGRAM = """#!{python} -I
import json, os, subprocess, sys, time
if "--version" in sys.argv:
    print("9.9 (of a test)")
    sys.exit()
steps, calls = {steps!r}, {calls!r}
made = os.path.join(os.path.expanduser(calls), "call-%d.json")
os.makedirs(os.path.dirname(made), exist_ok=True)
n = next(n for n in range(1000) if not os.path.exists(made % n))
with open(made % n, "w") as file:
    json.dump(dict(words=sys.argv[1:], task=sys.stdin.read(), variables=dict(os.environ)), file)
step = steps[min(n, len(steps) - 1)]
for line in step["lines"]:
    print(line if isinstance(line, str) else json.dumps(line), flush=True)
exec(step.get("does", ""))
sys.exit(step.get("exit", 0))
"""
CALLS = {
    "claude": "~/.claude/calls",
    "codex": "~/.codex/calls",
    "opencode": "~/.local/share/opencode/calls",
    "pi": "~/.pi/agent/calls",
    "mybot": "calls",
}


def step(*lines: Any, code: int = 0, does: str = "") -> dict[str, Any]:
    return {"lines": lines, "exit": code, "does": does}


def claude(
    answer: str = "Done.", *, cost: float = 0.25, session: str = "s-1", **more: Any
) -> tuple[Any, ...]:
    result = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": answer,
        "total_cost_usd": cost,
    }
    return (
        {"type": "system", "subtype": "init", "session_id": session},
        {"type": "assistant", "session_id": session, "message": {}},
        {**result, "session_id": session, **more},
    )


def codex(*, answer: str | None = "Done.", failure: str | None = None) -> tuple[Any, ...]:
    end = {"type": "turn.failed", "error": {"message": failure}} if failure else {"type": "turn.completed"}
    said = (
        []
        if answer is None
        else [{"type": "item.completed", "item": {"type": "agent_message", "text": answer}}]
    )
    return ({"type": "thread.started", "thread_id": "t-1"}, {"type": "turn.started"}, *said, end)


def opencode(reason: str = "stop", *, answer: str = "Done.") -> tuple[Any, ...]:
    return (
        {"type": "text", "sessionID": "ses_1", "part": {"text": answer}},
        {"type": "step_finish", "sessionID": "ses_1", "part": {"reason": reason, "cost": 0.125}},
    )


def pi(stop: str = "stop", *, answer: str = "Done.", cost: float = 0.5, error: str = "") -> tuple[Any, ...]:
    message = {"role": "assistant", "content": [{"type": "text", "text": answer}], "stopReason": stop}
    usage = {"cost": {"total": cost}}
    return (
        {"type": "session", "id": "p-1"},
        {"type": "message_end", "message": {**message, "usage": usage, "errorMessage": error}},
        {"type": "agent_end"},
    )


GOOD = {"claude": claude(), "codex": codex(), "opencode": opencode(), "pi": pi(), "mybot": ("Done.",)}


@pytest.fixture
def agent(ralph, tmp_path: Path) -> Callable[..., Callable[[], list[dict[str, Any]]]]:
    """Makes the program of an agent. The result returns what it was called with."""
    programs = tmp_path / "programs"
    programs.mkdir()
    ralph.environment["PATH"] = f"{programs}:{ralph.environment['PATH']}"
    ralph.user_file.write_text("[loop]\noutage_waits_s = [0.01]\n")

    def make(name: str, *steps: dict[str, Any]) -> Callable[[], list[dict[str, Any]]]:
        program = programs / name
        program.write_text(PROGRAM.format(python=sys.executable, steps=[*steps], calls=CALLS[name]))
        program.chmod(0o755)
        place = Path(CALLS[name].replace("~", ralph.environment["HOME"]))
        folder = place if place.is_absolute() else ralph.cwd / place
        return lambda: [json.loads(one.read_text()) for one in sorted(folder.glob("call-*.json"))]

    return make


def iterations(ralph) -> list[tuple[Any, ...]]:
    return [
        (one["outcome"], one["turns"], one["cost_usd"], one["last_words"])
        for one in loop_record(ralph)["iterations"]
    ]


WORDS = {
    "claude -p": "-p --output-format stream-json --verbose",
    "codex exec": "exec --json --skip-git-repo-check",
    "opencode run": "run --format json",
    "pi -p": "-p --mode json",
    "mybot --once": "--once",
}


@pytest.mark.parametrize("command", WORDS)
def test_an_agent_does_the_iterations(ralph, agent, command) -> None:
    name = command.split()[0]
    calls = agent(name, step(*GOOD[name], does="open('work.txt', 'a').write('x')"))
    ran = ralph("loop", "the task", "--agent", command, "--max-iterations", "2")
    assert ran.code == 0, ran.stderr
    cost = {"claude": 0.25, "opencode": 0.125, "pi": 0.5}.get(name)
    turns = 0 if name == "mybot" else 1
    assert iterations(ralph) == [("completed", turns, cost, "Done.")] * 2
    assert [" ".join(one["words"]) for one in calls()] == [WORDS[command]] * 2
    assert all(one["task"].endswith("\n---\n\nthe task") for one in calls())
    assert ralph("report", "-o", str(ralph.cwd.parent / "page.html")).code == 0
    page = (ralph.cwd.parent / "page.html").read_text()
    assert "was deleted" not in page
    assert command in page
    assert "[loop] agent: " in ran.stderr
    assert "(9.9 (of a test))" in ran.stderr


def test_an_agent_gets_its_own_credentials_and_no_others(ralph, agent) -> None:
    ralph.environment |= {
        "ANTHROPIC_API_KEY": SECRET,
        "OPENAI_API_KEY": "sk-of-another",
        "GITHUB_TOKEN": "ghp_other",
    }
    calls = agent("claude", step(*claude(f"The key is {SECRET}.")))
    assert ralph("loop", "the task", "--agent", "claude -p", "--max-iterations", "1").code == 0
    variables = calls()[0]["variables"]
    assert variables["ANTHROPIC_API_KEY"] == SECRET
    assert not {"OPENAI_API_KEY", "GITHUB_TOKEN"} & variables.keys()
    state = Path(ralph.environment["HOME"], ".local/state/ralph/loops")
    kept = [path for path in state.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if SECRET in path.read_text(errors="replace")]


AWAY = {
    "claude -p": step(
        *claude("API Error", is_error=True, api_error_status=529, cost=0.0), code=1, does="open('begun', 'w')"
    ),
    "codex exec": step(*codex(answer=None, failure="We're currently experiencing high demand"), code=1),
    "opencode run": step(
        {"type": "error", "sessionID": "ses_1", "error": {"name": "APIError", "data": {"statusCode": 503}}},
        code=1,
    ),
    "pi -p": step(*pi("error", answer="", cost=0.0, error="529 overloaded"), code=0),
}
RESUMED = {
    "claude -p": "--resume s-1",
    "codex exec": "resume t-1 -",
    "opencode run": "-s ses_1",
    "pi -p": "--session p-1",
}


@pytest.mark.parametrize("command", AWAY)
def test_an_outage_that_the_events_tell_is_waited_for_and_the_session_goes_on(ralph, agent, command) -> None:
    name = command.split()[0]
    calls = agent(name, AWAY[command], step(*GOOD[name]))
    ran = ralph("loop", "the task", "--agent", command, "--max-iterations", "1")
    assert ran.code == 0, ran.stderr
    assert "the API is unavailable: waiting" in ran.stderr
    (done,) = iterations(ralph)
    assert (done[0], done[3]) == ("completed", "Done.")
    assert " ".join(calls()[1]["words"]) == f"{WORDS[command]} {RESUMED[command]}"
    assert "cut off" in calls()[1]["task"]


@pytest.mark.parametrize("command", AWAY)
def test_a_session_that_the_agent_had_not_stored_begins_anew(ralph, agent, command) -> None:
    name = command.split()[0]
    unknown = step(does="print('Error: no session found with this ID', file=sys.stderr)", code=1)
    calls = agent(name, AWAY[command], unknown, step(*GOOD[name]))
    ran = ralph("loop", "the task", "--agent", command, "--max-iterations", "1")
    assert ran.code == 0, ran.stderr
    assert " ".join(calls()[2]["words"]) == WORDS[command]
    assert calls()[2]["task"].endswith("\n---\n\nthe task")
    assert iterations(ralph)[0][0] == "completed"


ENDS = {
    "not logged in": (
        "codex exec",
        step(*codex(answer=None, failure="unexpected status 401 Unauthorized"), code=1),
        77,
    ),
    "a key that is refused": (
        "claude -p",
        step(*claude("no", is_error=True, api_error_status=401), code=1),
        77,
    ),
    "a quota": ("codex exec", step(*codex(answer=None, failure="You've hit your usage limit."), code=1), 69),
    "an empty account that is told as 429": (
        "claude -p",
        step(
            *claude(
                "API Error: 429 Insufficient balance or no resource package.",
                is_error=True,
                api_error_status=429,
            ),
            code=1,
        ),
        69,
    ),
    "a wrong option": ("claude -p", step(does="print('unknown option', file=sys.stderr)", code=1), 78),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_failure_that_would_come_again_ends_the_loop(ralph, agent, case) -> None:
    command, its, code = ENDS[case]
    calls = agent(command.split()[0], its)
    ran = ralph("loop", "the task", "--agent", command, "--max-iterations", "3")
    assert (ran.code, len(calls())) == (code, 1), ran.stderr


NOT_GOOD = {
    "a refusal of codex": ("codex exec", step(*codex(answer=None))),
    "an empty answer": ("pi -p", step(*pi(answer=""))),
    "a cut answer of pi": ("pi -p", step(*pi("length"))),
    "a refused permission of opencode": ("opencode run", step(*opencode("tool-calls"))),
    "another exit code than the events": ("claude -p", step(*claude(), code=1)),
    "an exit code": ("mybot", step("Sorry.", code=3)),
    "no end": ("claude -p", step(*claude()[:2])),
}


@pytest.mark.parametrize("case", NOT_GOOD)
def test_a_failure_is_one_whatever_the_exit_code_is(ralph, agent, case) -> None:
    command, its = NOT_GOOD[case]
    agent(command.split()[0], its)
    ran = ralph("loop", "the task", "--agent", command, "--max-iterations", "1")
    assert [one[0] for one in iterations(ralph)] == ["task_failed"], ran.stderr


REFUSED = {
    "a budget where the cost is unknown": (
        "codex exec",
        ["--max-budget-usd", "1"],
        "does not tell what it costs",
    ),
    "turns": ("codex exec", ["--max-turns", "3"], "--max-turns cannot be kept with --agent codex"),
    "tools": ("pi -p", ["--allowed-tools", "Bash"], "--allowed-tools cannot be kept with --agent pi"),
    "a server": (
        "claude -p",
        ["--base-url", "http://x.test"],
        "--base-url cannot be kept with --agent claude",
    ),
    "a model of an unknown agent": ("mybot", ["--model", "m"], "the loop knows no option of it"),
    "a program that is missing": ("nobot", [], "the program nobot cannot be started"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_agent_cannot_keep_is_refused_before_anything_runs(ralph, agent, case) -> None:
    command, words, why = REFUSED[case]
    calls = agent("codex", step(*codex()))
    for name in ("claude", "pi", "mybot"):
        agent(name, step(*GOOD[name]))
    ran = ralph("loop", "the task", "--agent", command, *words)
    assert ran.code == 78, ran.stderr
    assert why in ran.stderr
    assert not calls()


def test_guards_of_files_are_kept_or_refused(ralph, agent) -> None:
    calls = agent("claude", step(*claude()))
    agent("codex", step(*codex()))
    (ralph.cwd / "ralph.toml").write_text("[tools]\ndisallowed = ['Bash']\n")
    assert ralph("loop", "the task", "--agent", "claude -p", "--max-iterations", "1").code == 0
    assert "--disallowedTools Bash" in " ".join(calls()[0]["words"])
    assert (
        "disallowed_tools of the settings cannot be kept"
        in ralph("loop", "the task", "--agent", "codex").stderr
    )
    (ralph.cwd / "ralph.toml").unlink()
    (ralph.cwd / ".claude").mkdir()
    (ralph.cwd / ".claude" / "settings.json").write_text('{"permissions": {"deny": ["Bash"]}}')
    ran = ralph("loop", "the task", "--agent", "codex")
    assert ran.code == 78
    assert ".claude/settings.json cannot be kept with --agent codex" in ran.stderr
    words = ["--agent", "codex", "--max-iterations", "1", "--setting-sources", ""]
    assert ralph("loop", "the task", *words).code == 0


def test_options_that_the_loop_sets_are_refused(ralph, agent) -> None:
    agent("claude", step(*claude()))
    ran = ralph("loop", "the task", "--agent", "claude -p --resume x")
    assert (ran.code, "leave out --resume" in ran.stderr) == (2, True)
    assert ralph("loop", "the task", "--agent", "claude 'x").code == 2
    assert ralph("loop", "the task", "--agent", " ").code == 2


def test_options_that_the_agent_keeps_are_handed_on(ralph, agent) -> None:
    calls = agent("claude", step(*claude()))
    words = ["--model", "opus", "--max-turns", "7", "--allowed-tools", "Bash,Read"]
    assert ralph("loop", "the task", "--agent", "claude -p", *words, "--max-iterations", "1").code == 0
    handed_on = calls()[0]["words"]
    assert [handed_on[handed_on.index(one) + 1] for one in ("--model", "--max-turns")] == ["opus", "7"]
    assert "--allowedTools Bash,Read" in " ".join(handed_on)


def test_an_agent_is_stopped_when_it_has_spent_the_budget(ralph, agent) -> None:
    agent("pi", step(*pi(cost=0.75), does="time.sleep(60)"))
    ran = ralph("loop", "the task", "--agent", "pi -p", "--max-budget-usd", "0.5")
    assert ran.code == 3, ran.stderr
    assert iterations(ralph)[0][:3] == ("limit_reached", 1, 0.75)


def test_nothing_that_an_agent_started_lives_on(ralph, agent) -> None:
    left = "subprocess.Popen(['sleep', '987'], start_new_session=True)"
    agent("claude", step(*claude(), does=left))
    assert ralph("loop", "the task", "--agent", "claude -p", "--max-iterations", "1").code == 0
    assert subprocess.run(["pgrep", "-f", "^sleep 987$"], check=False, capture_output=True).stdout == b""


def test_a_stop_reaches_the_agent_and_the_loop_goes_on_later(ralph, agent) -> None:
    calls = agent("claude", step(*claude()[:2], does="time.sleep(60)"), step(*claude()))
    process = ralph.start("loop", "the task", "--agent", "claude -p", "--max-iterations", "1")
    wait_until(lambda: len(calls()) == 1 and is_kept(ralph, "assistant"))
    assert ralph.stopped_by(process, signal.SIGTERM).code == 143
    assert not processes_of(ralph)
    ran = ralph("loop", "--continue")
    assert ran.code == 0, ran.stderr
    assert calls()[1]["words"][-2:] == ["--resume", "s-1"]
    assert iterations(ralph) == [("completed", 2, None, "Done.")], "what the stopped process cost is unknown"


def test_a_long_iteration_of_an_agent_says_that_it_goes_on(ralph, agent) -> None:
    agent("claude", step(*claude()[:2], does="time.sleep(60)"))
    ralph.user_file.write_text("[clocks]\nheartbeat_s = 0.2\n")
    process = ralph.start("loop", "the task", "--agent", "claude -p", "--max-iterations", "1")
    assert process.stderr is not None
    assert any(b"waiting for claude, iteration 1, " in line for line in process.stderr)
    ralph.stopped_by(process, signal.SIGTERM)


def test_an_agent_that_does_not_tell_its_version_has_the_time_of_the_loop_for_it(ralph, agent) -> None:
    agent("claude", step(*claude()))
    program = ralph.cwd.parent / "programs" / "claude"
    program.write_text(program.read_text().replace('print("9.9 (of a test)")', "time.sleep(60)"))
    ran = ralph("loop", "the task", "--agent", "claude -p", "--max-time", "1s")
    assert "[loop] agent: " in ran.stderr
    assert "(it does not tell its version)" in ran.stderr
    assert ran.code in (3, 124), ran.stderr
    assert loop_record(ralph)["elapsed_s"] >= 1


def test_what_an_agent_prints_to_its_standard_error_takes_no_room(ralph, agent) -> None:
    size = "open('size', 'w').write(str(os.fstat(2).st_size))"
    much = f"os.write(2, b'no use\\n' * 3_000_000); os.write(2, b'out of luck'); {size}"
    agent("claude", step(does=much, code=1))
    ran = ralph("loop", "the task", "--agent", "claude -p", "--max-iterations", "1")
    assert "out of luck" in ran.stderr
    assert int((ralph.cwd / "size").read_text()) == 0


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("mybot", '{"ralph":{"version":1}}'),
        ("claude -p", '{"ralph":[]}'),
        (
            "claude -p",
            json.dumps({"type": "result", "total_cost_usd": 10**400, "subtype": [], "session_id": {}}),
        ),
        ("codex exec", '{"type":"item.completed","item":{"type":[]}}'),
        ("opencode run", '{"type":"step_finish","part":{"cost":1e308,"reason":[]}}'),
        (
            "pi -p",
            '{"type":"message_end","message":{"role":"assistant","content":[[]],"usage":{"cost":{"total":-1}}}}',
        ),
    ],
)
def test_no_line_that_an_agent_prints_hangs_the_loop(ralph, agent, command, line) -> None:
    name = command.split()[0]
    agent(name, step(line, *["y" * 1000] * 300, *GOOD[name]))
    ran = ralph("loop", "the task", "--agent", command, "--max-iterations", "1")
    assert ran.code == 0, ran.stderr
    assert "Traceback" not in ran.stderr


def is_kept(ralph, word: str) -> bool:
    state = Path(ralph.environment["HOME"], ".local/state/ralph/loops")
    return any(word in path.read_text() for path in state.rglob("agent-*.jsonl"))


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_killed_loop_loses_nothing_of_an_agent_and_counts_nothing_twice(ralph, agent, has_ended) -> None:
    its = claude() if has_ended else claude()[:2]
    calls = agent("claude", step(*its, does="" if has_ended else "time.sleep(60)"), step(*claude("Again.")))
    words = ["--until", "test -e started || { touch started; sleep 60; }; true", "--at-least-once"]
    if has_ended:
        (ralph.cwd / "started").touch()
        words = [
            "--until",
            "test -e once && { rm started 2>/dev/null && sleep 60; true; } || { touch once; false; }",
        ]
    process = ralph.start(
        "loop", "the task", "--agent", "claude -p", "--max-iterations", "1", *(words if has_ended else [])
    )
    wait_until(lambda: is_kept(ralph, '"ended"' if has_ended else "assistant"))
    if has_ended:
        wait_until(lambda: not (ralph.cwd / "started").exists())
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_of(ralph))
    ran = ralph("loop", "--continue")
    assert ran.code == 0, ran.stderr
    assert len(calls()) == (1 if has_ended else 2)
    assert iterations(ralph)[0][3] == ("Done." if has_ended else "Again.")


@needs_namespaces
@pytest.mark.sandboxed
@pytest.mark.parametrize("level", ["namespaces", "landlock"])
def test_an_agent_writes_its_state_and_nothing_that_says_what_it_does(ralph, agent, level) -> None:
    home = Path(ralph.environment["HOME"])
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text("{}")
    (home / ".claude" / ".credentials.json").write_text("login")
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_rsa").write_text("key")
    tries = """
def tried(path, text=None):
    try:
        with open(os.path.expanduser(path), "r" if text is None else "a") as file:
            return file.read() if text is None else str(file.write(text))
    except OSError as error:
        return type(error).__name__
tried("~/.claude/settings.json", "x"), tried("~/.claude/CLAUDE.md", "x"), tried("~/.claude/history", "x"), tried("here", "x")
open("said", "w").write(" ".join([tried("~/.claude/.credentials.json"), tried("~/.ssh/id_rsa"), tried("~/new", "x")]))
"""
    calls = agent("claude", step(*claude(), does=tries))
    how = forbidding_namespaces() if level == "landlock" else {}
    ran = ralph.finish(
        ralph.start("loop", "the task", "--agent", "claude -p", "--max-iterations", "1", **how)
    )
    assert ran.code == 0, ran.stderr
    assert (ralph.cwd / "said").read_text().split()[0] == "login"
    assert "key" not in (ralph.cwd / "said").read_text()
    assert not (home / "new").exists()
    assert (home / ".claude" / "settings.json").read_text() == "{}"
    assert not (home / ".claude" / "CLAUDE.md").exists()
    assert (home / ".claude" / "history").exists()
    assert (ralph.cwd / "here").exists()
    words, variables = calls()[0]["words"], calls()[0]["variables"]
    assert "--dangerously-skip-permissions" in words
    assert variables["IS_SANDBOX"] == "1"

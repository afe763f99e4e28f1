"""`ralph loop --agent`: another agent does the iterations. Small programs replace the agents and print events of their shapes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.loop import agent_events as events
from ralph.loop.agents import AGENTS
from ralph.values.outcome import Outcome
from tests.patience import wait_until
from tests.program.conftest import loop_record, processes_of
from tests.program.loop.test_loop_killed import kill
from tests.program.namespaces import forbidding_namespaces, needs_namespaces
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.program.conftest import Finished

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not followed")

SECRET = "sk-ant-of-the-agent-000000000000"
PROGRAM = """#!{python} -I
import json, os, subprocess, sys, time
steps, (variable, usual) = {steps!r}, {place!r}
own = os.path.expanduser(os.path.normpath(os.environ.get(variable, usual.partition("/./")[0]) + "/" + usual.partition("/./")[2]))
made = os.path.join(own, "calls", "call-%d.json")
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
# The variable of its directory, and where that is without it. What comes after /./ is the agent's part of it.
PLACES = {
    "claude": ("CLAUDE_CONFIG_DIR", "~/.claude"),
    "codex": ("CODEX_HOME", "~/.codex"),
    "opencode": ("XDG_DATA_HOME", "~/.local/share/./opencode"),
    "pi": ("PI_CODING_AGENT_DIR", "~/.pi/agent"),
    "mybot": ("", "."),
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
        program.write_text(PROGRAM.format(python=sys.executable, steps=[*steps], place=PLACES[name]))
        program.chmod(0o755)
        home = Path(ralph.environment["HOME"])

        def calls() -> list[dict[str, Any]]:
            users = ralph.cwd / PLACES[name][1].replace("~", str(home))
            found = [*users.glob("calls/*.json"), *own_folder(ralph, name).glob("calls/*.json")]
            return [json.loads(one.read_text()) for one in sorted(found, key=lambda one: one.name)]

        return calls

    return make


def own_folder(ralph, name: str) -> Path:
    """The directory that the loop gives to the agent in its sandbox."""
    variable, usual = PLACES[name]
    loops = Path(ralph.environment["HOME"], ".local/state/ralph/loops")
    found = next(loops.glob("*/agent"), loops)
    return found / variable / usual.partition("/./")[2]


@pytest.fixture
def loop(ralph) -> Callable[..., Finished]:
    """Runs a loop with this agent, of one iteration unless the words say otherwise, or only the words. Its sandbox has this
    level. It must end with `code`.
    """

    def run(command: str, *words: str, level: str = "", code: int = 0) -> Finished:
        how = forbidding_namespaces() if level == "landlock" else {}
        typed = ("the task", "--agent", command, "--max-iterations", "1") if command else ()
        ran: Finished = ralph.finish(ralph.start("loop", *typed, *words, **how))
        assert ran.code == code, ran.stderr
        return ran

    return run


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


@pytest.mark.parametrize("name", sorted({*GOOD} - {"mybot"}))
def test_an_agent_that_has_told_its_end_and_hangs_is_stopped_and_counted(
    ralph, ralph_here, agent, monkeypatch, name
) -> None:
    monkeypatch.setattr(events, "ENDS_WITHIN_S", 0.2)
    agent(name, step(*GOOD[name], does="open('work.txt', 'a').write('x'); time.sleep(600)"))
    command = next(words for words in WORDS if words.startswith(name))
    ran = ralph_here("loop", "the task", "--agent", command, "--max-iterations", "1", code=0)
    assert f"[loop] {name}: it had not ended 0.2 s after its last event, and was stopped" in ran.stderr
    assert [one[0] for one in iterations(ralph)] == ["completed"]
    assert f"programs/{name}" not in str(processes_of(ralph))


@pytest.mark.parametrize("command", WORDS)
def test_an_agent_does_the_iterations(ralph, loop, agent, command) -> None:
    name = command.split()[0]
    calls = agent(name, step(*GOOD[name], does="open('work.txt', 'a').write('x')"))
    loop(command, "--max-iterations", "2")
    cost = {"claude": 0.25, "opencode": 0.125, "pi": 0.5}.get(name)
    turns = 0 if name == "mybot" else 1
    assert iterations(ralph) == [("completed", turns, cost, "Done.")] * 2
    assert [" ".join(one["words"]) for one in calls()] == [WORDS[command]] * 2
    assert all(one["task"].endswith("\n---\n\nthe task") for one in calls())
    assert ralph("report", "-o", str(ralph.cwd.parent / "page.html")).code == 0
    page = (ralph.cwd.parent / "page.html").read_text()
    assert "was deleted" not in page
    assert command in page


def test_an_agent_gets_its_own_credentials_and_no_others(ralph, loop, agent) -> None:
    ralph.environment |= {
        "ANTHROPIC_API_KEY": SECRET,
        "OPENAI_API_KEY": "sk-of-another",
        "GITHUB_TOKEN": "ghp_other",
    }
    calls = agent("claude", step(*claude(f"The key is {SECRET}.")))
    loop("claude -p")
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
def test_an_outage_that_the_events_tell_is_waited_for_and_the_session_continues(
    ralph, loop, agent, command
) -> None:
    name = command.split()[0]
    calls = agent(name, AWAY[command], step(*GOOD[name]))
    ran = loop(command)
    assert "the API is unavailable: waiting" in ran.stderr
    (done,) = iterations(ralph)
    assert (done[0], done[3]) == ("completed", "Done.")
    assert " ".join(calls()[1]["words"]) == f"{WORDS[command]} {RESUMED[command]}"
    assert "cut off" in calls()[1]["task"]


@pytest.mark.parametrize(
    ("told", "cost"), [(0.75, 0.75), (0.25, 0.75)], ids=["counts on", "counts from nothing"]
)
def test_a_resumed_claude_tells_the_cost_of_its_whole_session(
    ralph, loop, agent, told: float, cost: float
) -> None:
    away = step(*claude("API Error", is_error=True, api_error_status=529, cost=0.5), code=1)
    agent("claude", away, step(*claude(cost=told)))
    loop("claude -p", "--max-budget-usd", "1")
    assert iterations(ralph) == [("completed", 2, cost, "Done.")]


def test_a_session_that_the_agent_had_not_stored_begins_anew(ralph, loop, agent) -> None:
    unknown = step(does="print('Error: no session found with this ID', file=sys.stderr)", code=1)
    calls = agent("pi", AWAY["pi -p"], unknown, step(*pi()))
    loop("pi -p")
    assert " ".join(calls()[2]["words"]) == WORDS["pi -p"]
    assert calls()[2]["task"].endswith("\n---\n\nthe task")
    assert iterations(ralph)[0][0] == "completed"


OUTCOMES: list[tuple[str, Sequence[Any], int, Outcome]] = [
    ("codex", codex(answer=None, failure="status 401 Unauthorized"), 1, Outcome.AUTH),
    ("codex", codex(answer=None, failure="You've hit your usage limit."), 1, Outcome.API_REJECTED),
    # An empty account that is told as 429.
    (
        "claude",
        claude("429 Insufficient balance.", is_error=True, api_error_status=429),
        1,
        Outcome.API_REJECTED,
    ),
    # A refusal.
    ("codex", codex(answer=None), 0, Outcome.TASK_FAILED),
    ("pi", pi(answer=""), 0, Outcome.TASK_FAILED),
    ("pi", pi("length"), 0, Outcome.TASK_FAILED),
    # A permission that was refused.
    ("opencode", opencode("tool-calls"), 0, Outcome.TASK_FAILED),
    ("claude", claude(), 1, Outcome.TASK_FAILED),
    ("claude", claude()[:2], 0, Outcome.TASK_FAILED),
    *((name, GOOD[name], 0, Outcome.COMPLETED) for name in GOOD if name != "mybot"),
]


@every_row(("name", "lines", "code", "outcome"), OUTCOMES)
def test_the_outcome_is_told_by_the_events(name, lines, code, outcome) -> None:
    [row] = [one for one in AGENTS if one.name == name]
    run = events.AgentRun()
    for line in lines:
        events.read_event(run, row, line)
    assert events.outcome_of_run(run, code, "")[0] is outcome


NOT_GOOD = {
    "claude -p": (step(*claude("no", is_error=True, api_error_status=401), code=1), 77),
    "claude --odd": (step(does="print('unknown option', file=sys.stderr)", code=1), 78),
    "mybot": (step("Sorry.", code=3), 0),
}


@pytest.mark.parametrize("command", NOT_GOOD)
def test_a_failure_ends_the_loop_if_it_would_come_again(ralph, loop, agent, command) -> None:
    its, code = NOT_GOOD[command]
    calls = agent(command.split()[0], its)
    loop(command, "--max-iterations", "2", code=code)
    assert [one[0] for one in iterations(ralph)] == ([] if code else ["task_failed"] * 2)
    assert len(calls()) == (1 if code else 2)


REFUSED = {
    "a budget where the cost is unknown": (
        "codex exec",
        ["--max-budget-usd", "1"],
        "does not report its cost",
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
def test_what_the_agent_cannot_keep_is_refused_before_anything_runs(loop, agent, case) -> None:
    command, words, why = REFUSED[case]
    calls = agent("codex", step(*codex()))
    for name in ("claude", "pi", "mybot"):
        agent(name, step(*GOOD[name]))
    assert why in loop(command, *words, code=78).stderr
    assert not calls()


def test_guards_of_files_are_kept_or_refused(ralph, loop, agent) -> None:
    calls = agent("claude", step(*claude()))
    agent("codex", step(*codex()))
    (ralph.cwd / "ralph.toml").write_text("[tools]\ndisallowed = ['Bash']\n")
    loop("claude -p")
    assert "--disallowedTools Bash" in " ".join(calls()[0]["words"])
    assert "disallowed_tools of the settings cannot be kept" in loop("codex", code=78).stderr
    (ralph.cwd / "ralph.toml").unlink()
    (ralph.cwd / ".claude").mkdir()
    (ralph.cwd / ".claude" / "settings.json").write_text('{"permissions": {"deny": ["Bash"]}}')
    assert ".claude/settings.json cannot be kept with --agent codex" in loop("codex", code=78).stderr
    loop("codex", "--setting-sources", "")


def test_options_that_the_loop_sets_are_refused(loop, agent) -> None:
    agent("claude", step(*claude()))
    assert "leave out --resume" in loop("claude -p --resume x", code=2).stderr
    loop("claude 'x", code=2)
    loop(" ", code=2)


def test_options_that_the_agent_keeps_are_handed_on(loop, agent) -> None:
    calls = agent("claude", step(*claude()))
    loop("claude -p", "--model", "opus", "--max-turns", "7", "--allowed-tools", "Bash,Read")
    handed_on = calls()[0]["words"]
    assert [handed_on[handed_on.index(one) + 1] for one in ("--model", "--max-turns")] == ["opus", "7"]
    assert "--allowedTools Bash,Read" in " ".join(handed_on)


def test_an_agent_is_stopped_when_it_has_spent_the_budget(ralph, loop, agent) -> None:
    agent("pi", step(*pi(cost=0.75), does="time.sleep(60)"))
    loop("pi -p", "--max-budget-usd", "0.5", "--max-iterations", "9", code=3)
    assert iterations(ralph)[0][:3] == ("limit_reached", 1, 0.75)


def test_nothing_that_an_agent_started_lives_on(loop, agent) -> None:
    left = "subprocess.Popen(['sleep', '987'], start_new_session=True)"
    agent("claude", step(*claude(), does=left))
    loop("claude -p")
    assert subprocess.run(["pgrep", "-f", "^sleep 987$"], check=False, capture_output=True).stdout == b""


def test_a_stop_reaches_the_agent_and_the_loop_continues_later(ralph, loop, agent) -> None:
    calls = agent("claude", step(*claude()[:2], does="time.sleep(60)"), step(*claude()))
    process = ralph.start("loop", "the task", "--agent", "claude -p", "--max-iterations", "1")
    wait_until(lambda: len(calls()) == 1 and is_kept(ralph, "assistant"))
    assert ralph.stopped_by(process, signal.SIGTERM).code == 143
    assert not processes_of(ralph)
    loop("", "--continue")
    assert calls()[1]["words"][-2:] == ["--resume", "s-1"]
    assert iterations(ralph) == [("completed", 2, None, "Done.")], "what the stopped process cost is unknown"


def test_a_long_iteration_of_an_agent_says_that_it_still_runs(ralph, agent) -> None:
    agent("claude", step(*claude()[:2], does="time.sleep(60)"))
    ralph.user_file.write_text("[clocks]\nheartbeat_s = 0.2\n")
    process = ralph.start("loop", "the task", "--agent", "claude -p", "--max-iterations", "1")
    assert process.stderr is not None
    assert any(b"waiting for claude, iteration 1, " in line for line in process.stderr)
    ralph.stopped_by(process, signal.SIGTERM)


def test_what_an_agent_prints_to_its_standard_error_takes_no_room(ralph, agent) -> None:
    size = "open('size', 'w').write(str(os.fstat(2).st_size))"
    much = f"os.write(2, b'no use\\n' * 3_000_000); os.write(2, b'out of luck'); {size}"
    agent("claude", step(does=much, code=1))
    said = ralph("loop", "the task", "--agent", "claude -p", "--max-iterations", "1").stderr
    assert "out of luck" in said
    assert int((ralph.cwd / "size").read_text()) == 0


@pytest.mark.parametrize("line", ['{"ralph":[]}', f'{{"type": "result", "total_cost_usd": 1{"0" * 400}}}'])
def test_no_line_that_an_agent_prints_hangs_the_loop(loop, agent, line) -> None:
    agent("claude", step(line, *["y" * 1000] * 300, *claude()))
    assert "Traceback" not in loop("claude -p").stderr


def is_kept(ralph, word: str) -> bool:
    state = Path(ralph.environment["HOME"], ".local/state/ralph/loops")
    return any(word in path.read_text() for path in state.rglob("agent-*.jsonl"))


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_killed_loop_loses_nothing_of_an_agent_and_counts_nothing_twice(
    ralph, loop, agent, has_ended
) -> None:
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
    kill(ralph, process)
    loop("", "--continue")
    assert len(calls()) == (1 if has_ended else 2)
    assert iterations(ralph)[0][3] == ("Done." if has_ended else "Again.")


LEVELS = pytest.mark.parametrize("level", ["namespaces", "landlock"])
# What each agent may not change of the user's (OTHER: nor read), and files that it has in the loop all the same.
USERS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "claude": (
        {
            ".claude.json": '{"mcpServers": {"mine": {}}, "projects": {"/other": {"history": "OTHER"}}}',
            ".claude/settings.json": '{"hooks": {}}',
            ".claude/CLAUDE.md": "@more.md",
            ".claude/more.md": "imported",
            ".claude/skills/a/SKILL.md": "a skill",
            ".claude/hooks/stop.sh": "a hook",
            ".claude/sl.sh": "named in the settings",
            ".claude/local/claude": "a program",
            ".claude/shell-snapshots/s.sh": "OTHER",
            ".claude/session-env/a/hook-0.sh": "OTHER",
            ".claude/remote-settings.json": "OTHER",
            ".claude/history.jsonl": "OTHER",
            ".claude/projects/-other/s.jsonl": "OTHER",
            ".claude/projects/-other/memory/MEMORY.md": "OTHER",
            ".claude/.git/config": "OTHER",
            ".claude/.credentials.json": '{"claudeAiOauth": {"accessToken": "OTHER", "scopes": ["a"]}}',
        },
        ("settings.json", "CLAUDE.md", "more.md", "skills/a/SKILL.md", "hooks/stop.sh"),
    ),
    "codex": (
        {
            ".codex/config.toml": "model = 'm'",
            ".codex/work.config.toml": "model = 'w'",
            ".codex/.env": "A=b",
            ".codex/AGENTS.md": "instructions",
            ".codex/skills/a/SKILL.md": "a skill",
            ".codex/memories/M.md": "OTHER",
            ".codex/sessions/2026/s.jsonl": "OTHER",
            ".codex/auth.json": '{"OPENAI_API_KEY": "OTHER", "tokens": null}',
        },
        ("config.toml", "work.config.toml", ".env", "AGENTS.md", "skills/a/SKILL.md"),
    ),
    "opencode": (
        {
            ".config/opencode/opencode.json": "{}",
            ".config/opencode/plugin/a.js": "a plugin",
            ".config/opencode/tui.json": "OTHER",
            ".config/other/file": "of another program",
            ".cache/opencode/node_modules/a/index.mjs": "OTHER",
            ".local/share/opencode/bin/rg": "a program",
            ".local/share/opencode/storage/s.json": "OTHER",
            ".local/share/opencode/auth.json": '{"x": {"type": "api", "key": "OTHER"}}',
            ".local/state/opencode/model.json": "{}",
        },
        (
            *("../../XDG_CONFIG_HOME/opencode/opencode.json", "../../XDG_CONFIG_HOME/opencode/plugin/a.js"),
            *("bin/rg", "../../XDG_STATE_HOME/opencode/model.json"),
        ),
    ),
    "pi": (
        {
            ".pi/agent/settings.json": "{}",
            ".pi/agent/models.json": "{}",
            ".pi/agent/extensions/a.ts": "an extension",
            ".pi/agent/sessions/-other/s.jsonl": "OTHER",
            ".pi/agent/auth.json": '{"anthropic": {"type": "api_key", "key": "OTHER"}}',
        },
        ("settings.json", "models.json", "extensions/a.ts"),
    ),
}
CHANGES = """
def text_of(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
home, logins = os.environ["HOME"], (".credentials.json", "auth.json")
read = {{one: text_of(os.path.join(own, one)) for one in {taken!r}}}
seen = [text_of(os.path.join(home, one)) for one in {files!r}] + [text_of(os.path.join(own, ".claude.json"))]
open("said", "a").write(json.dumps(dict(read=read, seen=seen)) + chr(10))
for path in [os.path.join(home, one) for one in {files!r}] + [os.path.join(own, one) for one in ({taken!r} + logins)]:
    above = os.path.dirname(path)
    for change in (
        lambda: open(path, "w").write('{{"evil": {{"type": "wellknown", "key": "!evil"}}}}'),
        lambda: open(os.path.join(above, "evil.md"), "w").write("evil"),
        lambda: (os.unlink(path), os.symlink("/evil", path)),
        lambda: (os.rename(above, above + "-old"), os.mkdir(above), open(path, "w").write("evil")),
    ):
        try:
            change()
        except OSError:
            continue
"""


def tree_of(home: Path) -> dict[str, str]:
    """All that is in a home but ralph's own state."""
    return {
        str(path.relative_to(home)): path.read_text()
        for path in home.rglob("*")
        if path.is_file() and "ralph" not in path.relative_to(home).parts
    }


@needs_namespaces
@pytest.mark.sandboxed
@LEVELS
@pytest.mark.parametrize("name", USERS)
def test_an_iteration_cannot_change_what_the_user_starts_next_nor_read_other_sessions(
    ralph, loop, agent, name, level
) -> None:
    home = Path(ralph.environment["HOME"])
    users, taken = USERS[name]
    for path, text in users.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    before = tree_of(home)
    agent(name, step(*GOOD[name], does=CHANGES.format(files=[*users], taken=taken)))
    loop(name, "--max-iterations", "2", level=level)
    assert tree_of(home) == before
    usual = PLACES[name][1].replace("~/", "").replace("/./", "/")
    places = {"../../XDG_CONFIG_HOME": ".config", "../../XDG_STATE_HOME": ".local/state"}
    said = [json.loads(line) for line in (ralph.cwd / "said").read_text().splitlines()]
    assert len(said) == 2
    for one in said:  # what the first one changed of the loop's own does not reach the second
        assert "OTHER" not in str(one)
        for path, text in one["read"].items():
            start, _, rest = path.partition("/opencode/")
            assert text == users[f"{places[start]}/opencode/{rest}" if start in places else f"{usual}/{path}"]
    if name == "claude":
        assert json.loads(said[0]["seen"][-1]) == {"mcpServers": {"mine": {}}, "projects": {}}


@needs_namespaces
@pytest.mark.sandboxed
@LEVELS
def test_a_confined_agent_has_its_login_and_its_folder_and_no_more_of_the_home(
    ralph, loop, agent, level
) -> None:
    home = Path(ralph.environment["HOME"])
    (home / ".claude").mkdir()
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
tried(own + "/history", "x"), tried("here", "x")
open("said", "w").write(" ".join([tried(own + "/.credentials.json"), tried("~/.ssh/id_rsa"), tried("~/new", "x")]))
"""
    calls = agent("claude", step(*claude(), does=tries))
    loop("claude -p", level=level)
    assert (ralph.cwd / "said").read_text().split()[0] == "login"
    assert "key" not in (ralph.cwd / "said").read_text()
    assert not (home / "new").exists()
    assert (own_folder(ralph, "claude") / "history").exists()
    assert not (own_folder(ralph, "claude") / ".credentials.json").exists()
    assert (ralph.cwd / "here").exists()
    words, variables = calls()[0]["words"], calls()[0]["variables"]
    assert "--dangerously-skip-permissions" in words
    assert variables["IS_SANDBOX"] == "1"


READ = "I read of-nobody-0123 there."
LOGINS: dict[str, tuple[str, object, tuple[Any, ...]]] = {
    "claude": (".claude/.credentials.json", {"x": {"refreshToken": "of-nobody-0123"}}, claude(READ)),
    "claude's key": (".claude.json", {"primaryApiKey": "of-nobody-0123"}, claude(READ)),
    "codex": (".codex/auth.json", {"tokens": {"id_token": "of-nobody-0123"}}, codex(answer=READ)),
    "opencode": (".local/share/opencode/auth.json", {"x": {"key": "of-nobody-0123"}}, opencode(answer=READ)),
    "pi": (".pi/agent/auth.json", {"x": [{"refresh": "of-nobody-0123"}]}, pi(answer=READ)),
    "claude's settings": (".claude/settings.json", {"env": {"X_TOKEN": "of-nobody-0123"}}, claude(READ)),
    "codex's variables": (".codex/.env", "export OPENAI_API_KEY='of-nobody-0123'", codex(answer=READ)),
    "codex's provider": (".codex/config.toml", 'x = {"X-Api-Key" = "of-nobody-0123"}', codex(answer=READ)),
    "opencode's provider": (
        ".config/opencode/opencode.jsonc",
        '{ // mine\n "x": {"apiKey": "of-nobody-0123"}}',
        opencode(answer=READ),
    ),
    "pi's provider": (
        ".pi/agent/models.json",
        {"headers": {"Authorization": "Bearer of-nobody-0123"}},
        pi(answer=READ),
    ),
}
REFRESHES = "path = own + '/.credentials.json'; text = open(path).read(); open(path, 'w').write(text.replace('old', 'new'))"


@pytest.mark.parametrize("case", LOGINS)
def test_the_login_of_an_agent_is_nowhere_in_a_loops_record(ralph, loop, agent, case) -> None:
    path, login, lines = LOGINS[case]
    kept = Path(ralph.environment["HOME"], path)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(login if isinstance(login, str) else json.dumps(login))
    name = case.partition("'")[0]
    agent(name, step(*lines))
    loop(name, "--report", "p.html")
    assert iterations(ralph)[0][-1] == "I read [redacted] there."
    loops = Path(ralph.environment["HOME"], ".local/state/ralph/loops")
    for one in (ralph.cwd / "p.html", *filter(Path.is_file, loops.rglob("*"))):
        assert "of-nobody-0123" not in one.read_text(), one


@needs_namespaces
@pytest.mark.sandboxed
def test_a_token_that_an_agent_has_refreshed_is_not_in_a_loops_record(ralph, loop, agent) -> None:
    kept = Path(ralph.environment["HOME"], ".claude/.credentials.json")
    kept.parent.mkdir()
    kept.write_text('{"x": {"accessToken": "token-old"}}')
    agent("claude", step(*claude("token-old is token-new"), does=REFRESHES))
    loop("claude -p")
    assert "token-new" in kept.read_text()
    assert iterations(ralph)[0][-1] == "[redacted] is [redacted]"


STRICTER: dict[str, tuple[str, str, str | int]] = {
    "plan": ('"defaultMode": "plan"', "claude -p", "--permission-mode plan"),
    "dontAsk": ('"defaultMode": "dontAsk"', "claude -p", "--permission-mode dontAsk"),
    "another mode": ('"defaultMode": "acceptEdits"', "claude -p", "--dangerously-skip-permissions"),
    "the user's option": (
        '"defaultMode": "plan", "ask": ["Bash"]',
        "claude -p --permission-mode default",
        "--permission-mode default",
    ),
    "rules that ask": ('"ask": ["Bash(git push:*)"]', "claude -p", 78),
}


@needs_namespaces
@pytest.mark.sandboxed
@pytest.mark.parametrize("case", STRICTER)
def test_a_stricter_mode_of_claudes_settings_is_kept_or_refused(ralph, loop, agent, case) -> None:
    permissions, command, expected = STRICTER[case]
    home = Path(ralph.environment["HOME"], ".claude")
    home.mkdir()
    (home / "settings.json").write_text(f'{{"permissions": {{{permissions}}}}}')
    calls = agent("claude", step(*claude()))
    ran = loop(command, code=78 if expected == 78 else 0)
    if expected == 78:
        assert "--agent claude: nobody is there to be asked (Bash(git push:*))" in ran.stderr
        assert calls() == []
        return
    words = " ".join(calls()[0]["words"])
    assert str(expected) in words
    given = ("--permission-mode", "--dangerously-skip-permissions")
    assert sum(words.count(one) for one in given) == 1


@needs_namespaces
@pytest.mark.sandboxed
@LEVELS
def test_what_the_sandbox_of_an_agent_cannot_keep_is_told(ralph, loop, agent, level) -> None:
    (ralph.cwd / "secret.txt").write_text("x")
    (ralph.cwd / ".claude").mkdir()
    rules = '{"permissions": {"deny": ["Read(./secret.txt)"]}}'
    (ralph.cwd / ".claude" / "settings.json").write_text(rules)
    agent("claude", step(*claude()))
    ran = loop("claude", level=level)
    told = "permission rules deny to read 1 place that commands can read: without namespaces"
    assert (told in ran.stderr) is (level == "landlock")


@needs_namespaces
@pytest.mark.sandboxed
@LEVELS
def test_no_link_of_an_earlier_run_in_dotfiles_takes_a_key_along(ralph, loop, agent, level) -> None:
    home = Path(ralph.environment["HOME"])
    dotfiles, own = home / "dotfiles", home / ".claude"
    key = '{"mcpServers": {}, "claudeAiOauth": {"accessToken": "SECRET"}}'
    kept = home / ".aws/credentials", home / ".docker/config.json", home / ".codex/auth.json"
    for one in (*kept, home / ".local/share/opencode/auth.json"):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text(key)
    links = {"CLAUDE.md": ".aws/credentials", "skills": ".aws", "local": ".aws", "agents": "."}
    links |= {".credentials.json": ".codex/auth.json", "claude.json": ".docker/config.json"}
    links |= {"other.md": ".local/share/opencode/auth.json", "kernel.md": "/proc/self/cmdline"}
    dotfiles.mkdir()
    own.mkdir()
    for name, target in links.items():
        (dotfiles / name).symlink_to(home / target)
        (home / f".{name}" if name == "claude.json" else own / name).symlink_to(dotfiles / name)
    (dotfiles / "rules.md").write_text("mine")
    (own / "rules.md").symlink_to(dotfiles / "rules.md")
    does = """
names = [os.path.join(above, name) for above in (own, os.path.join(own, "skills"), os.path.expanduser("~/.aws"),
    os.path.expanduser("~/.docker")) if os.path.isdir(above) for name in (*os.listdir(above), "credentials", "config.json")]
def text_of(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
open("seen", "w").write(" ".join(map(text_of, names)))
open(os.path.join(own, ".credentials.json"), "w").write('{"claudeAiOauth": {"accessToken": "new"}}')
"""
    agent("claude", step(*claude(), does=does))
    loop("claude", level=level)
    assert "SECRET" not in (ralph.cwd / "seen").read_text()
    assert "mine" in (ralph.cwd / "seen").read_text()
    for name in ("agents", "kernel.md"):
        assert not os.path.lexists(own_folder(ralph, "claude") / name)
    assert {one.read_text() for one in kept} == {key}


@needs_namespaces
@pytest.mark.sandboxed
def test_a_file_that_no_settings_are_is_not_taken_along_into_the_memory(ralph, loop, agent) -> None:
    own = Path(ralph.environment["HOME"], ".claude")
    own.mkdir()
    with (own / "rules.md").open("wb") as file:
        file.truncate(20_000_001)
    agent("claude", step(*claude()))
    assert "rules.md: it has more than 20,000,000 bytes" in loop("claude", code=74).stderr


@needs_namespaces
@pytest.mark.sandboxed
@LEVELS
def test_a_home_of_an_agent_in_the_work_is_guarded_too_and_no_link_in_it_is_followed(
    ralph, loop, agent, level
) -> None:
    home = ralph.cwd / ".codex"
    home.mkdir()
    (home / "config.toml").write_text("mine")
    (home / "auth.json").write_text("{}")
    secret = Path(ralph.environment["HOME"], "secret")
    secret.write_text("SECRET")
    ralph.environment["CODEX_HOME"] = str(home)
    does = f"""
for name in ("config.toml", "auth.json"):
    try:
        open({str(home)!r} + "/" + name, "w").write("evil")
    except OSError:
        pass
if not os.path.lexists({str(home)!r} + "/x.config.toml"):
    os.symlink({str(secret)!r}, {str(home)!r} + "/x.config.toml")
seen = [os.path.join(own, name) for name in os.listdir(own)]
open("seen", "a").write(" ".join(open(one).read() for one in seen if os.path.isfile(one)))
"""
    agent("codex", step(*codex(), does=does))
    for _ in range(2):
        loop("codex", level=level)
    assert (home / "config.toml").read_text() == "mine"
    assert (home / "auth.json").read_text() == "{}"
    assert "mine" in (ralph.cwd / "seen").read_text()
    assert "SECRET" not in (ralph.cwd / "seen").read_text()


STORED = """
stored = own + "/session"
open("seen", "a").write("old " if os.path.exists(stored) else "new ")
open(stored, "w")
"""


@needs_namespaces
@pytest.mark.sandboxed
@LEVELS
def test_a_confined_agent_finds_its_session_again_after_a_kill_and_a_new_loop_has_none(
    ralph, loop, agent, level
) -> None:
    how = forbidding_namespaces() if level == "landlock" else {}
    waits = step(*claude()[:2], does=f"{STORED}\ntime.sleep(60)")
    calls = agent("claude", waits, step(*claude(), does=STORED))
    process = ralph.start("loop", "the task", "--agent", "claude -p", "--max-iterations", "2", **how)
    wait_until(lambda: (ralph.cwd / "seen").exists() and is_kept(ralph, "assistant"))
    kill(ralph, process)
    ran = loop("", "--continue", level=level)
    assert calls()[1]["words"][-2:] == ["--resume", "s-1"]
    assert "protected" not in ran.stderr
    assert (ralph.cwd / "seen").read_text() == "new old old "
    agent("claude", step(*claude(), does=STORED))
    loop("claude -p", level=level)
    assert (ralph.cwd / "seen").read_text() == "new old old new "


LOGIN: dict[str, Any] = {
    "a": {"type": "oauth", "access": "old-access", "refresh": "old-refresh", "expires": 1},
    "key": "k",
}
NEW_TOKENS = {"access": "new-access", "refresh": "new-refresh", "expires": 2}
COMES_BACK: dict[str, tuple[Any, dict[str, Any]]] = {
    "a refresh": ({"a": {**LOGIN["a"], **NEW_TOKENS}, "key": "k"}, NEW_TOKENS),
    "a refresh, and more": (
        {
            "a": {**LOGIN["a"], **NEW_TOKENS, "type": "wellknown", "more": 1},
            "key": "!evil",
            "b": {"access": "x"},
        },
        NEW_TOKENS,
    ),
    "a command": ({"a": {**LOGIN["a"], "access": "!touch evil"}, "key": "k"}, {}),
    "another kind of value": ({"a": {**LOGIN["a"], "access": ["x"], "expires": "soon"}, "key": "k"}, {}),
    "no login": ("nothing", {}),
}


@needs_namespaces
@pytest.mark.sandboxed
@pytest.mark.parametrize(
    ("case", "then"),
    [
        *((case, []) for case in COMES_BACK),
        ("a refresh, and more", ["--continue"]),
        ("a refresh, and more", ["another task", "--agent", "pi -p", "--max-iterations", "1"]),
        ("no login", ["--continue"]),
    ],
)
def test_of_a_login_only_refreshed_tokens_come_back_also_after_a_kill(ralph, loop, agent, case, then) -> None:
    is_killed = bool(then)
    written, tokens = COMES_BACK[case]
    login = Path(ralph.environment["HOME"], ".pi/agent/auth.json")
    login.parent.mkdir(parents=True)
    login.write_text(json.dumps(LOGIN))
    login.chmod(0o600)
    rest = "open('seen', 'w'); time.sleep(60)" if is_killed else ""
    refreshes = f"open(own + '/auth.json', 'w').write({json.dumps(written)!r}); {rest}"
    agent("pi", step(*(pi()[:1] if is_killed else pi()), does=refreshes), step(*pi()))
    process = ralph.start("loop", "the task", "--agent", "pi -p", "--max-iterations", "1")
    if is_killed:
        wait_until(lambda: (ralph.cwd / "seen").exists() and is_kept(ralph, '"session"'))
        kill(ralph, process)
        assert json.loads(login.read_text()) == LOGIN
        agent("pi", step(*pi()))
        loop("", *then)
    else:
        assert ralph.finish(process).code == 0
    assert json.loads(login.read_text()) == {**LOGIN, "a": {**LOGIN["a"], **tokens}}
    assert login.stat().st_mode & 0o777 == 0o600


LINKS = {
    "the login": (
        "pi",
        "os.unlink(own + '/auth.json'); os.symlink(there + '/auth.json', own + '/auth.json')",
    ),
    "the folder": ("opencode", "shutil.move(own, own + '-old'); os.symlink(there, own)"),
}


@needs_namespaces
@pytest.mark.sandboxed
@pytest.mark.parametrize("case", LINKS)
def test_no_link_of_a_command_leads_the_login_elsewhere_also_after_a_kill(ralph, loop, agent, case) -> None:
    name, links = LINKS[case]
    there = ralph.cwd / "there"
    there.mkdir()
    (there / "auth.json").write_text(json.dumps({"a": {"access": "of-another", "type": "x"}}))
    os.utime(there / "auth.json", (2_000_000_000, 2_000_000_000))
    login = Path(ralph.environment["HOME"], PLACES[name][1].replace("~/", ""), "auth.json")
    login.parent.mkdir(parents=True)
    login.write_text(json.dumps(LOGIN))
    does = f"import shutil; there = {str(there)!r}; {links}; open('linked', 'w'); time.sleep(60)"
    agent(name, step(*GOOD[name][:1], does=does))
    process = ralph.start("loop", "the task", "--agent", name, "--max-iterations", "1")
    wait_until(lambda: (ralph.cwd / "linked").exists() and is_kept(ralph, "1"))
    kill(ralph, process)
    agent(name, step(*GOOD[name], does="open('seen', 'w').write(open(own + '/auth.json').read())"))
    loop("", "--continue")
    assert json.loads((ralph.cwd / "seen").read_text()) == LOGIN
    assert json.loads(login.read_text()) == LOGIN
    assert "of-another" in (there / "auth.json").read_text()

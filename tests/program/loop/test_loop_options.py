"""The way of the options of `ralph loop` from the command line to the loop. Nothing is started and no money is
spent.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace
from typer.core import TyperOption

import ralph.cli.loop
from ralph.cli.command_line import run_cli
from ralph.cli.loop import COMMAND as LOOP
from ralph.cli.loop import REFUSED as NOT_FOR_A_LOOP
from ralph.cli.loop import LoopLine, words_for_run
from ralph.cli.run import COMMAND as RUN
from ralph.cli.run import RunLine
from ralph.loop.values import LoopLimits, LoopOptions, LoopPlan, RequestedPrompt
from ralph.values.outcome import UsageError
from tests.patience import wait_until
from tests.rows import every_row


@pytest.fixture
def asked(tmp_path, monkeypatch) -> list[Any]:
    """The options with which the loop was called, in a working directory with a PROMPT.md. The loop is replaced and
    returns 42.
    """
    calls: list[Any] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PROMPT.md").write_text("do it")

    def note(request: object, **options: object) -> int:
        calls.append(request if not any(options.values()) else (request, options))
        return 42

    monkeypatch.setattr(ralph.cli.loop, "loop_command", note)
    monkeypatch.setattr(ralph.cli.loop, "loop_status", note)
    return calls


def plan_of(asked: list[Any], *arguments: str) -> LoopPlan:
    assert run_cli(["loop", *arguments]) == 42
    (options,) = asked
    assert isinstance(options, LoopOptions)
    return options.plan


def test_the_options_that_choose_the_server_are_in_the_plan_too(asked) -> None:
    chosen = ("--base-url", "http://localhost:8080", "--fallback-model", "haiku", "--effort", "low")
    plan = plan_of(asked, "go.", *chosen)
    assert plan.server_flags == {"model.base_url": "http://localhost:8080", "model.fallback": "haiku"}


def test_the_plan_that_decides_is_the_plan_file_too(asked) -> None:
    plan = plan_of(asked, "go.", "--plan", "TODO.md")
    assert (plan.plan, plan.plan_file) == ("TODO.md", "TODO.md")


def test_a_plan_file_alone_decides_nothing(asked) -> None:
    plan = plan_of(asked, "go.", "--plan-file", "TODO.md")
    assert (plan.plan, plan.plan_file) == (None, "TODO.md")


def test_a_file_alone_is_a_plan_with_the_defaults(asked, tmp_path) -> None:
    here = str(tmp_path)
    plan = plan_of(asked, "-f", "PROMPT.md")
    assert plan == LoopPlan(here, here)
    assert asked == [LoopOptions(plan, requested_prompt=RequestedPrompt(None, str(tmp_path / "PROMPT.md")))]


def test_everything_that_can_be_said_arrives(asked, tmp_path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    plan = plan_of(
        asked,
        *("do it", "--gate", "make lint", "--commit-red", "--plan", "TODO.md"),
        *("--until", "make test", "--until-timeout", "90", "--at-least-once", "--max-iterations=7"),
        *("--max-budget-usd", "2.5", "--max-time", "1h30m", "--commit", "--push", "--plan-file", "TODO.md"),
        *("-C", "link", "--session-dir", "kept", "-q", "--config", "my.toml", "--metrics-file", "m.prom"),
        *("--pass-env", "A_TOKEN", "--settings", "rules.json", "--report", "night.html"),
        *("--notify", "tell me"),
    )
    assert plan == LoopPlan(
        directory=str(tmp_path / "work"),
        launch_directory=str(tmp_path),
        run_arguments=(
            *(
                "--pass-env=A_TOKEN",
                "--notify=tell me",
                "--metrics-file=m.prom",
                "--quiet",
                "--config=my.toml",
                "--session-dir=kept",
            ),
            "--settings=rules.json",
        ),
        claude_settings=str(tmp_path / "rules.json"),
        config_file=str(tmp_path / "my.toml"),
        metrics_file=str(tmp_path / "m.prom"),
        report_file=str(tmp_path / "night.html"),
        pass_env=("A_TOKEN",),
        notify="tell me",
        is_quiet=True,
        session_directory=str(tmp_path / "kept"),
        until="make test",
        check_timeout_s=90.0,
        at_least_once=True,
        gate="make lint",
        plan="TODO.md",
        commits=True,
        commits_red=True,
        pushes=True,
        plan_file="TODO.md",
        limits=LoopLimits(7, 2.5, 5400.0),
    )
    assert asked == [LoopOptions(plan, requested_prompt=RequestedPrompt("do it"))]
    unset = [field.name for field in fields(LoopPlan) if getattr(plan, field.name) in (None, False)]
    # The prompt is looked for later, with the settings known.
    assert unset == ["prompt", "prompt_file", "server", "settings_files", "claude_files", "agent"]


PASSED_ON = {
    "value that looks like the loop's": (
        ["--append-system-prompt=--push", "--system-prompt", "--commit", "x."],
        ["--system-prompt=--commit", "--append-system-prompt=--push"],
    ),
    "the last of several": (["--model=opus", "x.", "--model", "haiku"], ["--model=haiku"]),
    "cluster with the prompt file": (["-pqf", "PROMPT.md"], ["--print", "--quiet"]),
    "classic line": (
        ["-p", "--dangerously-skip-permissions", "--output-format=stream-json", "--verbose", "x."],
        ["--print", "--output-format=stream-json", "--dangerously-skip-permissions", "--verbose"],
    ),
    "paths stay as typed": (
        ["x.", "--session-dir", ".", "--metrics-file=m.prom"],
        ["--metrics-file=m.prom", "--session-dir=."],
    ),
    "lists, a word at a time": (
        ["x.", "--add-dir", ".", "..", "--tools", "Read,Bash", "Grep", "-q"],
        ["--tools=Read,Bash", "--tools=Grep", "--quiet", "--add-dir=.", "--add-dir=.."],
    ),
    "an empty list": (["x.", "--tools", ""], ["--tools="]),
    "numbers": (["x.", "--max-turns", "03", "--max-tokens=7"], ["--max-tokens=7", "--max-turns=3"]),
    "an optional value": (["--debug", "api", "x."], ["--debug"]),
    "prompt behind a list": (["--add-dir", ".", "--", "x."], ["--add-dir=."]),
    "prompt behind --": (["--quiet", "--", "--model"], ["--quiet"]),
    "text is the input format anyway": (["--input-format", "text", "x."], ["--input-format=text"]),
}


@pytest.mark.parametrize(("typed", "passed_on"), PASSED_ON.values(), ids=PASSED_ON.keys())
def test_what_was_set_for_run_is_passed_on(asked, typed, passed_on) -> None:
    plan = plan_of(asked, *typed)
    assert list(plan.run_arguments) == passed_on
    assert not plan.pushes
    assert not plan.commits


REFUSED = {
    "resume": (["--resume", "x."], "--resume cannot be used with `ralph loop`: each iteration starts a new session"),
    "resume, short": (["-r", "x."], "`ralph loop --continue` resumes a loop"),
    "copy": (["--fork-session"], "--fork-session cannot be used with `ralph loop`"),
    "session id": (["--session-id", "0" * 32], "has its own session and id"),
    "sessions not kept": (["--no-session-persistence"], "it needs the session"),
    "result file": (["--result-file", "r.json"], "`ralph loop --status --json` shows them"),
    "driven": (["--input-format", "stream-json"], "--input-format stream-json cannot be used with `ralph loop`"),
    "unknown option": (["--max-iteration", "3"], "No such option: --max-iteration (Possible options: --max-iter"),
    "no turns": (["--max-turns", "0"], "--max-turns must be a whole number of at least 1, not 0"),
    "unknown mode": (["--permission-mode", "yolo"], "--permission-mode must be one of plan"),
    "the loop's own way to hand values on": (["--iteration", "0"], "--iteration cannot be used with `ralph loop`"),
    "no system prompt file": (["--append-system-prompt-file", "gone"], "cannot read gone"),
    "no schema": (["--json-schema", "gone.json"], "gone.json"),
    "nobody to ask": (["--permission-prompt-tool", "stdio"], "nobody can be asked without --input-format"),
    "nothing to add": (["--add-dir=gone"], "gone does not exist"),
    "page nowhere": (["--report", "gone/x"], "--report"),
    "page on standard output": (["--report", "-"], "--report"),
    "page in git": (["--report", ".git/x"], "--report"),
    "page over a protected file": (["--report", "sub/ralph.toml"], "--report"),
    "metrics nowhere": (["--metrics-file", "gone/x"], "--metrics-file"),
    "no check": (["--until", " "], "--until: is empty"),
    "check time without check": (["--until-timeout", "5m"], "--until-timeout: needs --until or --gate"),
    "once without check": (["--at-least-once", "--gate", "true"], "--at-least-once: needs --until or --plan"),
    "no gate": (["--gate", ""], "--gate: is empty"),
    "red without gate": (["--commit", "--commit-red"], "--commit-red: needs --gate and --commit"),
    "red without commit": (["--gate", "true", "--commit-red"], "--commit-red: needs --gate and --commit"),
    "two plans": (["--plan", "a.md", "--plan-file", "b.md"], "--plan and --plan-file name different files"),
    "no check time": (["--until", "true", "--until-timeout", "0"], "--until-timeout must be more than nothing"),
    "no iterations": (["--max-iterations", "0"], "--max-iterations must be a whole number of at least 1, not '0'"),
    "no plan": (["--plan-file", ""], "--plan-file: is empty"),
    "no directory": (["-C", "gone"], "gone does not exist"),
    "directory without a name": (["-C", ""], "--cd: is empty"),
    "three words": (["y", "z"], 'put the prompt in quotes: ralph loop "x. y z"'),
    "status of something": (["--status", "--push", "--model", "x."], "--watch: leave out PROMPT, --push, --model"),
    "status and continue": (["--status", "-c"], "leave out PROMPT, --continue"),
    "continue with more": (["-c", "--until", "true", "-q"], "--base-url: leave out PROMPT, --until, --quiet"),
}  # fmt: skip


@every_row(("typed", "says"), REFUSED.values())
def test_misuse_is_one_line_and_exit_2_before_anything_is_asked_for(asked, capfd, typed, says) -> None:
    assert run_cli(["loop", "x.", *typed]) == 2
    said = capfd.readouterr()
    assert says in said.err
    assert (len(said.err.splitlines()), said.out, asked) == (1, "", [])


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["-f", "gone.md"], "gone.md: No such file"),
        (["-f", "EMPTY.md"], "EMPTY.md is empty"),
        ([""], "the prompt is empty"),
        (["x.", "-f", "EMPTY.md"], "both a prompt and --prompt-file"),
        (["-C", ".", "init"], "`ralph loop init` takes its options after `init`"),
    ],
)
def test_a_prompt_that_is_none_is_exit_2(ralph, ralph_here, typed, says) -> None:
    (ralph.cwd / "EMPTY.md").write_text(" \n")
    ran = ralph_here("loop", *typed)
    assert (ran.code, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert says in ran.stderr
    assert not (ralph.cwd / ".ralph").exists()


def test_continue_takes_limits_and_a_directory(asked, tmp_path) -> None:
    (tmp_path / "work").mkdir()
    typed = ["-C", "work", "--max-iterations", "9", "--max-budget-usd", "1", "--max-time", "60"]
    assert run_cli(["loop", "-c", *typed]) == 42
    there = LoopPlan(str(tmp_path / "work"), str(tmp_path))
    assert asked == [LoopOptions(there, continues=True, limits_given=LoopLimits(9, 1.0, 60.0))]


def test_continue_takes_another_server(asked, tmp_path) -> None:
    assert run_cli(["loop", "-c", "--base-url", "http://localhost:8080"]) == 42
    here = LoopPlan(str(tmp_path), str(tmp_path))
    assert asked == [LoopOptions(here, continues=True, base_url_given="http://localhost:8080")]


def test_status_is_one_json_object_where_that_is_asked_for(asked, tmp_path) -> None:
    assert run_cli(["loop", "--status", "--json"]) == 42
    assert run_cli(["loop", "--status", "--watch"]) == 42
    assert asked == [
        (tmp_path, {"is_json": True, "watches": False}),
        (tmp_path, {"is_json": False, "watches": True}),
    ]


@pytest.mark.parametrize(("typed", "where"), [([], "."), (["--cd", "work"], "work")])
def test_status_is_asked_of_a_directory(asked, tmp_path, typed, where) -> None:
    (tmp_path / "work").mkdir()
    assert run_cli(["loop", "--status", *typed]) == 42
    assert asked == [tmp_path / where]


def test_a_working_directory_that_is_gone_is_exit_74(asked, capfd, tmp_path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_cli(["loop", "x."]) == 74
    assert "the working directory is gone" in capfd.readouterr().err
    monkeypatch.chdir(tmp_path)


# --- Who gets what of one command line


OF_LOOP = [one for one in LOOP.params if one.name in LoopLine.__struct_fields__]
OF_RUN = [one for one in LOOP.params if one not in OF_LOOP]
SPELLINGS = sorted({spelling for one in LOOP.params if isinstance(one, TyperOption) for spelling in one.opts})
LETTERS = [spelling[1] for spelling in SPELLINGS if len(spelling) == 2]
WORDS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.sampled_from(SPELLINGS).map("{}=x".format),
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=4).map(lambda letters: "-" + "".join(letters)),
    st.sampled_from(["word", "-", "--", "", "a=b", "-fPROMPT.md", "-z", "--unknown"]),
)


@given(st.lists(WORDS, max_size=6))
def test_run_reads_out_of_what_it_is_handed_what_the_loop_read_for_it(words) -> None:
    try:
        (_, of_run), typed = LOOP.read(words)
    except UsageError:
        return
    ((again,), _) = RUN.read(words_for_run(typed))
    assert isinstance(of_run, RunLine)
    assert isinstance(again, RunLine)
    left_to_run = {name: None for name, value in again.settings.items() if name not in of_run.settings}
    assert again == replace(of_run, settings={**of_run.settings, **left_to_run})


# --- As users start it


def test_help_teaches_and_fits_80_columns(ralph) -> None:
    ran = ralph("loop", "--help-all")
    assert (ran.code, ran.stderr) == (0, "")
    text = " ".join(ran.stdout.split())
    for taught in (
        "each time in a fresh `ralph run`",
        "Options of `ralph run` are passed to each iteration",
        "`ralph loop init` writes starter files",
        "ralph loop -f PROMPT_build.md --gate 'make test' --plan PLAN.md --commit",
        "3 iteration or budget limit, 4 no progress, 75 the API stayed unavailable, 124 time limit, 128+n signal n",
        "Default: 30m.",
        "Default: IMPLEMENTATION_PLAN.md.",
    ):
        assert taught in text
    assert max(len(line) for line in ran.stdout.splitlines()) <= 80
    shown = re.findall(r"^  (-.*?)(?:  |$)", ran.stdout, re.MULTILINE)
    at = {spelling: row for row, words in enumerate(shown) for spelling in re.findall(r"--?[\w-]+", words)}
    own = [at[max(one.opts, key=len)] for one in OF_LOOP if isinstance(one, TyperOption)]
    of_run = [at.get(max(one.opts, key=len)) for one in OF_RUN]
    assert own == [*range(len(own))], "the loop's own options come first"
    without_row = [one for one, row in zip(OF_RUN, of_run, strict=True) if row is None]
    assert {one.name for one in without_row if one.name in NOT_FOR_A_LOOP} == set(NOT_FOR_A_LOOP)
    # Those without effect share a line, which is broken at hyphens too.
    unbroken = text.replace(" ", "")
    assert all(max(one.opts, key=len) in unbroken for one in without_row if one.name not in NOT_FOR_A_LOOP)


def test_init_writes_once_and_says_what_next(ralph) -> None:
    ran = ralph("loop", "init", code=0)
    names = ["PROMPT_plan.md", "PROMPT_build.md", "AGENTS.md", "specs/README.md", "loop.sh"]
    assert ran.stdout.splitlines()[:5] == [f"wrote {name}" for name in names]
    assert "ralph loop -f PROMPT_build.md --gate 'your tests' --plan IMPLEMENTATION_PLAN.md" in ran.stdout
    (ralph.cwd / "AGENTS.md").unlink()
    again = ralph("loop", "init", "-C", str(ralph.cwd))
    assert again.stdout.splitlines()[:5] == [
        f"wrote {name}" if name == "AGENTS.md" else f"kept {name}, it is there already" for name in names
    ]


def test_init_that_cannot_write_is_exit_74_with_the_files_name(asked, capfd, tmp_path) -> None:
    (tmp_path / "specs").write_text("mine")
    assert run_cli(["loop", "init"]) == 74
    said = capfd.readouterr()
    assert "specs/README.md: Not a directory" in said.err
    assert len(said.err.splitlines()) == 1
    assert "wrote AGENTS.md" in said.out


@pytest.mark.parametrize(
    ("typed", "says", "command"),
    [
        (["x."], "unexpected extra", "loop init"),
        (["--push"], "--push", "loop"),  # that of the command which has the option
        (["-C", "gone"], "gone does not exist", "loop init"),
    ],
)
def test_misuse_of_init_is_exit_2_and_names_a_help(asked, capfd, typed, says, command) -> None:
    assert run_cli(["loop", "init", *typed]) == 2
    said = capfd.readouterr().err
    assert says in said
    assert f"see `ralph {command} --help`" in said


def test_a_signal_while_standard_input_is_awaited_ends_it(ralph) -> None:
    process = ralph.start("loop", "-", stdin=subprocess.PIPE)
    wait_until(lambda: _catches(process.pid, signal.SIGTERM))
    ended = ralph.stopped_by(process, signal.SIGTERM)
    assert (ended.code, ended.stdout) == (143, "")
    assert ended.stderr.splitlines()[-1] == "[loop] interrupted (exit 143): stopped by SIGTERM"


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

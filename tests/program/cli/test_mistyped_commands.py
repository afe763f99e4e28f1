"""A single word that is not a command of ralph but looks like one must not start a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from ralph.cli.command_line import COMMANDS, run_cli
from ralph.cli.typer_command import refuse_file_as_prompt
from ralph.mock_api import Turn
from tests.patience import PATIENCE_S, wait_until
from tests.processes.children import is_running
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.rows import every_row

MISTYPED = {
    ("doctr",): "ralph doctor",
    ("Doctor",): "ralph doctor",
    ("docotr", "--json"): "ralph doctor",
    ("loops", "--status"): "ralph loop",
    ("lopo",): "ralph loop",
    ("rn",): "ralph run",
    ("session", "ls"): "ralph sessions",
    ("sesion",): "ralph sessions",
    ("demoo", "--scenario", "loop"): "ralph demo",
    ("mockapi", "scenario.toml"): "ralph mock-api",
    ("mock",): "ralph mock-api",
    ("version",): "ralph --version",
    ("status",): "ralph loop --status",
    ("status", "--watch"): "ralph loop --status",
    ("init",): "ralph loop init",
    ("continue",): "ralph --continue",
    ("resume", "0f3a"): "ralph --resume",
    ("config",): "ralph doctor",
    ("login",): "ANTHROPIC_API_KEY",
    ("mcp", "list"): "see `ralph --help`",
    ("update",): "see `ralph --help`",
    ("logs",): "did you mean `ralph sessions show`?",
    ("kill",): "did you mean Ctrl-C or `kill PID` to stop a loop, ",
    ("serve",): "`serve` is not a ralph command (to use it as a prompt: `ralph run serve`)",
    ("deploy-it",): "`deploy-it` is not a ralph command (to use it as a prompt: `ralph run deploy-it`)",
    ("review", "--max-turns", "3"): "`review` is not a ralph command (",
    # Behind options, and behind `loop`.
    ("-q", "doctr"): "did you mean `ralph doctor`",
    ("--model", "opus", "help"): "did you mean `ralph help`",
    ("-C", ".", "--output-format", "json", "status"): "did you mean `ralph loop --status`",
    ("loop", "status"): "`status` is not a `ralph loop` command: did you mean `ralph loop --status`",
    ("loop", "stats"): "did you mean `ralph loop --status`",
    ("loop", "inti"): "did you mean `ralph loop init`",
    ("loop", "contineu"): "did you mean `ralph loop --continue`",
    ("loop", "-q", "stop"): "did you mean `kill PID`",
    ("loop", "help"): "did you mean `ralph loop --help`",
    # Not like any command.
    ("--model", "opus", "test"): "(to use it as a prompt: `ralph run test`)",
    ("-q", "serve", "--retry", "off"): "(to use it as a prompt: `ralph run serve`)",
    ("loop", "serve"): "(to use it as a prompt: `ralph loop -p serve`)",
    ("loop", "-C", ".", "fix"): "(to use it as a prompt: `ralph loop -p fix`)",
}


@every_row(("words", "instead"), MISTYPED.items())
def test_a_word_that_looks_like_a_command_is_exit_2_with_what_was_meant(
    ralph_here, serve, words, instead
) -> None:
    server = serve(Turn("never"))
    ran = ralph_here(*words, as_typed=True)
    assert (ran.code, ran.stdout, ran.stderr.count("\n"), server.request_count) == (2, "", 1, 0)
    assert instead in ran.stderr
    if words[0] not in ("loop", "-q", "--model", "-C"):
        assert f"`{words[0]}` is not a ralph command" in ran.stderr
        assert f"to use it as a prompt: `ralph run {words[0]}`" in ran.stderr


def test_a_lone_word_in_a_whole_process_is_a_prompt_with_piped_data_and_for_a_session(ralph, serve) -> None:
    server = serve(Turn("Hello."), Turn("Hello."))

    def run(*words: str, stdin: bytes | None = None) -> int:
        pipe = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        process = start_ralph(
            words, ralph.cwd, ralph.environment, stdin=pipe, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        code: int = ralph.finish(process, stdin).code
        return code

    assert (run("review"), server.request_count) == (2, 0)
    assert (run("review", stdin=b"diff"), server.request_count) == (0, 1)
    assert (run("-c", "review"), server.request_count) == (0, 2)
    assert (run("loop", "-p", "stop", "--until", "true"), server.request_count) == (0, 2)


@pytest.mark.parametrize(
    "words", [("-qp", "status"), ("-q", "run", "-p"), ("run", "-q", "status")], ids=" ".join
)
def test_a_word_behind_options_that_the_user_calls_a_prompt_is_one(ralph, serve, words) -> None:
    server = serve(Turn("Hello."))
    assert ralph(*words).code == 0
    assert server.request_count == 1


@every_row("words", [("fix", "--max-iterations", "1"), ("--max-iterations", "1", "fix")])
def test_a_word_beside_an_option_of_a_loop_is_a_prompt(ralph_here, serve, words) -> None:
    server = serve(Turn("Hello."))
    ran = ralph_here("loop", *words, as_typed=True)
    assert (ran.code, server.request_count) == (0, 1), ran.stderr


@every_row(
    ("words", "instead"),
    [
        (("PROMPT.md",), "`ralph -f PROMPT.md`"),
        (("run", "notes.txt"), "`ralph -f notes.txt`"),
        (("-p", "PROMPT.md"), "`ralph -f PROMPT.md`"),
        (("loop", "PROMPT.md", "--max-iterations", "1"), "`ralph loop -f PROMPT.md`"),
    ],
)
def test_a_prompt_that_is_the_name_of_a_text_file_is_exit_2_with_what_was_meant(
    ralph, ralph_here, serve, words, instead
) -> None:
    server = serve(Turn("never"))
    for name in ("PROMPT.md", "notes.txt"):
        (ralph.cwd / name).write_text("Do it.")
    ran = ralph_here(*words, as_typed=True)
    assert (ran.code, ran.stdout, ran.stderr.count("\n"), server.request_count) == (2, "", 1, 0)
    assert f"did you mean {instead}" in ran.stderr


@every_row("prompt", ["PROMPT.md", "read PROMPT.md", "folder.md", "a\0.md", "x" * 300 + ".md"])
def test_other_words_about_files_are_prompts(tmp_path, monkeypatch, prompt) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.md").mkdir(exist_ok=True)
    refuse_file_as_prompt(prompt)


@every_row(
    ("typed", "says"),
    [
        ("fix the failing test", 'ralph "fix the failing test"'),
        ("run fix -q it", 'ralph "fix it"'),
        ("loop fix the test", 'ralph loop "fix the test"'),
        ("report the bug", 'ralph "report the bug"'),
        ("rnu fix it", 'ralph "rnu fix it", or did you mean `ralph run`?'),
    ],
)
def test_a_prompt_without_quotes_is_exit_2_with_the_quotes(capfd, typed: str, says: str) -> None:
    assert run_cli(typed.split()) == 2
    assert capfd.readouterr().err.startswith(f"ralph: put the prompt in quotes: {says} (see ")


def test_a_mistyped_name_of_an_example_is_answered_with_the_right_one(capfd) -> None:
    assert run_cli(["mock-api", "helo"]) == 2
    assert "helo: No such file or directory; did you mean hello? (see " in capfd.readouterr().err


def test_an_unknown_word_after_quickstart_is_exit_2_with_all_words() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", REPOSITORY / "quickstart.py", "bogus"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith("quickstart: 'bogus' is none of test, ")
    assert 'a task is: quickstart.py run "..."' in ran.stderr
    assert all(f" {command}" in ran.stderr for command in COMMANDS)


def test_quickstart_shows_its_help_without_setting_up_and_says_why_it_could_not_set_up(tmp_path) -> None:
    alone = tmp_path / "quickstart.py"
    shutil.copy(REPOSITORY / "quickstart.py", alone)
    (tmp_path / "uv").write_text("#!/bin/sh\necho no route to the index >&2; exit 1\n")
    (tmp_path / "uv").chmod(0o755)

    def ran(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", alone, word]
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=path)

    lone = ran("demo")
    assert (lone.returncode, lone.stderr.count("\n")) == (1, 1)
    assert "run quickstart.py inside a clone of ralph" in lone.stderr
    shown = ran("--help")
    assert (shown.returncode, shown.stderr, "quickstart.py demo " in shown.stdout) == (0, "", True)
    (tmp_path / "pyproject.toml").touch()
    *_, reason, last = ran("doctor").stderr.splitlines()
    assert reason == "no route to the index"
    assert last.startswith("quickstart: .venv-run could not be made; the reason is in the lines above")


def test_ctrl_c_while_quickstart_sets_up_is_one_line_and_130_and_leaves_no_process(tmp_path) -> None:
    shutil.copy(REPOSITORY / "quickstart.py", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    pid_file = tmp_path / "pid"
    script = f"#!/bin/sh\ntrap 'echo Traceback >&2; exit 1' INT\nsleep 987 &\necho $! > {pid_file}; wait\n"
    (tmp_path / "uv").write_text(script)
    (tmp_path / "uv").chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-I", tmp_path / "quickstart.py", "demo"],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        start_new_session=True,
    ) as started:
        wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
        os.killpg(started.pid, signal.SIGINT)
        _, told = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 130
    assert told.splitlines()[1:] == ["quickstart: stopped; the next start begins anew"]
    wait_until(lambda: not is_running(int(pid_file.read_text())))


def test_an_outdated_environment_is_not_removed_by_its_own_python(tmp_path) -> None:
    alone = tmp_path / "quickstart.py"
    shutil.copy(REPOSITORY / "quickstart.py", alone)
    (tmp_path / "pyproject.toml").touch()
    own = tmp_path / ".venv-dev/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    (tmp_path / ".venv-dev/pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    ran = subprocess.run([own, "-I", alone, "test"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (
        1,
        "quickstart: .venv-dev is outdated, and its own Python cannot replace it: use python3\n",
    )
    assert own.exists()

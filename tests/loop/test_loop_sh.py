"""loop.sh with a script in place of ralph: it must only translate its arguments and start ralph."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.patience import within_s
from tests.processes.scripts import script
from tests.rows import every_row
from tests.services.outside_programs import program_or_skip

LOOP = Path(__file__).parents[2] / "loop.sh"

FORMS = {
    "": "PROMPT_build.md",
    "20": "PROMPT_build.md --max-iterations 20",
    "build": "PROMPT_build.md",
    "build 2": "PROMPT_build.md --max-iterations 2",
    "plan": "PROMPT_plan.md",
    "plan 3": "PROMPT_plan.md --max-iterations 3",
    "08": "PROMPT_build.md --max-iterations 8",
    "plan 0100": "PROMPT_plan.md --max-iterations 100",
    "0": "PROMPT_build.md",
    "plan 000": "PROMPT_plan.md",
    "99999999999999999999": "PROMPT_build.md --max-iterations 99999999999999999999",
    "--push": "PROMPT_build.md --push",
    "plan 3 --model opus": "PROMPT_plan.md --max-iterations 3 --model opus",
    "20 -q --max-time 8h": "PROMPT_build.md --max-iterations 20 -q --max-time 8h",
}


@pytest.fixture
def loop(tmp_path: Path):
    """Runs loop.sh with a `ralph` that prints each of its arguments on a line and then runs `does`."""
    for mode in ("plan", "build"):
        (tmp_path / f"PROMPT_{mode}.md").write_text("do it")

    def run(*arguments: str, does: str = "", variable: str = "RALPH") -> subprocess.CompletedProcess[str]:
        ralph = script(tmp_path / "bin" / "ralph", f'printf "%s\\n" "$@"\n{does}')
        environment = {**os.environ, "PATH": f"{ralph.parent}:{os.environ['PATH']}"}
        environment.pop("RALPH", None)
        return subprocess.run(
            ["bash", str(LOOP), *arguments],
            cwd=tmp_path,
            env={**environment, variable: str(ralph)},
            input="for nobody",
            capture_output=True,
            text=True,
            timeout=within_s(30),
            check=False,
        )

    return run


@pytest.mark.parametrize(("typed", "handed_over"), FORMS.items(), ids=[form or "nothing" for form in FORMS])
def test_mode_and_number_become_options_and_the_rest_continues(loop, typed, handed_over) -> None:
    ran = loop(*typed.split())
    assert ran.stdout.split() == ["loop", "--prompt-file", *handed_over.split()]
    assert (ran.returncode, ran.stderr) == (0, "")


def test_arguments_keep_their_spaces_and_their_emptiness(loop) -> None:
    ran = loop("2", "--until", "make  test && echo '*'", "--plan-file", "")
    assert ran.stdout.splitlines()[5:] == ["--until", "make  test && echo '*'", "--plan-file", ""]


def test_without_the_variable_ralph_is_found_on_the_path(loop) -> None:
    assert loop("plan", variable="UNUSED").stdout.split() == ["loop", "--prompt-file", "PROMPT_plan.md"]


@every_row("named", ["ralph", "./ralph", "no-such-program"])
def test_without_a_program_it_says_how_to_get_one_and_a_folder_is_none(tmp_path, named) -> None:
    (tmp_path / "ralph").mkdir(exist_ok=True)
    (tmp_path / "PROMPT_build.md").write_text("do it")
    environment = {"PATH": f".:{tmp_path}:/usr/bin:/bin", "RALPH": named}
    ran = subprocess.run(
        ["bash", LOOP], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (127, "")
    assert ran.stderr.startswith(f"loop.sh: {named} is not on PATH: install it")


@every_row("code", [0, 3, 75, 143])
def test_the_exit_code_is_the_loops(loop, code) -> None:
    assert loop(does=f"exit {code}").returncode == code


def test_ralph_takes_the_place_of_the_shell(loop) -> None:
    """A signal to the shell then reaches the loop, which handles it."""
    assert loop(does='echo "$PPID"').stdout.splitlines()[-1] == str(os.getpid())


def test_what_is_piped_in_is_for_nobody(loop) -> None:
    assert loop(does="cat; echo end").stdout.splitlines()[-2:] == ["PROMPT_build.md", "end"]


@every_row("arguments", [["x"], ["1", "2"], ["plan", "build"], [""], ["build", "3x"]])
def test_misuse_is_exit_2_and_says_how_it_is_used(loop, arguments) -> None:
    ran = loop(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("usage: ./loop.sh [plan|build] [max-iterations]")


@pytest.mark.parametrize("mode", ["plan", "build"])
def test_a_missing_prompt_file_points_at_what_writes_one(loop, tmp_path, mode) -> None:
    (tmp_path / f"PROMPT_{mode}.md").unlink()
    ran = loop(mode)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"PROMPT_{mode}.md is missing; `ralph loop init`" in ran.stderr


def test_help_is_the_loops(loop) -> None:
    assert loop("--help").stdout.split() == ["loop", "--help"]


def test_it_is_short_and_clean() -> None:
    assert len(LOOP.read_text().splitlines()) < 80
    subprocess.run([program_or_skip("shellcheck"), str(LOOP)], check=True)

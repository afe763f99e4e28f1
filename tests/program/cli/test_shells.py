"""Real shells complete ralph's command lines, by the Tab key where a shell has no other way. Names that people and
models chose must not be evaluated.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.sessions.places import directory_name
from tests.patience import PATIENCE_S
from tests.rows import every_row
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.outside
ROOT = Path(__file__).parents[3]
ID = "0a1b2c3d-0000-4000-8000-000000000000"
TARGET = """it's $(touch pwned) `touch pwned` "x"; touch pwned \\ !1 *"""
TITLE = "it's $(touch pwned) `touch pwned` %F{red} ; touch pwned"
READY, DONE = "READ\u00b7Y", "DON\u00b7E"


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """A home with a session, a target with a hostile name, and a program that prints its arguments, one per line."""
    programs = tmp_path / "bin"
    programs.mkdir()
    ralph = programs / "ralph"
    # Only the completion and its script are ralph's: a completed line is to show its words.
    ralph.write_text(
        f'#!/bin/sh\ncase $1 in --complete|completion) exec {sys.executable} -m ralph "$@";; esac\n'
        f"printf '<%s>' \"$@\" >words; printf '\\n{DONE}\\n'\n"
    )
    ralph.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "a prompt.md").touch()
    (tmp_path / ".config/ralph").mkdir(parents=True)
    name = TARGET.replace("\\", "\\\\").replace('"', '\\"')
    (tmp_path / ".config/ralph/config.toml").write_text(f'[[targets]]\nname = "{name}"\nmodel = "m"\n')
    folder = tmp_path / ".local/state/ralph/sessions" / directory_name(work)
    folder.mkdir(parents=True)
    (folder / f"{ID}.jsonl").write_text(f'{{"seq":1,"kind":"run","title":"{TITLE}"}}\n')
    return {
        "HOME": str(tmp_path),
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "HISTFILE": "",
    }


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.work = Path(environment["HOME"], "work")
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(self.work)
            os.execvpe(command[0], command, environment)

    def until(self, keys: str, expected: str) -> str:
        """Types the keys, and returns what the shell shows until it has shown the expected text."""
        os.write(self._terminal, keys.encode())
        shown = b""
        end_s = time.monotonic() + PATIENCE_S
        while not re.search(expected.encode(), shown):
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"no {expected!r} in {shown!r}"
            shown += os.read(self._terminal, 65536)
        return shown.decode()

    def words(self, keys: str) -> str:
        """Types the keys with their tabs and then Enter. Returns the words that ralph gets, each in <>."""
        words = self.work / "words"
        words.unlink(missing_ok=True)
        self.until(f"{keys}\n", DONE)
        return words.read_text()

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)


@pytest.fixture
def bash(world) -> Iterator[Terminal]:
    terminal = Terminal([program_or_skip("bash"), "--norc", "--noprofile", "-i"], world)
    terminal.until('bind "set bell-style none"; eval "$(ralph completion bash)"; echo READ"\u00b7"Y\n', READY)
    yield terminal
    terminal.close()


@pytest.fixture
def zsh(world) -> Iterator[Terminal]:
    terminal = Terminal([program_or_skip("zsh"), "-f", "-i"], world)
    load = "autoload -Uz compinit && compinit -u -D; source <(ralph completion zsh); unsetopt beep bang_hist"
    terminal.until(f"{load}; echo READ'\u00b7'Y\n", READY)
    yield terminal
    terminal.close()


LINES = [
    ("ralph ses\tsh\t0a\t", "<sessions><show><0a1b2c3d>"),
    ("ralph --permission-mode p\tx", "<--permission-mode><plan><x>"),
    ("ralph -r \tx", "<-r><0a1b2c3d><x>"),
    ("ralph run --output-format=st\tx", "<run><--output-format=stream-json><x>"),
    ("ralph -f a\tx", "<-f><a prompt.md><x>"),
    ("ralph --model it\tx", f"<--model><{TARGET}><x>"),
    ("ralph --model=it\tx", f"<--model={TARGET}><x>"),
]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_completes_words_and_evaluates_none(shell, request) -> None:
    terminal: Terminal = request.getfixturevalue(shell)
    assert {keys: terminal.words(keys) for keys, _ in LINES} == dict(LINES)
    assert not (terminal.work / "pwned").exists()


@every_row(
    ("keys", "expected"),
    [("ralph --model 'it\tx", f"<--model><{TARGET}><x>"), ('ralph -r "\tx', "<-r><0a1b2c3d><x>")],
)
def test_bash_completes_within_quotes(keys, expected, bash) -> None:
    assert bash.words(keys) == expected
    assert not (bash.work / "pwned").exists()


def test_zsh_shows_the_titles_of_sessions_as_text(zsh, world) -> None:
    folder = Path(world["HOME"], ".local/state/ralph/sessions", directory_name(zsh.work))
    (folder / f"{ID.replace('0a', '0b', 1)}.jsonl").touch()
    shown = zsh.until("ralph -r \t\t", "touch pwned")
    assert "0a1b2c3d  -- " in shown
    assert "it's $(touch pwned) `touch pwned` %F{red} ; touch pwned" in shown
    assert not (zsh.work / "pwned").exists()


FISH = [
    ("ralph ses", "sessions\tLook at what earlier runs did"),
    ("ralph --permission-mode p", "plan"),
    ("ralph run --output-format=st", "--output-format=stream-json"),
    ("ralph -f a", "a prompt.md"),
    ("ralph --prompt-file=a", "--prompt-file=a prompt.md"),
    ("ralph --model it", f"{TARGET}\ttarget: m"),
    ("ralph --model=it", f"--model={TARGET}\ttarget: m"),
]


def test_fish_completes_words_and_evaluates_none(world) -> None:
    fish = program_or_skip("fish")
    work = Path(world["HOME"], "work")

    def completed(line: str) -> str:
        code = "ralph completion fish | source; complete -C $argv[1]"
        ran = subprocess.run(
            [fish, "--no-config", "-c", code, line],
            cwd=work,
            env=world,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.rstrip("\n")

    assert {line: completed(line) for line, _ in FISH} == dict(FISH)
    assert re.fullmatch(rf"0a1b2c3d\t\d+ \w+ ago: {re.escape(TITLE)}", completed("ralph -r "))
    assert not (work / "pwned").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_says_nothing_where_ralph_is_gone_or_broken(shell, world) -> None:
    program = program_or_skip(shell)
    script = subprocess.run(
        [sys.executable, "-m", "ralph", "completion", shell],
        env=world,
        capture_output=True,
        check=True,
        cwd=ROOT,
    ).stdout
    (Path(world["HOME"]) / "script").write_bytes(script)
    shutil.copy("/bin/false", Path(world["HOME"]) / "bin" / "ralph")
    asks = {
        "bash": '. ~/script; COMP_LINE="ralph --re" COMP_POINT=10; _ralph ralph --re ralph; echo "${#COMPREPLY[@]}"',
        "zsh": "compdef() { :; }; . ~/script; compadd() { print wrong; }; PREFIX=--re CURRENT=2 words=(ralph --re); _ralph; echo 0",
        "fish": "source ~/script; complete -C 'ralph --re'; echo 0",
    }
    ran = subprocess.run([program, "-c", asks[shell]], env=world, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("0\n", "")

"""A new setting is one row. The test adds rows to a copy of the tables, and looks for the settings in every place
that is made from the tables.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ralph

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = {
    ("settings/tables.py", "    api: Annotated[\n"): """
    politeness: Annotated[
        int,
        Key(
            at_least(1),
            "how often it says please",
            Flag("--politeness", "Say please N times.", "N"),
            "RALPH_POLITENESS",
            in_repository=lower_only("").in_repository,
        ),
    ] = 7
""",
    ("settings/tables.py", "    max_retries: Annotated[\n"): """
    is_eager: Annotated[
        bool, Key(SWITCH, "no wait", Flag("--eager", "Do not wait."), "RALPH_EAGER")
    ] = False
""",
    ("values/limits.py", "    max_budget_usd: Annotated[\n"): """
    max_thanks: Annotated[int | None, Key(at_least(1), "thanks", Flag("--max-thanks", "End after N.", "N"))] = None
""",
    ("values/limits.py", "    def for_whole_answer(self) -> Self:\n"): """
    bow_s: Annotated[float, lower_only("one bow")] = 3.0
""",
}
"""New fields, by the file and the line that they precede."""
# Runs each command that it is told of in a fork, because a start of an interpreter takes longer than all else. For
# the same reason it imports at once what most of the commands import.
FORKS = """
import json, os, runpy, sys
import ralph.api.transport, ralph.cli.command_line, ralph.cli.doctor, ralph.run.command
import ralph.cli.checks.machine, ralph.machine.process_limit
for line in sys.stdin:
    sys.argv, environment, streams = json.loads(line)
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(environment)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        runpy.run_module("ralph", run_name="__main__", alter_sys=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
NEW = ("model.politeness", "retry.is_eager", "limits.max_thanks", "clocks.bow_s")


class Copy:
    """A copy of ralph with more settings, and a home directory of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "copy"
        (self.root / "ralph").mkdir(parents=True)
        has_new_rows = {Path(file).parts[0] for file, _ in ROWS}
        for part in Path(ralph.__file__).resolve().parent.iterdir():
            if part.name in has_new_rows:
                shutil.copytree(part, self.root / "ralph" / part.name)
            else:
                (self.root / "ralph" / part.name).symlink_to(part)
        for (file, line), row in ROWS.items():
            path = self.root / "ralph" / file
            text = path.read_text()
            assert text.count(line) == 1
            path.write_text(text.replace(line, row.lstrip("\n") + line))
        self.cwd = tmp_path / "work"
        self.cwd.mkdir()
        self.user_file = tmp_path / "config" / "ralph" / "config.toml"
        self.user_file.parent.mkdir(parents=True)
        self.user_file.write_text("")
        self.environment = {
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "ANTHROPIC_API_KEY": "sk-none",
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",  # an https:// URL makes each doctor load all certificates
            "RALPH_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPATH": str(self.root),
        }
        self.streams = [tmp_path / "stdout", tmp_path / "stderr"]
        self.forks = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def close(self) -> None:
        self.forks.communicate()

    def __call__(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `ralph` with these words."""
        assert self.forks.stdin
        assert self.forks.stdout
        streams = [str(stream) for stream in self.streams]
        self.forks.stdin.write(json.dumps([command, {**self.environment, **environment}, streams]) + "\n")
        code = int(self.forks.stdout.readline())
        return subprocess.CompletedProcess(command, code, *(stream.read_text() for stream in self.streams))

    def listed(self, *flags: str, **environment: str) -> dict[str, list[str]]:
        """The rows of the new settings in doctor's listing, without their sections: value and origin."""
        shown = self("ralph", "doctor", *flags, **environment).stdout
        rows = [line.split() for line in shown.splitlines() if line.startswith("  ")]
        return {row[0].partition(".")[2]: row[1:] for row in rows if row[0] in NEW}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Iterator[Copy]:
    made = Copy(tmp_path_factory.mktemp("one_row"))
    yield made
    made.close()


@pytest.mark.parametrize("command", ["run", "loop"])
def test_it_is_an_option_and_is_in_the_help(copy: Copy, command: str) -> None:
    helped = " ".join(copy("ralph", command, "--help-all").stdout.split())
    assert "--politeness N Say please N times." in helped
    assert "--eager / --no-eager Do not wait." in helped
    assert "--max-thanks N End after N." in helped
    refused = copy("ralph", command, "x", "--politeness", "0")
    says = "--politeness must be a whole number of at least 1, not 0"
    assert (refused.returncode, says in refused.stderr) == (2, True)


def test_what_cannot_be_its_value_is_refused(copy: Copy) -> None:
    refused = copy("ralph", "run", "x", "--politeness", "often")
    assert (refused.returncode, "'--politeness': 'often' is not a whole number" in refused.stderr) == (
        2,
        True,
    )
    copy.user_file.write_text("clocks.bow_s = -1")
    says = f"{copy.user_file}: clocks.bow_s must be a number of seconds from 0 to 31536000, not -1"
    try:
        assert says in copy("ralph", "doctor").stdout
    finally:
        copy.user_file.write_text("")


def test_doctor_lists_it_whoever_set_it(copy: Copy) -> None:
    """The new settings are a number, a switch with a flag for each of its values, a limit without a default, and a
    clock without a flag.
    """
    user_file, repository_file = str(copy.user_file), copy.cwd / "ralph.toml"
    rows = copy.listed()
    assert rows["politeness"] == ["7", "default"]
    assert rows["is_eager"] == ["false", "default"]
    rows = copy.listed("--max-thanks", "2", RALPH_EAGER="true", RALPH_POLITENESS="4")
    assert rows["politeness"] == ["4", "RALPH_POLITENESS"]
    assert rows["is_eager"] == ["true", "RALPH_EAGER"]
    assert rows["max_thanks"] == ["2", "flag", "--max-thanks"]
    copy.user_file.write_text("model.politeness = 5\nclocks.bow_s = 2")
    repository_file.write_text("model.politeness = 6")
    try:
        rows = copy.listed("--eager", RALPH_EAGER="false")
        assert rows["politeness"] == ["5", user_file], "a repository may only make it smaller"
        assert rows["is_eager"] == ["true", "flag", "--eager"]
        assert rows["bow_s"] == ["2", user_file]
        rows = copy.listed("--no-eager", "--politeness", "3", RALPH_EAGER="true", RALPH_POLITENESS="4")
        assert rows["politeness"] == ["3", "flag", "--politeness"]
        assert rows["is_eager"] == ["false", "flag", "--eager"]
        repository_file.write_text("model.politeness = 2")
        assert copy.listed()["politeness"] == ["2", str(repository_file)]
        repository_file.unlink()
        rows = copy.listed(RALPH_POLITENESS="4")
        assert rows["politeness"] == ["4", "RALPH_POLITENESS"], "the variable goes before the user's file"
    finally:
        repository_file.unlink(missing_ok=True)
        copy.user_file.write_text("")


MAKES_PAGES = f"""
import sys
sys.path.append({str(Path(__file__).parents[2])!r})
from benchmarks import completion_table, man_page, settings_page
print(settings_page.page(settings_page.PAGE.read_text()), man_page.page(), completion_table.table())
"""
"""Prints what `make generated` writes. ralph is the copy, which comes first in the path."""


def test_it_is_in_the_table_of_the_docs_the_man_page_and_the_completion(copy: Copy) -> None:
    made = subprocess.check_output(
        [sys.executable, "-c", MAKES_PAGES], cwd=copy.cwd, env=copy.environment, text=True
    )
    for line in (
        "| `model.politeness` | `7` | `--politeness`, `RALPH_POLITENESS` | smaller, not 0 | how often it says please |",
        "| `retry.is_eager` | `false` | `--eager`, `RALPH_EAGER` | no | no wait |",
        "| `limits.max_thanks` | none | `--max-thanks` | no | thanks |",
        "| `clocks.bow_s` | `3` | | smaller, not 0 | one bow |",
        "run\toption\t--politeness\tany\t\t\tSay please N times",
        "loop\toption\t--eager\t\t\t\tDo not wait",
        "run\toption\t--no-eager\t\t\t\tNot --eager",
        "Say please N times.",
    ):
        assert line in made.splitlines(), line

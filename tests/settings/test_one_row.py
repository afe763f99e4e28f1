"""A new setting is one row: fields in a copy of the tables, seen in every place that the tables make."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ralph

ROWS = {
    ("settings/tables.py", '    """One of `EFFORTS`; None: the API\'s own choice."""\n'): '''
    politeness: Annotated[
        int,
        Key(
            at_least(1),
            "how often it says please",
            Flag("--politeness", "Say please N times.", "N"),
            "RALPH_POLITENESS",
            in_repository=SMALLER,
        ),
    ] = 7
    """Times in a prompt."""
''',
    ("settings/tables.py", '    """False: no retries, whatever the policy."""\n'): """
    is_eager: Annotated[
        bool, Key(SWITCH, "no wait", Flag("--eager", "Do not wait."), "RALPH_EAGER")
    ] = False
""",
    ("values/limits.py", '    """Most turns of one task (exit 3); None: no limit."""\n'): """
    max_thanks: Annotated[int | None, Key(at_least(1), "thanks", Flag("--max-thanks", "End after N.", "N"))] = None
""",
    ("api/clocks.py", '    """Longest time for one answer, from beginning to end."""\n'): """
    bow_s: Annotated[float, Key(SECONDS, "one bow", in_repository=SMALLER)] = 3.0
""",
}
"""New fields, by the file and the line that they follow."""


class Copy:
    """ralph with more settings, and a home of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "copy"
        shutil.copytree(Path(ralph.__file__).parent, self.root / "ralph")
        for (file, line), row in ROWS.items():
            path = self.root / "ralph" / file
            text = path.read_text()
            assert text.count(line) == 1
            path.write_text(text.replace(line, line + row))
        self.cwd = tmp_path / "work"
        self.cwd.mkdir()
        self.user_file = tmp_path / "config" / "ralph" / "config.toml"
        self.user_file.parent.mkdir(parents=True)
        self.user_file.write_text("")
        self.environment = {
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "ANTHROPIC_API_KEY": "sk-none",
            "RALPH_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPATH": str(self.root),
        }

    def __call__(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.cwd,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def listed(self, name: str, *flags: str, **environment: str) -> list[str]:
        """The row in doctor's listing: value and origin."""
        shown = self("-m", "ralph", "doctor", "--offline", *flags, **environment).stdout
        (row,) = [line.split() for line in shown.splitlines() if line.startswith(f"  {name} ")]
        return row[1:]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Copy:
    return Copy(tmp_path_factory.mktemp("one_row"))


@pytest.mark.parametrize("command", ["run", "loop"])
def test_it_is_an_option_and_stands_in_the_help(copy: Copy, command: str) -> None:
    helped = " ".join(copy("-m", "ralph", command, "--help").stdout.split())
    assert "--politeness N Say please N times." in helped
    assert "--eager / --no-eager Do not wait." in helped
    assert "--max-thanks N End after N." in helped
    refused = copy("-m", "ralph", command, "x", "--politeness", "often")
    assert (refused.returncode, "'--politeness': 'often' is not a valid int" in refused.stderr) == (2, True)
    refused = copy("-m", "ralph", command, "x", "--politeness", "0")
    says = "--politeness must be a whole number of at least 1, not 0"
    assert (refused.returncode, says in refused.stderr) == (2, True)


def test_doctor_lists_it_whoever_set_it(copy: Copy) -> None:
    name = "model.politeness"
    assert copy.listed(name) == ["7", "default"]
    copy.user_file.write_text("model.politeness = 5")
    assert copy.listed(name) == ["5", str(copy.user_file)]
    assert copy.listed(name, RALPH_POLITENESS="4") == ["4", "RALPH_POLITENESS"]
    assert copy.listed(name, "--politeness", "3", RALPH_POLITENESS="4") == ["3", "flag", "--politeness"]
    (copy.cwd / "ralph.toml").write_text("model.politeness = 6")
    try:
        assert copy.listed(name) == ["5", str(copy.user_file)]
        (copy.cwd / "ralph.toml").write_text("model.politeness = 2")
        assert copy.listed(name) == ["2", str(copy.cwd / "ralph.toml")]
    finally:
        (copy.cwd / "ralph.toml").unlink()
        copy.user_file.write_text("")


@pytest.mark.parametrize(
    ("flags", "variable", "shown"),
    [
        ((), "", ["false", "default"]),
        ((), "true", ["true", "RALPH_EAGER"]),
        (("--eager",), "false", ["true", "flag", "--eager"]),
        (("--no-eager",), "true", ["false", "flag", "--eager"]),
    ],
)
def test_a_switch_has_a_flag_for_each_of_its_values(copy: Copy, flags, variable, shown) -> None:
    assert copy.listed("retry.is_eager", *flags, RALPH_EAGER=variable) == shown


def test_limits_and_clocks_are_rows_too(copy: Copy) -> None:
    assert copy.listed("limits.max_thanks", "--max-thanks", "2") == ["2", "flag", "--max-thanks"]
    copy.user_file.write_text("clocks.bow_s = 2")
    assert copy.listed("clocks.bow_s") == ["2", str(copy.user_file)]
    copy.user_file.write_text("clocks.bow_s = -1")
    says = f"{copy.user_file}: clocks.bow_s must be a number of seconds from 0 to 31536000, not -1"
    assert says in copy("-m", "ralph", "doctor", "--offline").stdout
    copy.user_file.write_text("")


def test_it_stands_in_the_table_of_the_docs(copy: Copy) -> None:
    code = "from ralph.settings.listing import reference_lines; print(*reference_lines(), sep='\\n')"
    lines = copy("-c", code).stdout.splitlines()
    for line in (
        "| `model.politeness` | `7` | `--politeness`, `RALPH_POLITENESS` | smaller, not 0 | how often it says please |",
        "| `retry.is_eager` | `false` | `--eager`, `RALPH_EAGER` | no | no wait |",
        "| `limits.max_thanks` | none | `--max-thanks` | no | thanks |",
        "| `clocks.bow_s` | `3` | | smaller, not 0 | one bow |",
    ):
        assert line in lines

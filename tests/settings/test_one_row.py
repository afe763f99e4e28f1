"""A new setting is one row: one field in a copy of the table, seen in every place that the table makes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ralph

ROW = '''
    politeness: Annotated[
        int,
        Key(
            must_be.whole(1),
            "how often it says please",
            Flag("--politeness", "Say please N times.", "N", Takes.WHOLE_NUMBER),
            "RALPH_POLITENESS",
            must_be.number,
            in_repository=may.SMALLER,
        ),
    ] = 7
    """Times in a prompt."""
'''
FIELD_BEFORE = '    """One of `EFFORTS`; None: the API\'s own choice."""\n'


class Copy:
    """ralph with one more setting, and a home of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "copy"
        shutil.copytree(
            Path(ralph.__file__).parent, self.root / "ralph", ignore=shutil.ignore_patterns("__pycache__")
        )
        table = self.root / "ralph" / "settings" / "tables.py"
        text = table.read_text()
        assert text.count(FIELD_BEFORE) == 1
        table.write_text(text.replace(FIELD_BEFORE, FIELD_BEFORE + ROW))
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
            "PYTHONDONTWRITEBYTECODE": "1",
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

    def listed(self, *flags: str, **environment: str) -> list[str]:
        """The row in doctor's listing: value and origin."""
        shown = self("-m", "ralph", "doctor", "--offline", *flags, **environment).stdout
        (row,) = [line.split() for line in shown.splitlines() if line.startswith("  model.politeness ")]
        return row[1:]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Copy:
    return Copy(tmp_path_factory.mktemp("one_row"))


@pytest.mark.parametrize("command", ["run", "loop"])
def test_it_is_an_option_and_stands_in_the_help(copy: Copy, command: str) -> None:
    helped = " ".join(copy("-m", "ralph", command, "--help").stdout.split())
    assert "--politeness N Say please N times." in helped
    refused = copy("-m", "ralph", command, "x", "--politeness", "often")
    assert (refused.returncode, "'--politeness': 'often' is not a valid int" in refused.stderr) == (2, True)
    refused = copy("-m", "ralph", command, "x", "--politeness", "0")
    assert (refused.returncode, "--politeness must be a whole number of at least 1" in refused.stderr) == (
        2,
        True,
    )


def test_doctor_lists_it_whoever_set_it(copy: Copy) -> None:
    assert copy.listed() == ["7", "default"]
    copy.user_file.write_text("model.politeness = 5")
    assert copy.listed() == ["5", str(copy.user_file)]
    assert copy.listed(RALPH_POLITENESS="4") == ["4", "RALPH_POLITENESS"]
    assert copy.listed("--politeness", "3", RALPH_POLITENESS="4") == ["3", "flag", "--politeness"]
    (copy.cwd / "ralph.toml").write_text("model.politeness = 6")
    try:
        assert copy.listed() == ["5", str(copy.user_file)]
        (copy.cwd / "ralph.toml").write_text("model.politeness = 2")
        assert copy.listed() == ["2", str(copy.cwd / "ralph.toml")]
    finally:
        (copy.cwd / "ralph.toml").unlink()
        copy.user_file.write_text("")


def test_it_stands_in_the_table_of_the_docs(copy: Copy) -> None:
    code = "from ralph.settings.reference import reference_lines; print(*reference_lines(), sep='\\n')"
    assert (
        "| `model.politeness` | `7` | `--politeness`, `RALPH_POLITENESS` | smaller, not 0 | how often it says please |"
        in copy("-c", code).stdout.splitlines()
    )

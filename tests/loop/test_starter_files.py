"""Tests what `ralph loop init` writes, and which files it does not change."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.loop.starter import NAMES, placeholders_left, write_starters

TREE = Path(__file__).parents[2]


def news(directory: Path) -> dict[str, bool]:
    return {name: kept_because is None for name, kept_because in write_starters(directory)}


def test_an_empty_directory_gets_all_of_them(tmp_path) -> None:
    assert news(tmp_path) == dict.fromkeys(NAMES, True)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path)) for path in written) == sorted(NAMES)
    assert all((tmp_path / name).read_text().endswith("\n") for name in NAMES)


def test_the_script_can_be_run_and_is_the_one_of_the_checkout(tmp_path) -> None:
    umask = os.umask(0o077)
    try:
        news(tmp_path)
    finally:
        os.umask(umask)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in NAMES}
    assert modes == dict.fromkeys(NAMES, 0o600) | {"loop.sh": 0o700}
    assert (tmp_path / "loop.sh").read_bytes() == (TREE / "loop.sh").read_bytes()
    assert not (TREE / "loop.sh").is_symlink()  # so that a raw download works


@pytest.mark.parametrize("name", NAMES)
def test_what_is_there_is_kept_and_the_rest_written(tmp_path, name) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / name).write_text("")
    assert news(tmp_path) == {each: each != name for each in NAMES}
    assert (tmp_path / name).read_text() == ""


def test_no_link_is_followed(tmp_path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / "AGENTS.md").symlink_to(outside / "gone.md")
    (work / "specs").symlink_to(outside)
    assert news(work) == {
        "PROMPT_plan.md": True,
        "PROMPT_build.md": True,
        "AGENTS.md": False,
        "specs/README.md": False,
        "loop.sh": True,
    }
    assert list(outside.iterdir()) == []


def test_a_file_where_a_directory_must_be_is_an_error_with_its_name(tmp_path) -> None:
    (tmp_path / "specs").write_text("mine")
    with pytest.raises(OSError, match=re.escape("specs/README.md")) as refused:
        list(write_starters(tmp_path))
    assert refused.value.filename == "specs/README.md"
    assert (tmp_path / "specs").read_text() == "mine"


def test_a_full_disk_leaves_no_half_file_behind(tmp_path) -> None:
    """A limit on the size of files replaces the full disk: a write beyond it fails in the same way."""

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    code = (
        "import signal, sys; from pathlib import Path\n"
        "from ralph.loop.starter import write_starters\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try: list(write_starters(Path(sys.argv[1])))\n"
        "except OSError as error: print(error.filename)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        preexec_fn=no_room,
        cwd=TREE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == NAMES[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["PROMPT_plan.md", "PROMPT_build.md"])
def test_both_prompts_teach_the_loop(tmp_path, name) -> None:
    news(tmp_path)
    text = (tmp_path / name).read_text()
    for needed in ("AGENTS.md", "IMPLEMENTATION_PLAN.md", "specs/", "earch before you", "ommit"):
        assert needed in text
    assert len(text) < 2500
    assert ".ralph" not in text  # the loop's own prompt says where the stop file is


def test_planning_changes_no_code_and_building_does_one_task(tmp_path) -> None:
    news(tmp_path)
    assert "Change no code" in (tmp_path / "PROMPT_plan.md").read_text()
    build = (tmp_path / "PROMPT_build.md").read_text()
    assert "one task" in build
    assert "Run the checks" in build


def test_lines_of_the_starter_that_nobody_has_filled_in_are_found(tmp_path: Path) -> None:
    assert placeholders_left(tmp_path) is None
    list(write_starters(tmp_path))
    file = tmp_path / "AGENTS.md"
    names = (
        "Build, All tests, One test, Lint and types, Where things are, Style that no tool checks, Never touch"
    )
    assert (
        placeholders_left(tmp_path)
        == f"AGENTS.md has unfilled placeholders: {names}; fill them in, or remove those lines"
    )
    file.write_text(file.read_text().replace("...", "make"))
    assert placeholders_left(tmp_path) is None
    file.write_text("- Note: wait for it...\r\n* Build: `...`\r\n")
    assert (
        placeholders_left(tmp_path)
        == "AGENTS.md has unfilled placeholders: Build; fill them in, or remove those lines"
    )
    file.unlink()
    os.mkfifo(file)
    assert placeholders_left(tmp_path) is None, "a pipe is not waited for"

"""Pipes, sockets, devices and directories in the place of a file that an option names: one line, and nothing waits for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Turn
from tests.program.sessions.test_special_files import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READING = {
    "--mcp-config": ("go", "--mcp-config", "{file}"),
    "--settings": ("go", "--settings", "{file}"),
    "--config": ("go", "--config", "{file}"),
    "--system-prompt-file": ("go", "--system-prompt-file", "{file}"),
    "--append-system-prompt-file": ("go", "--append-system-prompt-file", "{file}"),
    "--json-schema": ("go", "--json-schema", "{file}"),
    "loop --json-schema": ("loop", "go", "--max-iterations", "1", "--json-schema", "{file}"),
    "loop --system-prompt-file": ("loop", "go", "--max-iterations", "1", "--system-prompt-file", "{file}"),
    "loop --mcp-config": ("loop", "go", "--max-iterations", "1", "--mcp-config", "{file}"),
    "loop --plan": ("loop", "go", "--max-iterations", "1", "--plan", "{file}"),
    "doctor --mcp-config": ("doctor", "--mcp-config", "{file}"),
    "fleet submit": ("fleet", "submit", "{file}"),
    "fleet export": ("fleet", "export", "--format", "parallel", "{file}"),
    "fleet job": ("fleet", "job", "--set", "night", "--dir", "jobs", "{file}"),
    "mock-api": ("mock-api", "{file}"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", READING.values(), ids=list(READING))
def test_an_option_that_names_no_file_is_one_line_at_once(
    ralph, ralph_here, serve, kind: str, words: tuple[str, ...]
) -> None:
    server = serve(Turn("Done."))
    place: Path = ralph.cwd / "place"
    make: Callable[[Path], object] = KINDS[kind]
    make(place)
    ran = ralph_here(*(word.format(file=place) for word in words))
    assert ran.code in {2, 78}, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "stayed silent" not in ran.stderr, "it was waited for"
    assert len([line for line in ran.stderr.splitlines() if str(place) in line]) == 1, ran.stderr
    assert server.request_count == 0


@pytest.mark.parametrize("kind", ["a pipe", "a directory"])
def test_an_export_that_cannot_be_written_is_one_line_and_exit_74(ralph, kind: str) -> None:
    (ralph.cwd / "jobs.jsonl").write_text(
        '{"id": "one", "repository": "https://h.example/r", "prompt": "go"}\n'
    )
    KINDS[kind](ralph.cwd / "place")
    ran = ralph("fleet", "export", "--format", "parallel", "jobs.jsonl", "-o", "place")
    assert (ran.code, ran.stdout, len(ran.stderr.splitlines())) == (74, "", 1)
    assert f"cannot write {ralph.cwd}/place: " in ran.stderr


def test_a_pipe_without_a_name_is_read_to_its_end(ralph, serve) -> None:
    """As that of `<(command)`."""
    server = serve(Turn("Done."))
    reading, writing = os.pipe()
    process = ralph.start("go", "--append-system-prompt-file", "/dev/stdin", stdin=reading)
    os.close(reading)
    os.write(writing, b"Be brief.")
    os.close(writing)
    assert ralph.finish(process).code == 0
    assert "Be brief." in str(server.requests[0].json()["system"])

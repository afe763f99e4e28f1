from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from ralph.agent.call_rules import fault_in_arguments
from ralph.places.state import name_for
from ralph.sandbox.box_plan import BoxPlan, Means
from ralph.sandbox.landlock import Support
from ralph.tools import read
from ralph.values.answer import ToolCall, ToolOutput
from ralph.values.tool_choice import TOOL_NAMES
from tests.patience import within_s


def test_all_definitions_together_stay_under_their_share_of_the_first_request(tools) -> None:
    as_sent = [
        {"name": known.name, "description": known.description, "input_schema": known.input_schema}
        for known in tools.box.definitions
    ]
    assert {known["name"] for known in as_sent} == set(TOOL_NAMES)
    assert len(json.dumps(as_sent)) < 3200


def test_what_the_definitions_say(tools, make_tools) -> None:
    assert {known.name for known in tools.box.definitions if known.is_read_only} == {"Read", "Glob", "Grep"}
    for known in tools.box.definitions:
        assert fault_in_arguments(known.name, known.input_schema, {}) is not None, "a call without arguments"
    few = make_tools(enabled=frozenset({"Read", "Grep"}))
    assert [known.name for known in few.box.definitions] == ["Read", "Grep"]


def test_read_only_calls_run_together_and_answer_in_order(tools, tmp_path, monkeypatch) -> None:
    """Each call waits for the others, so that calls one after the other would never end."""
    (tmp_path / "a").write_text("x")
    together = threading.Barrier(3, timeout=within_s())
    really_read = read.run

    def read_together(arguments: Any, context: Any) -> ToolOutput:
        together.wait()
        time.sleep(0.1 if arguments.get("offset") == 1 else 0)
        return really_read(arguments, context)

    monkeypatch.setattr("ralph.tools.read.run", read_together)
    paths: list[dict[str, Any]] = [
        {"file_path": "a", "offset": 1},
        {"file_path": "missing"},
        {"file_path": "a"},
    ]
    results = tools.box.run([ToolCall(str(index), "Read", path) for index, path in enumerate(paths)])
    assert [output.is_error for output, _ in results] == [False, True, False]
    assert results[0][1] >= 0.1


def test_a_bug_in_a_tool_becomes_an_error_that_names_it(tools, monkeypatch) -> None:
    def broken(_arguments: Any, _context: Any) -> ToolOutput:
        raise ZeroDivisionError("by zero")

    for name in ("Bash", "Read"):
        monkeypatch.setattr(f"ralph.tools.{name.lower()}.run", broken)
        assert tools.error(name) == f"{name} failed inside ralph: ZeroDivisionError: by zero"


CALLS: dict[str, dict[str, Any]] = {
    "Read": {"file_path": "link/file"},
    "Write": {"file_path": "link/file", "content": "x"},
    "Edit": {"file_path": "link/file", "old_string": "a", "new_string": "b"},
    "Glob": {"pattern": "*", "path": "link"},
    "Grep": {"pattern": "a", "path": "link"},
}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EINVAL, "{name}: something replaced or removed a part of the path"),
        (errno.EACCES, "{path}: Permission denied"),
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_a_link_that_cannot_be_followed_is_the_reason(
    tools, tmp_path, monkeypatch, name, number, reason
) -> None:
    """A command in the background may exchange a link and a directory, and not everybody may follow the kernel's."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/file").write_text("a")
    (tmp_path / "link").symlink_to("directory")

    def replaced(path: str, **_: Any) -> str:
        raise OSError(number, os.strerror(number), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "readlink", replaced)
        told = tools.error(name, **CALLS[name])
    assert told.startswith(reason.format(name=name, path=tmp_path / "link"))


def test_importing_the_tools_loads_nothing_heavy() -> None:
    script = "import sys, ralph.tools; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", script], text=True).split())
    assert not loaded & set("subprocess ctypes pathspec base64 tempfile shutil difflib httpx".split())


def test_what_runs_in_other_directories_left_behind_makes_no_sandbox_at_the_start(
    make_tools, tmp_path
) -> None:
    means = Means(Support(1, ""), "", "")
    tools = make_tools(user_environment={"RALPH_STATE_DIR": str(tmp_path)}, box_plan=BoxPlan(means))
    (tmp_path / "running").mkdir()
    for directory, is_made in (("/other", False), (tools.box.context.roots.paths[0], True)):
        (tmp_path / "running" / f"{name_for([directory])}-0").touch()
        assert tools.box.about_killed_run() == ""
        assert ("box" in vars(tools.box.context)) is is_made

"""A process that dies at any step of a write must leave the old or the new file, and nothing that disturbs a later
write.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# Forks for each step, kills the child right before the step's system call, and says what it finds: the file, the
# names beside it, what a resumed run makes of it, and the file after the call was made again.
SCRIPT = """
import gc, json, os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from ralph.tools.edit import plan_edit, plan_write
from ralph.places.gather import gather_places
from ralph.tools.path_guard import PathGuard
from ralph.tools.planned_write import settle
from ralph.tools.tool_context import Roots, SeenFiles

directory = Path(sys.argv[1])
really_write = os.write
os.write = lambda descriptor, data: really_write(descriptor, bytes(data[:400]))  # several writes a file

guard = PathGuard(lambda: gather_places([str(directory)], {}), own_files=lambda: None)

# A crash before one of these is a crash before the next call that changes something.
ONLY_LOOK = {"fspath", "fstat", "getxattr", "listxattr", "lstat", "readlink", "stat", "strerror", "urandom"}

def plan():
    context = SimpleNamespace(
        roots=Roots(directory, ()), seen=SeenFiles(), guard=guard, resolve=lambda name: directory / name
    )
    return plan_change(case["arguments"], context)

def die_before(step):
    def count(frame, event, function):
        nonlocal step
        if event == "c_call" and function.__module__ == "posix" and function.__name__ not in ONLY_LOOK:
            step -= 1
            if step == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)

def content():
    return path.read_text() if path.exists() else None

gc.freeze()  # a fork then copies less
cases, step, is_over = [*json.loads(sys.argv[2]).items()], 0, True
while cases or not is_over:
    if is_over:
        (name, case), step = cases.pop(0), 0
        path = directory / case["path"]
        plan_change = {"Edit": plan_edit, "Write": plan_write}[case["tool"]]
    step += 1
    for found in sorted(directory.rglob("*"), reverse=True):
        found.rmdir() if found.is_dir() else found.unlink()
    if case["before"] is not None:
        path.write_text(case["before"])
        if case["is_linked"]:
            (directory / "twin").hardlink_to(path)
    planned = plan()
    child = os.fork()
    if child == 0:
        die_before(step)
        planned.execute()
        sys.setprofile(None)
        os._exit(0)
    is_over = os.waitpid(child, 0)[1] == 0
    after, names = content(), sorted(str(found.relative_to(directory)) for found in directory.rglob("*"))
    twin = (directory / "twin").read_text() if case["is_linked"] else None
    settled = settle(planned.change, path, SeenFiles())
    if settled is None:
        plan().execute()
    told = settled and [settled.content, settled.is_error]
    left = sorted(found.name for found in path.parent.iterdir())
    print(json.dumps({"name": name, "after": after, "names": names, "twin": twin, "settled": told, "again": content(), "left": left}))
"""

OLD = "old line\n" * 100
NEW = "new line\n" * 200
CASES: dict[str, tuple[str, str, str | None, str, dict[str, Any]]] = {
    "create": ("Write", "deep/er/a", None, NEW, {"content": NEW}),
    "replace": ("Write", "a", OLD, NEW, {"content": NEW}),
    "replace a hard link": ("Write", "a", OLD, NEW, {"content": NEW}),
    "edit": (
        *("Edit", "a", OLD, OLD.replace("old", "new")),
        {"old_string": "old", "new_string": "new", "replace_all": True},
    ),
}


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every step of every case, from one process."""
    cases = {
        name: {
            "tool": tool,
            "path": path,
            "before": old,
            "is_linked": name == "replace a hard link",
            "arguments": {"file_path": path, **arguments},
        }
        for name, (tool, path, old, _, arguments) in CASES.items()
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("crash")), json.dumps(cases)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_t15_a_crash_at_any_step_leaves_the_old_file_or_the_new_one(crashes, name) -> None:
    _, _, old, new, _ = CASES[name]
    is_linked = name == "replace a hard link"
    steps = [step for step in crashes if step["name"] == name]
    assert len(steps) > 10
    assert [step["after"] for step in steps] == sorted(
        (step["after"] for step in steps), key=[old, new].index
    )
    assert {step["after"] for step in steps} == {old, new}
    for step in steps:
        assert (step["settled"] is None, step["again"]) == (step["after"] == old, new)
        assert step["twin"] == (old if is_linked else None)
        assert not any(left.endswith(".tmp") for left in step["left"])
    assert any(name.endswith(".tmp") for step in steps for name in step["names"])


@pytest.mark.parametrize("tool", ["Edit", "Write"])
def test_t15_hard_links_are_noted_and_keep_the_old_content(tools, tmp_path, tool) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    change = {"old_string": "old", "new_string": "new"} if tool == "Edit" else {"content": "new"}
    text = tools.ok(tool, file_path="a", **change)
    assert text.endswith("[its 1 other hard link(s) keep the old content]")
    assert (tmp_path / "b").read_text() == "old"


def test_t15_the_unfinished_file_of_a_writer_at_work_is_not_removed(tmp_path) -> None:
    import fcntl

    from ralph.machine.files.opened_file import remove_leftovers

    names = (".ralph-0123456789ab.tmp", ".ralph-0123456789ac.tmp", ".ralph-mine.tmp", "a.tmp")
    for name in names:
        (tmp_path / name).write_text("half")
    (tmp_path / ".ralph-0123456789ad.tmp").symlink_to("a.tmp")
    with (tmp_path / names[0]).open() as at_work:
        fcntl.flock(at_work, fcntl.LOCK_EX)
        remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {names[0], *names[2:], ".ralph-0123456789ad.tmp"}
    remove_leftovers(tmp_path / "nowhere")

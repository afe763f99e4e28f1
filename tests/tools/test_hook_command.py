"""Hooks and the protected files, with a sandbox whose disk may not answer. `tests/program/tools/test_command_hooks.py` tests
hooks as a whole.
"""

from __future__ import annotations

from threading import Thread

import pytest

from ralph.machine.running_command import CommandEnding, EndCause
from ralph.sandbox import disk_work
from ralph.tools.hook_command import problem_of, run_hook
from ralph.tools.tool_context import ToolContext
from ralph.values.ports import SignalReceived
from tests.fakes.box import FakeBox, note_of
from tests.patience import wait_until
from tests.rows import every_row


def test_a_hook_is_not_run_while_the_disk_with_protected_files_does_not_answer(
    tools, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(disk_work, "_ANSWERS_WITHIN_S", 0.05)
    monkeypatch.setattr(ToolContext, "hook_box", FakeBox(silent="look"))
    ending = run_hook("touch ran", b"", 20, "a hook", tools.box.context, is_guard=False)
    assert ending.status is None
    assert ending.problem.startswith("it could not be run: a file system that the sandbox must look at")
    assert not (tmp_path / "ran").exists()


def test_of_what_a_hook_prints_as_errors_the_beginning_and_the_end_are_kept_and_no_file_is_filled(
    tools,
) -> None:
    flood = "echo first >&2; head -c 99999 /dev/zero | tr '\\0' x >&2; echo; echo last >&2"
    ending = run_hook(
        f"[ -p /dev/stderr ] && echo pipe; {flood}", b"", 20, "a hook", tools.box.context, is_guard=False
    )
    assert (ending.status, ending.output.strip(), ending.last_line[:3]) == (0, "pipe", "xxx")
    assert len(ending.errors) < 17_000
    assert ending.errors.startswith("first\nxxx")
    assert "\n[...]\n" in ending.errors
    assert ending.errors.endswith("xlast")


def test_a_stopped_hook_says_what_was_undone(tools, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(ToolContext, "hook_box", FakeBox("x"))

    def stop_it() -> None:
        wait_until((tmp_path / "there").exists)
        tools.waiter.inbox.note_signal(15)

    Thread(target=stop_it).start()
    with pytest.raises(SignalReceived) as stop:
        run_hook("touch there; sleep 99", b"", 20, "a hook", tools.box.context, is_guard=False)
    assert stop.value.undone == note_of("x")


@every_row(
    ("how", "words"),
    [
        (EndCause.BY_ITSELF, ""),
        (EndCause.TIMED_OUT, "its timeout of 2.5 s"),
        (EndCause.TOO_MUCH_OUTPUT, "it printed more than"),
        (EndCause.TOO_MUCH_MEMORY, "a limit of the settings (sandbox.max_memory_mb, sandbox.max_processes)"),
        (
            EndCause.TOO_MANY_PROCESSES,
            "a limit of the settings (sandbox.max_memory_mb, sandbox.max_processes)",
        ),
        (EndCause.NEVER_STARTED, "the process that starts commands is gone"),
    ],
)
def test_a_hook_that_did_not_end_by_itself_says_why(how, words) -> None:
    said = problem_of(CommandEnding(how), 2.5)
    assert words in said
    assert bool(said) is bool(words)

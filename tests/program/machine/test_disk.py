"""Disks that are full, fail or cannot be written to: nothing is lost, and nothing happens without a record (P4-P6,
P17).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.conversation.session import replay
from ralph.mock_api import Text, ToolUse, Turn
from tests.conversation.conversation_rules import conversation_problems
from tests.journals.reading import read_lines
from tests.patience import PATIENCE_S, wait_until
from tests.program.model_answers import DONE, bash, calls, write
from tests.program.slow_servers import set_clocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.mock_api import Playable, RecordedRequest
    from tests.program.conftest import Finished


def play(*turns: Turn) -> Callable[[RecordedRequest, int], Playable]:
    """A script whose turn depends on the number of answers in the request alone. After the last turn it plays `DONE`."""

    def answer(request: RecordedRequest, _index: int) -> Playable:
        answered: int = sum(message["role"] == "assistant" for message in request.json()["messages"])
        return [*turns, DONE][min(answered, len(turns))]

    return answer


def journals(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.jsonl"))


# --- Small file systems, where we may mount some


def _may_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(not _may_mount(), reason="needs to mount file systems, as root on Linux")


def in_small_disk(ralph, mount: str, place: Path, *arguments: str, after: str = "true") -> Finished:
    """Runs `ralph` while `place` is a disk of its own, which `mount` makes. Then runs the command `after`."""
    place.mkdir(exist_ok=True)
    subprocess.run(["sh", "-c", f"{mount} '{place}'"], check=True)
    try:
        ran: Finished = ralph(*arguments)
        subprocess.run(["sh", "-c", after], check=True)
    finally:
        subprocess.run(["umount", "-l", place], check=True)
    return ran


SMALL = "mount -t tmpfs -o size=256k tmpfs"


@needs_mounts
def test_p4_a_disk_that_fills_stops_the_run_before_anything_unannounced_and_it_continues_later_exits_74_or_0(
    ralph, serve, tmp_path
) -> None:
    write = "echo {} >> effects; head -c 20000 /dev/urandom | base64"
    server = serve(script=play(*(bash(write.format(n)) for n in range(6))))
    state, kept = tmp_path / "state", tmp_path / "kept"
    ralph.environment["RALPH_STATE_DIR"] = str(state)
    words, copy = ("go", "--output-format", "json"), f"cp -r '{state}' '{kept}'"
    ran = in_small_disk(ralph, "mount -t tmpfs -o size=96k tmpfs", state, *words, after=copy).having(74)
    assert "No space left on device" in ran.last_line
    assert str(state) in ran.last_line
    assert ran.result["terminal_reason"] == "io_error"
    [journal] = journals(kept)
    hint = f"[hint] continue with: ralph --resume {journal.stem[:8]} --sandbox off"
    assert ran.stderr.splitlines()[-2] == hint
    reading = read_lines(journal.read_bytes())
    assert reading.torn == b""
    kinds = [record.kind for record in reading.records]
    done = len((ralph.cwd / "effects").read_text().splitlines())
    assert kinds.count("tool_result") <= done <= kinds.count("tool_intent")
    assert len(server.requests) == kinds.count("assistant") + (kinds[-1] not in {"assistant", "tool_intent"})
    ralph.environment["RALPH_STATE_DIR"] = str(kept)
    assert ralph("-c").code == 0
    lines = (ralph.cwd / "effects").read_text().splitlines()
    assert sorted(lines, key=int) == [str(n) for n in range(6)], "none is missing, none came twice"


@needs_mounts
def test_p5_a_full_disk_under_the_work_is_an_error_for_the_model_and_leaves_files_as_they_were_exits_0(
    ralph, serve, tmp_path
) -> None:
    work = ralph.cwd / "small"
    large = ("Write", {"file_path": "small/a.txt", "content": "x" * 400_000})
    server = serve(write("small/a.txt", "old"), calls(large, chunk_chars=0), DONE)
    in_small_disk(ralph, SMALL, work, "go", after=f"cp -r '{work}' '{tmp_path / 'kept'}'").having(0)
    assert "No space left" in str(server.requests[2].json()["messages"][-1])
    assert {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()} == {"a.txt": "old"}


READ_ONLY = "mount -t tmpfs -o ro tmpfs"
READ_ONLY_BIND = "bind() { mount --bind $1 $1 && mount -o remount,ro,bind $1; }; bind"


@needs_mounts
def test_p6_without_a_home_to_write_to_sessions_go_to_the_temporary_directory_and_that_is_said_exits_0(
    ralph, serve, tmp_path
) -> None:
    serve(DONE)
    ralph.environment["TMPDIR"] = str(tmp_path)
    ran = in_small_disk(ralph, READ_ONLY, Path(ralph.environment["HOME"]), "go").having(0)
    assert "sessions are kept in" in ran.stderr
    assert "Read-only file system" in ran.stderr
    assert len(journals(tmp_path)) == 1


@needs_mounts
def test_p6_sessions_of_a_home_that_became_read_only_and_of_the_time_since_are_both_found_exits_0(
    ralph, ralph_here, serve
) -> None:
    serve(*[DONE] * 4)
    home = ralph.environment["HOME"]
    before, since = (f"{n}0000000-0000-4000-8000-000000000000" for n in (1, 2))
    assert ralph("before", "--session-id", before).code == 0
    for words in (
        ["since", "--session-id", since],
        ["sessions", "show", before],
        ["-r", since, "on"],
        ["-r", before, "--fork-session", "on"],
    ):
        assert in_small_disk(ralph, READ_ONLY_BIND, Path(home), *words).code == 0
    refused = in_small_disk(ralph, READ_ONLY_BIND, Path(home), "-r", before, "on").having(74)
    assert "Read-only file system: --fork-session resumes a copy" in refused.last_line
    for session in (before, since):
        assert ralph_here("sessions", "show", session).code == 0
        assert session[:8] in ralph_here("sessions", "ls").stdout


@needs_mounts
def test_p6_without_any_place_for_a_session_nothing_is_spent_exits_74(ralph, serve, tmp_path) -> None:
    server = serve(DONE)
    state = tmp_path / "state"
    ralph.environment["RALPH_STATE_DIR"] = str(state / "deep")
    ran = in_small_disk(ralph, READ_ONLY, state, "go", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (74, 0)
    assert "continue with" not in ran.stderr, "nothing can be resumed"
    assert str(state) in ran.last_line
    assert ran.result["terminal_reason"] == "io_error"


@needs_mounts
def test_p7_a_signal_ends_a_name_lookup_that_nobody_answers_exits_143(ralph, tmp_path) -> None:
    set_clocks(ralph, connect_s=0)
    address = f"127.{'.'.join(str(random.randint(1, 254)) for _ in range(3))}"  # another run of the tests has another one
    (tmp_path / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:30 attempts:5\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    binds = " && ".join(
        f"mount --bind '{tmp_path}/{name}' /etc/{name}" for name in ("resolv.conf", "nsswitch.conf")
    )
    program = f"{binds} && exec {sys.executable} -m ralph -p hi --base-url http://slow.example.test"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((address, 53))
        silent.settimeout(PATIENCE_S)
        pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        command = ["unshare", "-m", "sh", "-c", program]
        process = subprocess.Popen(
            command, cwd=ralph.cwd, env=ralph.environment, stdin=subprocess.DEVNULL, **pipes
        )
        silent.recv(512)  # the lookup is under way
        ran = ralph.stopped_by(process, signal.SIGTERM)
    assert ran.code == 143
    assert "interrupted (exit 143)" in ran.last_line


# --- Each call that writes, syncs or renames fails once


@pytest.fixture(scope="session")
def failing_calls(tmp_path_factory) -> Path:
    source = Path(__file__).with_name("failing_calls.c")
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, on Linux")
    library: Path = tmp_path_factory.mktemp("library") / "failing_calls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


# `make nemesis` tries every one, `make test` every fortieth.
EVERY_CALL = "RALPH_EVERY_CALL" in os.environ

WORK = (
    Turn([Text("First."), ToolUse("Bash", {"command": "echo bash >> effects"})]),
    calls(("Write", {"file_path": "a.txt", "content": "one\n"}), ("Read", {"file_path": "a.txt"})),
    calls(("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "two"})),
)


def fresh(ralph) -> None:
    for path in (ralph.cwd / "effects", ralph.cwd / "a.txt", ralph.cwd / "result.json"):
        path.unlink(missing_ok=True)
    shutil.rmtree(ralph.environment["RALPH_STATE_DIR"], ignore_errors=True)


def test_p4_whichever_call_to_the_disk_fails_nothing_is_lost_and_nothing_comes_twice_exits_0_or_74(
    ralph, serve, tmp_path, failing_calls
) -> None:
    serve(script=play(*WORK))
    state, count = tmp_path / "state", tmp_path / "count"
    ralph.environment["RALPH_STATE_DIR"] = str(state)
    plain = dict(ralph.environment)
    failing = {"LD_PRELOAD": str(failing_calls), "FAIL_COUNT": str(count)}
    codes = []
    failures = [("error", 0)]  # none, and they are counted
    while failures:
        how, at = failures.pop()
        fresh(ralph)
        ralph.environment = {**plain, **failing, "FAIL_HOW": how, "FAIL_AT": str(at)}
        ran = ralph("go", "--result-file", "result.json")
        ralph.environment = plain
        if at == 0:
            calls = int(count.read_text())
            failures = [
                (how, at)
                for how, first in (("error", 1), ("short", 3 if EVERY_CALL else 23))
                for at in range(first, calls + 1, 1 if EVERY_CALL else 40)
            ]
        codes.append(ran.code)
        assert ran.code in {0, 74}, (how, at, ran.stderr)
        assert "Traceback" not in ran.stderr
        if ran.code == 74 and journals(state):
            again = ralph("-c", "go on")
            # A session without any message cannot be resumed.
            assert again.code in {0, 2}, (how, at, again.stderr)
        for journal in journals(state):
            records = read_lines(journal.read_bytes()).records
            if any(record.kind == "user" for record in records):
                assert conversation_problems(replay(records).conversation.messages) == [], (how, at)
        for name, texts in (("effects", ("", "bash\n")), ("a.txt", ("one\n", "two\n"))):
            path = ralph.cwd / name
            assert not path.exists() or path.read_text() in texts, (how, at)
    assert codes[0] == 0
    assert len(codes) > 3
    assert 74 in codes


@pytest.mark.parametrize("at", [2, 5])
def test_p7_a_signal_while_the_journal_is_written_ends_the_run_and_seals_it_exits_143(
    ralph, serve, tmp_path, failing_calls, at
) -> None:
    serve(script=play(*WORK))
    state, count = tmp_path / "state", tmp_path / "count"
    ralph.environment |= {"RALPH_STATE_DIR": str(state), "LD_PRELOAD": str(failing_calls)}
    ralph.environment |= {"FAIL_AT": str(at), "FAIL_HOW": "slow", "FAIL_COUNT": str(count)}
    process = ralph.start("go")
    wait_until(lambda: count.exists() and count.read_text() == f"{at:08}\n")
    ralph.stopped_by(process, signal.SIGTERM, code=143)
    [journal] = journals(state)
    reading = read_lines(journal.read_bytes())
    assert reading.torn == b""
    last = [record for record in reading.records if record.kind != "delivery"][-1]
    assert (last.kind, getattr(last, "outcome", None)) in {("ended", "interrupted"), ("session", None)}


# --- Poor surroundings


def test_p17_an_empty_environment_is_enough_exits_0(ralph, serve) -> None:
    server = serve(bash("echo hi"), DONE)
    needed = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "PYTHONPATH")
    ralph.environment = {name: ralph.environment[name] for name in needed}
    ran = ralph("go", "--session-dir", "../own")
    assert (ran.code, len(server.requests)) == (0, 2)
    assert len(journals(ralph.cwd / "../own")) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without a passwd entry")
def test_p17_a_user_without_a_passwd_entry_can_run_it_exits_0(ralph, serve, tmp_path) -> None:
    serve(bash("id -u > uid"), DONE)
    # pytest's own are closed to others; how many there are depends on its options.
    parts = [part.startswith("pytest-of-") for part in tmp_path.parts]
    for depth in range(parts.index(True) + 1, len(parts) + 1):
        Path(*tmp_path.parts[:depth]).chmod(0o711)
    for directory in ralph.cwd, Path(ralph.environment["HOME"]):
        directory.chmod(0o755)
    os.chown(ralph.cwd, 4242, 4242)
    os.chown(ralph.environment["HOME"], 4242, 4242)
    try:
        process = ralph.start("go", user=4242, group=4242, extra_groups=[])
    except PermissionError:
        pytest.skip("other users may not run this Python")
    assert ralph.finish(process).code == 0
    assert (ralph.cwd / "uid").read_text() == "4242\n"

"""Transcripts of what models really do for a long time: runs that a guard must leave alone, and loops that it must
end.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ralph.values.answer import FileChange, ToolCall, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ids = count(1)


class Step(NamedTuple):
    call: ToolCall
    output: ToolOutput
    change: FileChange | None = None


def step(name: str, output: str = "", *, is_error: bool = False, **arguments: Any) -> Step:
    return Step(ToolCall(f"toolu_{next(_ids)}", name, arguments), ToolOutput(output, is_error=is_error))


def bash(command: str, output: str = "(no output)", status: int = 0) -> Step:
    text = f"{output}\nExit code {status}" if status else output
    return step("Bash", text, is_error=bool(status), command=command)


def edit(path: str, number: int) -> Step:
    """A step that changes the file from state `number` to the next state."""
    change = FileChange(f"/work/{path}", f"sha-{number}", f"sha-{number + 1}")
    return step(
        "Edit",
        f"Edited {path} at line {number}:",
        file_path=path,
        old_string=f"wait = {number}",
        new_string=f"wait = {number + 1}",
    )._replace(change=change)


def failed_edit(path: str, old: str) -> Step:
    said = f"old_string does not occur in {path} (0 matches). Read the file again."
    return step("Edit", said, is_error=True, file_path=path, old_string=old, new_string="x = 1")


def empty_write(path: str, content: str = "x = 1\n") -> Step:
    """A step that writes the content that the file already has."""
    change = FileChange(f"/work/{path}", "sha-1", "sha-1")
    return step("Write", f"Wrote {path}.", file_path=path, content=content)._replace(change=change)


FAILURE = """F                                                    [100%]
=================================== FAILURES ===================================
>       assert retry(server).status == 200
E       assert 503 == 200
tests/retry/test_loop.py:41: AssertionError
=========================== short test summary info ============================
FAILED tests/retry/test_loop.py::test_recovers - assert 503 == 200
"""


def polling_a_ci_job() -> Iterator[Step]:
    jobs = ["lint", "types", "test (3.11)", "test (3.12)", "test (3.13)", "build", "docs", "package"]
    for done in range(len(jobs) * 3):
        finished, progress = divmod(done, 3)
        lines = [
            f"{'✓' if place < finished else '*'} {job} in {done}m{place}s" for place, job in enumerate(jobs)
        ]
        lines.append(f"{jobs[finished]}: {progress * 40}% of the steps are done")
        yield bash("sleep 30; gh run view 1763794512 --verbose", "\n".join(lines))


def waiting_for_a_server_with_a_growing_log() -> Iterator[Step]:
    log: list[str] = []
    for number in range(40):
        log.append(f"2026-11-22T06:{number:02}:12.004Z INFO migration {number} applied in {number * 3} ms")
        yield bash("sleep 5; cat server.log", "\n".join(log))
        yield bash("curl -sf localhost:8080/health", "curl: (7) Failed to connect", 7)


def edit_and_test_with_the_same_failure() -> Iterator[Step]:
    for number in range(60):
        yield edit("src/retry.py", number)
        yield bash("pytest -x -q tests/retry/test_loop.py", f"{FAILURE}1 failed, 211 passed in 4.31s", 1)


def edit_test_edit_flipping_one_line() -> Iterator[Step]:
    for _ in range(60):
        for number in (1, 2):
            yield edit("src/retry.py", number)
            yield bash("pytest -x -q", FAILURE, 1)
            yield bash("pytest -x -q", FAILURE, 1)


def reading_a_large_file_in_slices() -> Iterator[Step]:
    for offset in range(1, 60_000, 1000):
        yield step("Read", "x = 1\n" * 1000, file_path="data/rows.py", offset=offset, limit=1000)


def searching_for_many_things_that_are_not_there() -> Iterator[Step]:
    for number in range(50):
        yield step("Grep", "No matches.", pattern=f"def handle_{number}", path="src")


def commits_with_a_status_between() -> Iterator[Step]:
    for number in range(40):
        yield edit(f"src/part_{number % 3}.py", number)
        yield bash("git status --short", f" M src/part_{number % 3}.py")
        yield bash("git commit -qam 'Next part'")
        yield bash("git status --short")


def retrying_a_flaky_test() -> Iterator[Step]:
    lost = [3, 17, 4, 4, 80, 9, 12, 11, 2, 60]
    for number in range(30):
        packets = lost[number % len(lost)] + number // len(lost)
        failure = f"AssertionError: {packets} packets were lost\n1 failed in {number * 0.3:.1f}s"
        yield bash("pytest tests/test_network.py", failure, 1)


def watching_a_download_grow() -> Iterator[Step]:
    size = 10_000
    for number in range(60):
        size += 7_000_000 + 131 * number * number
        yield bash(
            "sleep 20; ls -l model.gguf", f"-rw-r--r-- 1 ci ci {size} Nov 22 06:{number:02} model.gguf"
        )


def watching_a_steady_download() -> Iterator[Step]:
    for number in range(1, 60):
        yield bash("sleep 20; du -h model.gguf", f"{number * 100} MB model.gguf")


def counting_finished_shards() -> Iterator[Step]:
    for number in range(60):
        yield bash("sleep 60; ls out | wc -l", str(number))


def counting_down() -> Iterator[Step]:
    for number in range(60, 0, -1):
        yield bash("sleep 60; ./queue length", f"{number} jobs are waiting")


def working_through_a_queue() -> Iterator[Step]:
    for number in range(340):
        yield bash("./convert-next", f"converted {number + 1}/340, step {number + 1} of 340")


def looking_twice_before_each_fix() -> Iterator[Step]:
    for number in range(40):
        yield step("Read", "x = 1", file_path="a.py")
        yield failed_edit("a.py", f"x =  {number}")
        yield bash("make", "error: x is not defined", 2)
        yield bash(f"python fix.py --line {number}")
        yield bash("make", "error: x is not defined", 2)


def the_same_failing_command_with_other_times() -> Iterator[Step]:
    for number in range(60):
        failure = FAILURE + f"1 failed in {number * 1.37:.2f}s at 2026-11-22T06:{number:02}:{59 - number:02}Z"
        yield bash("pytest -x -q", failure, 1)


def the_same_command_with_other_words_about_it() -> Iterator[Step]:
    for number in range(60):
        yield step(
            "Bash", "nothing", command=f"make{' ' * (number % 3 + 1)}test", description=f"Try {number}"
        )


def a_counter_of_attempts() -> Iterator[Step]:
    for number in range(60):
        yield bash("./deploy", f"attempt {number}: connection to host refused after {number} tries", 1)


def waiting_for_what_never_comes() -> Iterator[Step]:
    for number in range(60):
        yield bash("sleep 30")
        yield bash("gh run view 17", f"* queued since {number + 3} minutes, {number}m{number % 60}s in all")


def read_and_failing_edit() -> Iterator[Step]:
    while True:
        yield step("Read", "     1\tx = 1", file_path="a.py")
        yield failed_edit("a.py", "x = 2")


def four_looks_in_turn() -> Iterator[Step]:
    while True:
        yield bash("git status", "nothing to commit, working tree clean")
        yield bash("git log --oneline -1", "3f2a1cd Next part")
        yield step("Glob", "No files.", pattern="*.orig")
        yield step("Grep", "No matches.", pattern="TODO")


def failing_edits_that_vary() -> Iterator[Step]:
    for number in range(60):
        yield failed_edit("./a.py" if number % 2 else "a.py", f"x = {number}")


def writing_what_is_there() -> Iterator[Step]:
    for number in range(60):
        yield empty_write("a.py", f"x = {number}\n")


GOES_ON: list[Callable[[], Iterator[Step]]] = [
    polling_a_ci_job,
    waiting_for_a_server_with_a_growing_log,
    edit_and_test_with_the_same_failure,
    edit_test_edit_flipping_one_line,
    reading_a_large_file_in_slices,
    searching_for_many_things_that_are_not_there,
    commits_with_a_status_between,
    retrying_a_flaky_test,
    watching_a_download_grow,
    watching_a_steady_download,
    counting_finished_shards,
    counting_down,
    working_through_a_queue,
    looking_twice_before_each_fix,
]

# How many calls run before the first refusal, and by which guard.
TRIPS: list[tuple[Callable[[], Iterator[Step]], str, int]] = [
    (the_same_failing_command_with_other_times, "repetition", 3),
    (the_same_command_with_other_words_about_it, "repetition", 3),
    (a_counter_of_attempts, "repetition", 3),
    (waiting_for_what_never_comes, "cycle", 6),
    (read_and_failing_edit, "cycle", 6),
    (four_looks_in_turn, "cycle", 12),
    (failing_edits_that_vary, "no_change", 3),
    (writing_what_is_there, "no_change", 3),
]

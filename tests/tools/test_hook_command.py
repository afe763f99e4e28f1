from __future__ import annotations

from ralph.machine.running_command import CommandEnding, Ended
from ralph.tools.hook_command import problem_of
from tests.rows import every_row


@every_row(
    ("how", "words"),
    [
        (Ended.BY_ITSELF, ""),
        (Ended.TIMED_OUT, "its timeout of 2.5 s"),
        (Ended.TOO_MUCH_OUTPUT, "it printed more than"),
        (Ended.TOO_MUCH_MEMORY, "a limit of the settings (sandbox.max_memory_mb, sandbox.max_processes)"),
        (Ended.TOO_MANY_PROCESSES, "a limit of the settings (sandbox.max_memory_mb, sandbox.max_processes)"),
        (Ended.NEVER_STARTED, "the process that starts commands was killed"),
    ],
)
def test_a_hook_that_did_not_end_by_itself_says_why(how: Ended, words: str) -> None:
    said = problem_of(CommandEnding(how), 2.5)
    assert words in said
    assert bool(said) is bool(words)

"""Values of `ralph loop`: its plan, snapshots of the checkout, and the results of iterations and checks."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.loop.defaults import DEFAULT_CHECK_TIMEOUT_S, DEFAULT_PLAN_FILE
from ralph.settings.claude_files import ClaudeFile  # noqa: TC001 - records are read by their hints
from ralph.settings.files import RecordedFile  # noqa: TC001 - records are read by their hints
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_CANNOT_RUN = {126: "no program that can be run", 127: "no such command"}
"""Exit codes of a shell that could not run a command (POSIX, "Exit Status for Commands")."""
OWN_DIRECTORY = ".ralph"
"""The directory of the stop file, relative to the loop's directory. Changes in it never count as progress."""
STOP_FILE = f"{OWN_DIRECTORY}/stop"
"""The file that the model creates when no work is left, relative to the loop's directory."""


class LoopLimits(Struct, frozen=True):
    """Limits for all iterations together. None means no limit."""

    max_iterations: int | None = None
    max_budget_usd: float | None = None
    max_time_s: float | None = None


class LoopPlan(Struct, frozen=True):
    """The loop as the command line describes it. The plan is recorded, so that `--continue` needs no options."""

    directory: str
    """The directory where the agent works, as an absolute path."""
    launch_directory: str
    """The directory where the loop was started, as an absolute path. Relative paths in `run_arguments` are relative
    to it.
    """
    prompt: str | None = None
    """The text of the task, or None if `prompt_file` contains it."""
    prompt_file: str | None = None
    """The absolute path of the file with the task, which is read again for each iteration. None if `prompt` is the
    task.
    """
    run_arguments: tuple[str, ...] = ()
    """Options for `ralph run`, exactly as the user typed them on the command line of `ralph loop`."""
    session_directory: str | None = None
    """The session directory in `run_arguments`, absolute. None means the user's state directory."""
    config_file: str | None = None
    """The settings file in `run_arguments`, absolute, or None if they contain none."""
    mcp_files: tuple[str, ...] = ()
    """The files with MCP servers in `run_arguments`, absolute."""
    settings_files: tuple[RecordedFile, ...] | None = None
    """The settings files, and files with MCP servers, that an iteration could write to, with their content from
    before the first iteration. The loop uses this content until it ends. None if they are not recorded yet."""
    claude_settings: str | None = None
    """The value of `--settings` in `run_arguments`: a JSON text or an absolute path, or None."""
    claude_files: tuple[ClaudeFile, ...] | None = None
    """The settings files made for Claude Code, and the value of `--settings`, with their content from before the first
    iteration. None if they are not recorded yet.
    """
    metrics_file: str | None = None
    """The metrics file in `run_arguments`, absolute, or None if they contain none."""
    added_directories: tuple[str, ...] = ()
    """Directories other than `directory` where `run_arguments` allow the agent to write. Absolute paths."""
    pass_env: tuple[str, ...] = ()
    """Environment variables that `run_arguments` pass to the agent's commands. The check and git get them too."""
    sandbox: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    """The sandbox settings that flags in `run_arguments` set, by name. The check runs in that sandbox too."""
    is_quiet: bool = False
    """True if `run_arguments` contain `--quiet`."""
    until: str | None = None
    """The shell command of `--until`, which exits with 0 when the work is done. None if there is no such check."""
    check_timeout_s: float = DEFAULT_CHECK_TIMEOUT_S
    at_least_once: bool = False
    commits: bool = False
    pushes: bool = False
    plan_file: str = DEFAULT_PLAN_FILE
    """The path of the agent's plan file, relative to `directory`."""
    limits: LoopLimits = field(default_factory=LoopLimits)
    own_paths: tuple[str, ...] = ()
    """Absolute paths, besides `OWN_DIRECTORY`, that ralph itself writes to, including files that receive its output.
    """


class Snapshot(Struct, frozen=True):
    """The state of a checkout at one moment. If two snapshots have equal digests, there was no progress between them."""

    digest: str
    """One digest of everything whose change counts as progress. In a git checkout, that is HEAD, the branch, the index,
    the working tree and the plan file. Elsewhere, it is all files of the directory. ralph's own files do not count.
    """
    head: str = ""
    """The id of the current commit. Empty before the first commit, and without git."""
    files: Mapping[str, str] | None = field(default_factory=dict)
    """Digests of files by path, or None if there were too many. Under git, these are the untracked files and those
    that differ from HEAD or the index. Without git, these are all files.
    """
    branch: str | None = None
    """The current git branch. None if HEAD is detached, and without git."""
    guarded: Mapping[str, str] | None = None
    """The digests of the repository's settings and hooks that could make git run a program or send data, by their
    names. None without git, or if there were too many.
    """


class Changes(Struct, frozen=True):
    """The changes between two snapshots."""

    commits: int = 0
    files: tuple[str, ...] = ()
    """Sorted names of files that were changed, added or removed, whether committed or not. If a snapshot has no
    digests of files, these are only the committed files.
    """
    guarded: tuple[str, ...] = ()
    """Sorted names of git settings and hooks that were added, removed or changed."""


class CheckResult(Struct, frozen=True):
    """The result of one run of the `--until` command."""

    exit_code: int | None
    """The exit code of the check. None if it was stopped at its time limit or could not be started."""
    tail: str = ""
    """The end of the output, at most 4 KB, as readable text without known credentials."""
    problem: str | None = None
    """The reason why there is no exit code, as in "timed out after 1800 s". None if there is an exit code."""
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def why_not_run(self) -> str | None:
        """The reason why the shell could not run the command, according to the exit code. None if the command ran."""
        return None if self.exit_code is None else _CANNOT_RUN.get(self.exit_code)

    @property
    def words(self) -> str:
        """The result as text: `passed`, `failed (exit 2)` or the problem."""
        if self.problem is not None:
            return self.problem
        if self.why_not_run is not None:
            return f"failed (exit {self.exit_code}: {self.why_not_run})"
        return "passed" if self.passed else f"failed (exit {self.exit_code})"


class Setback(enum.Enum):
    """A temporary failure. The loop waits, and then tries the iteration or the failed step again. The failed attempt
    does not count as an iteration.
    """

    OUTAGE = enum.auto()
    """The API was unavailable, so the iteration ended with exit code 75."""
    SHORTAGE = enum.auto()
    """This machine ran out of processes, threads, memory or file descriptors."""
    KILL = enum.auto()
    """The iteration was killed by something other than the loop, for example by the system because memory ran out."""


class IterationOrder(Struct, frozen=True):
    """The description of one `ralph run` process to start."""

    session_id: str
    prompt: str | None
    """The complete prompt, or None to resume the session `session_id`."""
    budget_usd: float | None = None
    """The most US dollars that the process may spend, or None without a limit."""
    time_s: float | None = None
    """The most seconds that the process may take, or None without a limit."""
    waiting_for: str = "the iteration"
    task_chars: int = 0
    """The number of characters at the end of the prompt that are the user's own."""


class IterationResult(Struct, frozen=True):
    """The result of one `ralph run` process."""

    exit_code: int
    """The exit code, 0-255. It is 128 + n if signal n killed the process."""
    outcome: Outcome
    turns: int = 0
    """The number of turns in the whole session, including those of earlier processes."""
    cost_usd: float | None = 0.0
    """The cost of the whole session in US dollars, or None if unknown."""
    last_words: str = ""
    """The last answer or report of the model, or "" if there is none."""
    reason: str = ""
    """A sentence with the reason why the process ended, or "" if it is unknown."""
    limit: str | None = None
    """The limit that was reached if the outcome is LIMIT_REACHED: `max_turns` or `max_budget_usd`."""
    retry_after_s: float | None = None
    duration_s: float = 0.0
    stopped_by: int | None = None
    """The signal that the loop received during the run and passed on, or None."""
    setback: Setback | None = None
    """The setback that ended the process, if its exit code does not show one."""

    @property
    def has_to_wait_for(self) -> Setback | None:
        """The setback after which the loop must wait. None if the run ended for another reason or a person stopped
        it.
        """
        if self.stopped_by is not None:
            return None
        return self.setback or (Setback.OUTAGE if self.outcome is Outcome.API_UNAVAILABLE else None)


class SessionSeen(Struct, frozen=True):
    """The state of an iteration's session, read from its journal."""

    turns: int
    cost_usd: float | None
    """The cost in US dollars recorded in the journal, or None if unknown."""
    ended: IterationResult | None = None
    """The result of the session's last run. None if that run was killed or is still running."""
    written_at: datetime | None = None
    """The time of the last write to the journal, with time zone. None if unknown."""


class LoopEnd(Struct, frozen=True):
    """The end of a loop, with the reason for it."""

    outcome: Outcome
    exit_code: int
    reason: str
    """A sentence for the user, without a full stop."""

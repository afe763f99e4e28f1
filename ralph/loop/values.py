"""Values of the outer loop: its plan, and the results of an iteration, a check and a look at the checkout."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.loop.defaults import DEFAULT_CHECK_TIMEOUT_S, DEFAULT_PLAN_FILE
from ralph.settings.files import RecordedFile  # noqa: TC001 - records are read by their hints
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_CANNOT_RUN = {126: "no program that can be run", 127: "no such command"}
"""The meaning of a shell's exit codes (POSIX, "Exit Status for Commands")."""
OWN_DIRECTORY = ".ralph"
"""The stop file's directory, below the loop's directory. Changes in it are never progress."""
STOP_FILE = f"{OWN_DIRECTORY}/stop"
"""The file that the model creates when no work is left."""


class LoopLimits(Struct, frozen=True):
    """Limits over all iterations; None: no limit."""

    max_iterations: int | None = None
    max_budget_usd: float | None = None
    max_time_s: float | None = None


class LoopPlan(Struct, frozen=True):
    """The loop, as the command line described it. It is recorded, so that `--continue` needs no options."""

    directory: str
    """The directory of the work. Absolute."""
    launch_directory: str
    """The directory in which relative paths among `run_arguments` start. Absolute."""
    prompt: str | None = None
    """The task itself; None: `prompt_file` holds it."""
    prompt_file: str | None = None
    """The prompt's file, an absolute path, read again for each iteration; None: `prompt` is the task."""
    run_arguments: tuple[str, ...] = ()
    """Options of `ralph run`, passed on as they were typed."""
    session_directory: str | None = None
    """The directory of sessions that `run_arguments` name, absolute; None: the user's state directory."""
    config_file: str | None = None
    """The settings file that `run_arguments` name, absolute; None: they name no settings file."""
    settings_files: tuple[RecordedFile, ...] | None = None
    """Settings files that an iteration could write to, with their content before the first iteration. The loop uses
    that content to its end. None: not recorded yet.
    """
    metrics_file: str | None = None
    """The metrics file that `run_arguments` name, absolute; None: they name no metrics file."""
    added_directories: tuple[str, ...] = ()
    """Directories besides `directory` in which `run_arguments` let the agent write. Absolute."""
    pass_env: tuple[str, ...] = ()
    """Variables that `run_arguments` let tools see: the check and git see them too."""
    is_quiet: bool = False
    """Whether `run_arguments` contain `--quiet`."""
    until: str | None = None
    """The shell command that exits 0 once the work is done; None: there is no check."""
    check_timeout_s: float = DEFAULT_CHECK_TIMEOUT_S
    at_least_once: bool = False
    commits: bool = False
    pushes: bool = False
    plan_file: str = DEFAULT_PLAN_FILE
    """The plan file's path from `directory`."""
    limits: LoopLimits = field(default_factory=LoopLimits)
    own_paths: tuple[str, ...] = ()
    """Paths, besides `OWN_DIRECTORY`, that processes of this loop or the shells that started them have written.

    Absolute.
    """


class Snapshot(Struct, frozen=True):
    """The state of a checkout at one moment. Equal digests mean that there was no progress between them."""

    digest: str
    """The digest of everything that counts as progress: git HEAD, index, working tree and the plan file;
    outside git the files.
    """
    head: str = ""
    """The commit's id; empty: there is none yet, or no git."""
    files: Mapping[str, str] | None = field(default_factory=dict)
    """Digests by path. In git, of files that are untracked or differ from HEAD or the index; outside git, of every
    file. None: not kept.
    """
    branch: str | None = None
    """The current git branch; None: HEAD is detached, or there is no git."""
    guarded: Mapping[str, str] | None = None
    """Digests by name of the repository's own settings and hooks, which git follows or runs. None: not kept."""


class Changes(Struct, frozen=True):
    """The changes between two snapshots."""

    commits: int = 0
    files: tuple[str, ...] = ()
    """Files that were changed, added or removed, committed or not, sorted. Only committed files, if a snapshot kept no
    digests of files.
    """
    guarded: tuple[str, ...] = ()
    """Names of settings and hooks that were added, removed or changed, sorted."""


class CheckResult(Struct, frozen=True):
    """The result of one run of the `--until` command."""

    exit_code: int | None
    """The exit code of the check; None: it was stopped at its time limit, or could not be started."""
    tail: str = ""
    """The end of its output, at most 4 KB, as readable text without known credentials."""
    problem: str | None = None
    """Why there is no exit code, for people and the model: "timed out after 1800 s"."""
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def why_not_run(self) -> str | None:
        """The shell's reason, by its exit code, for not running the command; None: the command ran."""
        return None if self.exit_code is None else _CANNOT_RUN.get(self.exit_code)

    @property
    def words(self) -> str:
        """`passed`, `failed (exit 2)`, or the problem."""
        if self.problem is not None:
            return self.problem
        if self.why_not_run is not None:
            return f"failed (exit {self.exit_code}: {self.why_not_run})"
        return "passed" if self.passed else f"failed (exit {self.exit_code})"


class Setback(enum.Enum):
    """The reason that an iteration, or a step of the loop, waits and is tried again. A setback is not counted as an
    iteration.
    """

    OUTAGE = enum.auto()
    """The iteration ended with exit 75."""
    SHORTAGE = enum.auto()
    """The machine had no process, thread, memory or open file left for it."""
    KILL = enum.auto()
    """The iteration was killed, but not by the loop: by the system for its memory, or by a person."""


class IterationOrder(Struct, frozen=True):
    """One `ralph run` process to start."""

    session_id: str
    prompt: str | None
    """The whole prompt; None: the session with `session_id` is resumed."""
    budget_usd: float | None = None
    """The most dollars that the process may spend; None: the loop sets no limit."""
    time_s: float | None = None
    """The most seconds that the process may take; None: the loop sets no limit."""
    waiting_for: str = "the iteration"


class IterationResult(Struct, frozen=True):
    """How one `ralph run` process ended."""

    exit_code: int
    """0-255; 128 + n when signal n killed it."""
    outcome: Outcome
    turns: int = 0
    """Turns of the whole session, earlier processes included."""
    cost_usd: float | None = 0.0
    """Cost of the whole session; None: not known."""
    last_words: str = ""
    """Its last answer or report; empty: there is none."""
    reason: str = ""
    """Why it ended, in a sentence; empty: no reason is known."""
    limit: str | None = None
    """The limit behind LIMIT_REACHED: `max_turns` or `max_budget_usd`."""
    retry_after_s: float | None = None
    duration_s: float = 0.0
    stopped_by: int | None = None
    """The signal that the loop received, and passed on, during the run."""
    setback: Setback | None = None
    """The setback that ended it, if the exit code does not show it."""

    @property
    def has_to_wait_for(self) -> Setback | None:
        """The setback that the loop must wait for; None: the run ended by itself, or a person stopped it."""
        if self.stopped_by is not None:
            return None
        return self.setback or (Setback.OUTAGE if self.outcome is Outcome.API_UNAVAILABLE else None)


class SessionSeen(Struct, frozen=True):
    """An iteration as its session's journal shows it."""

    turns: int
    cost_usd: float | None
    """The cost, as far as the journal has it; None: unknown."""
    ended: IterationResult | None = None
    """The result of its last run; None: that run was killed, or is still running."""
    written_at: datetime | None = None
    """The time of the last write, aware; None: unknown."""


class LoopEnd(Struct, frozen=True):
    """Why the loop is over."""

    outcome: Outcome
    exit_code: int
    reason: str
    """A sentence for people, without a full stop."""

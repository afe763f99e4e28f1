"""Values of `ralph loop`: its options, its plan, and the results of iterations and checks."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ralph.git.look import OWN_DIRECTORY
from ralph.loop import DEFAULT_CHECK_TIMEOUT_S, DEFAULT_PLAN_FILE
from ralph.prompt.judged_file import ALL_SOURCES
from ralph.settings.files import RecordedFile  # noqa: TC001 - records are read by their hints
from ralph.values.claude_file import ClaudeFile  # noqa: TC001 - records are read by their hints
from ralph.values.credentials import argument_secrets, line_secrets
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

_CANNOT_RUN = {126: "not an executable program", 127: "no such command"}
"""Exit codes of a shell that could not run a command (POSIX, "Exit Status for Commands")."""
STOP_FILE = f"{OWN_DIRECTORY}/stop"
"""The path of the stop file, relative to the loop's directory. The model creates this file when no work is left."""
REPORT_PAGE = "ralph-report.html"
"""The file in the working directory that `ralph report` writes to by default."""


class LoopLimits(Struct, frozen=True):
    """Limits for the whole loop, which apply to all iterations together. None means no limit."""

    max_iterations: int | None = None
    max_budget_usd: float | None = None
    max_time_s: float | None = None


class LoopPlan(Struct, frozen=True):
    """The loop that the command line describes. The plan is recorded, so that `--continue` needs no options."""

    directory: str
    """The directory where the agent works, as an absolute path."""
    launch_directory: str
    """The directory where the loop was started, to which paths in `run_arguments` are relative."""
    prompt: str | None = None
    """The text of the task, or None if the task is in `prompt_file`."""
    prompt_file: str | None = None
    """The absolute path of the file with the task, which is read again for each iteration."""
    run_arguments: tuple[str, ...] = ()
    """Options for `ralph run`, exactly as the user typed them. The next fields repeat what they name, with absolute paths."""
    server_flags: dict[str, str] = field(default_factory=dict)
    """The settings that choose the server and `run_arguments` contain as flags, by name."""
    server: tuple[str, str] | None = None
    """The API and the base URL of the server that the iterations ask. None if the settings list targets, whose names say it,
    with another agent, and in records of older versions of ralph."""
    session_directory: str | None = None
    """None means the user's state directory."""
    config_file: str | None = None
    mcp_files: tuple[str, ...] = ()
    settings_files: tuple[RecordedFile, ...] | None = None
    """The settings files, and the files with MCP servers, that an iteration could change, with their content from before
    the first iteration. None if they are not recorded yet."""
    claude_settings: str | None = None
    """The value of `--settings` in `run_arguments`: a JSON text or an absolute path. None if the option is not given."""
    setting_sources: tuple[str, ...] = tuple(sorted(ALL_SOURCES))
    """The sources of settings files made for Claude Code that `run_arguments` select."""
    claude_files: tuple[ClaudeFile, ...] | None = None
    """As `settings_files`, the files made for Claude Code and the value of `--settings`."""
    metrics_file: str | None = None
    report_file: str | None = None
    """The absolute path of the page that is rewritten after each iteration, or None."""
    added_directories: tuple[str, ...] = ()
    """The directories of `--add-dir`, and those that settings files for Claude Code add."""
    written: tuple[str, ...] = ()
    """The absolute paths of `sandbox.write`."""
    pass_env: tuple[str, ...] = ()
    """Variables that the agent's commands get, and the check and git too."""
    sandbox: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    """The sandbox settings among the flags in `run_arguments`, by name, and the tools disallowed there. For the check too."""
    notify: str | None = None
    is_quiet: bool = False
    gate: str | None = None
    """The shell command of `--gate`, which exits with 0 if an iteration was good."""
    agent: str | None = None
    """The command line of another agent that does the iterations (`--agent`)."""
    agent_options: tuple[str, ...] = ()
    """The options of this agent for what the command line asks of ralph."""
    until: str | None = None
    """The shell command of `--until`, which exits with 0 when the work is done."""
    plan: str | None = None
    """The path of `--plan`, relative to `directory`. The work is done when no task in this file is open."""
    check_timeout_s: float = DEFAULT_CHECK_TIMEOUT_S
    at_least_once: bool = False
    commits: bool = False
    commits_red: bool = False
    """True if work that leaves the gate red is committed too."""
    pushes: bool = False
    waits_in_outages: bool = True
    """False if an outage ends the loop at once, because its caller tries again."""
    plan_file: str = DEFAULT_PLAN_FILE
    """The path of the agent's plan file, relative to `directory`."""
    limits: LoopLimits = field(default_factory=LoopLimits)
    secret_places: tuple[tuple[int, int, int], ...] = ()
    """Where known secrets are in `option_texts`: the index of a text, an offset and a length. The texts stay as they are, because
    `--continue` uses them, and who looks at the loop may not know the secrets."""
    own_paths: tuple[str, ...] = ()
    """Absolute paths other than `OWN_DIRECTORY` that ralph itself writes to, or that receive its output."""

    @property
    def reach(self) -> tuple[str, ...]:
        """Where an iteration's commands may write besides the working directory."""
        return (*self.added_directories, *self.written)

    @property
    def directories(self) -> tuple[str, ...]:
        """The directory where the loop was started, and those where commands may write: links there are not trusted."""
        return (self.launch_directory, self.directory, *self.reach)

    @property
    def option_texts(self) -> tuple[str, ...]:
        """The texts of the command line that are repeated where the loop is shown."""
        return (*(one or "" for one in (self.notify, self.gate, self.until, self.agent)), *self.run_arguments)

    def secrets(self) -> Iterator[str]:
        """The secrets in `option_texts`, by their form and by their places."""
        texts = self.option_texts
        yield from argument_secrets(self.run_arguments)
        for line in texts[: len(texts) - len(self.run_arguments)]:
            yield from line_secrets(line)
        for at, offset, length in self.secret_places:
            yield "".join(texts[at : at + 1])[offset : offset + length]

    @property
    def has_condition(self) -> bool:
        """Whether `--until` or `--plan` says when the work is done."""
        return self.until is not None or self.plan is not None

    @property
    def has_only_until(self) -> bool:
        """Whether `--until` alone decides. A stop file then has no meaning."""
        return self.until is not None and self.plan is None and self.gate is None


class RequestedPrompt(Struct, frozen=True):
    """Where the command line says that the prompt comes from. With both fields None, from standard input."""

    argument: str | None = None
    file: str | None = None
    """The absolute path of a file, or `-` for standard input."""


class LoopOptions(Struct, frozen=True):
    plan: LoopPlan
    """The plan of the loop. If `continues` is True, only its two directories count: the record has all else."""
    continues: bool = False
    """True if ralph resumes the loop that was recorded for the plan's directory."""
    has_moved: bool = False
    """True if that loop belongs to a directory that has moved to the plan's directory."""
    limits_given: LoopLimits = field(default_factory=LoopLimits)
    """Limits from the command line, which replace recorded ones."""
    base_url_given: str | None = None
    """The base URL from the command line, which replaces a recorded one."""
    requested_prompt: RequestedPrompt | None = None
    """Where the prompt comes from, or None if the plan contains the prompt."""


class CheckResult(Struct, frozen=True):
    """The result of one run of the command of `--until` or `--gate`."""

    exit_code: int | None
    """The exit code of the check. None if it was stopped at its time limit or could not be started."""
    tail: str = ""
    """The end of the command's output, at most 4 KB, as readable text. Known credentials are removed."""
    problem: str | None = None
    """The reason why there is no exit code, as in "timed out after 1800 s". None if there is an exit code."""
    duration_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def why_not_run(self) -> str | None:
        """The reason why the shell could not run the command. The exit code shows this. None if the command ran."""
        return None if self.exit_code is None else _CANNOT_RUN.get(self.exit_code)

    @property
    def words(self) -> str:
        """The result as text: `passed`, `failed (exit 2)`, or the text in `problem`."""
        if self.problem is not None:
            return self.problem
        if self.why_not_run is not None:
            return f"failed (exit {self.exit_code}: {self.why_not_run})"
        return "passed" if self.passed else f"failed (exit {self.exit_code})"


class Setback(enum.Enum):
    """A kind of temporary failure, after which the loop waits and repeats what failed. It is not an iteration."""

    OUTAGE = enum.auto()
    """The API was unavailable, so the iteration ended with exit code 75."""
    SHORTAGE = enum.auto()
    """This machine ran out of processes, threads, memory or file descriptors."""
    KILL = enum.auto()
    """The iteration was killed, and not by the loop, as by a system that lacks memory."""


class IterationOrder(Struct, frozen=True):
    """The description of one `ralph run` process to start."""

    session_id: str
    prompt: str | None
    """The complete prompt, or None to resume the session `session_id`."""
    budget_usd: float | None = None
    """The limit on the cost of the process, or None."""
    time_s: float | None = None
    waiting_for: str = "the iteration"
    task_chars: int = 0
    """The length of the user's own text, which is at the end of the prompt."""
    number: int = 1


class IterationResult(Struct, frozen=True):
    """The result of one `ralph run` process."""

    exit_code: int
    """The exit code, 0-255. It is 128 + n if signal n killed the process."""
    outcome: Outcome
    turns: int = 0
    """The number of turns in the whole session, including turns of earlier processes."""
    cost_usd: float | None = 0.0
    """The cost of the whole session, or None if unknown."""
    last_words: str = ""
    """The last answer or report of the model."""
    summary: str = ""
    """The summary in the model's final report."""
    reason: str = ""
    """A sentence that says why the process ended."""
    advice: str = ""
    """Sentences that say what the user can do about the end."""
    limit: str | None = None
    """`max_turns` or `max_budget_usd`, if that limit was reached."""
    retry_after_s: float | None = None
    duration_s: float = 0.0
    stopped_by: int | None = None
    """The signal that the loop passed on to the process, or None."""
    setback: Setback | None = None
    """The failure that ended the process, unless the exit code shows it."""

    @property
    def has_to_wait_for(self) -> Setback | None:
        """The kind of failure after which the loop must wait, or None. Also None if a person stopped the run."""
        if self.stopped_by is not None:
            return None
        return self.setback or (Setback.OUTAGE if self.outcome is Outcome.API_UNAVAILABLE else None)


class IterationSession(Struct, frozen=True):
    """The state of an iteration's session, read from its journal."""

    turns: int
    cost_usd: float | None
    ended: IterationResult | None = None
    """The result of the session's last run. None if that run was killed or is still running."""
    written_at: datetime | None = None
    """The time of the last write to the journal, with time zone."""
    is_damaged: bool = False
    """True if the journal can be read only up to some damage, as after a power cut."""

    @property
    def can_resume(self) -> bool:
        """False if a resumed run would end at once: the journal is damaged, or the API would reject the session again."""
        is_rejected = self.ended is not None and self.ended.outcome is Outcome.API_REJECTED
        return not (self.is_damaged or is_rejected)


class LoopEnd(Struct, frozen=True):
    """The outcome of a loop that has ended, and the reason for it."""

    outcome: Outcome
    exit_code: int
    reason: str
    """A sentence for the user, without a full stop."""
    retry_after_s: float | None = None
    """The seconds until the server wants the next request, if it named a time."""
    advice: str = ""
    """As in `IterationResult`."""


def loop_end(outcome: Outcome, reason: str) -> LoopEnd:
    """The end of a loop with the outcome's own exit code."""
    return LoopEnd(outcome, outcome.exit_code(), reason)

"""The state of a loop in its recorded form. With it, a killed loop can be resumed, and the progress of a loop can be
shown. No I/O happens here: each change makes a new state, and `loop/record.py` reads and writes states.
"""

from __future__ import annotations

import enum
import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import replace

from ralph.git.look import Snapshot
from ralph.loop.values import (  # noqa: TC001 - `convert` reads the type hints at run time
    CheckResult,
    LoopEnd,
    LoopPlan,
)
from ralph.settings.files import without_values
from ralph.values.outcome import Outcome  # noqa: TC001 - `convert` reads the type hints at run time
from ralph.values.redaction import LookedCommit  # noqa: TC001 - `convert` reads the type hints at run time
from ralph.values.strict_json import strict_json
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 2
"""The format of the record. In format 1, `loop.json` holds the iterations too."""
MOST_FILES_KEPT = 20
"""The maximum number of names of changed files in the record of one iteration. The total number of changed files is
recorded too."""
MOST_DIGESTS_KEPT = 1000
"""The maximum number of file digests in the record of a snapshot. If a snapshot has more, none of them is recorded."""
MOST_WAITS_KEPT = 500
"""The maximum number of waits in a record. A patient loop waits about 100 times in a day without the API."""

Time = Annotated[str, Meta(pattern=r"^(\d{4}-\d\d-\d\dT[\d:.]+([+-]\d\d:\d\d|Z))?$")]
"""A time in ISO 8601 with its zone, which is UTC if ralph wrote it. May be empty."""


class Phase(enum.Enum):
    WORKING = "working"
    WAITING = "waiting"
    """The loop waits before it tries again."""
    SAVING = "saving"
    """The loop commits and pushes the work of an iteration."""
    CHECKING = "checking"


class IterationRecord(Struct, frozen=True):
    """An iteration that has ended and counts."""

    number: int
    """Counted from 1."""
    session_id: str
    outcome: Outcome
    exit_code: int
    turns: int
    cost_usd: float | None
    duration_s: float
    """The duration in seconds, including waits for the API, the gate and the `--until` check."""
    commits: int
    """The number of new commits, with the one that `--commit` makes."""
    files: tuple[str, ...]
    """Names of the first `MOST_FILES_KEPT` changed files."""
    file_count: int
    made_progress: bool
    check: str | None
    """The result of the `--until` check in a few words. None without a check, or if it did not run because the gate was red."""
    has_loop_commit: bool = False
    """True if the loop committed what the iteration had left (`--commit`)."""
    reason: str = ""
    last_words: str = ""
    started_at: Time | None = None
    """This field and the next four are None in records of older versions of ralph."""
    ended_at: Time | None = None
    """When the check after the iteration had ended."""
    check_s: float | None = None
    """The duration of the gate and the check in seconds. None if neither ran."""
    head_before: str | None = None
    """The id of the current commit when the iteration began. Empty before the first commit and without git."""
    head_after: str | None = None
    """As `head_before`, when the iteration had ended, and its work was committed."""
    looked: tuple[LookedCommit, ...] | None = None
    """Where secrets are in the commits since the iteration before. None in records of older versions of ralph."""
    gate: str | None = None
    """The result of the gate in a few words. None if the loop has no gate."""
    open_tasks: int | None = None
    """As in `LoopState`."""


class LoopWait(Struct, frozen=True):
    """A wait after a failure that is over."""

    setback: str
    """The name of a `Setback` in lower case."""
    began_at: Time
    ended_at: Time
    iteration: int


class FileDigest(Struct, frozen=True):
    path: str
    digest: str


class CurrentIteration(Struct, frozen=True):
    number: int
    session_id: str
    started_at: Time
    elapsed_s: float
    """The `elapsed_s` of the loop when the iteration began."""
    head: str
    digest: str
    """The digest of the checkout when the iteration began."""
    files: tuple[FileDigest, ...] | None = None
    """The digests of the files when the iteration began, or None if there were too many files."""
    branch: str | None = None
    """As in `Snapshot`, when the iteration began."""
    phase: Phase = Phase.WORKING
    outages: int = 0
    """The number of consecutive outages and shortages of this iteration."""
    slept_s: float = 0.0
    """The seconds that this process has waited after setbacks of the iteration."""
    kills: int = 0
    """The number of consecutive kills of the iteration, but by the loop."""
    waits_until: Time | None = None
    """The end of the current wait, or None."""
    turns: int = 0
    cost_usd: float | None = 0.0
    """In US dollars, so far. None if unknown."""
    earlier_turns: int = 0
    """The turns of earlier sessions of this iteration, which could not be resumed."""
    earlier_cost_usd: float | None = 0.0
    commits: int = 0
    """The number of new commits, set only if the iteration was cut off, as is `looked`."""
    looked: tuple[LookedCommit, ...] = ()
    guarded: tuple[FileDigest, ...] | None = None
    """As in `Snapshot`, when the iteration began. None also if there were too many."""


class LoopState(Struct, frozen=True):
    plan: LoopPlan
    started_at: Time
    pid: int
    """The id of the process that runs the loop, or of the last one."""
    updated_at: Time = ""
    elapsed_s: float = 0.0
    """The running time of the loop in seconds, summed over all its processes, at the time `updated_at`."""
    iterations: tuple[IterationRecord, ...] = ()
    idle: int = 0
    """The number of consecutive iterations without progress."""
    first_check: CheckResult | None = None
    """The result of the check that ran before the first iteration."""
    last_check: CheckResult | None = None
    last_gate: CheckResult | None = None
    open_tasks: int | None = None
    """In the file of `--plan`. None if it has no task, if it cannot be read, or if the loop has no plan."""
    has_removed_stop_file: bool = False
    """True if the loop removed a stop file after the last iteration, because the work was not done."""
    current: CurrentIteration | None = None
    ended: LoopEnd | None = None
    format: int = FORMAT
    waits: tuple[LoopWait, ...] = ()
    """The last `MOST_WAITS_KEPT` waits after failures."""
    commit_problem: str | None = None
    """Why the last commit of `--commit` failed, or None."""
    push_problem: str | None = None
    """Why the last push failed, or None."""
    red_branch: str | None = None
    """The branch with the work that had not passed the gate when the loop ended. None if the gate has passed since."""
    unpushed: int = 0
    """The number of commits that the remote lacked when the loop ended."""
    iterations_bytes: int | None = None
    """In a record, the size of that part of the file of ended iterations which belongs to it. None if the iterations are in
    the record itself, and in memory."""

    @property
    def has_unsaved_work(self) -> bool:
        return self.commit_problem is not None or self.push_problem is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines that are shown when the loop ends, and by `--status`."""
        branch, unpushed = self.red_branch, self.unpushed
        red = branch and f"work that did not pass the gate is on branch {branch}"
        left = f"commits that were not pushed: {unpushed}" if unpushed else None
        return tuple(filter(None, (self.commit_problem, self.push_problem, red, left)))

    @property
    def spent_usd(self) -> float | None:
        """The cost of all iterations in US dollars, or None if the cost of an iteration is unknown."""
        costs = [record.cost_usd for record in self.iterations]
        return total_usd([*costs, *([] if self.current is None else [self.current.cost_usd])])

    @property
    def turns(self) -> int:
        """The turns of all iterations, the current one included."""
        turns = sum(record.turns for record in self.iterations)
        return turns + (0 if self.current is None else self.current.turns)

    @property
    def totals(self) -> dict[str, Any]:
        """The numbers of the whole loop as JSON values. The current iteration is included, but not counted."""
        return {
            "iterations": len(self.iterations),
            "turns": self.turns,
            "cost_usd": self.spent_usd,
            "elapsed_s": round(self.elapsed_s, 3),
        }

    @property
    def last(self) -> IterationRecord | None:
        return self.iterations[-1] if self.iterations else None


class NewerStateError(ValueError):
    """A newer version of ralph wrote the state. The state is not damaged, but this version cannot use it."""


def new_iteration(
    number: int, session_id: str, snapshot: Snapshot, *, started_at: str, elapsed_s: float
) -> CurrentIteration:
    """The record of an iteration that begins now, with the state of the checkout, so that changes can be found later."""
    return CurrentIteration(
        number,
        session_id,
        started_at,
        elapsed_s,
        snapshot.head,
        snapshot.digest,
        files=_kept(snapshot.files),
        branch=snapshot.branch,
        guarded=_kept(snapshot.guarded),
    )


def snapshot_before(current: CurrentIteration) -> Snapshot:
    """The snapshot from the beginning of the iteration. If its `files` or `guarded` were not recorded, they are None."""
    files, guarded = _by_path(current.files), _by_path(current.guarded)
    return Snapshot(current.digest, current.head, files, current.branch, guarded)


def _kept(digests: Mapping[str, str] | None) -> tuple[FileDigest, ...] | None:
    if digests is None or len(digests) > MOST_DIGESTS_KEPT:
        return None
    return tuple(FileDigest(path, digest) for path, digest in digests.items())


def _by_path(kept: tuple[FileDigest, ...] | None) -> dict[str, str] | None:
    return None if kept is None else {one.path: one.digest for one in kept}


def state_text(state: LoopState) -> str:
    """The state as an indented JSON object that people can read."""
    return json.dumps(state_fields(state), indent=2) + "\n"


def state_fields(state: LoopState) -> dict[str, Any]:
    """The state as JSON values. The user's own file for Claude Code, which --continue reads again, has no credentials here."""
    fields: dict[str, Any] = to_builtins(state)
    for file in fields["plan"]["claude_files"] or ():
        file["text"] = without_values(file["text"]) if file["kind"] == "user" else file["text"]
    if state.iterations_bytes is None:
        del fields["iterations_bytes"]
    return fields


def iteration_line(record: IterationRecord) -> bytes:
    """The line of an ended iteration. A later line with the same number replaces an earlier one."""
    return json.dumps(to_builtins(record)).encode() + b"\n"


def read_iterations(lines: bytes) -> tuple[IterationRecord, ...]:
    """Parses the lines of ended iterations. Raises ValueError, such as "is damaged in line 3: ...", and RecursionError."""
    found: dict[int, IterationRecord] = {}
    for number, line in enumerate(lines.splitlines(), 1):
        try:
            record = convert(strict_json(line.decode()), IterationRecord)
        except ValueError as error:
            raise ValueError(f"is damaged in line {number}: {error}") from None
        found[record.number] = record
    return tuple(found.values())


def read_state(text: str) -> LoopState:
    """Parses the text of a record. Raises NewerStateError or ValueError with a message such as "is damaged: ...". The
    caller puts the subject before this message. Raises RecursionError if the text is nested too deep.
    """
    try:
        fields = strict_json(text)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from None
    written = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(written, int) and written > FORMAT:
        raise NewerStateError(f"has format {written}: a newer ralph wrote it")
    try:
        state = convert(fields, LoopState)
        for moment in (state.updated_at or state.started_at, state.current and state.current.waits_until):
            _ = moment and datetime.fromisoformat(moment)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from None
    return state


_PATHS = (
    "launch_directory prompt_file plan plan_file session_directory config_file mcp_files claude_settings metrics_file report_file "
    "added_directories own_paths".split()
)
"""The fields of a plan that hold one path, or several, or None."""


def moved_state(state: LoopState, directory: str, old_root: str, root: str) -> LoopState:
    """The state of a loop whose directory has moved to `directory`. Paths in the plan that lie below the old directory
    become paths below the new one. `root` is this directory or the top of its repository, and `old_root` is
    the path that it had.
    """

    def moved(path: Any) -> Any:
        if isinstance(path, tuple):
            return tuple(map(moved, path))
        if path is not None and (path == old_root or path.startswith(f"{old_root}/")):
            return root + path[len(old_root) :]
        return path

    def moved_word(word: str) -> str:
        option, equals, path = word.partition("=")
        return f"{option}={moved(path)}" if equals and option.startswith("--") else moved(word)

    plan, current = state.plan, state.current
    settings, claude = plan.settings_files, plan.claude_files
    plan = replace(
        plan,
        **{name: moved(getattr(plan, name)) for name in _PATHS},
        directory=directory,
        run_arguments=tuple(map(moved_word, plan.run_arguments)),
        settings_files=settings and tuple(replace(one, path=moved(one.path)) for one in settings),
        claude_files=claude
        and tuple(replace(one, name=moved(one.name), root=moved(one.root)) for one in claude),
    )
    # Another clone has other settings, which no iteration has changed.
    return replace(state, plan=plan, current=current and replace(current, guarded=None))

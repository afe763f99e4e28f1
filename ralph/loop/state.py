"""The state of a loop, as its record holds it: enough to resume after a kill, and to show the loop's progress.

Pure. `loop/record.py` writes and reads it. Every change makes a new state.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins

from ralph.loop.values import CheckResult, LoopEnd, LoopPlan, Snapshot
from ralph.values.outcome import Outcome  # noqa: TC001 - the same

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
MOST_FILES_KEPT = 20
"""The most names of changed files in a record. Their total number is kept as well."""
MOST_DIGESTS_KEPT = 1000
"""The most file digests that one snapshot keeps."""


class Phase(enum.Enum):
    WORKING = "working"
    WAITING = "waiting"
    """The loop waits for the API."""
    SAVING = "saving"
    """The loop commits and pushes."""
    CHECKING = "checking"


class IterationRecord(Struct, frozen=True):
    """One iteration that counts."""

    number: int
    """The iteration's number, counted from 1."""
    session_id: str
    outcome: Outcome
    exit_code: int
    turns: int
    cost_usd: float | None
    duration_s: float
    """The duration, waits for the API and the check included."""
    commits: int
    """The number of commits, that of `--commit` included."""
    files: tuple[str, ...]
    """Names of changed files, at most `MOST_FILES_KEPT`."""
    file_count: int
    made_progress: bool
    check: str | None
    """The check's result in a word or two; None: there is none, or it was not run."""
    has_loop_commit: bool = False
    """Whether `--commit` committed work that the iteration had left uncommitted."""
    reason: str = ""
    last_words: str = ""


class FileDigest(Struct, frozen=True):
    path: str
    digest: str


class CurrentIteration(Struct, frozen=True):
    number: int
    session_id: str
    started_at: str
    """The time of the beginning: ISO 8601, UTC."""
    elapsed_s: float
    """The loop's elapsed time when the iteration began."""
    head: str
    digest: str
    """The digest of the checkout when the iteration began."""
    files: tuple[FileDigest, ...] | None = None
    """The files when the iteration began; None: there were too many."""
    branch: str | None = None
    """The branch when the iteration began; None: HEAD was detached, or there is no git."""
    phase: Phase = Phase.WORKING
    outages: int = 0
    """Ends by exit 75 in a row."""
    slept_s: float = 0.0
    """Seconds of waiting for these setbacks."""
    kills: int = 0
    """How many times in a row the iteration was killed, but not by the loop."""
    waits_until: str | None = None
    """The end of the current wait, ISO 8601, UTC; None: there is no wait."""
    turns: int = 0
    cost_usd: float | None = 0.0
    """The cost so far."""
    earlier_turns: int = 0
    earlier_cost_usd: float | None = 0.0
    """The cost of earlier sessions of this iteration that were given up."""
    commits: int = 0
    """The number of commits when the iteration was cut off."""
    guarded: tuple[FileDigest, ...] | None = None
    """Digests of git's settings and hooks when the iteration began, by name; None: there is no git, or there were too
    many.
    """


class LoopState(Struct, frozen=True):
    plan: LoopPlan
    started_at: str
    """The time of the beginning: ISO 8601, UTC."""
    pid: int
    """The process that works on the loop, or worked on it last."""
    updated_at: str = ""
    elapsed_s: float = 0.0
    """Seconds that all processes worked on the loop, until `updated_at`."""
    iterations: tuple[IterationRecord, ...] = ()
    idle: int = 0
    """Iterations in a row without progress."""
    first_check: CheckResult | None = None
    """The check before any iteration."""
    last_check: CheckResult | None = None
    current: CurrentIteration | None = None
    ended: LoopEnd | None = None
    format: int = FORMAT
    notes: tuple[str, ...] = ()
    """Notes to repeat at the end, such as a commit that could not be made."""
    push_problem: str | None = None
    """Why the last push failed; None: it did not fail."""
    unpushed: int = 0
    """Commits that the remote lacked at the end."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines that are repeated at the loop's end and in its status."""
        about_push = [self.push_problem] if self.push_problem is not None else []
        about_push += [f"commits that were not pushed: {self.unpushed}"] if self.unpushed else []
        return (*self.notes, *about_push)

    @property
    def spent_usd(self) -> float | None:
        """The cost of all iterations; None: the cost of one is not known."""
        costs = [record.cost_usd for record in self.iterations]
        costs += [self.current.cost_usd] if self.current is not None else []
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    @property
    def last(self) -> IterationRecord | None:
        return self.iterations[-1] if self.iterations else None


class NewerStateError(ValueError):
    """A state that a newer ralph wrote: it is not damaged, but this ralph cannot use it."""


def begun(
    number: int, session_id: str, snapshot: Snapshot, *, started_at: str, elapsed_s: float
) -> CurrentIteration:
    """A new iteration, with the state of the checkout at its beginning."""
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
    """The snapshot before an iteration, as far as it was kept."""
    files, guarded = _by_path(current.files), _by_path(current.guarded)
    return Snapshot(current.digest, current.head, files, current.branch, guarded)


def _kept(digests: Mapping[str, str] | None) -> tuple[FileDigest, ...] | None:
    if digests is None or len(digests) > MOST_DIGESTS_KEPT:
        return None
    return tuple(FileDigest(path, digest) for path, digest in digests.items())


def _by_path(kept: tuple[FileDigest, ...] | None) -> dict[str, str] | None:
    return None if kept is None else {one.path: one.digest for one in kept}


def state_text(state: LoopState) -> str:
    """The state as one indented JSON object, for people to read."""
    return json.dumps(state_fields(state), indent=2) + "\n"


def state_fields(state: LoopState) -> dict[str, Any]:
    """The state as JSON fields."""
    fields: dict[str, Any] = to_builtins(state)
    return fields


def read_state(text: str) -> LoopState:
    """The state in a record's text.

    Raises NewerStateError, and ValueError, whose text is a sentence without a subject: "is damaged: ...".
    """
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from None
    written = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(written, int) and written > FORMAT:
        raise NewerStateError(f"has format {written}: a newer ralph wrote it")
    try:
        return convert(fields, LoopState)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from None

"""The content of a fleet's report page, as values: one `FleetContent` with its sets, its jobs from the worst to the best,
and the time line of their attempts.

`pages/fleet_story.py` makes these values from the rows of a store. `pages/fleet_page.py` turns them into HTML. No I/O
happens here. All times are seconds since 1970. All texts are as users, models and servers wrote them, apart from
redacted credentials: they are not safe as HTML or on a terminal.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class AttemptKind(enum.Enum):
    """The end of one attempt."""

    DONE = "done"
    FAILED = "failed"
    LATER = "later"
    """The job went on with another attempt: after an outage, at a limit, or when its worker was told to stop."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The worker was gone or silent. It recorded no end."""
    RUNNING = "running"


class AttemptStory(Struct, frozen=True, kw_only=True):
    """One attempt of a job by one worker."""

    attempt: int
    machine: str
    executor: str
    kind: AttemptKind
    exit_code: int | None
    outcome: str
    """The value of an `Outcome`, or an empty text without an exit code."""
    reason: str
    began_s: float
    ended_s: float
    """For a lost attempt, the time until which nobody else worked on the job. For a running one, now."""
    turns: int | None
    """Turns and cost are those of the job at the end of this attempt. None if they were not recorded."""
    cost_usd: float | None
    has_taken_over: bool
    """True if the attempt before was lost, and another worker took the job over."""


class JobStory(Struct, frozen=True, kw_only=True):
    anchor: str
    """Unique within the page. Contains only ASCII letters and digits."""
    set_name: str
    id: str
    state: str
    """One word: done, failed, blocked, cancelled, cancelling, running, queued or waiting."""
    is_problem: bool
    is_open: bool
    exit_code: int | None
    outcome: str
    """The value of an `Outcome`, or an empty text if the job has not ended."""
    reason: str
    """One line."""
    turns: int
    cost_usd: float
    began_s: float | None
    ended_s: float | None
    attempts: int
    machines: str
    """The names of the machines in their order, in one line."""
    details: JobDetails | None
    """None if the page has no room for them."""


class JobDetails(Struct, frozen=True, kw_only=True):
    reason: str
    """The whole reason, or most of it."""
    repository: str
    ref: str
    """The branch, tag or commit that the user named. Empty for the default branch."""
    branch: str
    """Empty if this version of ralph cannot read the job."""
    commit: str
    """The commit of the job that was pushed last. Empty if none was."""
    unpushed: str
    """The commit that the last attempt wanted to push, if it is another one."""
    prompt: str
    until: str
    after: str
    """The ids of the jobs that had to end before, in one line."""
    problem: str
    """Why this version of ralph cannot read the job. Empty if it can."""
    answer: str
    """The last answer of the agent. May be cut."""
    attempts: tuple[AttemptStory, ...]
    more_attempts: int
    """The number of attempts before those in `attempts`."""
    commands: tuple[str, ...]
    """The commands that a person may want next."""


class StateCount(Struct, frozen=True):
    state: str
    number: int


class ExitCount(Struct, frozen=True):
    """How many jobs ended with an exit code."""

    exit_code: int
    outcome: str
    number: int
    reason: str
    """The reason of the first of them."""
    anchor: str
    """The first of them. Empty if the page has no details of it."""


class SetStory(Struct, frozen=True, kw_only=True):
    name: str
    limits: str
    jobs: int
    states: tuple[StateCount, ...]
    """Only states that a job has, from the worst to the best."""
    exit_code: int | None
    """The worst exit code of its jobs. None if no job has ended."""
    open_jobs: int
    cost_usd: float
    reserved_usd: float
    """The part of the budget that is reserved for running jobs."""
    budget_usd: float | None
    turns: int
    began_s: float
    ended_s: float
    commands: tuple[str, ...]


class AttemptBar(Struct, frozen=True):
    """An attempt on the time line."""

    kind: AttemptKind
    began_s: float
    ended_s: float
    label: str
    entry: str | None
    """The `anchor` of its job, or None if the page has no details of it."""


class SlotRow(Struct, frozen=True):
    """A row of the time line: attempts of one machine, one after the other."""

    name: str
    bars: tuple[AttemptBar, ...]


class Takeover(Struct, frozen=True):
    """A job that went on at another worker."""

    row: int
    """The place of the row in `FleetContent.rows`."""
    at_s: float
    to_row: int
    to_s: float
    label: str
    is_after_loss: bool
    """True if the worker before was lost. False if it handed the job back, or the job had a further attempt."""


class FleetContent(Struct, frozen=True, kw_only=True):
    """The content of one page."""

    made_at_s: float
    version: str
    place: str
    """The sets that the user asked for, in words."""
    sets: tuple[SetStory, ...]
    exits: tuple[ExitCount, ...]
    """The exit codes other than 0, from the worst to the best."""
    attempts: int
    lost: int
    """The number of attempts whose worker was lost."""
    jobs: tuple[JobStory, ...]
    """From the worst to the best. Not all, if there are more than the page has room for."""
    rows: tuple[SlotRow, ...]
    takeovers: tuple[Takeover, ...]
    notes: tuple[str, ...] = ()
    """Sentences about the commands on the page."""
    left_out: tuple[str, ...] = ()
    """Sentences about what the page has no room for, and where it is."""

"""The values of a set of jobs, as users write them. `job_file.py` reads them from a file."""

from __future__ import annotations

from msgspec import Struct

VARIABLE = "RALPH_FLEET_DB"
"""The variable that names the store."""

FORMAT = 1
"""The version of a stored job. A worker refuses a job of another version: it does not guess what a field means."""


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job. (set, id) is its key."""

    id: str
    repository: str
    """A URL that git understands, or the absolute path of a repository on every machine that works."""
    ref: str | None = None
    """A branch, a tag or a commit. None is the remote's default branch."""
    branch: str | None = None
    """The branch that is pushed. None is `ralph/ID`."""
    prompt: str
    until: str | None = None
    """A shell command. With it the job is a `ralph loop`, which ends when the command ends with 0."""
    model: str | None = None
    base_url: str | None = None
    max_turns: int | None = None
    max_iterations: int | None = None
    max_time: str | None = None
    """In the words of `--max-time`, such as 30m."""
    max_budget_usd: float | None = None
    sandbox: str | None = None
    env: tuple[str, ...] = ()
    """Names of environment variables that the worker must have. The tools of the job get them."""
    options: tuple[str, ...] = ()
    """Further words for the command line of `ralph run`, or of `ralph loop`."""
    priority: int = 0
    """Jobs with a higher number start first."""
    after: tuple[str, ...] = ()
    """Ids of jobs of the same set that must have ended with exit code 0."""


class Rate(Struct, frozen=True):
    """At most `starts` jobs start in any `period_s` seconds."""

    starts: int
    period_s: float


class SetLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits over all jobs of a set and all workers. None means no limit."""

    concurrency: int | None = None
    per_host: int | None = None
    """Most jobs at once whose repositories are on one host."""
    rate: Rate | None = None
    max_budget_usd: float | None = None
    max_attempts: int = 5

"""The values of a set of jobs, as users write them, the stored form of a job, and the id of its session. `job_file.py` reads
jobs from a file. Equal jobs have equal bytes, on every machine and in every version of ralph that writes the same `FORMAT`.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

VARIABLE = "RALPH_FLEET_DB"
"""The variable that names the store."""

FORMAT = 1
"""The version of a stored job. A worker refuses a job of another version: it does not guess what a field means."""
_FORMAT_KEY = "format"
_SESSIONS = UUID("8f0cbb5e-2d0c-5a52-9a3b-2f9e4f6f2a11")
"""The namespace of all sessions' ids. It was drawn once. Another value would lose the sessions of stored jobs."""


class CommonFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that a job and the defaults of a file have, written as stored."""

    ref: str | None = None
    """A branch, a tag or a commit. None is the remote's default branch."""
    branch: str | None = None
    """The branch that is pushed. None is `ralph/ID`."""
    until: str | None = None
    """A shell command. With it the job is a `ralph loop`, which ends when the command ends with 0."""
    model: str | None = None
    base_url: str | None = None
    max_turns: int | None = None
    max_iterations: int | None = None
    max_time: str | None = None
    """In the words of `--max-time`, such as 30m."""
    max_budget_usd: float | None = None
    sandbox: Literal["auto", "strict", "off"] | None = None
    env: tuple[str, ...] = ()
    """Names of environment variables that the worker must have. The tools of the job get them."""
    options: tuple[str, ...] = ()
    """Further words for the command line of `ralph run`, or of `ralph loop`."""
    priority: int = 0
    """Jobs with a higher number start first."""


class Job(CommonFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job. (set, id) is its key."""

    id: str
    repository: str
    """A URL that git understands, or the absolute path of a repository on every machine that works."""
    prompt: str
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


class UnknownFormatError(Exception):
    """A stored job was written by another version of ralph, and this version cannot read it. The message is one line."""


def content_of(job: Job) -> bytes:
    """The job as JSON. Fields that have their default value are left out, so that a later version of ralph may add a
    field and still write the same bytes for an old job.
    """
    values = msgspec.structs.asdict(job)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Job)}
    said = {name: value for name, value in values.items() if value != defaults[name]}
    return msgspec.json.encode({**said, _FORMAT_KEY: FORMAT}, order="sorted")


def job_from(content: bytes) -> Job:
    """Decodes what `content_of` has written. Raises UnknownFormatError."""
    try:
        values: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise UnknownFormatError(f"the stored job is not a JSON object: {error}") from None
    written = values.pop(_FORMAT_KEY, None)
    if written != FORMAT or isinstance(written, bool):
        raise UnknownFormatError(
            f"the stored job has format {written!r}, and this ralph reads format {FORMAT}: use the version of ralph "
            "that submitted it"
        )
    try:
        return msgspec.convert(values, Job)
    except msgspec.ValidationError as error:
        raise UnknownFormatError(f"the stored job does not fit format {FORMAT}: {error}") from None


def priority_of(content: bytes) -> int:
    """The priority of a stored job. 0 if this version cannot read the job: the attempt refuses it with the reason."""
    try:
        return job_from(content).priority
    except UnknownFormatError:
        return 0


def session_id(set_name: str, job_id: str) -> str:
    """The id of the session in which the job's runs work. All attempts of a job have the same session."""
    return str(uuid5(_SESSIONS, f"{set_name}/{job_id}"))

"""The values of a set of jobs, as users write them, the stored form of a job, the id of its session, the rules for jobs and
sets, and what follows from the end of a job's process. `job_file.py` reads jobs from a file. Equal jobs have equal bytes, on
every machine and in every version of ralph that writes the same `FORMAT`. No I/O happens here.
"""

from __future__ import annotations

import enum
import re
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from ralph.machine.waiter import STOP_SIGNALS
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES
from ralph.settings.tables import BY_NAME
from ralph.values.credentials import known_secrets, looks_like_credential_value
from ralph.values.outcome import CannotError, Outcome
from ralph.values.redaction import Redactor
from ralph.values.setting import DURATION, POSITIVE_DOLLARS
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

VARIABLE = "RALPH_FLEET_DB"
"""The variable that names the store."""

FORMAT = 1
"""The version of a stored job. A worker refuses a job of another version: it does not guess what a field means."""
_FORMAT_KEY = "format"
_SESSIONS = UUID("8f0cbb5e-2d0c-5a52-9a3b-2f9e4f6f2a11")
"""The namespace of all sessions' ids. It was drawn once. Another value would lose the sessions of stored jobs."""


class CommonFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job that are stored as they are written."""

    ref: str | None = None
    """A branch, a tag or a commit. None is the remote's default branch."""
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


class UnknownFormatError(CannotError):
    """A stored job was written by another version of ralph, or by somebody else, and cannot be done. The message is one line."""


def content_of(job: Job) -> bytes:
    """The job as JSON. Fields that have their default value are left out, so that a later version of ralph may add a
    field and still write the same bytes for an old job.
    """
    values = msgspec.structs.asdict(job)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Job)}
    said = {name: value for name, value in values.items() if value != defaults[name]}
    return msgspec.json.encode({**said, _FORMAT_KEY: FORMAT}, order="sorted")


def job_from(content: bytes) -> Job:
    """Decodes what `content_of` has written. Raises UnknownFormatError, also for a job that `faults_of` would refuse."""
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
        job = msgspec.convert(values, Job)
    except msgspec.ValidationError as error:
        raise UnknownFormatError(f"the stored job does not fit format {FORMAT}: {error}") from None
    for fault in faults_of(job):
        raise UnknownFormatError(f"the stored job cannot be done: {fault.field} {fault.problem}")
    return job


def priority_of(content: bytes) -> int:
    """The priority of a stored job. 0 if this version cannot read the job: the attempt refuses it with the reason."""
    try:
        return job_from(content).priority
    except UnknownFormatError:
        return 0


def session_id(set_name: str, job_id: str) -> str:
    """The id of the session in which the job's runs work. All attempts of a job have the same session."""
    return str(uuid5(_SESSIONS, f"{set_name}/{job_id}"))


# --- The rules for jobs and sets of jobs. Each yields what is wrong as a `JobFault`.
#
# A job comes from a file that may be hours old when a worker reads it, and the worker gives its words to git and to
# ralph. So everything that can be found out without the repository is found out when the job is submitted.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST = 1_000_000_000
"""The largest number of turns, iterations and jobs. It fits into every database's integer."""
_MOST_PRIORITY = 1_000_000
_MOST_TEXT_BYTES = 64 * 1024
"""The maximum size of each text but the prompt. Linux takes 128 KiB as one word of a command line."""
_SCHEMES = ("https", "http", "ssh", "git", "file")
_LONGEST_USER = 20
"""A longer user name in a URL is taken for a token. The tokens of git hosting have at least 20 characters."""
_PERIODS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
# The worker removes these variables, because they lead to the store.
_FLEETS_OWN = re.compile(r"RALPH_FLEET_DB|PG[A-Z]+")


class JobFault(Struct, frozen=True):
    """One thing that is wrong with a job."""

    field: str
    """The name of the job's field, or "" for the whole job."""
    problem: str
    """The problem in words. It continues a sentence that begins with the field. It never contains a credential."""


def faults_of(job: Job) -> Iterator[JobFault]:
    """Yields what is wrong with a job, apart from its relations to other jobs. Each rule expects that those before it are kept."""
    yield from _unclean_texts(job)
    for field, why in (
        ("id", why_no_name(job.id)),
        ("repository", why_wrong_repository(job.repository)),
        ("ref", None if job.ref is None else why_no_ref_name(job.ref)),
    ):
        if why is not None:
            yield JobFault(field, why)
    if not job.prompt.strip():
        yield JobFault("prompt", "is empty")
    if job.until is not None and not job.until.strip():
        yield JobFault("until", "is empty: give a command that exits 0 when all is done, or leave it out")
    if job.until is None and job.max_iterations is not None:
        yield JobFault("max_iterations", "needs until: without it the job is one run")
    yield from _faults_of_values(job)


def _unclean_texts(job: Job) -> Iterator[JobFault]:
    for field, text in texts_of(job):
        most = MOST_PROMPT_BYTES if field == "prompt" else _MOST_TEXT_BYTES
        if "\0" in text:
            yield JobFault(field, "contains NUL, which no text contains")
            continue
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            yield JobFault(field, "contains half of a surrogate pair, which is not a character")
            continue
        if size > most:
            yield JobFault(field, f"has more than {most:,} bytes")


def _faults_of_values(job: Job) -> Iterator[JobFault]:
    """Yields the values that `ralph run` would refuse."""
    for field, setting in _SETTINGS.items():
        value = getattr(job, field)
        if value is not None and value != ():
            yield from _judged(field, BY_NAME[setting].kind, value)
    if job.max_time is not None:
        yield from _judged("max_time", DURATION, job.max_time)
    for field, number, least, most in (
        ("max_turns", job.max_turns, 1, _MOST),
        ("max_iterations", job.max_iterations, 1, _MOST),
        ("priority", job.priority, -_MOST_PRIORITY, _MOST_PRIORITY),
    ):
        yield from _outside(field, number, least, most)
    for name in job.env:
        if _FLEETS_OWN.fullmatch(name):
            yield JobFault("env", f"names {name}, which belongs to the fleet and is removed by the workers")


_SETTINGS = {
    "model": "model.name",
    "base_url": "model.base_url",
    "max_budget_usd": "limits.max_budget_usd",
    "sandbox": "sandbox.mode",
    "env": "tools.pass_env",
}
"""The fields of a job that are settings of `ralph run`, and the names of these settings."""


def _judged(field: str, kind: Any, value: object) -> Iterator[JobFault]:
    try:
        kind.decoded(value)
    except ValueError as error:
        yield JobFault(field, str(error))


def _outside(field: str, number: int | None, least: int, most: int) -> Iterator[JobFault]:
    if number is not None and not least <= number <= most:
        shown = number if abs(number) <= 10 * _MOST else "a huge number"
        yield JobFault(field, f"must be a whole number from {least:,} to {most:,}, not {shown}")


def faults_of_limits(limits: SetLimits) -> Iterator[JobFault]:
    """Yields what is wrong with the limits of a set."""
    for field in ("concurrency", "per_host", "max_attempts"):
        yield from _outside(field, getattr(limits, field), 1, _MOST)
    if limits.max_budget_usd is not None:
        yield from _judged("max_budget_usd", POSITIVE_DOLLARS, limits.max_budget_usd)


def rate_from(text: str) -> Rate:
    """Decodes a rate such as `50/min`. Raises ValueError with a text that begins with "must be"."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})/(s|min|h)", text.strip(), re.ASCII)
    if match is None:
        shown = text if len(text) < 40 and text.isprintable() else "that"
        raise ValueError(f"must be a rate such as 5/s, 50/min or 200/h, not {shown}")
    return Rate(int(match[1]), _PERIODS_S[match[2]])


# --- Names


def why_no_name(name: str) -> str | None:
    """The reason why a text cannot be the name of a job or a set, or None if it can."""
    if _NAME.fullmatch(name) is None:
        return "must have 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit"
    return why_no_ref_name(name)


def why_no_ref_name(name: str) -> str | None:
    """The reason why git would not take a text as the name of a branch, a tag or a commit, or None if git takes it.
    The rules are those of git-check-ref-format(1) with --branch.
    """
    if not name or name == "@":
        return "is empty" if not name else "is @, which means HEAD in git"
    if name.startswith("-"):
        return "begins with -, so that git would take it for an option"
    found = re.search(r"[\x00-\x20\x7f~^:?*\[\\]", name)
    if found is not None:
        return f"contains {found[0]!r}, which git takes in no name"
    if any(text in name for text in ("..", "@{", "//")) or name.startswith("/") or name.endswith(("/", ".")):
        return "contains .. or @{ or //, begins or ends with /, or ends with a dot: git takes no such name"
    if any(part.startswith(".") or part.endswith(".lock") for part in name.split("/")):
        return "has a part that begins with a dot or ends with .lock: git takes no such name"
    return None


# --- Repositories


def why_wrong_repository(repository: str) -> str | None:
    """The reason why no worker should clone a repository, or None. The reason does not repeat the address."""
    if not repository.strip():
        return "is empty"
    if repository.startswith("-"):
        return "begins with -, so that git would take it for an option"
    if any(not one.isprintable() for one in repository):
        return "contains characters that cannot be printed"
    if repository.startswith("~"):
        return "begins with ~, which only a shell expands: give the whole path, the same on every machine"
    if re.match(r"[^/]*::", repository):
        return "names a transport (NAME::), which may run any command: give a URL or a path"
    if "://" in repository:
        return _why_wrong_url(repository)
    before, colon, behind = repository.partition(":")
    if colon and "/" not in before:  # HOST:PATH, which ssh reaches
        if re.match(r"[^/]*@", behind):
            return _HOLDS_CREDENTIAL
        return "names a host that begins with -" if before.rpartition("@")[2].startswith("-") else None
    return None


_HOLDS_CREDENTIAL = "holds a credential, and jobs are stored: leave it out, and give the workers a credential helper of git or SSH keys"


def _why_wrong_url(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return "is not a URL that git understands"
    if parts.scheme not in _SCHEMES:
        return (
            f"must begin with one of {', '.join(f'{one}://' for one in _SCHEMES)}, or be a path or HOST:PATH"
        )
    user, at, _ = parts.netloc.rpartition("@")
    if at and (":" in user or len(user) > _LONGEST_USER or looks_like_credential_value(user)):
        return _HOLDS_CREDENTIAL
    if looks_like_credential_value(url) or parts.query or parts.fragment:
        return f"has a query, or {_HOLDS_CREDENTIAL}"
    if parts.scheme != "file" and not host:
        return "names no host"
    return "names a host that begins with -" if (host or "").startswith("-") or user.startswith("-") else None


def is_relative_path(repository: str) -> bool:
    """Whether git would take the text as a path that is relative to the working directory."""
    if "://" in repository or repository.startswith(("/", "~", "-")) or not repository.strip():
        return False
    before, colon, _ = repository.partition(":")
    return not colon or "/" in before


# --- Relations between jobs


def faults_of_set(jobs: Sequence[Job], earlier: Collection[str] = ()) -> Iterator[tuple[int, JobFault]]:
    """Yields what is wrong between jobs, each with the index of the job. `earlier` are ids of jobs that the set has already."""
    first: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if first.setdefault(job.id, index) != index:
            yield index, JobFault("id", f"{job.id} is the id of job {first[job.id] + 1} too")
    for index, job in enumerate(jobs):
        for name in job.after:
            if name not in first and name not in earlier:
                yield index, JobFault("after", f"names {name!r}, which is not a job of this set")
    try:
        TopologicalSorter({job.id: job.after for job in jobs}).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]
        yield first[cycle[0]], JobFault("after", f"forms a cycle: {' -> '.join(cycle)}")


def branch_of(job: Job) -> str:
    """The name of the branch that is pushed at the end of the job."""
    return f"ralph/{job.id}"


# --- Credentials


def host_of(repository: str) -> str:
    """The host of a repository's URL in small letters. Empty for a path."""
    if "://" in repository:
        return urlsplit(repository).hostname or ""
    before, colon, _ = repository.partition(":")
    return before.rpartition("@")[2].lower() if colon and "/" not in before else ""


def words_of(job: Job) -> list[str]:
    """The options of `ralph run`, or of `ralph loop`, that a job's fields say. Not among them: the prompt, the session, the
    directory, and the budget, of which an attempt gets what is left.
    """
    fields = (
        *(("until", job.until), ("model", job.model), ("base-url", job.base_url), ("sandbox", job.sandbox)),
        *(("max-time", job.max_time), ("max-turns", job.max_turns), ("max-iterations", job.max_iterations)),
    )
    said = [f"--{name}={value}" for name, value in fields if value is not None]
    return [*said, *([f"--pass-env={','.join(job.env)}"] if job.env else []), *job.options]


class SecretFinder:
    """Finds the credentials of an environment in the texts of jobs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        logins = {name: environment[name] for name in ("USER", "LOGNAME") if name in environment}
        self._all = Redactor(known_secrets(environment))
        self._of_variables = {
            name: Redactor(secrets)
            for name, value in environment.items()
            if (secrets := known_secrets({**logins, name: value}))
        }

    def faults_of(self, job: Job) -> Iterator[JobFault]:
        """Yields the fields that contain a credential, each with the name of the credential's variable."""
        for field, text in texts_of(job):
            if self._all.redact(text) == text:
                continue
            names = [name for name, one in self._of_variables.items() if one.redact(text) != text]
            yield JobFault(
                field,
                f"contains the value of {' and of '.join(names)}, and jobs are stored: name the variable in env, and "
                "set it on the workers",
            )


def texts_of(job: Job) -> Iterator[tuple[str, str]]:
    """Yields each text of a job, with the name of its field."""
    for field in Job.__struct_fields__:
        value = getattr(job, field)
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, tuple):
            yield from ((field, one) for one in value)


# --- The end of a job's process: what follows from it, how long to wait, how much a run may spend, and how bad a code is

FIRST_DELAY_S = 60.0
LONGEST_DELAY_S = 3600.0
LONGEST_ASKED_S = 8 * 86_400.0
"""A server that asks for a longer wait than this is asked again after this time. Limits of a week exist."""
SHARE = 4
"""A run may spend this part of what is left of the set's budget, and asks again when it has spent it. So many runs at
once can never spend more than there is, and the first does not take all."""
LEAST_GRANT_USD = 1.0
"""A rest that is less than this is given whole. A run begins a request only if it may spend what that request
costs at most, which is about half a dollar for an answer of 32,000 tokens."""
NOTHING_USD = 0.0001
"""No request costs less. Such a rest is left by the rounding of sums."""

_STOPPED = {128 + number for number in STOP_SIGNALS}
"""A process that somebody stopped by a signal, as a service manager does with all processes of a worker.
It can be resumed."""
_WORST_FIRST = (70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75)


class JobState(enum.Enum):
    WAITING = "waiting"
    """The jobs that `after` names have not ended."""
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    UNDELIVERED = "undelivered"
    """It has ended, and its work is kept on a machine, because the git host did not take it."""
    BLOCKED = "blocked"
    """A job that `after` names has ended with another exit code than 0, which is this job's exit code too."""

    @property
    def is_final(self) -> bool:
        return self not in {JobState.WAITING, JobState.QUEUED, JobState.RUNNING}


class ProcessEnd(Struct, frozen=True, kw_only=True):
    """How a job's process ended, and what it said of itself."""

    exit_code: int
    reason: str = ""
    result: str = ""
    retry_after_s: float | None = None
    """How long the server asked to wait. None if it did not say."""
    turns: int = 0
    """Turns and cost are those of the whole session, or of the whole loop."""
    cost_usd: float = 0.0
    limit: str | None = None
    """The limit that ended it, as `ralph run` names it: `max_turns` or `max_budget_usd`."""
    was_killed: bool = False
    """True if a signal ended the process that nobody of the fleet had sent, such as the kernel's at a lack of memory."""


class Final(Struct, frozen=True):
    """The job has ended."""

    exit_code: int
    reason: str


class NextAttempt(Struct, frozen=True):
    """The next attempt starts after `delay_s`."""

    delay_s: float
    reason: str
    is_try: bool = True
    """Whether the attempt that has ended counts."""


def after_end(
    end: ProcessEnd, *, tries: int, most_tries: int, has_own_access: bool = True, has_worked: bool = True
) -> Final | NextAttempt:
    """Decides what follows after a try. `tries` counts this one. A job without `has_own_access` uses the key of its machine.
    If the API refuses that, the fault is the machine's, unless `has_worked` says that another job has ended well with it.
    """
    is_refused = end.exit_code == Outcome.AUTH.exit_code() and not has_own_access
    if is_refused and not has_worked:
        return NextAttempt(0.0, end.reason, is_try=False)
    is_away = end.exit_code == Outcome.API_UNAVAILABLE.exit_code()
    if not (is_away or is_refused or end.was_killed or end.exit_code in _STOPPED):
        return Final(end.exit_code, end.reason)
    code = (Outcome.AUTH if is_refused else Outcome.API_UNAVAILABLE).exit_code()
    reason = end.reason or "the API was not available"
    if tries >= most_tries:
        return Final(code, f"gave up after {tries} attempts: {reason}")
    return NextAttempt(delay_after(tries, end.retry_after_s), reason)


def delay_after(tries: int, retry_after_s: float | None) -> float:
    """The wait before the next attempt, in seconds: what the server asked for, or twice as long each time."""
    if retry_after_s is not None and retry_after_s >= 0:
        return min(retry_after_s, LONGEST_ASKED_S)
    return min(FIRST_DELAY_S * 2.0 ** min(tries - 1, 10), LONGEST_DELAY_S)


def grant_usd(left_usd: float, least_usd: float = LEAST_GRANT_USD) -> float:
    """How much of the `left_usd` of a set's budget one run may spend before it asks again. 0 if nothing is left. A run
    for which a grant did not suffice asks with the `least_usd` that it needs.
    """
    return plain(min(left_usd, max(left_usd / SHARE, least_usd))) if left_usd >= NOTHING_USD else 0.0


def outcome_of(exit_code: int) -> Outcome:
    """The outcome of an exit code of ralph. Ends by a signal are interruptions."""
    if exit_code > 128:
        return Outcome.INTERRUPTED
    others = (outcome for outcome in Outcome if outcome is not Outcome.INTERRUPTED)
    return next((outcome for outcome in others if outcome.exit_code() == exit_code), Outcome.INTERNAL_ERROR)


def worst_exit_code(codes: Iterable[int]) -> int:
    """The worst of the exit codes of jobs. Ends by a signal (128+n) are less bad than all other failures. A code that
    ralph does not have is as bad as 70. 0 if there is no code.
    """
    return min(codes, key=badness, default=0)


def badness(code: int) -> int:
    """The place of an exit code among all, from the worst, which is 0, to the code 0."""
    if code == 0:
        return len(_WORST_FIRST) + 1
    if code > 128:
        return len(_WORST_FIRST)
    return _WORST_FIRST.index(code) if code in _WORST_FIRST else 0

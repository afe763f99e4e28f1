"""Makes the content of a fleet's report page from the rows of a store. No I/O happens here.

The page stays below 10 MB for any number of jobs: rows of jobs and details share its space, and what has none is counted.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ralph.fleet.decisions import JobState, badness, outcome_of, worst_exit_code
from ralph.fleet.jobs import UnknownFormatError, branch_of
from ralph.fleet.listing import limits_text
from ralph.pages.content import (
    AttemptKind,
    AttemptStory,
    ExitCount,
    FleetContent,
    JobDetails,
    JobStory,
    SetStory,
    StateCount,
)
from ralph.pages.excerpts import Excerpts, PageBudget, size_in_html
from ralph.values.outcome import Outcome
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.fleet.store.fleet_store import SetRow
    from ralph.fleet.store.schema import AttemptRow, JobRow

MOST_DETAILS = 300
_ROWS_BYTES, _ROW_BYTES = 5_000_000, 420
"""The room of all rows of jobs, and what one takes beside its texts."""
_MOST_ATTEMPTS = 12
_MOST_SETS = 200
_MOST_EXITS = 30
_NAME_CHARS, _REASON_CHARS, _WORDS_CHARS = 80, 160, 300
_HIDDEN_BYTES = 16
"""The room of a character that the page shows by its name."""
_UNAVAILABLE = Outcome.API_UNAVAILABLE.exit_code()
_RESUMABLE = {_UNAVAILABLE, Outcome.LIMIT_REACHED.exit_code(), Outcome.TIMED_OUT.exit_code()}
_FAILED, _CANCELLING = "failed", "cancelling"
_WORST_FIRST = ("failed", "blocked", "cancelled", "cancelling", "running", "queued", "waiting", "done")


def fleet_content_of(
    sets: Sequence[SetRow],
    jobs: Sequence[JobRow],
    attempts: Iterable[AttemptRow],
    *,
    made_at_s: float,
    version: str,
    excerpts: Excerpts,
) -> FleetContent:
    """The content of the page about these sets. `jobs` and `attempts` are all those of the sets. Attempts of jobs that
    are not among `jobs` are left out: they were added after the jobs had been read.
    """
    return _FleetFold(sets, jobs, attempts, made_at_s, excerpts).made(version)


def state_of(row: JobRow) -> str:
    """The state of a job in one word, which is one of `_WORST_FIRST`."""
    if row.state in {JobState.DONE, JobState.UNDELIVERED} and row.exit_code:
        return _FAILED
    if row.state is JobState.RUNNING and row.is_cancelled:
        return _CANCELLING
    return row.state.value


def order_of(row: JobRow) -> tuple[int, int, str, int]:
    """Sorts jobs from the worst to the best: those that failed by their exit codes, then those that another one blocked,
    the cancelled ones, the open ones, and those that are done.
    """
    code = badness(row.exit_code) if row.exit_code is not None else 0
    return _WORST_FIRST.index(state_of(row)), code, row.set_name, row.position


class _FleetFold:
    def __init__(
        self,
        sets: Sequence[SetRow],
        jobs: Sequence[JobRow],
        attempts: Iterable[AttemptRow],
        made_at_s: float,
        excerpts: Excerpts,
    ) -> None:
        self._sets, self._excerpts = sets, excerpts
        self._jobs = sorted(jobs, key=order_of)
        self._of_set: dict[str, list[JobRow]] = defaultdict(list)
        for job in self._jobs:
            self._of_set[job.set_name].append(job)
        self._by_key = {(row.set_name, row.id): row for row in jobs}
        self._attempts: dict[tuple[str, str], list[AttemptRow]] = defaultdict(list)
        known = [one for one in attempts if (one.set_name, one.job) in self._by_key]
        self._now_s = max([made_at_s, *(one.ended_at or one.started_at for one in known)])
        self._next_of_executor = _next_starts(known)
        for one in sorted(known, key=lambda one: one.generation):
            self._attempts[one.set_name, one.job].append(one)
        self._budget = PageBudget(excerpts, sections=MOST_DETAILS, parts=MOST_DETAILS)
        self._left_out: list[str] = []

    def made(self, version: str) -> FleetContent:
        stories = {key: self._attempts_of(key) for key in self._attempts}
        jobs = self._job_stories(stories)
        anchors = {
            (row.set_name, row.id): story.anchor
            for row, story in zip(self._jobs, jobs, strict=False)
            if story.details is not None
        }
        sets = self._sets[:_MOST_SETS]
        if len(sets) < len(self._sets):
            self._left_out.append(f"{counted(len(self._sets) - len(sets), 'more set')}: ralph fleet ls")
        return FleetContent(
            made_at_s=self._now_s,
            version=version,
            place=self._place(),
            sets=tuple(self._set_story(row) for row in sets),
            exits=tuple(self._exits(anchors)),
            attempts=sum(map(len, stories.values())),
            lost=sum(one.kind is AttemptKind.LOST for attempts in stories.values() for one in attempts),
            jobs=tuple(jobs),
            left_out=tuple(self._left_out),
        )

    def _place(self) -> str:
        names = [self._line(row.name, _NAME_CHARS) for row in self._sets[:3]]
        more = [f"{len(self._sets) - 3} more"] if len(self._sets) > 3 else []
        noun = "set" if len(self._sets) == 1 else "sets"
        return f"{noun} {', '.join([*names, *more])}"

    def _line(self, text: str, most_chars: int) -> str:
        return self._excerpts.line(text, most_chars)

    # --- sets

    def _set_story(self, row: SetRow) -> SetStory:
        jobs = self._of_set[row.name]
        states = Counter(map(state_of, jobs))
        codes = [job.exit_code for job in jobs if job.exit_code is not None]
        ends = [job.ended_at for job in jobs if job.ended_at is not None]
        is_open = any(not job.state.is_final for job in jobs)
        name = row.name
        commands = []
        if any(states[state] for state in ("failed", "blocked", "cancelled")):
            commands.append(_command("ralph fleet retry --failed --set", name))
        if is_open:
            commands.append(_command("ralph fleet work", name))
        return SetStory(
            name=self._line(name, _NAME_CHARS),
            limits=limits_text(row.limits),
            jobs=len(jobs),
            states=tuple(StateCount(state, states[state]) for state in _WORST_FIRST if states[state]),
            exit_code=worst_exit_code(codes) if codes else None,
            open_jobs=sum(not job.state.is_final for job in jobs),
            cost_usd=sum(job.cost_usd for job in jobs),
            reserved_usd=sum(job.reserved_usd for job in jobs),
            budget_usd=row.limits.max_budget_usd,
            turns=sum(job.turns for job in jobs),
            began_s=min(
                (job.started_at for job in jobs if job.started_at is not None), default=row.created_at
            ),
            ended_s=self._now_s if is_open else max(ends, default=row.created_at),
            commands=tuple(self._excerpts.plain(one) for one in commands if one),
        )

    def _exits(self, anchors: dict[tuple[str, str], str]) -> Iterator[ExitCount]:
        """Counts the jobs that failed themselves. Blocked and cancelled jobs are not among them."""
        failed = [row for row in self._jobs if state_of(row) == _FAILED]
        numbers = Counter(row.exit_code for row in failed)
        firsts = {row.exit_code: row for row in reversed(failed)}
        for code in list(numbers)[:_MOST_EXITS]:
            first = firsts[code]
            yield ExitCount(
                code or 0,
                first.outcome or "",
                numbers[code],
                self._line(first.reason or "", _REASON_CHARS),
                anchors.get((first.set_name, first.id), ""),
            )

    # --- jobs

    def _job_stories(self, stories: dict[tuple[str, str], list[AttemptStory]]) -> list[JobStory]:
        made: list[JobStory] = []
        budget = _ROWS_BYTES
        for number, row in enumerate(self._jobs):
            story = self._job_story(row, stories.get((row.set_name, row.id), []), number)
            budget -= _ROW_BYTES + sum(map(_size, (story.set_name, story.id, story.reason, story.machines)))
            if budget < 0:
                self._left_out.append(
                    f"{counted(len(self._jobs) - number, 'more job')}, all of them {story.state} or better: "
                    "ralph fleet ls SET"
                )
                break
            made.append(story)
        bare = sum(story.details is None for story in made)
        if bare:
            first = next(story for story in made if story.details is None)
            worst = f"the first of them is {first.state}"
            self._left_out.append(f"the details of {counted(bare, 'job')} ({worst}): ralph fleet show SET/ID")
        return made

    def _job_story(self, row: JobRow, attempts: Sequence[AttemptStory], number: int) -> JobStory:
        machines = list(dict.fromkeys(one.machine for one in attempts))
        return JobStory(
            anchor=f"job{number}",
            set_name=self._line(row.set_name, _NAME_CHARS),
            id=self._line(row.id, _NAME_CHARS),
            state=state_of(row),
            is_problem=state_of(row) in {"failed", "blocked", "cancelled"},
            is_open=not row.state.is_final,
            exit_code=row.exit_code,
            outcome=row.outcome or "",
            reason=self._line(row.reason or "", _REASON_CHARS),
            turns=row.turns,
            cost_usd=row.cost_usd,
            began_s=row.started_at,
            ended_s=None if row.started_at is None else row.ended_at or self._now_s,
            attempts=len(attempts),
            machines=self._line(", ".join(machines), _NAME_CHARS),
            details=self._details(row, attempts) if number < MOST_DETAILS else None,
        )

    def _details(self, row: JobRow, attempts: Sequence[AttemptStory]) -> JobDetails:
        plain, words = self._excerpts.plain, self._words
        branch = ref = prompt = until = problem = ""
        try:
            job = row.job
        except UnknownFormatError as error:
            problem = words(str(error))
        else:
            branch, ref, prompt, until = branch_of(job), job.ref or "", job.prompt, job.until or ""
        unpushed = row.planned if row.planned != row.commit else None
        return JobDetails(
            reason=self._budget.reason(row.reason or ""),
            repository=words(row.repository),
            ref=words(ref),
            branch=words(branch),
            commit=words(row.commit or ""),
            unpushed=words(unpushed or ""),
            prompt=self._budget.task(prompt),
            until=words(until),
            after=self._line(", ".join(_names_in(row.after)), _WORDS_CHARS),
            problem=problem,
            answer=self._budget.words(row.result or ""),
            attempts=tuple(attempts[-_MOST_ATTEMPTS:]),
            more_attempts=max(len(attempts) - _MOST_ATTEMPTS, 0),
            commands=tuple(
                plain(one) for one in self._commands(row, branch if row.commit is not None else "") if one
            ),
        )

    def _words(self, text: str) -> str:
        return self._excerpts.of(text, _WORDS_CHARS).text

    def _commands(self, row: JobRow, pushed_branch: str) -> Iterator[str]:
        name = f"{row.set_name}/{row.id}"
        state = state_of(row)
        if state in {"failed", "cancelled"}:
            yield _command("ralph fleet retry", name)
        if state == "blocked":
            before = (self._by_key.get((row.set_name, one)) for one in _names_in(row.after))
            for cause in [one for one in before if one is not None and one.exit_code][:3]:
                yield _command("ralph fleet retry", f"{cause.set_name}/{cause.id}")
        if pushed_branch:
            yield _command("git fetch", row.repository, pushed_branch)
        if row.generation:
            follow = "-f " if state == "running" else ""
            yield _command(f"ralph fleet logs {follow}".rstrip(), name)

    # --- attempts

    def _attempts_of(self, key: tuple[str, str]) -> list[AttemptStory]:
        job, rows = self._by_key[key], self._attempts[key]
        made: list[AttemptStory] = []
        for at, row in enumerate(rows):
            after = rows[at + 1] if at + 1 < len(rows) else None
            kind = _end_of(row, job, is_last=after is None)
            before = made[-1] if made else None
            made.append(
                AttemptStory(
                    attempt=row.attempt,
                    machine=self._line(row.machine, _NAME_CHARS),
                    executor=self._line(row.executor, _NAME_CHARS),
                    kind=kind,
                    exit_code=row.exit_code,
                    outcome="" if row.exit_code is None else outcome_of(row.exit_code).value,
                    reason=self._line(row.reason or "", _REASON_CHARS),
                    began_s=row.started_at,
                    ended_s=self._end_s(row, job, after),
                    turns=row.turns,
                    cost_usd=row.cost_usd,
                    has_taken_over=before is not None and before.kind is AttemptKind.LOST,
                )
            )
        return made

    def _end_s(self, row: AttemptRow, job: JobRow, after: AttemptRow | None) -> float:
        if row.ended_at is not None:
            return max(row.ended_at, row.started_at)
        ends = [
            self._now_s,
            *([after.started_at] if after is not None else []),
            *([job.ended_at] if after is None and job.ended_at is not None else []),
            self._next_of_executor.get((row.executor, row.started_at), self._now_s),
        ]
        return max(min(ends), row.started_at)


def _next_starts(attempts: Sequence[AttemptRow]) -> dict[tuple[str, float], float]:
    """For each executor and the start of each of its attempts, the start of its next attempt."""
    starts: dict[str, list[float]] = defaultdict(list)
    for one in attempts:
        starts[one.executor].append(one.started_at)
    return {
        (executor, start): after
        for executor, found in starts.items()
        for start, after in itertools.pairwise(sorted(found))
    }


def _end_of(row: AttemptRow, job: JobRow, *, is_last: bool) -> AttemptKind:
    if row.ended_at is None:
        return AttemptKind.RUNNING if is_last and job.state is JobState.RUNNING else AttemptKind.LOST
    if row.exit_code is None:  # another worker has closed it
        return AttemptKind.LOST
    if not row.exit_code:
        return AttemptKind.DONE
    if is_last and job.state is JobState.CANCELLED:
        return AttemptKind.CANCELLED
    is_end = is_last and job.state in {JobState.DONE, JobState.UNDELIVERED}
    if not is_end and (row.exit_code in _RESUMABLE or row.exit_code > 128):
        return AttemptKind.LATER
    return AttemptKind.FAILED


def _names_in(after: str) -> list[str]:
    try:
        names = json.loads(after)
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _command(words: str, *arguments: str) -> str:
    """A command to copy. Empty if a word has characters that a terminal would obey or hide."""
    if not all(one.isprintable() and one and not one.startswith("-") for one in arguments):
        return ""
    return " ".join([words, *map(shlex.quote, arguments)])


def _size(text: str) -> int:
    hidden = 0 if text.isprintable() else sum(not char.isprintable() for char in text)
    return size_in_html(text) + hidden * _HIDDEN_BYTES

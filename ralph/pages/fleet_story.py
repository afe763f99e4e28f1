"""Makes the content of a fleet's report page from the rows of a store. No I/O happens here.

The page stays below 10 MB for any number of jobs: rows that have no room are counted.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ralph.fleet.decisions import JobState, badness, worst_exit_code
from ralph.fleet.listing import limits_text
from ralph.pages.content import (
    ExitCount,
    FleetContent,
    JobStory,
    SetStory,
    StateCount,
)
from ralph.pages.excerpts import Excerpts, size_in_html
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.fleet.store.schema import AttemptRow, JobRow, SetRow

_ROWS_BYTES, _ROW_BYTES = 5_000_000, 420
"""The room of all rows of jobs, and what one takes beside its texts."""
_MOST_SETS = 200
_MOST_EXITS = 30
_NAME_CHARS, _REASON_CHARS = 80, 160
_HIDDEN_BYTES = 16
"""The room of a character that the page shows by its name."""
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
    """The content of the page about these sets. `jobs` and `attempts` are all those of the sets."""
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
        self._attempts: dict[tuple[str, str], list[AttemptRow]] = defaultdict(list)
        for one in sorted(attempts, key=lambda one: one.generation):
            self._attempts[one.set_name, one.job].append(one)
        self._now_s = made_at_s
        self._left_out: list[str] = []

    def made(self, version: str) -> FleetContent:
        jobs = self._job_stories()
        sets = self._sets[:_MOST_SETS]
        if len(sets) < len(self._sets):
            self._left_out.append(f"{counted(len(self._sets) - len(sets), 'more set')}: ralph fleet ls")
        return FleetContent(
            made_at_s=self._now_s,
            version=version,
            place=self._place(),
            sets=tuple(self._set_story(row) for row in sets),
            exits=tuple(self._exits()),
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

    def _exits(self) -> Iterator[ExitCount]:
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
            )

    # --- jobs

    def _job_stories(self) -> list[JobStory]:
        made: list[JobStory] = []
        budget = _ROWS_BYTES
        for number, row in enumerate(self._jobs):
            story = self._job_story(row)
            budget -= _ROW_BYTES + sum(map(_size, (story.set_name, story.id, story.reason, story.machines)))
            if budget < 0:
                self._left_out.append(
                    f"{counted(len(self._jobs) - number, 'more job')}, all of them {story.state} or better: "
                    "ralph fleet ls SET"
                )
                break
            made.append(story)
        return made

    def _job_story(self, row: JobRow) -> JobStory:
        attempts = self._attempts[row.set_name, row.id]
        machines = list(dict.fromkeys(one.machine for one in attempts))
        return JobStory(
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
        )


def _command(words: str, *arguments: str) -> str:
    """A command to copy. Empty if a word has characters that a terminal would obey or hide."""
    if not all(one.isprintable() and one and not one.startswith("-") for one in arguments):
        return ""
    return " ".join([words, *map(shlex.quote, arguments)])


def _size(text: str) -> int:
    hidden = 0 if text.isprintable() else sum(not char.isprintable() for char in text)
    return size_in_html(text) + hidden * _HIDDEN_BYTES

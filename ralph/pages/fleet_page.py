"""Implements `ralph fleet report`, which writes one HTML page about all jobs of a store, or of some of its sets. The page stays
below 10 MB for any number of jobs: rows that have no room are counted.

All times are seconds since 1970. All texts are as users, models and servers wrote them, apart from redacted credentials: they
are not safe as HTML or on a terminal.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph import __version__
from ralph.fleet.jobs import JobState, badness, worst_exit_code
from ralph.fleet.listing import limits_text
from ralph.pages.command import place_of_page, put_page
from ralph.pages.content import Excerpts, size_in_html
from ralph.pages.page import headline_of, rendered
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from ralph.values.screen_text import counted, in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo

    from ralph.fleet.command import Fleet
    from ralph.fleet.schema import AttemptRow, JobRow, SetRow

_ROWS_BYTES, _ROW_BYTES = 5_000_000, 420
"""The room of all rows of jobs, and what one takes beside its texts."""
_MOST_SETS = 200
_MOST_EXITS = 30
_NAME_CHARS, _REASON_CHARS = 80, 160
_HIDDEN_BYTES = 16
"""The room of a character that the page shows by its name."""
_FAILED, _CANCELLING = "failed", "cancelling"
_BAD = ("failed", "blocked", "cancelled")
_WORST_FIRST = ("failed", "blocked", "cancelled", "cancelling", "running", "queued", "waiting", "done")


def write_fleet_report(
    store: Fleet, sets: Sequence[str], output: str | None, *, is_opened: bool, is_store_named: bool
) -> int:
    """Writes the page, prints where it is and its headline, and returns the exit code. `output` is the absolute path of the page,
    `-` for standard output, or None for the default. If `is_store_named`, the page says that its commands need the same option.
    Raises UsageError if there is no such set, or if the page must not be written there.
    """
    directories = (Path.cwd(),)
    path = place_of_page(output, directories)
    redactor = Redactor(known_secrets(os.environ))
    notes = ("The commands on this page need the same --db.",) if is_store_named else ()
    content = FleetStory(*store.rows_for_report(tuple(sets)), time.time(), Excerpts(redactor)).content(notes)
    html = fleet_html_of(content)
    lines = [redactor.redact_all(in_one_line(headline_of_fleet(content)))]
    is_done = put_page(html, path, lines, directories, is_opened=is_opened)
    return 0 if is_done else Outcome.IO_ERROR.exit_code()


class JobStory(Struct, frozen=True, kw_only=True):
    set_name: str
    id: str
    state: str
    """One word: done, failed, blocked, cancelled, cancelling, running, queued or waiting."""
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

    @property
    def verdict(self) -> str:
        """`good`, `bad` or `open`."""
        return "bad" if self.state in _BAD else "good" if self.state == "done" else "open"


class ExitCount(Struct, frozen=True):
    """How many jobs ended with an exit code."""

    exit_code: int
    outcome: str
    number: int
    reason: str
    """The reason of the first of them."""


class SetStory(Struct, frozen=True, kw_only=True):
    name: str
    limits: str
    jobs: int
    states: tuple[tuple[str, int], ...]
    """How many jobs have each state that a job has, from the worst to the best."""
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


class FleetContent(Struct, frozen=True, kw_only=True):
    made_at_s: float
    version: str
    place: str
    """The sets that the user asked for, in words."""
    sets: tuple[SetStory, ...]
    exits: tuple[ExitCount, ...]
    """The exit codes other than 0, from the worst to the best."""
    jobs: tuple[JobStory, ...]
    """From the worst to the best. Not all, if there are more than the page has room for."""
    notes: tuple[str, ...] = ()
    """Sentences about the commands on the page."""
    left_out: tuple[str, ...] = ()
    """Sentences about what the page has no room for, and where it is."""


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


class FleetStory:
    """Makes the content of the page from the rows of a store. `jobs` and `attempts` are all those of the sets."""

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

    def content(self, notes: tuple[str, ...] = ()) -> FleetContent:
        jobs = self._job_stories()
        sets = self._sets[:_MOST_SETS]
        if len(sets) < len(self._sets):
            self._left_out.append(f"{counted(len(self._sets) - len(sets), 'more set')}: ralph fleet ls")
        return FleetContent(
            made_at_s=self._now_s,
            version=__version__,
            place=self._place(),
            sets=tuple(self._set_story(row) for row in sets),
            exits=tuple(self._exits()),
            jobs=tuple(jobs),
            notes=notes,
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
        if any(states[state] for state in _BAD):
            commands.append(_command("ralph fleet retry --failed --set", name))
        if is_open:
            commands.append(_command("ralph fleet work", name))
        return SetStory(
            name=self._line(name, _NAME_CHARS),
            limits=limits_text(row.limits),
            jobs=len(jobs),
            states=tuple((state, states[state]) for state in _WORST_FIRST if states[state]),
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


# --- The page


class FleetTotals(Struct, frozen=True, kw_only=True):
    """The sums of all sets, for the head of the page."""

    headline: str
    verdict: str
    """`good`, `bad` or `open`."""
    jobs: int
    done: int
    states: list[tuple[str, int]]
    cost_usd: float
    reserved_usd: float
    budget_usd: float | None
    """None if a set has no budget."""
    turns: int
    began_s: float
    ended_s: float


def fleet_html_of(content: FleetContent, zone: tzinfo | None = None) -> bytes:
    """The page as one HTML file in UTF-8. `zone` is the time zone of its times, by default the machine's."""
    return rendered(
        "fleet.html",
        content,
        zone,
        totals=totals_of_sets(content),
        signs={"done": "✓", "failed": "✗", "blocked": "✗", "cancelled": "✗"},
    )


def totals_of_sets(content: FleetContent) -> FleetTotals:
    """The sums over all sets of the page, and the one sentence that says how they are."""
    numbers: dict[str, int] = {}
    for one in content.sets:
        for state, number in one.states:
            numbers[state] = numbers.get(state, 0) + number
    jobs, done = sum(one.jobs for one in content.sets), numbers.get("done", 0)
    bad = [f"{numbers[state]} {state}" for state in _BAD if state in numbers]
    still_open = sum(one.open_jobs for one in content.sets)
    is_open = [f"{still_open} open"] if still_open else []
    headline = f"{', '.join([*bad, *is_open])} of {counted(jobs, 'job')}"
    budgets = [one.budget_usd for one in content.sets if one.budget_usd is not None]
    return FleetTotals(
        headline=headline if bad or is_open else f"All done: {counted(jobs, 'job')}",
        verdict="bad" if bad else "open" if is_open else "good",
        jobs=jobs,
        done=done,
        states=list(numbers.items()),
        cost_usd=sum(one.cost_usd for one in content.sets),
        reserved_usd=sum(one.reserved_usd for one in content.sets),
        budget_usd=sum(budgets) if budgets and len(budgets) == len(content.sets) else None,
        turns=sum(one.turns for one in content.sets),
        began_s=min((one.began_s for one in content.sets), default=content.made_at_s),
        ended_s=max((one.ended_s for one in content.sets), default=content.made_at_s),
    )


def headline_of_fleet(content: FleetContent) -> str:
    """One line about all sets."""
    totals = totals_of_sets(content)
    first = next(iter(content.exits), None)
    worst = "" if first is None else f"; the worst: exit {first.exit_code}, {headline_of(first.outcome)}"
    return f"{content.place}: {totals.headline}{worst}"

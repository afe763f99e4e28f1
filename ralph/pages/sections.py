"""Makes the content of a page about one session or one loop, from journals that were read, the loop's record and the
facts of git. No I/O happens here.
"""

from __future__ import annotations

from datetime import datetime
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.events import continue_command, resume_hint
from ralph.loop.rules import tasks_text
from ralph.loop.state import CurrentIteration, IterationRecord, LoopState
from ralph.pages.content import (
    LOOP_WAITS,
    ChangedFile,
    CheckRun,
    Commit,
    Count,
    Mark,
    MarkKind,
    Point,
    Section,
    SectionPart,
    Stretch,
    StretchKind,
)
from ralph.pages.transcript import MOST_DETAILS, Incidents, RunTimeline, stretches_of, with_known
from ralph.sessions.places import title_from
from ralph.sessions.store import shell_word
from ralph.sessions.story import KILLED, RUNNING, RunStory
from ralph.values.usage import total_usd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ralph.loop.values import CheckResult
    from ralph.pages.command import JournalRead
    from ralph.pages.content import PageBudget


_TITLE_CHARS = 160
_NOTE_ON_TIMES = "an older ralph wrote a part of this, without the times"
_NOTE_ON_SECRETS = (
    "an older ralph made a part of this, and did not record where secrets are: only keys of known forms, and credentials "
    "of the environment in which this page was made, are cut out of it"
)
_WAITED_FOR = {
    "outage": "the API was unavailable",
    "shortage": "this machine lacked a process, a thread, memory or a file descriptor",
    "kill": "the iteration was killed",
}


class GitFacts(Struct, frozen=True):
    """The commits and files that git shows for a section."""

    commits: tuple[Commit, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about what could not be found out."""
    more_commits: int = 0
    """The number of commits that are not in `commits`."""
    more_files: int = 0


class LoopFacts(Struct, frozen=True):
    """A loop as the page needs it."""

    number: str
    """The name of the loop's folder."""
    state: LoopState
    task: str
    is_running: bool
    is_newest: bool
    """True if `ralph loop --continue` would resume this loop."""
    journals: Mapping[str, JournalRead]
    """The journals of the iterations by session id. A journal that is not there has no entry."""
    checks: Mapping[int, str]
    """The output of the check after each iteration."""


def session_section(
    read: JournalRead, git: GitFacts, budget: PageBudget, *, now_s: float, resume: str | None
) -> Section:
    """The section of a session. `resume` is the command that resumes it, or None if nothing is left to do."""
    story = read.story
    own = own_runs(read)
    shown = own or read.transcript.runs
    last = story.runs[-1] if story.runs else None
    ended = last.ended if last is not None else None
    written_at_s = read.look.written_at_s
    opening = story.opening
    section = Section(
        id=read.id,
        is_loop=False,
        title=budget.excerpts.line(story.title or "", _TITLE_CHARS),
        task=budget.task(story.task),
        directory="" if opening is None else budget.excerpts.plain(opening.cwd),
        model=budget.excerpts.line(", ".join(read.transcript.models), _TITLE_CHARS),
        outcome=read.outcome,
        exit_code=None if ended is None else ended.exit_code,
        reason=budget.reason("" if last is None else _reason(last)),
        answer=budget.words("" if last is None else _answer(last)),
        began_s=shown[0].began_s if shown else written_at_s,
        ended_s=now_s if read.is_running else shown[-1].now_s if shown else written_at_s,
        turns=story.turns,
        # The records after the damage may contain further costs.
        cost_usd=story.cost_usd if read.problem is None else None,
        budget_usd=None,
        time_limit_s=None,
        parts=tuple(_run_parts(read, budget, now_s=now_s)),
        contexts=_points(run.contexts for run in own),
        costs=_costs(own),
        counts=_counts([read.transcript.incidents]),
        notes=(*_notes_on([read]), *git.notes),
        resume_command=resume,
        files=git.files,
    )
    return _with_commits(section, git)


def _run_parts(read: JournalRead, budget: PageBudget, *, now_s: float) -> list[SectionPart]:
    story = read.story
    until_s = now_s if read.is_running else None
    entries = read.transcript.entries()
    parts = []
    for at, (run, timeline) in enumerate(zip(story.runs, read.transcript.runs, strict=True)):
        is_last = at == len(story.runs) - 1
        outcome = read.outcome if is_last else KILLED
        parts.append(
            _part(
                [timeline],
                until_s if is_last else None,
                number=at + 1,
                session_id=read.id,
                outcome=outcome if run.ended is None else run.ended.outcome,
                reason=budget.reason(_reason(run)),
                last_words=budget.words(_answer(run)),
                turns=run.turns,
                cost_usd=None if is_last and read.problem is not None else run.cost_usd,
                entries=tuple(entries[at]),
                is_copied=run.is_copied,
                problem=read.problem if is_last else None,
            )
        )
    return parts


def loop_section(facts: LoopFacts, git: GitFacts, budget: PageBudget, *, now_s: float) -> Section:
    state = facts.state
    outages = _outages(state)
    parts = [
        _iteration_part(one, facts.journals.get(one.session_id), outages, facts, budget=budget, now_s=now_s)
        for one in iterations_of(state)
    ]
    runs = [run for read in facts.journals.values() for run in read.transcript.runs]
    began_s = seconds_of(state.started_at) or min((run.began_s for run in runs), default=now_s)
    end = None if facts.is_running else state.ended
    outcome = RUNNING if facts.is_running else KILLED if end is None else end.outcome.value
    last_s = max(seconds_of(state.updated_at) or began_s, *(run.now_s for run in runs), began_s)
    models = dict.fromkeys(name for read in facts.journals.values() for name in read.transcript.models)
    plan = state.plan
    hint = None if end is None else resume_hint(state, end)
    resumes = facts.is_newest and not facts.is_running and (end is None or hint is not None)
    answers = [record.last_words for record in state.iterations if record.last_words]
    notes = (
        *state.warnings,
        # The page has the command itself. A hint says more only after a limit.
        *([hint] if hint and resumes and hint != f"continue with: {continue_command(state)}" else []),
        *_notes_on(facts.journals.values()),
        *_first_of(git.notes),
    )
    names = dict.fromkeys(name for record in state.iterations for name in record.files)
    recorded = (ChangedFile(budget.excerpts.plain(name), None, None, is_committed=False) for name in names)
    section = Section(
        id=facts.number,
        is_loop=True,
        title=budget.excerpts.line(title_from(facts.task), _TITLE_CHARS),
        task=budget.task(facts.task),
        directory=budget.excerpts.plain(plan.directory),
        model=budget.excerpts.line(plan.agent or ", ".join(models), _TITLE_CHARS),
        outcome=outcome,
        exit_code=None if end is None else end.exit_code,
        reason=budget.reason("" if end is None else end.reason),
        answer=budget.words(answers[-1] if answers else ""),
        began_s=began_s,
        ended_s=now_s if facts.is_running else last_s,
        turns=sum(part.turns for part in parts),
        cost_usd=total_usd(part.cost_usd for part in parts),
        budget_usd=plan.limits.max_budget_usd,
        time_limit_s=plan.limits.max_time_s,
        parts=tuple(parts),
        outages=tuple(outages),
        first_check=_check(state.first_check, budget),
        costs=_costs(runs),
        contexts=_points(run.contexts for run in runs),
        counts=_counts([read.transcript.incidents for read in facts.journals.values()], outages),
        notes=tuple(map(budget.reason, notes)),
        resume_command=budget.excerpts.plain(f"ralph loop --continue --cd {shell_word(plan.directory)}")
        if resumes
        else None,
        files=git.files or tuple(recorded),
    )
    return _with_commits(section, git)


def own_runs(read: JournalRead) -> list[RunTimeline]:
    """The runs of a session that it made itself, without those that a fork copied."""
    by_run = zip(read.story.runs, read.transcript.runs, strict=True)
    return [timeline for run, timeline in by_run if not run.is_copied]


def _first_of(notes: Sequence[str]) -> list[str]:
    more = len(notes) - MOST_DETAILS
    return [*notes[:MOST_DETAILS], *([f"and {more} more of this kind"] if more > 0 else [])]


def iterations_of(state: LoopState) -> list[IterationRecord | CurrentIteration]:
    """The iterations of the loop. The last one may not have ended."""
    return [*state.iterations, *([state.current] if state.current is not None else [])]


def _iteration_part(
    one: IterationRecord | CurrentIteration,
    read: JournalRead | None,
    known: Sequence[Stretch],
    facts: LoopFacts,
    *,
    budget: PageBudget,
    now_s: float,
) -> SectionPart:
    """`read` is the journal of the iteration, or None if there is none."""
    state = facts.state
    is_running = one is state.current and facts.is_running
    ended_s = seconds_of(getattr(one, "ended_at", None))
    check_s = getattr(one, "check_s", None)
    if ended_s is not None and check_s:
        known = [*known, Stretch(StretchKind.CHECK, ended_s - check_s, ended_s, "the check")]
    outcome = getattr(one, "outcome", None) or (state.ended.outcome if state.ended is not None else None)
    last = read.story.runs[-1] if read is not None and read.story.runs else None
    turns, cost_usd = one.turns, one.cost_usd
    if read is not None and last is not None and one is state.current:
        # The record of an iteration is updated when its process has ended.
        turns, cost_usd = max(read.story.turns, turns), read.story.cost_usd
    return _part(
        [] if read is None else read.transcript.runs,
        now_s if is_running else None,
        known,
        began_s=seconds_of(one.started_at),
        ended_s=ended_s,
        number=one.number,
        is_finished=one is not state.current,
        session_id=one.session_id,
        outcome=RUNNING if is_running else KILLED if outcome is None else outcome.value,
        reason=budget.reason(getattr(one, "reason", "") or ("" if last is None else _reason(last))),
        last_words=budget.words(getattr(one, "last_words", "") or ("" if last is None else _answer(last))),
        turns=turns,
        cost_usd=cost_usd,
        entries=() if read is None else tuple(chain.from_iterable(read.transcript.entries())),
        check=_iteration_check(one, facts, budget),
        problem=_why_missing(one, facts) if read is None else read.problem,
    )


def _why_missing(one: IterationRecord | CurrentIteration, facts: LoopFacts) -> str | None:
    """Why there is no journal of an iteration, or None if an iteration needs none, or needs none yet."""
    if facts.state.plan.agent is not None or (one is facts.state.current and not one.turns):
        return None
    named = facts.state.plan.session_directory
    where = f"in {named} " if named is not None else ""
    return f"its session {one.session_id[:8]} is not {where}any more: it was deleted, by hand or because of its age"


def _part(
    runs: Sequence[RunTimeline],
    until_s: float | None,
    known: Iterable[Stretch] = (),
    *,
    outcome: str,
    began_s: float | None = None,
    ended_s: float | None = None,
    **fields: Any,
) -> SectionPart:
    """A part with its timeline. `known` are stretches that the loop's record tells."""
    stretches = stretches_of(runs, until_s)
    if began_s is None and runs:
        began_s = runs[0].began_s
    if ended_s is None and runs and until_s is None:
        ended_s = runs[-1].now_s
    if began_s is not None:
        last_s = max(filter(None, (ended_s, until_s, began_s)))
        known = [clipped for one in known if (clipped := _clipped(one, began_s, last_s)) is not None]
        stretches = with_known(stretches, known)
    return SectionPart(
        outcome=outcome,
        began_s=began_s,
        ended_s=ended_s,
        stretches=tuple(stretches),
        marks=tuple(mark for run in runs for mark in run.marks),
        **fields,
    )


def _clipped(one: Stretch, began_s: float, ended_s: float) -> Stretch | None:
    began_s, ended_s = max(one.began_s, began_s), min(one.ended_s, ended_s)
    return replace(one, began_s=began_s, ended_s=ended_s) if began_s < ended_s else None


def _outages(state: LoopState) -> list[Stretch]:
    found = []
    for wait in state.waits:
        began_s, ended_s = seconds_of(wait.began_at), seconds_of(wait.ended_at)
        if began_s is not None and ended_s is not None and began_s < ended_s:
            why = _WAITED_FOR.get(wait.setback, wait.setback)
            found.append(Stretch(StretchKind.OUTAGE, began_s, ended_s, f"waiting: {why}"))
    return found


def _iteration_check(
    one: IterationRecord | CurrentIteration, facts: LoopFacts, budget: PageBudget
) -> CheckRun | None:
    """The verdict of the check after an iteration, or of the gate if the check did not run, with the open tasks of the plan."""
    if not isinstance(one, IterationRecord):
        return None
    state = facts.state
    tasks = None if state.plan.plan is None else tasks_text(one.open_tasks)
    name, verdict, last = "check", one.check, state.last_check
    if verdict is None:
        name, verdict, last = "gate", one.gate, state.last_gate
    if verdict is None:
        return None if tasks is None else CheckRun(tasks, one.open_tasks == 0, "", "plan")
    output = facts.checks.get(one.number, "")
    if not output and one is state.last and last is not None and last.words == verdict:
        output = last.tail
    shown = budget.excerpts.plain(", ".join(filter(None, (verdict, tasks))))
    return CheckRun(shown, verdict == "passed", budget.check(output), name)


def _check(result: CheckResult | None, budget: PageBudget) -> CheckRun | None:
    if result is None:
        return None
    return CheckRun(budget.excerpts.plain(result.words), result.passed, budget.check(result.tail), "check")


def _with_commits(section: Section, git: GitFacts) -> Section:
    """Adds the commits and the numbers of what is not shown, and their marks to the iterations that made them."""
    parts = []
    for part in section.parts:
        made = [
            commit
            for commit in git.commits
            if (commit.iteration == part.number if section.is_loop else _is_within(commit.at_s, part))
        ]
        marks = [
            Mark(MarkKind.COMMIT, _placed(commit.at_s, part), f"commit {commit.id[:8]}: {commit.subject}")
            for commit in made
        ]
        in_order = sorted((*part.marks, *marks), key=lambda mark: mark.at_s)
        parts.append(replace(part, marks=tuple(in_order), commits=len(made)))
    return replace(
        section,
        commits=git.commits,
        parts=tuple(parts),
        more_commits=git.more_commits,
        more_files=git.more_files,
    )


def _is_within(at_s: float, part: SectionPart) -> bool:
    if part.is_copied or part.began_s is None:
        return False
    # git rounds the time of a commit down to a second.
    return part.began_s - 1 <= at_s and (part.ended_s is None or at_s <= part.ended_s)


def _placed(at_s: float, part: SectionPart) -> float:
    """The time of a commit, moved into the part if the clock that made it was wrong."""
    at_s = max(at_s, part.began_s or at_s)
    return min(at_s, part.ended_s) if part.ended_s is not None else at_s


def _counts(all_incidents: Iterable[Incidents], outages: Sequence[Stretch] = ()) -> tuple[Count, ...]:
    whole = Incidents()
    for stretch in outages:
        whole.add(LOOP_WAITS, f"{stretch.ended_s - stretch.began_s:.0f} s {stretch.label}")
    for incidents in all_incidents:
        for name, number in incidents.numbers.items():
            whole.add(name, *incidents.details[name], number=number)
    return tuple(Count(name, number, tuple(whole.details[name])) for name, number in whole.numbers.items())


def _points(of_runs: Iterable[list[Point]]) -> tuple[Point, ...]:
    return tuple(sorted(chain.from_iterable(of_runs), key=lambda point: point.at_s))


def _costs(runs: Iterable[RunTimeline]) -> tuple[Point, ...]:
    """The total cost after each attempt."""
    points = _points(run.costs for run in runs)
    totals = accumulate(point.value for point in points)
    return tuple(Point(point.at_s, total) for point, total in zip(points, totals, strict=True))


def _reason(run: RunStory) -> str:
    reasons = list(run.ended.errors) if run.ended is not None else []
    if run.delivery is not None and run.undelivered is not None:
        reasons.append(run.undelivered)
    return "; ".join(reasons)


def _answer(run: RunStory) -> str:
    return "" if run.ended is None else run.ended.result or ""


def _notes_on(reads: Iterable[JournalRead]) -> list[str]:
    """Sentences about what an older ralph did not record in these journals."""
    reads = [*reads]
    on_times = [_NOTE_ON_TIMES] if any(read.transcript.lacks_times for read in reads) else []
    return [*on_times, *([_NOTE_ON_SECRETS] if any(read.is_unmarked for read in reads) else [])]


def seconds_of(text: str | None) -> float | None:
    """An ISO 8601 time in seconds since 1970, or None if the text is not a time."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None

"""Gathers the content of a report page: reads the journals, the loops' records and git. Changes nothing."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph import __version__
from ralph.conversation.journal_lines import CHUNK_BYTES, CheckedLines, JournalDamage, record_of, written_at
from ralph.conversation.secret_spans import RecordView
from ralph.loop.directory.checkout import holder_of
from ralph.loop.record import FileRecord, LoopStore, RecordError
from ralph.machine.files.opened_file import open_regular_file, read_regular_file
from ralph.pages.content import PageContent, Section
from ralph.pages.excerpts import Excerpts, PageBudget
from ralph.pages.git_changes import CommitRange, GitQuestion, GitReader, git_reader
from ralph.pages.sections import (
    GitFacts,
    LoopFacts,
    iterations_of,
    loop_section,
    own_runs,
    seconds_of,
    session_section,
)
from ralph.pages.transcript import SHARE_OF_FIRST, PageTranscript
from ralph.sessions.looking import SessionLook, look_by
from ralph.sessions.skimming import record_without_texts
from ralph.sessions.store import SessionStore
from ralph.sessions.story import DAMAGED, KILLED, NEWER_FORMAT, RUNNING, SessionStory
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from ralph.values.resume_command import NEXT_PROMPT, resume_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.conversation.journal_lines import Read
    from ralph.loop.state import LoopState
    from ralph.pages.command import ReportSubject

MOST_SECTIONS = 100
"""The maximum number of sections on a page. A directory may have thousands of sessions."""
_MOST_PROMPT_BYTES = 1024 * 1024


class GatheredPage(Struct, frozen=True):
    content: PageContent
    exit_code: int
    """0, or the exit code of the first thing that could not be read."""
    writable: tuple[str, ...] = ()
    """The directories that commands of these sessions could write."""


class _OpenedLoop(Struct, frozen=True):
    record: FileRecord
    state: LoopState
    paths: dict[str, Path]
    """The journals of the iterations by session id."""


def gather(
    subject: ReportSubject,
    environment: Mapping[str, str],
    session_directory: Path | None,
    *,
    page: Path | None = None,
) -> GatheredPage:
    """Reads everything that the page shows. `page` is the path of the page itself, which is not a change of the work."""
    return _Gathering(subject, environment, session_directory, page).done()


class _Gathering:
    def __init__(
        self,
        subject: ReportSubject,
        environment: Mapping[str, str],
        session_directory: Path | None,
        page: Path | None,
    ) -> None:
        self._subject = subject
        self._environment = environment
        self._session_directory = session_directory
        self._secrets = known_secrets(environment)
        self._redactor = Redactor(self._secrets)
        self._excerpts = Excerpts(self._redactor)
        self._store = SessionStore.to_read(environment, session_directory)
        self._now_s = time.time()
        self._own_files = () if page is None else (page,)
        self._missing: list[str] = []
        self._exit_code = 0
        self._writable: dict[str, None] = {}

    def done(self) -> GatheredPage:
        loops = [loop for record in self._subject.loops if (loop := self._opened(record)) is not None]
        of_loops = dict.fromkeys(path for loop in loops for path in loop.paths.values())
        sessions = [path for path in self._subject.sessions if path not in of_loops]
        left_out = len(sessions) - max(MOST_SECTIONS - len(loops), 0)
        if left_out > 0:
            sessions = sessions[:-left_out]
            self._missing.append(
                f"the oldest {left_out} sessions are left out: a page shows {MOST_SECTIONS}; `ralph sessions ls` "
                "lists them all"
            )
        lines = {path: number_of_lines(path) for path in (*of_loops, *sessions)}
        share = PageShare(sum(lines.values()))
        reads: dict[Path, JournalRead] = {}
        found: set[str] = set()
        for at, path in enumerate(lines):
            view = RecordView(self._redactor)
            with suppress(FileNotFoundError):  # it was deleted just now
                reads[path] = read_journal(
                    path, share, lines[path], self._excerpts, prefix=f"s{at}", view=view
                )
            found |= view.found
        # What the journals say is secret may be in commits, in the output of a check or in a loop's record too.
        self._excerpts = Excerpts(Redactor(self._secrets | found))
        budget = PageBudget(
            self._excerpts,
            sections=len(loops) + len(sessions),
            parts=len(loops) + sum(max(len(read.story.runs), 1) for read in reads.values()),
        )
        sections: list[Section] = []
        with git_reader(self._environment, self._excerpts, sections=budget.sections) as git:
            sections += [self._loop(loop, reads, git, budget) for loop in loops]
            for path in sessions:
                if path in reads:
                    sections += self._session(reads[path], git, budget)
        sections.sort(key=lambda section: section.ended_s, reverse=True)
        content = PageContent(
            self._now_s,
            __version__,
            tuple(sections),
            self._excerpts.plain(self._subject.place),
            tuple(self._missing),
        )
        return GatheredPage(content, self._exit_code, tuple(self._writable))

    def _tell_missing(self, text: str, outcome: Outcome) -> None:
        self._missing.append(self._excerpts.plain(text))
        self._exit_code = self._exit_code or outcome.exit_code()

    def _tell_damage(self, read: JournalRead) -> None:
        if read.problem is not None:
            outcome = Outcome.CONFIG if read.look.outcome == NEWER_FORMAT else Outcome.IO_ERROR
            self._tell_missing(f"session {read.id}: {read.problem}", outcome)

    def _opened(self, record: FileRecord) -> _OpenedLoop | None:
        try:
            state = record.load()
        except RecordError as error:
            self._tell_missing(str(error), error.outcome)
            return None
        named = state.plan.session_directory
        store = SessionStore.to_read(self._environment, Path(named)) if named is not None else self._store
        journals = {path.stem: path for path in store.of(Path(state.plan.directory))}
        paths = {}
        for one in iterations_of(state):
            # The session may lie elsewhere, for example if the directory was reached through a link.
            found = (
                [journals[one.session_id]]
                if one.session_id in journals
                else store.starting_with(one.session_id)
            )
            if found:
                paths[one.session_id] = found[0]
        return _OpenedLoop(record, state, paths)

    def _loop(
        self, loop: _OpenedLoop, reads: Mapping[Path, JournalRead], git: GitReader, budget: PageBudget
    ) -> Section:
        state, record = loop.state, loop.record
        directory = Path(state.plan.directory)
        is_newest = self._is_newest(record, directory)
        is_running = (
            state.ended is None and is_newest and holder_of(directory, record.folder.parent) == state.pid
        )
        journals = {session: reads[path] for session, path in loop.paths.items() if path in reads}
        for read in journals.values():
            self._tell_damage(read)
        checks = {one.number: tail for one in state.iterations if (tail := record.check_tail(one.number))}
        facts = LoopFacts(
            str(int(record.folder.name)), state, self._task_of(state), is_running, is_newest, journals, checks
        )
        asked = self._asked(git, self._question(state, is_newest=is_newest))
        return loop_section(facts, asked, budget, now_s=self._now_s)

    def _asked(self, git: GitReader, question: GitQuestion) -> GitFacts:
        self._writable |= dict.fromkeys((str(question.directory), *map(str, question.writable)))
        return git.facts(question)

    def _is_newest(self, record: FileRecord, directory: Path) -> bool:
        """Whether `ralph loop --continue` would resume the loop of this record."""
        with suppress(RecordError):
            return LoopStore(self._store, directory).newest().folder == record.folder
        return False

    def _task_of(self, state: LoopState) -> str:
        """The task of the loop. If it is in a file, the text that the file has now."""
        plan = state.plan
        if plan.prompt is not None or plan.prompt_file is None:
            return plan.prompt or ""
        with suppress(OSError):
            return read_regular_file(plan.prompt_file, _MOST_PROMPT_BYTES).decode("utf-8", "replace")
        return ""

    def _question(self, state: LoopState, *, is_newest: bool) -> GitQuestion:
        ranges = [
            CommitRange(one.number, one.head_before, one.head_after)
            for one in state.iterations
            if one.head_before is not None and one.head_after is not None
        ]
        if len(ranges) < len(state.iterations):  # an older ralph did not record the commits
            ranges = []
        elif state.current is not None and is_newest:
            ranges.append(CommitRange(state.current.number, state.current.head, None))
        # Between two iterations, a person may commit, or a loop that is resumed.
        between = [
            CommitRange(None, one.after, following.before)
            for one, following in pairwise(ranges)
            if one.after is not None
        ]
        ranges = [one for pair in zip_longest(ranges, between) for one in pair if one is not None]
        return GitQuestion(
            Path(state.plan.directory),
            tuple(ranges),
            began_s=seconds_of(state.started_at) or 0.0,
            ended_s=(seconds_of(state.updated_at) if state.ended is not None else None) or self._now_s,
            has_uncommitted=is_newest,
            left_out=(*self._own_files, *map(Path, state.plan.own_paths)),
            looked=(
                *(each for one in state.iterations for each in one.looked or ()),
                *(() if state.current is None else state.current.looked),
            ),
            is_unmarked=any(one.looked is None for one in state.iterations),
            writable=state.plan.reach,
        )

    def _session(self, read: JournalRead, git: GitReader, budget: PageBudget) -> list[Section]:
        """The section of a session. Empty if nothing of the journal could be read."""
        story = read.story
        self._tell_damage(read)
        if story.opening is None and not story.runs:
            return []
        facts = self._asked(git, self._question_of(read))
        resume = None if read.is_running or not story.task else self._resume_command(read)
        return [session_section(read, facts, budget, now_s=self._now_s, resume=resume)]

    def _question_of(self, read: JournalRead) -> GitQuestion:
        story = read.story
        directory = Path("/" if story.opening is None else story.opening.directory)
        own = own_runs(read)
        return GitQuestion(
            directory,
            began_s=own[0].began_s if own else read.look.written_at_s,
            ended_s=self._now_s if read.is_running else read.look.written_at_s,
            has_uncommitted=self._store.last_of(directory) == read.look.path,
            left_out=self._own_files,
            looked=tuple(one for run in story.runs for one in run.looked),
            is_unmarked=read.is_unmarked,
            writable=tuple(dict.fromkeys(place for run in story.runs for place in run.opening.writable)),
        )

    def _resume_command(self, read: JournalRead) -> str:
        story = read.story
        is_completed = read.outcome == Outcome.COMPLETED.value
        command = resume_command(
            self._store.short_name(read.id),
            cwd=None if story.opening is None else story.opening.directory,
            session_dir=None if self._session_directory is None else str(self._session_directory),
            again=story.runs[-1].opening.again if story.runs else None,
            prompt=NEXT_PROMPT if is_completed else None,
        )
        return self._excerpts.plain(command)


# --- A journal
# Reads the journals of a report page. A journal is read in chunks and never held in memory as a whole. Of a damaged
# journal, everything before the damage is read.
#
# In a long journal, only the first and the last lines are decoded completely. Of the lines between them, only the
# times, durations, costs and sizes are decoded, because their texts have no room on the page.

UNKNOWN = "unknown"
# The texts of all entries of a page, in bytes of HTML. A page must stay under 10 MB, and the rest takes about 4 MB.
_BUDGET_BYTES = 5_000_000
_MOST_CHARS, _LEAST_CHARS = 16_000, 250
_MOST_ENTRIES = 6_000
_LEAST_ENTRIES = 6
_LINES_PER_ENTRY = 2
"""A turn with one call has five lines or more: the attempt, its sum, the answer, the intent and the result. They make
one or two entries."""


class JournalRead(Struct, frozen=True):
    look: SessionLook
    transcript: PageTranscript
    is_unmarked: bool
    """True if an older ralph made a part of it, and did not record where secrets are."""

    @property
    def id(self) -> str:
        return self.look.id

    @property
    def story(self) -> SessionStory:
        return self.transcript.story

    @property
    def is_running(self) -> bool:
        return self.look.outcome == RUNNING

    @property
    def problem(self) -> str | None:
        """Why the journal cannot be shown, or not all of it. None if all is shown."""
        is_cut = self.look.outcome in {DAMAGED, NEWER_FORMAT}
        return f"{self.look.problem}; what follows cannot be shown" if is_cut else self.look.problem

    @property
    def outcome(self) -> str:
        """The outcome of the last run, or `RUNNING`, `KILLED` or `UNKNOWN`."""
        if self.is_running:
            return RUNNING
        if self.problem is not None:
            return UNKNOWN
        ended = self.story.runs[-1].ended if self.story.runs else None
        return KILLED if ended is None else ended.outcome


class PageShare(Struct, frozen=True):
    """The room on the page for the records of all journals."""

    lines: int
    """The number of lines in all journals."""

    @property
    def most_chars(self) -> int:
        """The length to which texts are cut."""
        entries = max(min(self.lines // _LINES_PER_ENTRY, _MOST_ENTRIES), 1)
        # An entry has a text and often a result.
        return min(max(_BUDGET_BYTES // entries // 2, _LEAST_CHARS), _MOST_CHARS)

    def entries_of(self, lines: int) -> int:
        """The number of entries for a journal of `lines` lines."""
        return max(_MOST_ENTRIES * lines // max(self.lines, 1), _LEAST_ENTRIES)


def number_of_lines(path: Path) -> int:
    """The number of lines of a file. 0 if it cannot be read."""
    try:
        with os.fdopen(open_regular_file(path), "rb", 0) as file:
            return sum(chunk.count(b"\n") for chunk in iter(partial(file.read, CHUNK_BYTES), b""))
    except OSError:
        return 0


def read_journal(
    path: Path, share: PageShare, lines: int, excerpts: Excerpts, *, prefix: str, view: RecordView
) -> JournalRead:
    """Reads a journal. `lines` is its number of lines, and `prefix` begins the ids of its entries. `view` cuts the
    secrets out of the records. Raises FileNotFoundError.
    """
    most = share.entries_of(lines)
    complete = most * _LINES_PER_ENTRY
    between = range(complete // SHARE_OF_FIRST, lines - complete + complete // SHARE_OF_FIRST)

    def new_transcript() -> PageTranscript:
        shown_by = f"ralph sessions export {path.stem}"
        return PageTranscript(prefix, share.most_chars, most, shown_by, excerpts)

    made = [new_transcript()]

    def fold(read: Read, size: int) -> tuple[SessionStory, JournalDamage | None]:
        made[0] = transcript = new_transcript()
        try:
            for number, _, kind, line in CheckedLines(read, size):
                record = record_without_texts(line, kind) if number in between else None
                has_texts = record is None
                record = record or record_of(line, number, view)
                transcript.take(record, written_at(line), number, has_texts=has_texts)
        except JournalDamage as damage:
            return transcript.story, damage
        return transcript.story, None

    look = look_by(path, fold)
    return JournalRead(look, made[0], view.has_unmarked)

"""Implements `ralph report`, which writes one HTML page about a loop, a session, or everything of a directory. Reads the journals,
the records of the loops and git, and changes none of them.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph import __version__
from ralph.conversation.journal_lines import (
    CHUNK_BYTES,
    CheckedLines,
    JournalDamage,
    RecordView,
    record_of,
    written_at,
)
from ralph.loop.checkout import holder_of
from ralph.loop.record import FileRecord, LoopStore, RecordError
from ralph.loop.values import REPORT_PAGE
from ralph.machine.files.opened_file import open_regular_file, read_regular_file
from ralph.machine.own_programs import own_environment, own_program, search_around
from ralph.machine.starting import start_process
from ralph.output.result_file import result_file_problem, write_result_file
from ralph.output.standard_streams import ReaderLeftError, complain, print_bytes, print_lines
from ralph.pages.content import Excerpts, PageBudget, PageContent, Section
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
from ralph.places.gather import why_protected
from ralph.sessions.looking import SessionLook, look_by, named_journal, record_without_texts
from ralph.sessions.places import written_at as file_written_at
from ralph.sessions.store import NEXT_PROMPT, SessionStore, resume_command
from ralph.sessions.story import DAMAGED, KILLED, NEWER_FORMAT, RUNNING, SessionStory
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor
from ralph.values.screen_text import counted, dollars, duration, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.conversation.journal_lines import Read
    from ralph.loop.state import LoopState

NEWEST_LOOP = "loop"
_MOST_LOOP_DIGITS = 6
"""A longer number is the beginning of a session's id."""


class ReportSubject(Struct, frozen=True):
    """The loops and sessions of one page."""

    place: str
    """The user's request, in words."""
    loops: tuple[FileRecord, ...] = ()
    sessions: tuple[Path, ...] = ()
    """The paths of journals. The reader leaves those of the loops' iterations out."""


def find_subject(
    what: str | None, directory: Path, environment: Mapping[str, str], session_directory: Path | None
) -> ReportSubject:
    """Finds what `what` names: a session, a loop or a directory. None names the newest loop of `directory`, or its
    newest session if it has no loop. Raises UsageError if there is no such session or loop.
    """
    store = SessionStore.to_read(environment, session_directory)
    loops = LoopStore(store, directory)
    recorded = {int(record.folder.name): record for record in reversed(loops.all_records())}
    if what == NEWEST_LOOP or (what is None and recorded):
        try:
            return _of_loop(loops.newest(), directory)
        except RecordError as error:
            raise UsageError(str(error)) from None
    if what is None:
        last = store.last_of(directory)
        if last is None:
            raise UsageError(
                f"there is no loop and no session of {directory} yet; `ralph sessions ls --all` lists all sessions"
            )
        return ReportSubject(f"session {last.stem}", sessions=(last,))
    if what.isascii() and what.isdecimal() and len(what) <= _MOST_LOOP_DIGITS:
        if int(what) in recorded:
            return _of_loop(recorded[int(what)], directory)
        if not store.starting_with(what):
            kept = ", ".join(map(str, sorted(recorded)))
            there = f"loops of this directory: {kept}" if kept else "no loop is recorded here"
            raise UsageError(f"there is no loop {what} in {directory}, and no such session; {there}")
    elif (
        os.sep in what
        or what in {os.curdir, os.pardir}
        or (Path(what).is_dir() and not store.starting_with(what))  # no beginning of a session's id
    ):
        return _everything_of(directory / what, store)
    path = named_journal(store, what)
    return ReportSubject(f"session {path.stem}", sessions=(path,))


def _of_loop(record: FileRecord, directory: Path) -> ReportSubject:
    return ReportSubject(f"loop {record.folder.name} of {directory}", loops=(record,))


def _everything_of(directory: Path, store: SessionStore) -> ReportSubject:
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}")
    directory = directory.resolve()
    loops = tuple(LoopStore(store, directory).all_records())
    sessions = tuple(sorted(store.of(directory), key=file_written_at, reverse=True))
    if not loops and not sessions:
        raise UsageError(f"there is no loop and no session of {directory} yet")
    return ReportSubject(f"everything of {directory}", loops, sessions)


MARK_OF_PAGE = b'<meta name="generator" content="ralph report">'
"""Stands within the first `_BEGINNING_BYTES` of each page. By this text ralph recognises a page that it may replace
without being told its name."""
_BEGINNING_BYTES = 2048
_STANDARD_OUTPUT = "-"
_BROWSER_ANSWERS_WITHIN_S = 5.0
_MOST_HEADLINES = 10


def write_report(
    what: str | None,
    directory: Path,
    output: str | None = None,
    *,
    is_opened: bool = False,
    session_directory: str | None = None,
) -> int:
    """Writes the page, prints where it is and its headline, and returns the exit code. `what` is the session, loop or directory
    that the user named. `directory` is that of the loops and sessions, absolute and with links resolved. `output` is the
    absolute path of the page, `-` for standard output, or None for the default. Raises UsageError if there is nothing to show
    or if the page must not be written to the requested place.
    """
    environment = dict(os.environ)
    redact = Redactor(known_secrets(environment)).redact_all
    directories = [directory]
    with suppress(FileNotFoundError):
        directories.append(Path.cwd())
    path = place_of_page(output, directories)
    sessions = None if session_directory is None else Path(session_directory)
    for line in SessionStore.to_read(environment, sessions).skipped(directory):
        complain(line)
    subject = find_subject(what, directory, environment, sessions)
    gathered = gather(subject, environment, sessions, page=path)
    content = gathered.content
    for problem in content.missing:
        complain(redact(problem))
    if not content.sections:
        return gathered.exit_code
    from ralph.pages.page import html_of  # noqa: PLC0415 - the help of three commands needs no template engine

    html = html_of(content)
    lines = [redact(in_one_line(headline(section))) for section in content.sections[:_MOST_HEADLINES]]
    more = len(content.sections) - _MOST_HEADLINES
    lines += [f"and {more} more"] if more > 0 else []
    is_done = put_page(html, path, lines, directories, is_opened=is_opened, writable=gathered.writable)
    return gathered.exit_code if is_done else Outcome.IO_ERROR.exit_code()


def put_page(
    html: bytes,
    path: Path | None,
    lines: Sequence[str],
    directories: Sequence[Path],
    *,
    is_opened: bool,
    writable: Sequence[str] = (),
) -> bool:
    """Writes the page to the file, which only the user can read, or to standard output if `path` is None, and prints where it is and the lines.
    Returns False if the file cannot be written, which standard error then tells. `directories` are those of
    `place_of_page`, and `writable` are those that commands of these sessions could write.
    """
    with suppress(ReaderLeftError):
        if path is None:
            print_bytes(html)
            for line in lines:
                complain(line)
            return True
        try:
            write_result_file(str(path), html, (*directories, *writable), is_private=True)
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror}")
            return False
        print_lines([str(path.parent.resolve() / path.name), *lines])
    if is_opened and path is not None:
        _open(path, os.environ, (*map(str, directories), *writable), complain)
    return True


def headline(section: Section) -> str:
    """One line that says how the work ended, and what it took."""
    name = f"loop {section.id}" if section.is_loop else f"session {section.id[:8]}"
    why = f": {section.reason}" if section.reason else ""
    parts = [counted(len(section.parts), "iteration")] if section.is_loop else []
    parts += [
        counted(section.turns, "turn"),
        dollars(section.cost_usd),
        duration(section.ended_s - section.began_s),
    ]
    parts += [counted(len(section.commits) + section.more_commits, "commit")] if section.commits else []
    return f"{name}: {section.outcome}{why} ({', '.join(parts)})"


def place_of_page(output: str | None, directories: Sequence[Path]) -> Path | None:
    """The absolute path of the page, or None for standard output. `output` is as in `write_report`. No link within
    the repositories of `directories` may lead the page out of them, and it replaces no protected file. Raises UsageError
    if the page cannot or must not be written there.
    """
    if output == _STANDARD_OUTPUT:
        return None
    path = Path(output) if output is not None else Path.cwd() / REPORT_PAGE
    problem = result_file_problem(str(path), directories) or why_protected(str(path), directories, os.environ)
    if problem is None and output is None and os.path.lexists(path) and not _is_page(path):
        problem = f"{path} is there, and `ralph report` did not write it"
    if problem is not None:
        raise UsageError(f"{problem}; name another file (-o FILE)" if output is None else problem)
    return path


def _is_page(path: Path) -> bool:
    """Whether the file is a page that ralph made. A link is none."""
    with suppress(OSError):
        descriptor = open_regular_file(path, os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            return MARK_OF_PAGE in file.read(_BEGINNING_BYTES)
    return False


def _open(
    path: Path, environment: Mapping[str, str], roots: Sequence[str], tell: Callable[[str], None]
) -> None:
    """Shows the page in the user's browser. Tells the user if there is no browser. In `roots`, commands could put programs."""
    is_mac = sys.platform == "darwin"
    # Without a display, xdg-open starts a browser in the terminal, or none.
    has_display = is_mac or any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    name = "open" if is_mac else "xdg-open"
    search = search_around(environment, roots)
    program = own_program(name, search) if has_display else None
    if program is None:
        why = f"there is no program {name}" if has_display else "there is no display"
        tell(f"the page is not opened: {why}")
        return
    # xdg-open is a script: it finds further programs, and the browser, on PATH.
    safe = own_environment(child_environment(environment, (), known_secrets(environment)), search)
    try:
        process = start_process(
            [program, path.as_uri()],
            stdout=DEVNULL,
            stderr=DEVNULL,
            env=safe,
            start_new_session=True,
        )
        code = process.wait(_BROWSER_ANSWERS_WITHIN_S)
    except TimeoutExpired:  # the browser itself, which stays
        return
    except OSError as error:
        tell(f"the page is not opened: {error.strerror}")
        return
    if code:
        tell(f"the page is not opened: {name} ended with {code}")


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


# A journal is read in chunks and never held in memory as a whole. Of a damaged
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

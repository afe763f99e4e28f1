"""Implements `ralph report`, which writes one HTML page about a loop, a session, or everything of a directory."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.loop.record import FileRecord, LoopStore, RecordError
from ralph.loop.values import REPORT_PAGE
from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.own_programs import own_environment, own_program, search_around
from ralph.machine.starting import start_process
from ralph.output.result_file import result_file_problem, write_result_file
from ralph.output.standard_streams import ReaderLeftError, complain, print_bytes, print_lines
from ralph.pages.gathering import gather
from ralph.places.gather import why_protected
from ralph.sessions.looking import named_journal
from ralph.sessions.places import written_at
from ralph.sessions.store import SessionStore
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor
from ralph.values.screen_text import counted, dollars, duration, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.pages.content import Section

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
    sessions = tuple(sorted(store.of(directory), key=written_at, reverse=True))
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

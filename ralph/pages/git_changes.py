"""Asks git for the commits of a session or loop with their diffs, and for the files that it changed. Git runs no program that the
repository names: no external diff, no text conversion, no hook, no pager, no signature check. The time, the output and
the memory of each call are bounded. The working directory and the repository are not changed.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.git.answer import CheckoutError, shown
from ralph.git.checkout import kept_commits
from ralph.git.commit_diffs import (
    AS_STORED,
    DIFF_OF_EACH,
    FOR_ALL,
    MOST_COMMITS,
    PLAINLY,
    NumberedFile,
    contents_of,
    diffs_in,
    files_in,
    numbers_in,
    with_parents,
)
from ralph.git.look import OWN_DIRECTORY
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.paths import repository_top
from ralph.machine.starting import environment_for_commands
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.pages.content import ChangedFile, Commit, Excerpts, FileDiff, size_in_html
from ralph.pages.sections import GitFacts
from ralph.places.gather import gather_places
from ralph.places.git_places import borrowed_objects
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import ShortageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.values.redaction import LookedCommit

# Several sections share these two numbers and `MOST_COMMITS`.
_MOST_FILES = 1_000
_MOST_FILES_OF_COMMIT = 100
_MOST_OUTPUT_BYTES = 16 * 1024 * 1024
_MOST_DIFF_BYTES = 6 * 1024 * 1024
# All diffs of a page, in bytes of HTML. Where there are many, each gets less.
_DIFF_BUDGET_BYTES = 2_000_000
_LEAST_COMMITS, _LEAST_FILES = 10, 30
_MOST_DIFF_BYTES_OF_FILE, _LEAST_DIFF_BYTES = 30_000, 300
_MARKUP_OF_LINE_BYTES = 12
_MOST_LINES = 600
_SUBJECT_CHARS, _BODY_CHARS = 300, 4_000
_CALL_LIMIT_S = 20.0
_LIMITS = {"most_bytes": _MOST_OUTPUT_BYTES, "limit_s": _CALL_LIMIT_S}
_NO_MESSAGE = b"(the message is left out)"
_NO_NAME = "(a name is left out)"

_TIME = re.compile(rb"^committer .*> (-?\d{1,12}) [+-]\d{4}$", re.MULTILINE)


class CommitRange(Struct, frozen=True):
    """The commits of one iteration, or between two iterations: those that `after` has and `before` has not. An empty `before` stands for the
    state before the first commit.
    """

    iteration: int | None
    """The number of the iteration, or None for commits between two iterations."""
    before: str
    after: str | None
    """None stands for the current commit, if the iteration has not ended."""


class GitQuestion(Struct, frozen=True):
    directory: Path
    ranges: tuple[CommitRange, ...] = ()
    """The commits of each iteration, as the loop recorded them. If it is empty, the commits between `began_s` and
    `ended_s` are taken."""
    began_s: float = 0.0
    ended_s: float = 0.0
    has_uncommitted: bool = False
    """True if the uncommitted files of the working directory are a part of the work."""
    left_out: tuple[Path, ...] = ()
    """Absolute paths of files that ralph itself writes."""
    looked: tuple[LookedCommit, ...] = ()
    """The commits in which the work itself has looked for secrets."""
    is_unmarked: bool = False
    """True if an older ralph made the work, which looked into no commit."""
    writable: tuple[str, ...] = ()
    """The directories besides the checkout that commands of the work could write."""


class _Marks:
    """The parts of the commits of a work that a page must leave out, as the work has recorded them. This does not depend on the
    secrets that the process knows which makes the page.
    """

    def __init__(self, question: GitQuestion) -> None:
        self._looked = {one.id: one for one in question.looked}
        self._is_unmarked = question.is_unmarked
        self.have_names = any(one.are_names_secret for one in question.looked)
        """True if names of changed files hold a secret."""

    def may_show(self, commit: str, path: str) -> bool:
        """Whether the diff of a file may be shown."""
        looked = self._looked.get(commit)
        return self._is_unmarked if looked is None else path not in looked.files

    def without_message(self, commit: str, content: bytes) -> bytes:
        """The content of a commit, without its message if that may hold a secret."""
        looked = self._looked.get(commit)
        is_shown = self._is_unmarked if looked is None else not looked.is_message_secret
        return content if is_shown else content.partition(b"\n\n")[0] + b"\n\n" + _NO_MESSAGE

    def without_names(self, commit: str, files: Sequence[NumberedFile]) -> Sequence[NumberedFile]:
        """The files of a commit, without their names if these hold a secret."""
        looked = self._looked.get(commit)
        if looked is None or not looked.are_names_secret:
            return files
        return [(_NO_NAME, None, None) for _ in files]

    def notes(self, commits: Sequence[str]) -> Iterator[str]:
        """Yields sentences about what is left out of the commits that are shown."""
        looked = [self._looked[one] for one in commits if one in self._looked]
        if left_out := len(commits) - len(looked):
            yield (
                f"an older ralph made the work: in {left_out} of its commits only keys of known forms are cut out"
                if self._is_unmarked
                else f"the messages and diffs of {left_out} commits are left out: ralph did not search them for secrets"
            )
        names = [*dict.fromkeys(path for one in looked for path in one.files)]
        if names:
            yield f"the diffs of these files are left out, because they hold secrets: {shown(names)}"
        if self.have_names:
            yield "the names of some changed files are left out, because they hold secrets"


class GitReader:
    """Answers the questions of one page. Used in `git_reader`."""

    def __init__(
        self, seams: GitSeams, excerpts: Excerpts, sections: int = 1, environment: Mapping[str, str] = {}
    ) -> None:
        """`sections` is the number of sections that share the page. The variables of `environment` say where secrets are."""
        self._environment = environment
        self._seams = seams
        self._excerpts = excerpts
        self._most_commits = max(MOST_COMMITS // sections, _LEAST_COMMITS)
        self._most_files = max(_MOST_FILES // sections, _LEAST_FILES)
        self._diffs_bytes = _DIFF_BUDGET_BYTES // sections

    def facts(self, question: GitQuestion) -> GitFacts:
        """The answer to the question. If git fails, a note says why."""
        try:
            top = repository_top(question.directory)
        except OSError as error:
            return GitFacts(notes=(f"git could not be asked: {error.strerror}",))
        if top is None:
            return GitFacts(
                notes=("the directory is not in a git checkout: only the record shows what changed",)
            )
        try:
            self._refuse_borrowed(str(top))
            seams = replace(self._seams, writable=question.writable)
            return self._asked(CheckoutGit(top, seams, FOR_ALL), question)
        except (CheckoutError, ShortageError, OSError, ValueError) as error:
            return GitFacts(notes=(self._excerpts.plain(f"git could not list the commits: {error}"),))

    def _refuse_borrowed(self, top: str) -> None:
        """Raises CheckoutError if git would read objects that the work may not read."""
        borrowed = dict(borrowed_objects(top))
        places = gather_places((top,), self._environment) if borrowed else None
        for path, leading in borrowed.items():
            if places is not None and places.why_not_read(path) is not None:
                raise CheckoutError(f"{leading} leads to objects in {path}, which must not be read")

    def _asked(self, git: CheckoutGit, question: GitQuestion) -> GitFacts:
        notes: list[str] = []
        made = self._by_ranges(git, question, notes) if question.ranges else self._by_times(git, question)
        more_commits = max(len(made) - self._most_commits, 0)
        if more_commits:
            notes.append(f"the last {self._most_commits} of {len(made)} commits are shown")
            made = made[-self._most_commits :]
        marks = _Marks(question)
        commits = self._commits(git, made, marks)
        notes += map(self._excerpts.plain, marks.notes([one for one, _ in made]))
        ends = _ends_of(git, question, [one for one, _ in made])
        files: list[ChangedFile] = []
        try:
            files += [] if ends is None or marks.have_names else self._between(git, *ends)
            files += (
                self._uncommitted(git, question) if question.has_uncommitted and not marks.have_names else []
            )
        except CheckoutError as error:  # the commits are known all the same
            notes.append(self._excerpts.plain(f"git did not list all changed files: {error}"))
        more_files = max(len(files) - self._most_files, 0)
        if more_files:
            notes.append(f"the first {self._most_files} of {len(files)} changed files are shown")
        shown = tuple(files[: self._most_files])
        return GitFacts(tuple(commits), shown, tuple(notes), more_commits, more_files)

    def _by_ranges(
        self, git: CheckoutGit, question: GitQuestion, notes: list[str]
    ) -> list[tuple[str, int | None]]:
        """The ids of the commits of each iteration, the oldest first, with the iteration's number. The number of git
        calls does not depend on the number of iterations.
        """
        head = git.resolved("HEAD") or "" if any(one.after is None for one in question.ranges) else ""
        ends = [(one, head if one.after is None else one.after) for one in question.ranges]
        ends = [(one, after) for one, after in ends if after and one.before != after]
        asked = {each for one, after in ends for each in (one.before, after) if each}
        kept = kept_commits(partial(_read, git), asked)
        ranges = []
        for one, after in ends:
            if after in kept and (not one.before or one.before in kept):
                ranges.append((one, after))
                continue
            which = f"of iteration {one.iteration}" if one.iteration is not None else "between two iterations"
            notes.append(f"the commits {which} are no longer in the repository")
        if not ranges:
            return []
        first = ranges[0][0].before
        revisions = [*dict.fromkeys(after for _, after in ranges), *([f"^{first}"] if first else [])]
        listed = _read(
            git,
            *("rev-list", "--topo-order", "--parents", "--stdin"),
            given="".join(f"{one}\n" for one in revisions).encode(),
        )
        # The newest commits come first. The last line may be incomplete.
        parents = {line[0]: line[1:] for text in listed.decode().split("\n")[:-1] if (line := text.split())}
        oldest_first = {each: at for at, each in enumerate(reversed(parents))}
        assigned: set[str] = set()
        made: list[tuple[str, int | None]] = []
        for one, after in ranges:
            _ancestors(one.before, parents, assigned)
            its = sorted(_ancestors(after, parents, assigned), key=oldest_first.__getitem__)
            made += [(each, one.iteration) for each in its]
        return made

    def _by_times(self, git: CheckoutGit, question: GitQuestion) -> list[tuple[str, int | None]]:
        """The ids of the commits of the current branch that were made in the time of the work."""
        if git.resolved("HEAD") is None:
            return []
        # git rounds the time of a commit down to a second.
        times = [f"--since=@{int(question.began_s)}", f"--until=@{int(question.ended_s) + 1}"]
        listed = _read(git, "rev-list", "--reverse", "--topo-order", *times, "HEAD")
        return [(each, None) for each in listed.decode().split()]

    def _commits(
        self, git: CheckoutGit, made: Sequence[tuple[str, int | None]], marks: _Marks
    ) -> list[Commit]:
        if not made:
            return []
        contents = contents_of(git, (one for one, _ in made), **_LIMITS)
        listed = with_parents(git, contents)
        compare = partial(git.change, *DIFF_OF_EACH, given=listed, **AS_STORED)
        files = files_in(compare("--numstat", "-z", **_LIMITS))
        output = compare("-p", most_bytes=_MOST_DIFF_BYTES, limit_s=_CALL_LIMIT_S)
        diffs = self._without_secrets(git.top, diffs_in(output), marks)
        shown = sum(min(len(its), _MOST_FILES_OF_COMMIT) for its in files.values())
        most_bytes = max(self._diffs_bytes // max(shown, 1), _LEAST_DIFF_BYTES)
        return [
            self._commit(
                one,
                marks.without_message(one, contents.get(one, b"")),
                marks.without_names(one, files.get(one, [])),
                diffs.get(one, {}),
                most_bytes=most_bytes,
                iteration=number,
            )
            for one, number in made
        ]

    def _without_secrets(
        self, top: Path, diffs: Mapping[str, Mapping[str, bytes]], marks: _Marks
    ) -> dict[str, dict[str, bytes]]:
        """The diffs of each commit. A diff is empty if the table of places hides the file, or if it may hold a secret."""
        places = gather_places((str(top),), self._environment)
        return {
            commit: {
                path: diff
                if marks.may_show(commit, path) and places.why_not_read(f"{top}/{path}") is None
                else b""
                for path, diff in its.items()
            }
            for commit, its in diffs.items()
        }

    def _commit(
        self,
        identifier: str,
        content: bytes,
        files: Sequence[NumberedFile],
        diffs: Mapping[str, bytes],
        *,
        most_bytes: int,
        iteration: int | None,
    ) -> Commit:
        head, _, message = content.partition(b"\n\n")
        found = _TIME.search(head)
        subject, _, body = message.decode("utf-8", "replace").strip().partition("\n")
        shown = [
            self._file(path, added, removed, diffs.get(path, b""), most_bytes)
            for path, added, removed in files[:_MOST_FILES_OF_COMMIT]
        ]
        excerpt = self._excerpts.of(body.strip(), _BODY_CHARS)
        is_cut = len(shown) < len(files) or any(file.cut_lines for file in shown) or bool(excerpt.cut_chars)
        is_lost = len(diffs) < len(files)
        rest = files[len(shown) :]
        return Commit(
            identifier,
            self._excerpts.line(subject, _SUBJECT_CHARS),
            excerpt.text,
            float(found[1]) if found is not None else 0.0,
            tuple(shown),
            iteration=iteration,
            shown_by=f"git show {identifier[:12]}" if is_cut or is_lost else None,
            more_files=len(rest),
            more_added=sum(added or 0 for _, added, _ in rest),
            more_removed=sum(removed or 0 for _, _, removed in rest),
        )

    def _file(
        self, path: str, added: int | None, removed: int | None, diff: bytes, most_bytes: int
    ) -> FileDiff:
        name = self._excerpts.plain(path)
        if added is None or removed is None:
            return FileDiff(name, 0, 0, "")
        lines = diff.decode("utf-8", "replace").split("\n") if diff else []
        kept, size = 0, 0
        for line in lines[:_MOST_LINES]:
            size += size_in_html(line) + _MARKUP_OF_LINE_BYTES
            if size > min(most_bytes, _MOST_DIFF_BYTES_OF_FILE):
                break
            kept += 1
        text = self._excerpts.plain("\n".join(lines[:kept]).rstrip("\n"))
        left_out = sum(1 for line in lines[kept:] if line)
        if not lines and added + removed:  # the diff is behind the end of what was read
            left_out = added + removed
        return FileDiff(name, added, removed, text, left_out)

    def _between(self, git: CheckoutGit, before: str, after: str) -> list[ChangedFile]:
        base = before or _read(git, "hash-object", "-t", "tree", "--stdin", given=b"").decode().strip()
        output = _read(git, "diff-tree", "-r", *PLAINLY, "--numstat", "-z", base, after)
        return [
            ChangedFile(self._excerpts.plain(path), added, removed, is_committed=True)
            for path, added, removed in numbers_in(output)
        ]

    def _uncommitted(self, git: CheckoutGit, question: GitQuestion) -> list[ChangedFile]:
        """The files of the working directory that differ from the current commit, without ralph's own files."""
        own = {os.path.relpath(os.path.realpath(path), git.top) for path in question.left_out}
        found: list[NumberedFile] = []
        if git.resolved("HEAD") is not None:
            found += numbers_in(_read(git, "diff", *PLAINLY, "--numstat", "-z", "HEAD"))
        untracked = _read(git, "ls-files", "--others", "--exclude-standard", "-z")
        found += [(os.fsdecode(path), None, None) for path in untracked.split(b"\0") if path]
        return [
            ChangedFile(self._excerpts.plain(path), added, removed, is_committed=False)
            for path, added, removed in found
            if path not in own and OWN_DIRECTORY not in Path(path).parts
        ]


@contextmanager
def git_reader(environment: Mapping[str, str], excerpts: Excerpts, *, sections: int) -> Iterator[GitReader]:
    """Makes a `GitReader`. Its git gets the environment without credentials. `sections` is as in `GitReader`."""
    harmless = child_environment(environment, (), known_secrets(environment))
    supervisor = CommandSupervisor(environment_for_commands(harmless), most_processes=0)
    clock = SystemClock()
    try:
        yield GitReader(
            GitSeams(harmless, supervisor, InboxWaiter(clock), clock), excerpts, max(sections, 1), environment
        )
    finally:
        supervisor.close()


def _read(git: CheckoutGit, *arguments: str, **options: Any) -> bytes:
    """As `Git.read`, but within the limits of a page: the output is cut off behind them."""
    return git.read(*arguments, **_LIMITS, **options)


def _ancestors(identifier: str, parents: Mapping[str, Sequence[str]], assigned: set[str]) -> list[str]:
    """The commit and its ancestors, as far as `parents` has them and `assigned` does not. Adds them to `assigned`."""
    found: list[str] = []
    waiting = [identifier]
    while waiting:
        one = waiting.pop()
        if one in parents and one not in assigned:
            assigned.add(one)
            found.append(one)
            waiting += parents[one]
    return found


def _ends_of(git: CheckoutGit, question: GitQuestion, made: Sequence[str]) -> tuple[str, str] | None:
    """The commit before the work and the last commit of the work. None if the work made no commit."""
    if not made:
        return None
    before = question.ranges[0].before if question.ranges else git.resolved(f"{made[0]}^") or ""
    is_known = not before or kept_commits(partial(_read, git), [before])
    return (before, made[-1]) if is_known else None

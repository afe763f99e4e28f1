"""The git checkout that a loop works in: finds changes, commits them and pushes them. This module never discards
uncommitted work: it does not reset, check out, clean or stash. It does not stage files that ralph itself writes, such
as ralph's output, and a change of these files is not progress.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shlex
import shutil
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.answer import CheckoutError, shown
from ralph.git.commit_diffs import FOR_ALL, look_through
from ralph.git.credentials import paths_with_new_credentials, take_changes_out, why_not_pushed
from ralph.git.large_files import unfiltered, why_unfiltered
from ralph.git.look import (
    Changes,
    FileDigests,
    OwnPaths,
    Snapshot,
    counted,
    differing,
    is_refused,
    look,
    looked,
    status_of,
)
from ralph.git.push import COMMIT_ID, Push, count_commits, identity_of, local_path
from ralph.git.runner import CheckoutGit, git_directory_of, nul_ended
from ralph.git.settings import (
    Pins,
    changed_names,
    guarded_settings,
    pins_of,
    pins_text,
    read_pins,
    remote_settings,
)
from ralph.machine.files.paths import common_directory, git_entry
from ralph.machine.files.trees import OwnDirectory
from ralph.machine.own_programs import search_outside
from ralph.places.gather import changed_by_run, users_relative_programs
from ralph.places.git_config import LFS_STORAGE
from ralph.places.git_places import borrowed_objects, foreign_directories, git_places
from ralph.places.nested_repositories import look_below
from ralph.places.places import below_tops
from ralph.places.planted_in_git import may_be_written, separate_logs
from ralph.places.table import TOLD, git_entries_with
from ralph.sandbox.left_behind import why_left_behind
from ralph.values.outcome import Outcome, shortage_of
from ralph.values.redaction import LookedCommit, Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.git.look import GitStatus, RepositoryLook, StatusEntry
    from ralph.git.runner import GitSeams
    from ralph.places.nested_repositories import Look
    from ralph.values.ports import Waiter

    UnpublishedIn = Callable[[str], Callable[[str, bool], bool]]

# Files in git's directory during an unfinished operation.
_UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}
_MOST_HOOKS = 200
_RED, _RED_BESIDE = "ralph/red-", "ralph-red-"
"""The beginning of the names of branches with work that the gate of a loop did not let through. The second one is for a repository
with a branch `ralph`: git makes no branch below another."""
_WITH_OWN_INDEX = ("-c", "core.splitIndex=false")
"""Options for calls with an index elsewhere: git would write its shared part into the git directory."""
_LOCKS = ("index.lock", "HEAD.lock")
_MESSAGES = ("MERGE_MSG", "SQUASH_MSG")
"""Files with a message for the next commit, which each commit removes."""
_TIP_FORMAT = "--format=%(objectname) %(refname)"
"""With a commit's date in it, one branch without its commit would be an error."""
_SAY_WHERE = ("commondir", "gitdir", "config", "config.worktree")
"""Files in a git directory that say where its remotes are, or where that is said (gitrepository-layout(5))."""
_COMMIT_HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg")
# A commit of a large repository holds its locks for a second or two. One that is older than this was left behind.
_LOCK_ENDS_WITHIN_S = 5.0
_LOCK_IS_LEFT_AFTER_S = 60.0
_LOCK_LOOKS_S = 0.1
# So often a copy of the index is made, if other git commands change that meanwhile.
_COPIES = 10
# Git's own message is a page long; these two commands are its summary.
IDENTITY_ADVICE = "git config user.name NAME && git config user.email ADDRESS"


class GitCheckout:
    """Implements `Checkout` with git. It works on the whole repository, even if the loop works in a subdirectory."""

    def __init__(
        self,
        top: Path,
        directory: Path,
        *,
        plan_file: str,
        seams: GitSeams,
        own_paths: tuple[Path, ...] = (),
        writable: tuple[Path, ...] = (),
        warn: Callable[[str], None] = lambda _text: None,
        redactor: Redactor | None = None,
        unpublished_in: UnpublishedIn = lambda _top: lambda _path, _is_in_head: False,
    ) -> None:
        """`own_paths` are as in `OwnPaths`. `writable` lists the directories outside the checkout where the agent may write.
        `warn` tells the user what a commit leaves out. `redactor` finds the secrets in commits. `unpublished_in` tells which
        files no commit takes, as that of `CommandBox`.
        """
        self.top = top
        self._seams = seams
        self._directory = directory.resolve()
        self._plan = os.path.normpath(self._directory / plan_file)
        self._own = OwnPaths(top, self._directory, own_paths)
        self._given = tuple(Path(os.path.realpath(place)) for place in (self._directory, *writable))
        self._pins: Pins | None = None
        self._tips: list[str] = []
        """The branches and the stash at the last snapshot, each with its commit."""
        self._last: tuple[Snapshot, RepositoryLook] | None = None
        """The last snapshot with its look, until a commit uses it."""
        self._warn, self._warned = warn, dict[str, str]()
        self._redactor = redactor or Redactor()
        self._unpublished_in = unpublished_in
        self._holds_secret_names = False
        self._is_below = below_tops([*map(str, self._given)])
        self._began_s = seams.clock.utc_now().timestamp()

    @cached_property
    def git_directory(self) -> Path:
        """As `git_directory_of`. Raises CheckoutError and Interrupted."""
        try:
            return git_directory_of(self.top)
        except CheckoutError:
            self.git()  # git says what is wrong
            raise

    @cached_property
    def _real_top(self) -> str:
        return os.path.realpath(self.top)

    @cached_property
    def _takes_no(self) -> Callable[[str, bool], bool]:
        return self._unpublished_in(self._real_top)

    def git(self, waiter: Waiter | None = None) -> CheckoutGit:
        """A `CheckoutGit` for one operation, with the current git settings. Raises CheckoutError and Interrupted."""
        return CheckoutGit(self.top, replace(self._seams, waiter=waiter or self._seams.waiter))

    def snapshot(self) -> Snapshot:
        digests = FileDigests(self._seams.waiter, self._seams.clock)
        git = self.git()
        lines, files = list[str](), dict[str, str]()
        found = look(git, digests, lines, files, own=self._own)
        status = found.status
        self._tips = (
            git.read("for-each-ref", _TIP_FORMAT, "refs/heads", "refs/stash")
            .decode("utf-8", "surrogateescape")
            .splitlines()
        )
        lines += self._tips
        guarded = guarded_settings(git.settings) | self._hooks(digests)
        # The content of the plan file counts even if git ignores the file.
        files[os.path.relpath(self._plan, self.top)] = digests.of_target(self._plan)
        lines += [f"{path}\0{digest}" for path, digest in sorted(files.items())]
        whole = hashlib.sha256("\0\0".join(lines).encode("utf-8", "surrogateescape"))
        made = Snapshot(whole.hexdigest(), status.head, files, status.branch, guarded)
        self._last = made, found
        return made

    def _hooks(self, digests: FileDigests) -> dict[str, str]:
        """The digest of each of the first hooks but samples, by its path relative to the git directory. Empty if unreadable."""
        found: dict[str, str] = {}
        # All working trees of a repository share a directory. It is looked for each time: a command can change which.
        directory = self._shared
        for entry in git_entries_with(TOLD):
            with suppress(OSError), os.scandir(directory / entry) as listing:
                names = [one.name for one in islice(listing, _MOST_HOOKS) if not one.name.endswith(".sample")]
                paths = [f"{entry}/{name}" for name in names]
                found |= {path: digests.of_target(str(directory / path)) for path in paths}
        return found

    def changes(self, before: Snapshot, after: Snapshot) -> Changes:
        """The changes between two snapshots. If the repository lacks the commit of `before`, as after a rebase, the number of
        commits is 0, and files are compared only by their digests.
        """
        files, commits = set(differing(before.files, after.files)), 0
        if before.head != after.head:
            git = self.git()
            ids = {head for head in (before.head, after.head) if head}
            if kept_commits(git.read, ids) == ids:
                committed = _committed_differences(git, before.head, after.head)
                files |= {path for path in committed if not self._own.hold(path)}
                until = [f"^{before.head}"] if before.head else []
                commits = count_commits(git, after.head, *until) if after.head else 0
        self._tell_once("elsewhere", self._left_elsewhere(after))
        guarded = differing(before.guarded, after.guarded)
        return Changes(commits, tuple(sorted(files)), tuple(sorted(guarded)))

    def _left_elsewhere(self, after: Snapshot) -> str:
        """A sentence about commits since the loop began, on branches and in a stash, that neither HEAD nor a remote has, or ""."""
        tips = [line.split(" ", 1) for line in self._tips]
        others = [(commit, ref) for commit, ref in tips if ref != f"refs/heads/{after.branch}"]
        if not others:
            return ""
        git, left, known = self.git(), list[str](), ["--not", *filter(None, [after.head]), "--remotes"]
        commits = "".join(f"{commit}\n" for commit, _ in others).encode()
        dated = git.answer(
            "rev-list", "--no-walk", "--ignore-missing", "--timestamp", "--stdin", given=commits
        )
        made_at = {commit: int(date) for date, commit in map(str.split, dated.output.decode().splitlines())}
        for commit, ref in others:
            if made_at.get(commit, 0) < int(self._began_s):
                continue
            found = git.answer("rev-list", "--max-count=1", commit, *known)
            if found.output or found.status:  # a commit before it may be missing
                left.append(ref.removeprefix("refs/heads/").removeprefix("refs/"))
        what = "which the loop neither continues nor pushes; git log NAME shows it"
        return f"work was left on {shown(left)}, {what}" if left else ""

    def commit(self, message: str, seen: Snapshot | None = None) -> bool:
        """Commits all uncommitted work and returns whether there was any. If `seen` is the last snapshot, its look is used once,
        because in a large tree another one would take as long as the commit. Skips untracked repositories inside this one,
        those whose configuration names a program, and, also if they are staged, protected files below the working directory and
        files that agents may not read. Raises Interrupted. Raises CheckoutError if the commit fails, during a merge, and without
        a branch.
        """
        self._prepare_to_write()
        git = CheckoutGit(self.top, self._seams, _WITH_OWN_INDEX)
        last, self._last = self._last, None
        found = last[1] if last is not None and last[0] is seen else looked(git)
        for _ in range(_COPIES):
            self.refuse_unfinished(found.status)
            self.refuse_detached(found.status)
            self.refuse_locked(found.status)
            tree, is_in_place = self._tree_of_work(git, found, takes_place=True)
            if is_in_place:
                break
        else:
            raise CheckoutError(f"another git command keeps changing the index of {self.top}")
        if tree is None:
            return False
        head = found.status.head
        commit = _commit_of(git, tree, head, message)
        git.change("update-ref", "-m", "commit: " + message.partition("\n")[0], "HEAD", commit, head)
        for name in _MESSAGES:
            with suppress(OSError):
                (self.git_directory / name).unlink()
        return True

    def commit_aside(
        self, message: str, *, earlier: str | None, has_work: bool, pushes: bool, limit_s: float
    ) -> str | None:
        """Commits HEAD and, if `has_work` is True, all uncommitted work to a new branch `ralph/red-N`, where N is the lowest
        free number. HEAD, index and files stay as they are. If the branch `earlier` holds the same already, makes no other.
        `pushes` says whether the branch will be pushed: the remote's names are taken then, and commits that the remote lacks
        are reason enough for a branch. Returns the name of the branch, or None if there is nothing to keep.

        Raises Interrupted and OSError. Raises CheckoutError if that fails or takes longer than `limit_s`.
        """
        self._prepare_to_write()
        ends_at_s = self._seams.clock.now_s() + limit_s
        git = CheckoutGit(self.top, replace(self._seams, ends_at_s=ends_at_s), _WITH_OWN_INDEX)
        found = looked(git)
        head = found.status.head
        tree = None
        if has_work:
            self.refuse_unfinished(found.status)
            tree, _ = self._tree_of_work(git, found)
        if tree is None and (not pushes or not head or self.unpushed() == 0):
            return None
        if earlier is not None and _holds(git, earlier, tree, head):
            return earlier
        commit = head if tree is None else _commit_of(git, tree, head, message)
        branch = self._free_branch(git, found.status, pushes=pushes)
        if self._seams.clock.now_s() > ends_at_s:
            raise CheckoutError(f"git took longer than {limit_s:g} s")
        # An empty old value: the branch must not exist (git-update-ref(1)).
        git.change("update-ref", f"refs/heads/{branch}", commit, "")
        return branch

    def _tree_of_work(
        self, git: CheckoutGit, found: RepositoryLook, *, takes_place: bool = False
    ) -> tuple[str | None, bool]:
        """The tree that a commit of all uncommitted work has, or None if there is none. It is made in a copy of the index:
        git holds the lock of an index while it reads files, and a kill would leave the lock. If `takes_place` is True, the
        copy then takes the place of the index, and the second value is False if another git command has changed or
        locked that. Raises CheckoutError, Interrupted and ShortageError.
        """
        entries, left_out = self._to_commit(found)
        lines = b"".join(line for entry in left_out for line in entry.of_head())  # the working tree stays
        if not (entries or lines):
            return None, True
        index = self.git_directory / "index"
        try:
            own = OwnDirectory("ralph-index-", [*map(str, self._given)])
            try:
                copy = Path(own.path, "index")
                before = _identity(index)
                if before is not None:
                    shutil.copy2(index, copy)  # with its time, by which git knows what may have changed since
                head, variables = found.status.head, {"GIT_INDEX_FILE": str(copy)}
                if lines:
                    git.change("update-index", "-z", "--index-info", given=lines, variables=variables)
                refused = {one.path: one.is_in_head for one in entries if not may_be_written(one.path)}
                entries = [entry for entry in entries if entry.path not in refused]
                unstaged = [entry for entry in entries if entry.is_unstaged]
                tree, more = self._tree_of_copy(git, head, unstaged, variables)
                refused |= dict.fromkeys(more, False)
                changed = () if tree is None else _committed_differences(git, head, tree)
                planted = sorted(path for path in changed if not may_be_written(path))
                if planted or (tree is not None and any(refused.values())):
                    # A command wrote them into the index, which git does not look at, and perhaps committed that.
                    if head:
                        git.change("read-tree", "-i", "-m", head, variables=variables)
                    else:
                        copy.unlink()
                    tree, more = self._tree_of_copy(git, head, entries, variables)
                    refused |= dict.fromkeys((*planted, *more), False)
                told = f"git does not take these: {shown([*refused])}" if refused else ""
                self._tell_once("names", told, "; commits leave them out")
                return tree, not takes_place or _is_replaced(index, copy, before)
            finally:
                own.remove()
        except OSError as error:
            if (shortage := shortage_of(error)) is not None:
                raise shortage from None
            problem = f"{index} could not be copied: {error.strerror or error}"
            raise CheckoutError(problem, Outcome.IO_ERROR) from error

    def _tree_of_copy(
        self, git: CheckoutGit, head: str, unstaged: Sequence[StatusEntry], variables: Mapping[str, str]
    ) -> tuple[str | None, list[str]]:
        """The tree of an index after the entries are staged in it, or None if it has nothing new, and the names that git refuses."""
        left_out = unfiltered(git, git.settings, (entry.path for entry in unstaged))
        told = [why_unfiltered(git.settings, path, name) for path, name in left_out.items()]
        if asked := [
            why for why, name in zip(told, left_out.values(), strict=True) if name in self._seams.filters
        ]:
            raise CheckoutError(asked[0])  # the user asked for this one
        self._tell_once("filters", told[0] if told else "", "; commits leave such files out")
        unstaged = [entry for entry in unstaged if entry.path not in left_out]
        refused: list[str] = []
        if unstaged:
            # Tracked files first: those of a directory that has become a file must leave the index before.
            in_order = sorted(unstaged, key=lambda entry: not entry.is_tracked)
            refused = git.stage(nul_ended(entry.path for entry in in_order), variables)
        is_new = self._is_anything_staged(git, head, variables)
        return self._published_tree(git, head, variables) if is_new else None, refused

    def _published_tree(self, git: CheckoutGit, head: str, variables: Mapping[str, str]) -> str | None:
        """The tree of an index, without the changes of files that hold a credential which ralph knows. None if nothing is left."""
        tree = git.change("write-tree", variables=variables).decode().strip()
        held = self._with_credentials(git, head, tree)
        names = shown(sorted(map(self._redactor.redact, held)))
        told = names and f"these hold a credential that ralph knows: {names}"
        self._tell_once("credentials", told, "; commits leave them out")
        self._holds_secret_names |= any(self._redactor.redact_all(path) != path for path in held)
        if not held:
            return tree
        take_changes_out(git, git, head, held, variables)
        if not self._is_anything_staged(git, head, variables):
            return None
        return git.change("write-tree", variables=variables).decode().strip()

    def _with_credentials(self, git: CheckoutGit, head: str, tree: str) -> list[str]:
        if not self._redactor.secrets:
            return []
        before = head or git.change("mktree", given=b"").decode().strip()
        return paths_with_new_credentials(self._looking(git), before, tree, self._redactor, self._large_files)

    def _refuse_credentials(
        self, git: CheckoutGit, branch: str | None, head: str, known: Sequence[str]
    ) -> None:
        """Raises CheckoutError if the name of the branch, or a commit that `known` lack, holds a credential which ralph knows, or if
        the commits cannot be looked through.
        """
        if self._redactor.spans(branch or ""):
            raise CheckoutError(
                "the name of the branch holds a credential that ralph knows, and is not pushed: rename it"
            )
        try:
            why = why_not_pushed(*(self._looking(git), head, known), self._redactor, self._large_files)
        except OSError as error:
            why = f"the commits could not be looked through for credentials before the push: {error}"
        if why is not None:
            raise CheckoutError(why)

    def _looking(self, git: CheckoutGit) -> CheckoutGit:
        return CheckoutGit(self.top, git.seams, FOR_ALL)

    @property
    def _large_files(self) -> Path:
        """Where git-lfs keeps its files."""
        return self._shared / LFS_STORAGE[1]

    @property
    def _shared(self) -> Path:
        """The git directory, or the one that linked working trees share."""
        return Path(common_directory(str(self.git_directory)) or self.git_directory)

    def _free_branch(self, git: CheckoutGit, status: GitStatus, *, pushes: bool) -> str:
        patterns = (f"refs/{place}/ralph*{rest}" for place in ("heads", "remotes/*") for rest in ("", "/**"))
        names = (
            git.read("for-each-ref", "--format=%(refname)", *patterns).decode("utf-8", "replace").split("\n")
        )
        if pushes:
            with suppress(CheckoutError):  # the push will say why
                names += self.push_of(git, status, f"{_RED}1").remote_branches("ralph*")
        red = _RED if {"refs/heads/ralph", "ralph"}.isdisjoint(names) else _RED_BESIDE
        taken = {name.rpartition(red)[2].partition("/")[0] for name in names}  # git makes none above another
        return next(f"{red}{number}" for number in itertools.count(1) if str(number) not in taken)

    def _to_commit(self, found: RepositoryLook) -> tuple[list[StatusEntry], list[StatusEntry]]:
        all_entries = [*counted(found.status.entries, self._own)]
        protected = {entry.path for entry in all_entries if self._is_protected(entry)}
        nested = {*found.unsaved, *(entry.path.rstrip("/") for entry in all_entries if entry.is_nested)}
        unpublished = {entry.path for entry in all_entries if self._is_unpublished(entry)}
        refused = {
            entry.path for entry in all_entries if entry.is_unstaged and is_refused(self.top / entry.path)
        }
        others = {
            "agents may not read these": unpublished.difference(protected),
            "these cannot be read": refused.difference(unpublished),
            "git is told to see no change of these": self._changed_hidden(found),
        }
        look = self._look_for_planted(found.links, protected, nested, others)
        entries, left_out = [], []
        for entry in all_entries:
            is_nested = any(one.takes_out(entry.path, is_tracked=entry.is_tracked) for one in look.found)
            is_kept = entry.path in protected or entry.path in unpublished
            if is_kept or is_nested or (entry.is_gitlink and look.is_closed(entry.path)):
                left_out.append(entry)
            elif not (entry.is_nested or entry.path in refused):
                entries.append(entry)
        return entries, left_out

    def _changed_hidden(self, found: RepositoryLook) -> list[str]:
        """The hidden files of a look (`RepositoryLook.hidden`) whose content is not that of the index, or cannot be compared."""
        # `hash-object` follows links: a filter such as that of git-lfs would copy a file from elsewhere into the repository.
        readable = {path for path in found.hidden if self._is_own_file(path)}
        closed = [path for path in found.hidden if path not in readable]
        paths = [path for path in found.hidden if path in readable]
        if not paths:
            return closed
        quoted = (path.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for path in paths)
        given = b"".join(os.fsencode(f'"{path}"\n') for path in quoted)
        answer = self.git().answer("hash-object", "--stdin-paths", given=given)
        if answer.status:  # a filter has failed
            return [*found.hidden]
        ids = answer.output.decode().split()
        return closed + [path for path, oid in zip(paths, ids, strict=True) if found.hidden[path] != oid]

    def _is_own_file(self, path: str) -> bool:
        """Whether there is a file that git can read, to which no link leads."""
        whole = os.path.join(os.path.realpath(self.top), path)  # noqa: PTH118 - strings throughout
        return os.path.realpath(whole) == whole and os.path.isfile(whole) and os.access(whole, os.R_OK)  # noqa: PTH113 - it never raises

    def look_through(self, since: str) -> tuple[str, tuple[LookedCommit, ...]]:
        """The id of the current commit, and its ancestors that `since` does not have. One more without an id stands for files that
        were not committed and whose names hold a secret. Tells the user if git fails, and then these are missing. Raises
        CheckoutError and Interrupted.
        """
        git = CheckoutGit(self.top, self._seams, FOR_ALL)
        head = git.resolved("HEAD") or ""
        left_out = (LookedCommit("", are_names_secret=True),) if self._holds_secret_names else ()
        if head in {"", since}:
            return head, left_out
        revisions = [head, *([f"^{since}"] if COMMIT_ID.fullmatch(since) else [])]
        try:
            return head, (*left_out, *look_through(git, revisions, self._redactor))
        except CheckoutError as error:
            self._warn(
                f"commits were not looked through for secrets, so pages leave their diffs out: {error}"
            )
            return head, left_out

    def _is_protected(self, entry: StatusEntry) -> bool:
        """At the tops of the directories where the agent may write, commands cannot change such files."""
        return self._is_below(f"{self.top}/{entry.path}".rstrip("/"))

    def _is_unpublished(self, entry: StatusEntry) -> bool:
        """Whether no commit takes the file, because agents may not read it."""
        path = f"{self._real_top}/{entry.path}"
        return not entry.is_nested and self._takes_no(path, entry.is_in_head)

    def _look_for_planted(
        self, links: Sequence[str], protected: set[str], nested: set[str], more: Mapping[str, Iterable[str]]
    ) -> Look:
        """Tells the user what a commit leaves out. `more` are further paths, by the reason."""
        digests = FileDigests(self._seams.waiter, self._seams.clock)

        def is_over() -> bool:
            digests.look_up()
            return False

        environment, roots = self._seams.environment, [*map(str, self._given)]
        search = search_outside(environment, roots)
        found = look_below(
            str(self.top),
            roots=roots,
            since_s=self._began_s,
            gitlinks=links,
            users=users_relative_programs(environment),
            writable=search.roots,
            is_over=is_over,
        )
        claimed = git_places(roots, environment, os.getuid()).claimed
        changed = changed_by_run(roots, self._began_s, environment, claimed, search)
        self._tell_once("programs that git runs", changed)
        sentence = replace(found, changed=tuple(sorted({*found.changed, *protected}))).sentence()
        others = {
            "these are repositories of their own": nested.difference(one.path for one in found.found),
            **more,
        }
        told = [f"{what}: {shown(sorted(paths))}" for what, paths in others.items() if paths]
        self._tell_once("left out", "; ".join(filter(None, (sentence, *told))), "; commits leave them out")
        return found

    def _tell_once(self, about: str, sentence: str, rest: str = "") -> None:
        """Tells the user a sentence about something, unless it was the last one about that."""
        if sentence and sentence != self._warned.get(about):
            self._warn(sentence + rest)
        self._warned[about] = sentence

    def push(self, branch: str | None = None) -> int:
        """Pushes the current branch, or another one of this repository under its own name, to the remote of the branch on which
        the loop began. Returns the number of commits that the remote did not have before.
        """
        self._prepare_to_write()
        git = self.git()
        found = looked(git)
        status = found.status
        if branch is not None:
            status = replace(status, head=git.resolved(f"refs/heads/{branch}") or "")
        refuse = (
            partial(self._refuse_credentials, git, branch or status.branch, status.head)
            if self._redactor.secrets
            else None
        )
        pushed = self.push_of(git, status, branch).push(refuse) if status.head else 0
        unpushed = shown([path for path in found.links if self._has_unpushed(path)])
        told = (
            unpushed and f"these submodules have commits that no remote has: {unpushed}; push them yourself"
        )
        self._tell_once("submodules", told)
        return pushed

    def _has_unpushed(self, path: str) -> bool:
        """Whether a repository inside has a commit that none of its remote branches has, as far as git can tell."""
        if not os.path.lexists(self.top / path / ".git"):
            return False
        inner = CheckoutGit(self.top / path, self._seams)
        return bool(inner.answer("rev-list", "--max-count=1", "HEAD", "--not", "--remotes").output)

    def unpushed(self) -> int | None:
        git = self.git()
        status = status_of(git)
        try:
            push = self.push_of(git, status)
        except CheckoutError:  # nowhere to push to
            return None
        return push.unpushed() if status.head else 0

    def push_of(self, git: CheckoutGit, status: GitStatus, branch: str | None = None) -> Push:
        """Prepares a push of a branch, as `Push` takes it, that uses the pinned settings, or else pins the current ones. Raises
        CheckoutError and Interrupted.
        """
        pins = self._pins or self._pinned_now(git, status)
        pins = self._pins = replace(pins, branch=pins.branch or status.branch)
        settings = remote_settings(git.settings, pins)
        writable = (self.top, *self._given)
        return Push(
            git, settings, status, writable=writable, known=pins.places, branch=branch, begun=pins.branch
        )

    def pins_text(self) -> str:
        """The pinned settings as text that `restore_pins` accepts. Raises CheckoutError and Interrupted."""
        git = self.git()
        self._pins = self._pins or self._pinned_now(git, status_of(git))
        return pins_text(self._pins, secrets.token_hex(16))

    def restore_pins(self, text: str) -> list[str]:
        """Replaces the pinned settings by those in `text`, and returns notices for the user. Raises BrokenPinsError,
        CheckoutError and Interrupted.
        """
        now = pins_of(self.git().settings)
        self._pins, has_lost = read_pins(text, now)
        changed = changed_names(self._pins, now)
        if not changed and not has_lost:
            return []
        notice = (
            f"git's configuration here has changed since the loop began ({shown(changed)}): "
            "pushes use the configuration of that time"
        )
        lost = "; settings that held a credential then are no longer known: restore them, or start a new loop"
        return [notice + (lost if has_lost else "")]

    def _pinned_now(self, git: CheckoutGit, status: GitStatus) -> Pins:
        own = (git_entry(str(self.top)), *(f"{self.git_directory}/{name}" for name in _SAY_WHERE))
        files = (os.path.join(self.top, file) for file in git.settings.files)  # noqa: PTH118 - strings throughout
        for file in dict.fromkeys((*own, *files)):
            if not os.path.isdir(file) and (why := why_left_behind(file, self._seams.environment)):  # noqa: PTH112 - it never raises
                raise CheckoutError(f"{file} {why}")
        pins = replace(pins_of(git.settings), branch=status.branch)
        try:
            push = Push(git, remote_settings(git.settings, pins), status)
            paths = [path for url in push.urls() if (path := local_path(url)) is not None]
        except CheckoutError:  # nowhere to push to, which is reported later
            return pins
        found = (identity_of(self.top, path) for path in paths)
        return replace(pins, places=frozenset(one for one in found if one is not None))

    def tracks(self, path: Path) -> bool:
        """Whether git tracks the file, or a file in the directory. Raises CheckoutError and Interrupted."""
        inside = os.path.relpath(os.path.realpath(path), self.top)
        return not inside.startswith("../") and bool(
            self.git().read("ls-files", "-z", "--", f":(top,literal){inside}")
        )

    def _prepare_to_write(self) -> None:
        """Raises CheckoutError as `refuse_foreign` does. Git then appends to no second name of another file."""
        self.refuse_foreign()
        try:
            separate_logs({str(self.git_directory), common_directory(str(self.git_directory)) or ""} - {""})
        except OSError as error:
            raise CheckoutError(
                f"git could not write {error.filename}: {error.strerror}", Outcome.IO_ERROR
            ) from None

    def refuse_foreign(self) -> None:
        """Raises CheckoutError if git would write what is not this checkout's, or publish objects that no agent may read."""
        found = foreign_directories(str(self.top), tuple(map(str, self._given)))
        for path, why in found:
            made = "a command may have made the link: remove it if you did not make it; "
            raise CheckoutError(
                f"git would write {path}, which is not this checkout's own ({why}); "
                f"{made if why.endswith(' is a link') else ''}if it is yours and you trust this checkout, name it: --add-dir {path}"
            )
        try:
            borrowed = [*borrowed_objects(str(self.top))]
        except OSError as error:
            raise CheckoutError(
                f"git could read objects that commands may not read: {error.filename}: {error.strerror}"
            ) from None
        for path, file in borrowed:
            if not self._seams.may_read(path):
                raise CheckoutError(
                    f"git would read objects in {path}, which commands may not read ({file} names it); if it is yours and "
                    f"you trust this checkout, open it to commands (sandbox.read in the settings)"
                )

    def refuse_unfinished(self, status: GitStatus) -> None:
        """Raises CheckoutError if files have conflicts, or if a merge, rebase, cherry-pick or revert is unfinished."""
        unmerged = [entry.path for entry in status.entries if entry.is_unmerged]
        if unmerged:
            raise CheckoutError(
                f"{shown(unmerged)} {'has' if len(unmerged) == 1 else 'have'} conflicts; resolve them and commit first"
            )
        for name, what in _UNDER_WAY.items():
            if os.path.lexists(self.git_directory / name):
                raise CheckoutError(f"{what} is in progress; finish or abort it first")

    def refuse_locked(self, status: GitStatus) -> None:
        """Waits a few seconds for another git command to end. Raises CheckoutError if git's index, HEAD or branch stays locked, so
        that no commit could be made. Raises Interrupted.
        """
        branch = Path(self._shared, f"refs/heads/{status.branch}.lock")
        clock, waiter = self._seams.clock, self._seams.waiter
        until_s = clock.now_s() + _LOCK_ENDS_WITHIN_S
        for lock in (*(self.git_directory / name for name in _LOCKS), branch):
            while os.path.lexists(lock):
                with suppress(FileNotFoundError):
                    age_s = clock.utc_now().timestamp() - lock.lstat().st_mtime
                    if age_s > _LOCK_IS_LEFT_AFTER_S or clock.now_s() >= until_s:
                        raise CheckoutError(
                            f"{lock} exists: another git command is running, or one was killed and left the file; wait, or "
                            f"remove it: rm {shlex.quote(str(lock))}"
                        )
                    waiter.sleep(_LOCK_LOOKS_S, waiting_for="another git command")

    def commit_hooks(self, git: CheckoutGit) -> list[str]:
        """The names of the hooks that git would run for a commit of the user, and that a commit of ralph's does not run."""
        own = self._shared / "hooks"
        named = git.settings.configured("core.hookspath")
        place = own if named is None else self.top / Path(named).expanduser()
        return [name for name in _COMMIT_HOOKS if os.access(place / name, os.X_OK)]

    def refuse_detached(self, status: GitStatus) -> None:
        """Raises CheckoutError if HEAD is detached."""
        if status.branch is None:
            raise CheckoutError(
                "HEAD is detached: commits would be on no branch; "
                "git switch -c NAME creates one here, git switch BRANCH goes back to an existing one"
            )

    def uncommitted(self, status: GitStatus) -> list[StatusEntry]:
        """The files that `commit` would commit."""
        entries = counted(status.entries, self._own)
        return [
            entry
            for entry in entries
            if not (entry.is_nested or self._is_protected(entry) or self._is_unpublished(entry))
        ]

    def _is_anything_staged(self, git: CheckoutGit, head: str, variables: Mapping[str, str]) -> bool:
        but_ours = ("--", *(f":(top,exclude,literal){path}" for path in self._own.paths), ":(top)")
        if not head:
            return bool(git.change("ls-files", "-z", *but_ours, variables=variables))
        diff = ("diff-index", "--cached", "--quiet", "--no-ext-diff", "--ignore-submodules=dirty")
        answer = git.call(*diff, head, *but_ours, variables=variables)
        if answer.status > 1:
            raise git.failure("diff-index", answer)
        return answer.status == 1


def committer(git: CheckoutGit) -> str | None:
    """The name and the email address that commits get, or None if git does not know them."""
    answers = [git.answer("var", who) for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")]
    if any(answer.status for answer in answers):
        return None
    return answers[1].output.decode("utf-8", "replace").rpartition(">")[0] + ">"


def _commit_of(git: CheckoutGit, tree: str, parent: str, message: str) -> str:
    """Makes a commit that belongs to no branch yet, and returns its id. `parent` is empty before the first commit."""
    parents = ["-p", parent] if parent else []
    return git.change("commit-tree", tree, *parents, given=f"{message}\n".encode()).decode().strip()


def _is_replaced(index: Path, copy: Path, before: tuple[int, int] | None) -> bool:
    """Replaces an index by a copy, unless it is locked or no longer the one that `before` names. Raises OSError."""
    lock = index.with_name("index.lock")
    try:
        file = lock.open("xb")
    except FileExistsError:
        return False
    is_done = False
    with file:
        try:
            if _identity(index) == before:
                file.write(copy.read_bytes())
                file.flush()
                if before is not None:
                    shutil.copymode(index, lock)
                staged = copy.stat()
                os.utime(lock, ns=(staged.st_atime_ns, staged.st_mtime_ns))
                lock.rename(index)
                is_done = True
        finally:
            if not is_done:  # otherwise a file of this name is another command's lock
                lock.unlink()
    return is_done


def _identity(path: Path) -> tuple[int, int] | None:
    """The inode and the time of a file: another file in its place has others. None if there is no file. Raises OSError."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _holds(git: CheckoutGit, branch: str, tree: str | None, head: str) -> bool:
    name = f"refs/heads/{branch}"
    if tree is None:
        return git.resolved(name) == head
    answer = git.answer("log", "-1", "--format=%T %P", name, "--")
    return not answer.status and answer.output.decode().split() == [tree, *filter(None, [head])]


def kept_commits(read: Callable[..., bytes], identifiers: Iterable[str]) -> set[str]:
    """Those of the ids whose commits the repository has. An id may come from a damaged record, and git could take other text
    for an option or an expression. `read` is `Git.read`, or does the same with other limits.
    """
    asked = sorted(one for one in identifiers if COMMIT_ID.fullmatch(one))
    if not asked:
        return set()
    given = "".join(f"{one}\n" for one in asked).encode()
    listed = read("cat-file", "--batch-check=%(objectname) %(objecttype)", given=given)
    return {line.split()[0] for line in listed.decode().split("\n") if line.endswith(" commit")}


def _committed_differences(git: CheckoutGit, before: str, after: str) -> set[str]:
    """An empty string for one of the commits stands for the state before the first commit."""
    if before and after:
        plainly = ("--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none")
        output = git.read("diff-tree", "-r", "-z", "--name-only", *plainly, before, after)
    else:
        output = git.read("ls-tree", "-r", "-z", "--name-only", "--full-tree", before or after)
    return {os.fsdecode(path) for path in output.split(b"\0") if path}

"""Does the git work of a job: a checkout for the agent, checkpoints of its files, and the branch that is pushed.

An agent controls everything in its checkout, `.git` included. So no call here reads the configuration, the index or the
hooks of a checkout. Each checkout has a git directory of the worker's own beside it, with an index of its own. The
agent's commits are copied there, and every push leaves from there. Only two things of the agent's `.git` are read: the
commit that HEAD names, and objects, whose ids git computes anew.

A worker has one bare repository for each remote, the mirror. All checkouts on the machine borrow its objects. Nothing in
a mirror is ever removed, because a checkout may need it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.fleet.job_process import BadStateError
from ralph.git.answer import CheckoutError, GitAnswer, shown, without_user
from ralph.git.credentials import FOR_ALL, paths_with_new_credentials, take_changes_out, why_not_pushed
from ralph.git.large_files import (
    has_tracked,
    large_files,
    path_in,
    refuse_missing,
    refuse_own_address,
    refuse_tracked,
    unfiltered,
)
from ralph.git.look import GITLINK, is_refused
from ralph.git.push import COMMIT_ID, PUSH, make_git_directory, reach, upload
from ralph.git.runner import Git, GitSeams, environment_for_git
from ralph.git.settings import ALWAYS, LIST
from ralph.machine.files.opened_copies import ReplacedError, copy_files, copy_objects, opened_folder
from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.files.trees import entries_below, remove_tree_if_possible
from ralph.machine.own_programs import search_outside
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.places.gather import gather_places, named_in
from ralph.places.git_config import LFS_STORAGE
from ralph.places.nested_repositories import look_below
from ralph.places.places import below_tops
from ralph.settings.merge import SettingsError, load_with_claude
from ralph.values.credentials import known_secrets
from ralph.values.outcome import CannotError, Outcome, ShortageError, shortage_of
from ralph.values.ports import SignalReceived
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ralph.git.runner import GitToken
    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.places.places import GuardedPlaces
    from ralph.settings.tables import Settings

MOST_FILE_BYTES = 20_000_000
"""A file that git does not track is left out of a checkpoint if it is larger. Git hosts warn at 50 MB."""
MOST_UNTRACKED_BYTES = 50_000_000
"""The files that git does not track are left out of a checkpoint, the largest first, as long as their sum is larger."""

LARGE = "large"
"""The folder beside a bundle with the large files of git-lfs, of which the bundle has only pointers."""

REST, WORK = "-rest", "-work"
"""End the refs of the work that a job has left beside its branch, and of its branch's if that cannot be pushed. The beginning is
that of its checkpoints."""
_MOST_HEADS = 1000
_REMOTE_URL = "remote.origin.url"
_REMOTE_LIMIT_S = 1800.0  # the first fetch of a repository of some gigabytes takes so long
# No git call of a worker needs these features, whoever has set them.
_OPTIONS = (
    *ALWAYS,
    *("-c", "core.splitIndex=false", "-c", "core.untrackedCache=false", "-c", "core.sparseCheckout=false"),
    *("-c", "user.useConfigOnly=true"),  # never a name that git makes up from the machine's
    *("-c", "=".join(LFS_STORAGE)),
)
_MOST_REF_FILE_BYTES = 64 * 1024 * 1024  # packed-refs of half a million refs
_MOST_SYMBOLIC_REFS = 5  # SYMREF_MAXDEPTH of git's refs.h
_OTHER_HEAD = re.compile("refs/(?:heads|tags)/|worktrees/[^/]+/HEAD$")
_LOCK_EVERY_S = 0.05
# Why a path is left out of a commit.
_OF_ITS_OWN, _RUNS = "a repository of its own", "a repository that names a program"
_CLOSED, _SECRET, _OBEYED = "cannot be read", "agents may not read it", "agents and later runs obey it"
# The job's own commits need no committer in the user's configuration.
_NAME, _ADDRESS = "ralph", "ralph@localhost"
_OURS = {
    "GIT_AUTHOR_NAME": _NAME,
    "GIT_AUTHOR_EMAIL": _ADDRESS,
    "GIT_COMMITTER_NAME": _NAME,
    "GIT_COMMITTER_EMAIL": _ADDRESS,
}
_REMOTE_HEAD = "refs/fleet/head"
_BASE = "refs/fleet/base"
_FETCH = (
    *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"),
    # A repository that is a shallow clone itself, as that of a CI, makes the mirror shallow.
    *("--no-auto-maintenance", "--update-shallow"),
)


class MadeCommit(Struct, frozen=True):
    commit: str
    left_out: tuple[str, ...]
    """Paths whose content is not in the commit, each with the reason: large files that git does not track, repositories
    inside the checkout, and files that cannot be read."""


class Delivered(Struct, frozen=True):
    commit: str


class NotDelivered(Struct, frozen=True):
    """The remote's ref was changed by somebody else, so nothing was pushed."""

    found: str | None
    """The commit at the remote. None if the ref does not exist there."""


def checkpoint_ref(set_name: str, job: str, attempt: int) -> str:
    """The ref of a job's checkpoints, which is no branch, so that no CI starts. Each day may have a set with a job of this id."""
    return f"refs/ralph/{set_name}/{job}/{attempt}"


def trailer_of(set_name: str, job: str, attempt: int, generation: int) -> str:
    """The line at the end of a commit's message, in the form of git-interpret-trailers(1), that says which claim of
    a job made the commit.
    """
    return f"Ralph-Job: {set_name}/{job} {attempt} {generation}"


class GitTerms(Struct, frozen=True):
    """The decisions of the worker's user about the git calls of jobs."""

    writable: tuple[str, ...] = ()
    """The places that commands of jobs may write: the folder of the jobs, the caches of packages, and `sandbox.write`."""
    filters: tuple[str, ...] = ()
    """The filters of the user's own that may run, besides git-lfs."""


_NO_TERMS = GitTerms()


def git_terms(environment: Mapping[str, str], folder: Path) -> GitTerms:
    """The decisions in the user's settings, for jobs in `folder`. Raises CannotError if a file of the user's own git
    configuration, or a program that it names, is where commands of jobs may write: unlike a loop, a worker does not tell the
    settings of such a file from the user's other ones.
    """
    try:
        settings: Settings | None = load_with_claude({}, environment, folder, None)
    except SettingsError as error:  # each job will say what is wrong
        settings = error.so_far
    written = () if settings is None else settings.sandbox.written(environment)
    search = search_outside(environment, (folder, *written))
    found = named_in(search.roots, (), environment, search)
    for file in (*found.configuration, *filter(os.path.exists, found.programs)):
        raise CannotError(
            f"{file} belongs to your own git configuration, but commands of jobs may write it; keep it elsewhere"
        )
    return GitTerms(search.roots, () if settings is None else settings.loop.git_filters)


class GitCalls:
    """Starts the git calls of a worker. `stop` may be called from any thread, and everything else from one thread."""

    def __init__(
        self,
        environment: Mapping[str, str],
        supervisor: CommandSupervisor,
        token: GitToken | None = None,
        terms: GitTerms = _NO_TERMS,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` are the worker's variables, with those that git needs to authenticate. `token` is what git gets if a
        server asks for a password. `users` are all variables of the worker, which say where its user's secrets are. None stands for
        `environment`.
        """
        clock = SystemClock()
        self._waiter = InboxWaiter(clock)
        self.seams = GitSeams(
            *(environment, supervisor, self._waiter, clock, token),
            writable=terms.writable,
            filters=terms.filters,
        )
        self._is_stopped = False
        self._users = environment if users is None else users
        self.redactor = Redactor(known_secrets(self._users))
        """Knows the credentials in the worker's variables."""

    def places_in(self, directory: str) -> GuardedPlaces:
        """The places in or around a directory, which has no links, that agents may not read there."""
        return gather_places((directory,), self._users).in_or_around(directory)

    def stop(self) -> None:
        """Ends the running call, and makes it and all later calls raise Interrupted. Returns at once."""
        self._is_stopped = True
        self._waiter.inbox.note_signal(signal.SIGTERM)

    def refuse_stopped(self) -> None:
        """Raises Interrupted if `stop` was called."""
        if self._is_stopped:
            raise SignalReceived(signal.SIGTERM)


class WorkerGit(Git):
    """Runs git with a git directory of the worker's own. Programs in the folder that contains `directory` are not run,
    because an agent may have made them.
    """

    def __init__(
        self, calls: GitCalls, repository: str, directory: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        """`repository` is the job's, for errors. `variables` choose the git directory; None stands for `directory`."""
        own = {"GIT_DIR": str(directory)} if variables is None else variables
        environment = environment_for_git(calls.seams, directory.parent)
        super().__init__(calls.seams, directory, {**environment, **own}, _OPTIONS, repository=repository)
        self.calls = calls
        self.url = repository

    def at(self, directory: Path, variables: Mapping[str, str]) -> WorkerGit:
        """Git for the same repository of a job in another directory."""
        return WorkerGit(self.calls, self.url, directory, variables)

    def at_files(
        self, directory: Path, variables: Mapping[str, str], names: Mapping[str, bool] | None
    ) -> FilesGit:
        """As `at`, for files that filters may read and write. `names` are as in `Git.settings_of`."""
        return FilesGit(self.calls, self.url, directory, variables, names)

    def by(self, calls: GitCalls) -> WorkerGit:
        """Git in the same directory, started by other calls."""
        return WorkerGit(calls, self.url, self.directory)

    def call(self, *arguments: str, **options: Any) -> GitAnswer:
        """As `Git.call`, but a shortage of this machine is a CheckoutError too."""
        self.calls.refuse_stopped()
        try:
            return super().call(*arguments, **options)
        except ShortageError as shortage:
            raise CheckoutError(f"git {arguments[0]}: {shortage}", Outcome.API_UNAVAILABLE) from None

    def remote(self, command: Sequence[str], *rest: str, held: int | None = None) -> GitAnswer:
        """Runs `git COMMAND URL REST` with the job's repository. If this process dies, the call dies with it, with all its
        processes. `held` is as in `Git.call`.
        """
        return reach(
            self,
            command,
            self.url,
            rest,
            limit_s=_REMOTE_LIMIT_S,
            asking=self,
            refuses_checked_out=True,
            held=held,
        )

    def remote_refs(self, *patterns: str) -> dict[str, str]:
        """Asks the remote for refs, and returns the commit of each."""
        answer = self.remote(("ls-remote", "--refs"), *patterns)
        if answer.status:
            raise self.failure("ls-remote", answer)
        pairs = (line.partition("\t") for line in os.fsdecode(answer.output).splitlines())
        return {ref: commit for commit, _, ref in pairs if COMMIT_ID.fullmatch(commit)}


class FilesGit(WorkerGit):
    """Runs git on files, with no filters but those that may run."""

    def __init__(
        self,
        calls: GitCalls,
        repository: str,
        directory: Path,
        variables: Mapping[str, str],
        names: Mapping[str, bool] | None,
    ) -> None:
        """Raises CheckoutError and Interrupted. The parameters are those of `WorkerGit.at_files`."""
        super().__init__(calls, repository, directory, variables)
        self.settings = self.settings_of(self.read(*LIST), names)
        self.options = (*self.options, *self.settings.arguments)


class Repositories:
    """The mirrors of a worker, and what is asked of remotes. Use it from one thread at a time."""

    def __init__(self, folder: Path, calls: GitCalls) -> None:
        """`folder` contains the mirrors. Several processes on this machine may share it."""
        self._folder = folder
        self._calls = calls

    def check_out(self, repository: str, ref: str | None, directory: Path, branch: str) -> JobCheckout:
        """Fetches the repository and checks it out in the new directory `directory`. HEAD is the new local branch
        `branch` at the commit of `ref`. `ref` is a branch, a tag, a commit, or None for the remote's HEAD. Makes the
        worker's own git directory `git` beside `directory`. Raises CheckoutError and Interrupted.
        """
        git = self._mirror(repository)
        with self._locked(git.directory) as held:
            # Only for a complete commit id that the mirror has, no fetch is needed.
            commit = git.resolved(ref) if ref and COMMIT_ID.fullmatch(ref) else None
            if commit is None:
                _fetch(git, (f"+HEAD:{_REMOTE_HEAD}",) if ref is None else (), held)
                commit = _commit_of(git, ref, held)
            self._clone(git, directory)
        checkout = JobCheckout(git, directory, commit)
        checkout.write_files(commit, branch)
        return checkout

    def reopen(self, repository: str, directory: Path, base: str) -> JobCheckout:
        """The checkout that `check_out` made in an earlier process. `base` is the commit that HEAD was then, and is fetched
        if this machine does not have it any more. Raises CheckoutError and Interrupted.
        """
        checkout = JobCheckout(self._mirror_with(repository, base), directory, base)
        checkout.forget_index()
        return checkout

    def unbundle(self, repository: str, bundle: Path | None, base: str, directory: Path) -> JobCheckout:
        """A checkout without files, with the commits of a bundle that `JobCheckout.bundle` wrote. None stands for no
        commits. `base` is as in `reopen`. Raises BadStateError, CheckoutError and Interrupted.
        """
        checkout = JobCheckout(self._mirror_with(repository, base), directory, base)
        checkout.take_bundle(bundle)
        return checkout

    def _mirror_with(self, repository: str, commit: str) -> WorkerGit:
        git = self._mirror(repository)
        with self._locked(git.directory) as held:
            if git.resolved(commit) is None:
                _fetch(git, (), held)
                _commit_of(git, commit, held)
        return git

    def restore(
        self, repository: str, checkpoint_ref: str, commit: str, directory: Path, branch: str
    ) -> JobCheckout:
        """Checks out the checkpoint `commit`, which was pushed to `checkpoint_ref`. HEAD is the first parent of the
        checkpoint, on the new local branch `branch`. The files are those of the checkpoint. Otherwise as `check_out`.
        """
        git = self._mirror(repository)
        with self._locked(git.directory) as held:
            _fetch(git, (), held)
            answer = git.remote(_FETCH, f"+{checkpoint_ref}:{checkpoint_ref}", held=held)
            if git.resolved(commit) is None:  # another worker has overwritten the ref
                answer = git.remote(_FETCH, commit, held=held)
            if git.resolved(commit) is None:
                error = git.failure("fetch", answer)
                if answer.status and error.outcome is not Outcome.CONFIG:
                    raise error
                raise CheckoutError(
                    f"{without_user(repository)}: the checkpoint {commit} at {checkpoint_ref} is gone"
                )
            head = git.resolved(f"{commit}^1")
            if head is None:
                raise CheckoutError(
                    f"{without_user(repository)}: {commit} is not a checkpoint: it has no parent"
                )
            seen = git.resolved(checkpoint_ref)
            self._clone(git, directory)
        checkout = JobCheckout(git, directory, head, {checkpoint_ref: seen})
        checkout.write_files(commit, branch)
        return checkout

    def branch_at(self, repository: str, branch: str) -> str | None:
        """Asks the remote for the commit of a branch. None if there is no such branch. Raises Interrupted, and
        CheckoutError, also if another branch keeps git from making this one: git cannot have both `a` and `a/b`.
        """
        ref = f"refs/heads/{branch}"
        parts = branch.split("/")
        above = [f"refs/heads/{'/'.join(parts[:count])}" for count in range(1, len(parts))]
        found = self._mirror(repository).remote_refs(ref, f"{ref}/*", *above)
        for name in found:
            if name in above or name.startswith(f"{ref}/"):
                raise CheckoutError(
                    f"the branch {name.removeprefix('refs/heads/')} exists, and git cannot have {branch} beside it: "
                    "delete it"
                )
        return found.get(ref)

    def remove_checkpoints(
        self, repository: str, set_name: str, job: str, own: Collection[str | None] = ()
    ) -> int:
        """Removes all checkpoints of a job at the remote, and the refs that end with `WORK` whose commits are in `own`. Returns the
        number of removed refs. Raises CheckoutError and Interrupted.
        """
        git = self._mirror(repository)
        beginning = re.escape(f"refs/ralph/{set_name}/{job}/")
        is_checkpoint, is_work = (re.compile(f"{beginning}[0-9]+{end}") for end in ("", f"{WORK}.*"))
        # A pattern of ls-remote may also fit the end of a name.
        found = git.remote_refs(f"refs/ralph/{set_name}/{job}/*")
        refs = {
            ref
            for ref, commit in found.items()
            if is_checkpoint.fullmatch(ref) or (commit in own and is_work.fullmatch(ref))
        }
        if refs:
            answer = git.remote(PUSH, *(f":{ref}" for ref in sorted(refs)))
            if answer.status and not refs.isdisjoint(git.remote_refs(*sorted(refs))):
                raise git.failure("push", answer)
        return len(refs)

    def _mirror(self, repository: str) -> WorkerGit:
        """Git in the mirror of a repository, which is made if it is missing."""
        mirror = self._folder / f"{hashlib.sha256(repository.encode()).hexdigest()[:32]}.git"
        if not mirror.exists():
            with _disk(), self._locked(mirror):
                if not mirror.exists():
                    new = mirror.with_suffix(".new")
                    remove_tree_if_possible(new)
                    make_git_directory(new, "\tbare = true\n")
                    new.rename(mirror)
        return WorkerGit(self._calls, repository, mirror)

    @contextmanager
    def _locked(self, mirror: Path) -> Iterator[int]:
        """Holds the lock of a mirror. Yields the descriptor that holds it, for processes that must hold it too. So a
        fetch of a worker that was killed has ended before another worker comes in, and its lock files are nobody's.
        """
        with _disk():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(mirror.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._calls.refuse_stopped()
                    time.sleep(_LOCK_EVERY_S)
            for left_over in (
                *mirror.glob("*.lock"),
                *mirror.glob("refs/**/*.lock"),
                *mirror.glob("objects/pack/tmp_*"),
            ):
                left_over.unlink(missing_ok=True)
            yield descriptor
        finally:
            os.close(descriptor)

    def _clone(self, git: WorkerGit, directory: Path) -> None:
        """Makes the agent's repository without files. It borrows the mirror's objects, and its remote is the job's repository."""
        with _disk():
            directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        quietly = ("clone", "--quiet", "--shared", "--no-checkout", "--template=", "--origin=origin")
        mirror = git.directory
        git.at(mirror, {}).change(*quietly, "--", str(mirror), str(directory))
        with _disk():  # git does not share the objects of a shallow repository
            (directory / ".git/objects/info").mkdir(exist_ok=True)
            (directory / ".git/objects/info/alternates").write_bytes(os.fsencode(mirror / "objects") + b"\n")
        theirs = git.at(directory, {"GIT_DIR": str(directory / ".git")})
        theirs.change("config", _REMOTE_URL, git.url)


def _commit_of(git: WorkerGit, ref: str | None, held: int) -> str:
    if ref is None:
        names = [_REMOTE_HEAD]
    else:
        names = [f"refs/heads/{ref}", f"refs/tags/{ref}"]
        if ref.startswith(("refs/heads/", "refs/tags/")):
            names = [ref]
        elif re.fullmatch(r"[0-9a-f]{7,64}", ref):
            names.append(ref)
    for name in names:
        if commit := git.resolved(name):
            return commit
    if ref and COMMIT_ID.fullmatch(ref):  # of no branch, as the commit of a pull request
        git.remote(_FETCH, ref, held=held)
        if git.resolved(ref):
            return ref
    raise CheckoutError(f"{without_user(git.url)} has no branch, tag or commit {ref}")


def _fetch(git: WorkerGit, more: Sequence[str], held: int) -> None:
    wanted = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", *more)
    answer = git.remote([*_FETCH, "--prune"], *wanted, held=held)
    if answer.status:
        error = git.failure("fetch", answer)
        if more and "couldn't find remote ref HEAD" in answer.complaint():
            problem = "the repository's HEAD names no commit; name a branch"
            error = CheckoutError(f"{without_user(git.url)}: {problem}")
        raise error


class JobCheckout:
    """The checkout of one claim of a job, and the worker's own git directory for it."""

    def __init__(
        self, mirror: WorkerGit, directory: Path, commit: str, seen: Mapping[str, str | None] | None = None
    ) -> None:
        """`Repositories` makes checkouts. `directory` is the checkout, where the agent works. `seen` maps refs of
        checkpoints to the commits at the remote.
        """
        self._mirror = mirror
        self.move_to(directory)
        self.objects = mirror.directory / "objects"
        """The objects that the checkout borrows."""
        self.commit = commit
        """The commit that HEAD was when this checkout was made."""
        self._seen = dict(seen or {})
        self._index_head = commit
        self._taken = commit
        self._carried: dict[bytes, int] = {}
        """The sizes of the files in the index that the commit of HEAD lacks."""

    def move_to(self, directory: Path) -> None:
        """From now on, the checkout is at `directory`, and the worker's own git directory beside it."""
        self.directory = directory
        self._own = directory.parent / "git"

    def _git(self, **variables: str) -> WorkerGit:
        """Git with the worker's own git directory, whatever the checkout says."""
        return self._mirror.at(self._own, {"GIT_DIR": str(self._own), **variables})

    def _tree(self, git_directory: Path | None = None, names: Mapping[str, bool] | None = None) -> FilesGit:
        """Git that works on the files of the checkout, with the worker's own git directory and index. `git_directory`
        stands for another one, and `names` for what the checkout holds.
        """
        own = {"GIT_DIR": str(self._own), "GIT_INDEX_FILE": str(self._own / "index")}
        chosen = own if git_directory is None else {"GIT_DIR": str(git_directory)}
        return self._mirror.at_files(self.directory, {**chosen, "GIT_WORK_TREE": str(self.directory)}, names)

    def keep_large_files(self, commits: Iterable[str], base: str, folder: Path) -> None:
        """Keeps the large files that a bundle of the commits has only pointers to, in the folder `LARGE` below `folder`. Raises
        CheckoutError and Interrupted.
        """
        if self._may_have_large_files():
            for commit in commits:
                found = large_files(self._git(), commit, [base])
                self._take_large_files(found)
                for one in found:
                    with _disk():
                        _link_or_copy(path_in(self._storage, one), path_in(folder / LARGE, one))

    def bundle(self, commits: Mapping[str, str], base: str, descriptor: int) -> None:
        """Writes a git bundle: the commits, each with its ref, without what `base` has. Raises CheckoutError and Interrupted."""
        own = self._git()
        for ref, commit in commits.items():
            own.change("update-ref", ref, commit)
        own.change("bundle", "create", "--quiet", "-", *commits, f"^{base}", output_to=descriptor)

    def take_bundle(self, bundle: Path | None) -> None:
        """Makes the worker's own git directory, and copies the commits of a bundle into it. Called once. Raises
        BadStateError if the bundle cannot be used, CheckoutError and Interrupted.
        """
        self._make_own()
        if bundle is None:
            return
        with _disk():
            if (kept := bundle.with_name(LARGE)).is_dir():
                self._storage.symlink_to(kept)
        self._git().change("update-ref", _BASE, self.commit)  # git wants to reach it from a ref
        try:
            os.close(open_regular_file(bundle))  # git would wait for a pipe
            self._git().change("bundle", "unbundle", str(bundle))
        except (OSError, CheckoutError) as error:
            if isinstance(error, CheckoutError) and error.outcome is Outcome.IO_ERROR:
                raise  # the disk is full
            raise BadStateError(f"{bundle} cannot be used: {error}") from None

    def use(self, calls: GitCalls) -> None:
        """From now on, git is started by `calls`, because the former calls were stopped."""
        self._mirror = self._mirror.by(calls)
        with _disk():
            (self._own / "index.lock").unlink(missing_ok=True)

    def write_files(self, files: str, branch: str) -> None:
        """Makes the worker's own git directory, writes the files of the commit `files` into the empty checkout, and makes
        HEAD its branch. Called once, before an agent starts. Raises CheckoutError and Interrupted.
        """
        self._make_own()
        listed = os.fsdecode(self._git().read("ls-tree", "-z", files)).split("\0")
        tree = self._tree(
            names={name: " blob " in kind for kind, _, name in (one.partition("\t") for one in listed if one)}
        )
        theirs = self._tree(self.directory / ".git")
        theirs.change("update-ref", f"refs/heads/{branch}", self.commit)
        theirs.change("symbolic-ref", "HEAD", f"refs/heads/{branch}")
        if not self._has_user():  # so that the agent can commit
            theirs.change("config", "user.name", _NAME)
            theirs.change("config", "user.email", _ADDRESS)
        tree.change("read-tree", files)
        _refuse_open_programs(tree)
        refuse_tracked(tree, tree.settings)
        if self._has_tracked():
            self._upload_to(files, ())
        # With a filter as that of git-lfs, this contacts the remote.
        tree.change("checkout-index", "--all", "--index", "--quiet", is_remote=True)
        with _disk():
            shutil.copyfile(self._own / "index", self.directory / ".git" / "index")
        if files != self.commit:
            theirs.change("read-tree", "-i", "-m", self.commit)
            tree.change("read-tree", "-i", "-m", self.commit)

    def _make_own(self) -> None:
        with _disk():
            remove_tree_if_possible(self._own)
            self._own.mkdir(mode=0o700)
            make_git_directory(self._own, "\tbare = false\n\tfilemode = true\n", borrowed=self.objects)
            # It names the commits whose parents the mirror lacks, if the repository is a shallow clone.
            if (shallow := self.objects.parent / "shallow").exists():
                shutil.copyfile(shallow, self._own / "shallow")
        # git-lfs uploads there, and loads from there, as another filter of the user may.
        self._git().change("config", _REMOTE_URL, self._mirror.url)

    def snapshot(self, parent: str | None, message: str) -> MadeCommit | None:
        """Commits all files that are not ignored. The parents of the commit are HEAD and `parent`, the commit of the
        previous checkpoint. None if neither the files nor HEAD have changed since `parent`, or since the beginning
        if `parent` is None. The agent's index and branch are not changed. Raises CheckoutError and Interrupted.
        """
        head, tree, left_out = self._staged()
        before = (self.commit, self.commit) if parent is None else (parent, f"{parent}^1")
        asked = self._git().read("rev-parse", f"{before[0]}^{{tree}}", before[1])
        if asked.decode().split() == [tree, head]:
            return None
        commit = self._committed(tree, [head, *([parent] if parent else [])], message, _OURS)
        return MadeCommit(commit, left_out)

    def push_checkpoint(self, commit: str, ref: str) -> Delivered | NotDelivered:
        """Pushes a checkpoint to `ref`. Overwrites only a commit that this checkout knows: the one found by
        `restore`, its own last one, or the one that the previous call returned as `found`. So after NotDelivered, a
        caller that still owns the job calls again. Raises CheckoutError and Interrupted.
        """
        answer = self._pushed(commit, ref, self._seen.get(ref))
        self._seen[ref] = answer.found if isinstance(answer, NotDelivered) else commit
        return answer

    def finish(self, message: str, trailer: str) -> MadeCommit:
        """Commits on HEAD what the agent left uncommitted, with the line `trailer` at the end of the message. If
        nothing was left, the result is HEAD. Uses the user's name and address, or ralph's own if the user has set
        none. Raises CheckoutError and Interrupted.
        """
        head, tree, left_out = self._staged()
        if self._git().read("rev-parse", "--verify", f"{head}^{{tree}}").decode().strip() == tree:
            return MadeCommit(head, left_out)
        text = f"{message.rstrip()}\n\n{trailer}\n"
        commit = self._committed(tree, [head], text, {} if self._has_user() else _OURS)
        return MadeCommit(commit, left_out)

    def rest(
        self, final: str, base: str, branch: str, trailer: str
    ) -> tuple[str | None, list[str], list[str]]:
        """Commits on top of what the agent has left on other branches, in tags and in stashes, with the files of `final`, if
        `final` and the repository at the beginning lack any of it. `base` is the commit at which the job began, and `branch` its
        branch, which `final` may replace. Returns the commit, the names of these branches, tags and stashes, and what neither the
        commit nor `final` has, each with the reason. Raises CheckoutError and Interrupted.
        """
        names: dict[str, list[str]] = {}
        unread: list[str] = []
        known = self._known(branch)
        usual = {base, final, *known}
        heads = [one for one in other_heads(self.directory).items() if one[1] not in usual]
        given = "".join(f"^{commit}\n" for commit in (base, final, *known))
        for name, head in heads[:_MOST_HEADS]:
            try:
                self._take_in(head)
            except CheckoutError as error:
                if error.outcome is not Outcome.CONFIG:
                    raise
            commit = self._git().resolved(head)  # a file of a branch may have the id of a tag
            if commit is None:
                unread.append(name)
            elif self._git().read(
                "rev-list", "--max-count=1", "--stdin", given=f"{given}{commit}\n".encode()
            ):
                names.setdefault(commit, []).append(name)
        lacks = [f"{name} (a branch that cannot be read)" for name in unread]
        lacks += [f"{name} (a branch, of more than {_MOST_HEADS:,})" for name, _ in heads[_MOST_HEADS:]]
        lacks += [f"{path} ({_OF_ITS_OWN})" for path in self._embedded(base, final)]
        left = [name for same in names.values() for name in same]
        if not left:
            return None, left, lacks
        tree = self._git().read("rev-parse", f"{final}^{{tree}}").decode().strip()
        text = f"Work beside the branch: {shown(left, len(left))}\n\n{trailer}\n"
        return self._committed(tree, [final, *names], text, _OURS), left, lacks

    def _embedded(self, base: str, final: str) -> list[str]:
        """The repositories of which the agent has committed nothing but the id of a commit, as `git add` does with a directory that
        has a `.git`. Submodules are left out, because another remote has them.
        """
        fields = self._git().read("diff-tree", "-r", "-z", "--raw", "--no-renames", base, final).split(b"\0")
        changes = zip(fields[::2], fields[1::2], strict=False)
        found = {path for about, path in changes if about.split(b" ")[1] == GITLINK}
        if found:
            paths = ("config", "-z", "--blob", f"{final}:.gitmodules", "--get-regexp", r"\.path$")
            listed = self._git().answer(*paths).output.split(b"\0")
            found -= {one.partition(b"\n")[2] for one in listed}
        return sorted(map(os.fsdecode, found))

    def _known(self, branch: str) -> list[str]:
        """The commits that the remote's branches and tags had at the last fetch, but for the job's branch, which is replaced."""
        listed = self._mirror.read(
            "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags"
        )
        refs = (line.split(" ", 1) for line in os.fsdecode(listed).splitlines())
        return [commit for commit, ref in refs if ref != f"refs/heads/{branch}"]

    def push_beside(self, commit: str, ref: str) -> str:
        """Pushes work to `ref`, and overwrites nothing: if something else is there, to a ref of its own. Returns the ref. Raises
        CheckoutError and Interrupted.
        """
        for name in (ref, other := f"{ref}-{commit[:12]}"):
            if isinstance(self._pushed(commit, name, None), Delivered):
                return name
        raise CheckoutError(f"{ref} belongs to somebody else, and so does {other}", Outcome.IO_ERROR)

    def _committed(self, tree: str, parents: Sequence[str], message: str, maker: Mapping[str, str]) -> str:
        words = ("commit-tree", tree, *(word for one in parents for word in ("-p", one)))
        return self._git(**maker).change(*words, given=message.encode()).decode().strip()

    def push_branch(self, commit: str, branch: str, expected: str | None) -> Delivered | NotDelivered:
        """Pushes a commit to the branch `branch`, if the branch is at `expected` there. None means that the branch
        must not exist. Asks the remote after a failure, so a push whose answer was lost counts. A second push of the
        same commit is Delivered. Raises CheckoutError and Interrupted.
        """
        return self._pushed(commit, f"refs/heads/{branch}", expected)

    def contains(self, commit: str, other: str) -> bool:
        """Whether the history of `commit` has the commit `other`, so that a push of `commit` takes nothing away. False if
        this checkout does not know `other`. Raises CheckoutError and Interrupted.
        """
        return not self._git().answer("merge-base", "--is-ancestor", other, commit).status

    def _has_user(self) -> bool:
        return not self._git().answer("var", "GIT_COMMITTER_IDENT").status

    def _pushed(self, commit: str, ref: str, expected: str | None) -> Delivered | NotDelivered:
        lease = f"--force-with-lease={ref}:{expected or ''}"
        git = self._git()
        large: dict[str, str] = {}
        if self._may_have_large_files():
            large = large_files(git, commit, git.remote_refs("refs/heads/*", ref).values())
            self._take_large_files(large)
        if (redactor := self._mirror.calls.redactor).secrets:
            known = [self.commit, *self._known("")]
            with _disk():
                why = why_not_pushed(self._looking(), commit, known, redactor, self._storage)
            if why is not None:
                raise CheckoutError(why)
        if large:
            self._upload_to(commit, refuse_missing(git, commit, large, self._storage))
        answer = git.remote([*PUSH, lease], f"{commit}:{ref}")
        if not answer.status:
            return Delivered(commit)
        found = git.remote_refs(ref).get(ref)
        if found == commit:
            return Delivered(commit)
        if found != expected:
            return NotDelivered(found)
        raise git.failure("push", answer)

    # --- the large files of git-lfs

    @property
    def _storage(self) -> Path:
        return self._own / LFS_STORAGE[1]

    def _may_have_large_files(self) -> bool:
        if self._storage.is_dir() or (self.directory / ".git" / LFS_STORAGE[1]).is_dir():
            return True
        return self.directory.is_dir() and self._has_tracked()  # the checkout of a bundle has no files

    def _has_tracked(self) -> bool:
        tree = self._tree()
        return has_tracked(tree, tree.settings.values, self._storage)

    def _upload_to(self, commit: str, identifiers: Sequence[str]) -> None:
        """Has the large files uploaded that are in the worker's own directory of git-lfs, or only looks whether it could."""
        git = self._git(GIT_INDEX_FILE=str(self._own / "none"))  # git-lfs reads .lfsconfig there
        values, (_, remote, _) = git.settings_of(git.read(*LIST)).values, _REMOTE_URL.split(".")
        refuse_own_address(git, commit, remote, values)
        upload(git, remote, self._mirror.url, identifiers, values, limit_s=_REMOTE_LIMIT_S, asking=git)

    def _take_large_files(self, identifiers: Iterable[str]) -> None:
        """Copies the large files of the agent that the worker lacks, if their content has their ids."""
        for one in identifiers:
            place = path_in(self._storage, one)
            name = str(path_in(Path(LFS_STORAGE[1]), one))
            if place.is_file() or (source := _opened(self.directory / ".git", name)) is None:
                continue
            new = place.with_suffix(".new")
            with _disk(), open(source, "rb") as reading:  # noqa: PTH123 - a descriptor
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with new.open("w+b") as file:
                    shutil.copyfileobj(reading, file)
                    file.seek(0)
                    is_whole = hashlib.file_digest(file, "sha256").hexdigest() == one
                new.rename(place) if is_whole else new.unlink()

    # --- the files of the checkout

    def _staged(self) -> tuple[str, str, tuple[str, ...]]:
        """Brings the own index up to date. Returns the commit of HEAD, the tree, and the paths that were left out."""
        tree = self._tree()
        _refuse_open_programs(tree)
        head = head_of(self.directory) or self._index_head
        self._take_in(head)
        if head != self._index_head:
            self._start_again(head)
        has_carried = bool(self._carried)
        changed, sizes, left_out = self._listed(tree)
        if _within_limits(sizes, sum(self._carried.values()))[1]:
            if has_carried:  # the index may have a file that is too large now
                self._start_again(head)
                changed, sizes, left_out = self._listed(tree)
            sizes, too_large = _within_limits(sizes)
            left_out += [f"{os.fsdecode(path)} ({size:,} bytes)" for path, size in too_large.items()]
        self._carried |= sizes
        if changed or sizes:
            left_out += [f"{path} (git takes no such name)" for path in self._stage(tree, (*changed, *sizes))]
        left_out += self._unstage_credentials(head)
        return head, tree.change("write-tree").decode().strip(), tuple(left_out)

    def _unstage_credentials(self, head: str) -> list[str]:
        """Takes the changes of files that hold a credential of the worker's out of the index. Returns these files, with the reason."""
        redactor, tree = self._mirror.calls.redactor, self._tree()
        if not redactor.secrets:
            return []
        written = tree.change("write-tree").decode().strip()
        with _disk():
            held = paths_with_new_credentials(self._looking(), head, written, redactor, self._storage)
        if held:
            take_changes_out(tree, self._git(), head, held)
        for path in held:
            self._carried.pop(os.fsencode(path), None)
        return [f"{redactor.redact(path)} (holds a credential that ralph knows)" for path in held]

    def _looking(self) -> WorkerGit:
        """Git that looks through commits."""
        git = self._git()
        git.options = (*FOR_ALL, *git.options)
        return git

    def _stage(self, tree: FilesGit, paths: Iterable[bytes]) -> list[str]:
        """Brings the index up to date with files, as `Git.stage`, but git reads copies, because commands of the job may run
        meanwhile. Afterwards git compares the index with the files, for which it stores nothing.
        """
        copies = self._own / "copies"
        listed = list(paths)
        try:
            with _disk():
                remove_tree_if_possible(copies)
                names = map(os.fsdecode, listed)
                gone = set(map(os.fsencode, copy_files(os.path.realpath(self.directory), names, str(copies))))
            if gone:
                given = b"".join(path + b"\0" for path in listed if path in gone)
                tree.change("update-index", "--force-remove", "-z", "--stdin", given=given)
            given = b"".join(path + b"\0" for path in listed if path not in gone)
            refused = tree.stage_unlinked(given, {"GIT_WORK_TREE": str(copies)})
        finally:
            remove_tree_if_possible(copies)
        tree.call("update-index", "-q", "--refresh")
        return refused

    def forget_index(self) -> None:
        """Makes the index that of the commit with which the checkout began, because an earlier process may have changed it.
        Raises CheckoutError and Interrupted.
        """
        with _disk():
            (self._own / "index.lock").unlink(missing_ok=True)
        self._start_again(self.commit)

    def _start_again(self, head: str) -> None:
        """Makes the index that of a commit. What is known about unchanged files stays."""
        self._tree().change("read-tree", "-i", "-m", head)
        self._index_head = head
        self._carried = {}

    def _listed(self, tree: FilesGit) -> tuple[list[bytes], dict[bytes, int], list[str]]:
        """The tracked files that differ from the index, the sizes of the other files that are not ignored, and what is
        left out: other repositories, protected files below the top, files that cannot be read or whose filter does not run, and
        untracked ones that agents may not read. Files that the index has without the commit of HEAD count as other files.
        """
        top = os.path.realpath(self.directory)
        look, is_below = look_below(top), below_tops((top,))
        output = tree.read("ls-files", "-z", "-t", "-d", "-m", "-o", "--exclude-standard")
        places = self._mirror.calls.places_in(top) if output else None
        changed: dict[bytes, None] = {}
        sizes: dict[bytes, int] = {}
        left_out = {why: dict[str, None]() for why in (_OF_ITS_OWN, _CLOSED, _RUNS, _SECRET, _OBEYED)}
        lines = [line for line in output.split(b"\0") if line]
        without_filter = unfiltered(tree, tree.settings, (os.fsdecode(line[2:]) for line in lines))
        for line in lines:
            is_untracked, path, name = line[:1] == b"?", line[2:], os.fsdecode(line[2:])
            whole = os.path.join(os.fsencode(self.directory), path)  # noqa: PTH118 - the paths are bytes
            status = _status(whole)
            within = (one for one in look.found if one.takes_out(name, is_tracked=not is_untracked))
            if (one := next(within, None)) is not None:
                left_out[_RUNS][one.path] = None
            elif status and stat.S_ISDIR(status.st_mode) and look.is_closed(name):
                left_out[_CLOSED][name] = None
            elif is_below(f"{top}/{name}".rstrip("/")):
                left_out[_OBEYED][name] = None
            elif is_untracked and places and places.why_not_read(f"{top}/{name}".rstrip("/")):
                left_out[_SECRET][name] = None
            elif is_untracked and path.endswith(b"/"):
                left_out[_OF_ITS_OWN][name] = None
            elif status and (wanted := without_filter.get(name)) is not None:
                left_out.setdefault(f"its filter {wanted} is not in loop.git_filters", {})[name] = None
            elif is_refused(os.fsdecode(whole)):
                left_out[_CLOSED][name] = None
            elif (self._carried.pop(path, None) is not None and status) or is_untracked:
                if status:
                    sizes[path] = status.st_size
            else:
                changed[path] = None
        told = [f"{name} ({why})" for why, names in left_out.items() for name in names]
        return list(changed), sizes, told

    def _take_in(self, head: str) -> None:
        """Copies the agent's commits into the own git directory. Git computes their ids anew. Only objects that are in
        the agent's own git directory are copied: an agent in a sandbox could otherwise make the worker push objects of
        another repository, to which links or alternates lead.
        """
        if head == self._taken:
            return
        own = self._git()
        if own.resolved(head) is None:
            objects = self._own / "taken"
            reading = self._git(
                GIT_OBJECT_DIRECTORY=str(objects), GIT_ALTERNATE_OBJECT_DIRECTORIES=str(self._own / "objects")
            )
            revisions = f"{head}\n^{self._taken}\n".encode()
            try:
                with _disk(), (self._own / "taken.pack").open("w+b") as pack:
                    remove_tree_if_possible(objects)
                    copy_objects(str(self.directory / ".git"), str(objects))
                    packed = (
                        "pack-objects",
                        "--revs",
                        "--local",
                        "--stdout",
                        "--quiet",
                        "--delta-base-offset",
                    )
                    reading.change(*packed, given=revisions, output_to=pack.fileno())
                    pack.seek(0)
                    own.change("index-pack", "--stdin", "--fix-thin", input_from=pack.fileno())
                (self._own / "taken.pack").unlink()
            except ReplacedError as replaced:
                raise CheckoutError(f"{replaced} is a link: the agent has replaced it") from None
            finally:
                remove_tree_if_possible(objects)
        self._taken = head


def _refuse_open_programs(tree: FilesGit) -> None:
    """Raises CheckoutError if a program that the user's git configuration names takes code from the checkout."""
    for setting in tree.settings.left_out:
        raise CheckoutError(
            f"{setting} of your own git configuration would run what the checkout holds; name a program elsewhere, by its path"
        )


def other_heads(directory: Path) -> dict[str, str]:
    """The commits of the branches, tags and stashes of a checkout, and of the HEADs of its other worktrees, by their names, read as
    `head_of` reads HEAD. An annotated tag has its own id.
    """
    git, beginning = directory / ".git", "refs/heads/"
    found = dict(_packed(git))
    if _text(git, "HEAD", 4096):
        for folder in (beginning, "refs/tags/", "worktrees/"):
            for entry in entries_below(str(git / folder)):
                name = os.path.relpath(entry.path, git)
                found[name] = _text(git, name, 4096).strip()
    stashes = [
        line.split(" ")[1:2]
        for line in reversed(_text(git, "logs/refs/stash", _MOST_REF_FILE_BYTES).splitlines())
    ]
    found |= {f"{beginning}stash@{{{number}}}": one[0] for number, one in enumerate(stashes) if one}
    return {
        name.removeprefix(beginning).removeprefix("refs/"): commit
        for name, commit in found.items()
        if _OTHER_HEAD.match(name) and COMMIT_ID.fullmatch(commit)
    }


def _packed(git: Path) -> Iterator[tuple[str, str]]:
    for line in _text(git, "packed-refs", _MOST_REF_FILE_BYTES).splitlines():
        commit, _, ref = line.partition(" ")
        yield ref, commit


def head_of(directory: Path) -> str | None:
    """The commit that HEAD of a checkout names, read without git. None before the first commit of a branch, and if the
    files cannot be understood. Follows no symbolic links and waits for no named pipe.
    """
    git = directory / ".git"
    text, name = _text(git, "HEAD", 4096), ""
    for _ in range(_MOST_SYMBOLIC_REFS):
        line = text.partition("\n")[0].strip()
        if COMMIT_ID.fullmatch(line):
            return line
        name = line.removeprefix("ref: ").strip()
        if not line.startswith("ref: refs/") or ".." in name.split("/"):
            return None
        text = _text(git, name, 4096)
        if not text:
            break
    return next((commit for ref, commit in _packed(git) if ref == name and COMMIT_ID.fullmatch(commit)), None)


def _text(git: Path, name: str, most_bytes: int) -> str:
    """The content of a file below a git directory. Empty if it cannot be read, or if a directory on the way to it is a link."""
    with suppress(OSError):
        if (descriptor := _opened(git, name)) is not None:
            with os.fdopen(descriptor, "rb") as file:
                return os.fsdecode(file.read(most_bytes))
    return ""


def _opened(git: Path, name: str) -> int | None:
    """The descriptor of a regular file below a git directory. None if there is none, or as `_text`."""
    folder, _, last = name.rpartition("/")
    with suppress(OSError, ValueError), ExitStack() as stack:
        if (held := opened_folder(str(git), folder, stack)) is not None:
            descriptor = os.open(
                last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=held
            )
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
    return None


def _link_or_copy(source: Path, target: Path) -> None:
    """Does nothing if there is no source. Raises OSError."""
    if source.exists() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.link(source, target)
        except OSError:  # not every file system has hard links
            shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _status(path: bytes) -> os.stat_result | None:
    """The status of a file or a link. None if there is neither."""
    with suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            return status
    return None


def _within_limits(sizes: Mapping[bytes, int], total: int = 0) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Divides files into those that a checkpoint carries and those that are too large. Small files go first. `total` is
    the size of what the checkpoint carries already.
    """
    carried: dict[bytes, int] = {}
    too_large: dict[bytes, int] = {}
    for path, size in sorted(sizes.items(), key=lambda found: (found[1], found[0])):
        if size > MOST_FILE_BYTES or total + size > MOST_UNTRACKED_BYTES:
            too_large[path] = size
        else:
            carried[path] = size
            total += size
    return carried, too_large


@contextmanager
def _disk() -> Iterator[None]:
    """Makes an OSError a CheckoutError with the outcome of a failed disk, or of a machine that lacks a resource."""
    try:
        yield
    except OSError as error:
        outcome = Outcome.IO_ERROR if shortage_of(error) is None else Outcome.API_UNAVAILABLE
        raise CheckoutError(f"{error.filename or error}: {error.strerror}", outcome) from None

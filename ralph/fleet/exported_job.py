"""Does one job for another scheduler (`ralph fleet job`): a checkout, a run or a loop of ralph, a commit and a push. No store and
no worker of the fleet takes part.

Git runs as for a worker (`checkouts.py`): with a git directory, an index and settings of its own. No key and no token is in
git's environment: `GitToken` gives the token when git asks for it.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.fleet.checkouts import (
    LARGE,
    REST,
    GitCalls,
    NotDelivered,
    Repositories,
    checkpoint_ref,
    git_terms,
    trailer_of,
)
from ralph.fleet.job_file import MOST_FILE_BYTES
from ralph.fleet.job_process import STOPS_WITHIN_S, JobProcess, wait_for_end
from ralph.fleet.jobs import branch_of, job_from, why_no_name
from ralph.fleet.undelivered import BUNDLE, paths_below, write_file
from ralph.git.runner import HOST, TOKEN, given_token
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.opened_file import read_regular_file
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.machine.own_programs import search_outside, without_unsafe_loads
from ralph.machine.waiter import STOP_SIGNALS
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import CannotError, Outcome, UsageError, shortage_of
from ralph.values.ports import SignalReceived
from ralph.values.screen_text import foreign_lines, in_one_line, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    from ralph.fleet.checkouts import JobCheckout
    from ralph.fleet.jobs import Job

_KEPT = "job.json"
_MOST_BYTES = 65_536
_EVERY_S = 0.5
_AGAIN = Outcome.API_UNAVAILABLE.exit_code()


class _JobRecord(Struct, frozen=True):
    """The record that an attempt leaves for the next one, beside the checkout and the state directory."""

    commit: str
    """The commit with which the checkout began."""
    expected: str | None
    """The commit of the job's branch at the remote at that time. None if there was no such branch."""
    ended: int | None = None
    """The exit code of ralph. None if it has not ended with a final one."""
    made: str | None = None
    """The commit that is pushed, so that the same push is repeated. None before it was made."""


class ExportedJob:
    """One attempt at a job. Must be used on the main thread."""

    def __init__(
        self,
        set_name: str,
        job: Job,
        folder: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """`folder` is the job's own, also for later attempts. `say` gets lines without control sequences. Raises CannotError."""
        self._set, self._job, self._folder, self._say = set_name, job, folder, say
        missing = [name for name in job.env if not environment.get(name)]
        if missing:
            raise CannotError(f"the variable {missing[0]} is not set")
        terms = git_terms(environment, folder)
        kept = {name: value for name, value in environment.items() if name not in (TOKEN, HOST)}
        # Its own set and those beside it. What else is there, such as toolchains, stays open.
        others = {one.parents[1] for one in paths_below(folder.parent.parent, f"*/*/{_KEPT}")}
        self._process = JobProcess(
            set_name,
            job,
            folder,
            kept,
            hidden=tuple(sorted({folder.parent, *others})),
            told=say,
            waits_in_outages=True,
        )
        secrets = known_secrets(environment)
        ours = child_environment(environment, (), secrets, {*job.env, TOKEN, HOST})
        safe = without_unsafe_loads(ours, search_outside(ours, terms.writable))
        self._supervisor = CommandSupervisor(safe, makes_group=False)
        given = given_token(environment)
        self._new_calls = partial(GitCalls, ours, self._supervisor, given, terms, environment)
        self._calls = self._new_calls()
        self._repositories = Repositories(folder / "mirrors", self._calls)
        self._stopped_by: int | None = None
        self._made: dict[str, str] = {}
        """The commits to push by their refs, when they are known."""

    def attempt(self) -> int:
        """Does the job, or resumes it. Returns its exit code. Raises CannotError, CheckoutError, Interrupted and OSError."""
        with self._signals():
            try:
                kept, checkout = self._checked_out()
                if kept.ended is None:
                    code = self._worked(checkout)
                    if code == _AGAIN or code > 128:
                        return code
                    kept = replace(kept, ended=code)
                    self._keep(kept)
                self._deliver_or_keep(kept, checkout)
                return kept.ended or 0
            finally:
                self._process.end_now()
                self._supervisor.close()

    def _checked_out(self) -> tuple[_JobRecord, JobCheckout]:
        job, place = self._job, self._folder / "checkout"
        with suppress(FileNotFoundError):
            text = read_regular_file(self._folder / _KEPT, _MOST_BYTES)
            try:
                kept = msgspec.json.Decoder(_JobRecord).decode(text)
            except msgspec.MsgspecError as error:
                problem = f"{self._folder / _KEPT} is damaged ({error}); remove {self._folder} to start over"
                raise CannotError(problem, Outcome.IO_ERROR) from None
            return kept, self._repositories.reopen(job.repository, place, kept.commit)
        remove_tree_if_possible(place)  # of an attempt that was killed before it could begin
        branch = branch_of(job)
        expected = self._repositories.branch_at(job.repository, branch)
        checkout = self._repositories.check_out(job.repository, job.ref, place, branch)
        kept = _JobRecord(checkout.commit, expected)
        self._keep(kept)
        return kept, checkout

    def _keep(self, kept: _JobRecord) -> None:
        new = self._folder / f"{_KEPT}.new"
        new.write_bytes(msgspec.json.encode(kept))
        new.replace(self._folder / _KEPT)

    def _worked(self, checkout: JobCheckout) -> int:
        """Runs ralph in the checkout, and returns its exit code. After a signal, this is 128 and its number."""
        process = self._process
        budget_usd = self._left_usd()
        if budget_usd is not None and budget_usd <= 0:
            self._say("its budget is used up, or what it has spent is not known\n")
            return Outcome.LIMIT_REACHED.exit_code()
        process.start(budget_usd, checkout.objects)
        while (status := process.wait(_EVERY_S)) is None and self._stopped_by is None:
            pass
        if status is None:
            status = wait_for_end(process, STOPS_WITHIN_S)
        end = process.end(status)
        if end.result:
            self._say("\n".join((*foreign_lines(end.result.rstrip()), "")))
        if self._stopped_by is not None:
            return 128 + self._stopped_by
        return end.exit_code

    def _left_usd(self) -> float | None:
        """The part of the job's budget that the attempts before this one left. None without a budget."""
        budget_usd, story = self._job.max_budget_usd, self._process.story()
        if budget_usd is None:
            return None
        if self._job.until is None and story is not None and story.has_message and story.cost_usd is None:
            return 0.0
        return budget_usd - self._process.so_far().cost_usd

    def _deliver_or_keep(self, kept: _JobRecord, checkout: JobCheckout) -> None:
        """Delivers, or leaves a bundle in the job's folder: the machine of a scheduler may not outlive the job."""
        bundle = self._folder / BUNDLE
        try:
            self._deliver(kept, checkout)
        except (CannotError, SignalReceived) as error:
            if not self._made:
                raise
            checkout.use(self._new_calls())  # the former ones may be stopped
            checkout.keep_large_files(self._made.values(), kept.commit, self._folder)
            write_file(new := bundle.with_suffix(".new"), partial(checkout.bundle, self._made, kept.commit))
            new.replace(bundle)
            if isinstance(error, SignalReceived):
                self._say(f"the work is kept in {bundle}\n")
                raise
            raise CannotError(f"{error}; the work is kept in {bundle}", error.outcome) from None
        bundle.unlink(missing_ok=True)
        remove_tree_if_possible(self._folder / LARGE)

    def _deliver(self, kept: _JobRecord, checkout: JobCheckout) -> None:
        commit, trailer = kept.made, trailer_of(self._set, self._job.id, 1, 1)
        left_out: list[str] = []
        if commit is None:
            made = checkout.finish("What ralph left uncommitted", trailer)
            commit, left_out = made.commit, [*made.left_out]
            self._keep(replace(kept, made=commit))
        branch, beside = branch_of(self._job), f"{checkpoint_ref(self._set, self._job.id, 1)}{REST}"
        rest, _, lacks = checkout.rest(commit, kept.commit, branch, trailer)
        for path in (*left_out, *lacks):
            self._say(f"left out of the commit: {in_one_line(path)}\n")
        wanted = {f"refs/heads/{branch}": None if commit == kept.commit else commit, beside: rest}
        self._made = {ref: one for ref, one in wanted.items() if one is not None}
        if commit != kept.commit:
            if isinstance(checkout.push_branch(commit, branch, kept.expected), NotDelivered):
                raise CannotError(
                    f"{branch} was not pushed: it has commits of somebody else", Outcome.IO_ERROR
                )
            self._say(f"pushed {branch}\n")
        if rest is not None:
            beside = checkout.push_beside(rest, beside)
            self._say(f"pushed what is on other branches, in tags or in a stash as {beside}\n")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Passes the first signal on to ralph and to git, so that the session can be resumed."""

        def stop(number: int, _frame: FrameType | None) -> None:
            self._stopped_by = self._stopped_by or number
            self._calls.stop()
            self._process.stop()

        before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def do_job_in_file(
    file: str, set_name: str, place: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> int:
    """Does the job in a file below the directory `place`, and returns the exit code. `say` gets text for people, in whole
    lines. Raises CannotError and UsageError.
    """
    try:
        job = job_from(read_regular_file(file, MOST_FILE_BYTES, flags=0))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    if why := why_no_name(set_name):
        raise UsageError(f"--set: {why}")
    folder = place / set_name / job.id

    def shown(text: str) -> None:
        say(visible(text))

    def about(text: str) -> None:
        for line in text.splitlines():
            shown(f"{job.id}: {line}\n")

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ExportedJob(set_name, job, folder.resolve(), environment, shown).attempt()
    except CannotError as error:
        about(str(error))
        return error.outcome.exit_code()
    except SignalReceived as received:
        return 128 + received.signal_number
    except OSError as error:
        shortage = shortage_of(error)
        about(str(shortage or error))
        return (Outcome.IO_ERROR if shortage is None else Outcome.API_UNAVAILABLE).exit_code()

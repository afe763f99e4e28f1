"""Delivers what a checkout has: checkpoints while the job works, its branch at the end, and a bundle of what no git host has
taken. Everything here may be done again by another worker after a crash.
"""

from __future__ import annotations

import fcntl
import functools
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.fleet.checkouts import REST, WORK, Delivered, checkpoint_ref, trailer_of
from ralph.fleet.claims import ClaimWriter, LockState, LostError
from ralph.fleet.database import WaitStoppedError, away_reason, refusal_of
from ralph.fleet.job_process import TooLargeError, pack_state
from ralph.fleet.jobs import Final, branch_of
from ralph.git.answer import CheckoutError, shown
from ralph.machine.files.opened_file import opened
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.attempt import JobLog
    from ralph.fleet.checkouts import JobCheckout, Repositories
    from ralph.fleet.claims import Claim
    from ralph.fleet.job_process import JobProcess
    from ralph.fleet.jobs import Job, NextAttempt
    from ralph.fleet.undelivered import KeptWork
    from ralph.fleet.worker import Slot

    T = TypeVar("T")
    D = TypeVar("D", bound=NextAttempt | Final)

MOST_STATE_BYTES = 64 * 1024 * 1024
"""A larger state directory, compressed, is not carried to other machines."""
_CHECKPOINT_EVERY_S = 30.0
_LOCK_FOR_S = 1.0
_LOCK_EVERY_S = 0.005
_ASK_EVERY_S = 0.1
_PUSHES = 5
BEGINS_ANEW = {0, 1, 2, 4}
"""After these exit codes a retried job begins anew. After all others it resumes its session."""


class HeldClaim(ClaimWriter):
    """A claim, as its worker writes to the store. `lost` is called when another worker has the job."""

    def __init__(self, worker: Slot, claim: Claim, lost: Callable[[], None]) -> None:
        super().__init__(worker.store, claim)
        self._worker = worker
        self._lost = lost

    def ask(self, call: Callable[..., T], *arguments: object, **named: object) -> T:
        """Asks the store, and waits while it is away. Raises LostError, StoreError and WaitStoppedError."""
        with self.known_as_lost():
            return self._worker.ask(functools.partial(call, *arguments, **named))

    def ask_if_there(self, call: Callable[..., object], *arguments: object) -> bool:
        """Tells the store something that it may also learn later. Returns False if the store is away, or refuses: the process's
        main thread notices that. Raises LostError.
        """
        try:
            with self.known_as_lost():
                call(*arguments)
        except Exception as error:
            if away_reason(error) is None and refusal_of(self._worker.waiting.database, error) is None:
                raise
            return False
        return True

    def refuse_lost(self) -> None:
        """Raises LostError unless the job and the executor's lock are still this worker's."""
        while (state := self._worker.lock.confirm()) is LockState.UNKNOWN:
            if self._worker.waiting.stop.wait(_ASK_EVERY_S):
                raise WaitStoppedError
        self.ask(self.is_cancelled)
        with self.known_as_lost():
            if state is LockState.LOST:
                raise LostError

    @contextmanager
    def known_as_lost(self) -> Iterator[None]:
        try:
            yield
        except LostError:
            self._lost()
            raise


class JobDelivery:
    """The deliveries of one claim of a job."""

    def __init__(
        self, worker: Slot, held: HeldClaim, job: Job, repositories: Repositories, log: JobLog
    ) -> None:
        self._worker, self._claim, self._row, self._held = worker, held.claim, held.claim.row, held
        self._job, self._repositories, self._log = job, repositories, log
        self._branch, row = branch_of(job), self._row
        self._trailer = trailer_of(row.set_name, row.id, row.attempt, row.generation)
        self.last_commit: str | None = None
        """That of the last checkpoint."""
        self.next_checkpoint = 0.0
        self._final: str | None = None
        """The commit for the branch, when it was made."""
        self._rest: str | None = None
        """The commit with the work that the job has left beside its branch."""
        self._lacks = ""

    def _ref(self) -> str:
        return checkpoint_ref(self._row.set_name, self._row.id, self._row.attempt)

    # --- checkpoints

    def checkpoint(self, checkout: JobCheckout, process: JobProcess, *, is_last: bool) -> bool:
        """Saves files and journal as they are between two turns, if a file has changed or if it is the attempt's last.
        A checkpoint that fails is told, and the job continues. Returns False if a turn runs now.
        """
        try:
            with _turn_lock(process.turn_lock) as is_held:
                if not is_held:
                    return False
                made = self.snapshot(checkout)
                if made == self.last_commit and not is_last:
                    return True
                state = pack_state(process.state, MOST_STATE_BYTES)
            ref = None if made is None else self._push_ref(checkout, made)
        except (CheckoutError, TooLargeError, OSError) as error:
            self._log.tell(f"no checkpoint: {error}")
            self.next_checkpoint = time.monotonic() + _CHECKPOINT_EVERY_S
            if is_last and not isinstance(error, TooLargeError):
                raise
            return True
        is_saved = True
        if is_last:
            self._held.ask(self._held.save_checkpoint, ref, made, state)
        else:
            is_saved = self._held.ask_if_there(self._held.save_checkpoint, ref, made, state)
        if is_saved:
            self.last_commit = made
        self.next_checkpoint = time.monotonic() + _CHECKPOINT_EVERY_S
        return True

    def snapshot(self, checkout: JobCheckout) -> str | None:
        """The commit of a checkpoint of the files as they are. None if no file has changed since the job began."""
        made = checkout.snapshot(self.last_commit, f"Checkpoint of {self._claim.name}")
        for path in made.left_out if made is not None else ():
            self._log.tell(f"not in the checkpoint: {path}")
        return self.last_commit if made is None else made.commit

    def kept_checkpoint(self, checkout: JobCheckout, commit: str | None, state: bytes) -> None:
        """Pushes and saves the last checkpoint of an earlier claim, which was kept here."""
        ref = None if commit is None else self._push_ref(checkout, commit)
        self._held.ask(self._held.save_checkpoint, ref, commit, state)

    def _push_ref(self, checkout: JobCheckout, commit: str) -> str:
        """Pushes a checkpoint, and returns its ref. What an earlier holder has pushed is replaced, if the job is still this worker's."""
        ref = self._ref()
        for _ in range(_PUSHES):
            self._held.refuse_lost()
            if isinstance(checkout.push_checkpoint(commit, ref), Delivered):
                return ref
        raise CheckoutError(f"{ref} keeps being changed by somebody else", Outcome.IO_ERROR)

    def remove_checkpoints(self) -> None:
        with suppress(CheckoutError, Interrupted):
            row, own = self._row, self._claim.own_commits
            self._repositories.remove_checkpoints(self._job.repository, row.set_name, row.id, own)

    # --- the branch

    def expected(self, checkout: JobCheckout) -> str | None:
        """The commit at the job's branch, which a push may replace. Raises CheckoutError if it is somebody else's."""
        found = self._repositories.branch_at(self._job.repository, self._branch)
        if found in self._claim.own_commits:
            self._held.ask(self._held.record, commit=found)
        elif found is not None and not checkout.contains(checkout.commit, found):
            raise CheckoutError(
                f"the branch {self._branch} exists and does not belong to this job: delete it, or give the job another id"
            )
        return found

    def finished(self, checkout: JobCheckout) -> str | None:
        """The commit for the branch. None if the job has made none."""
        if self._final is None:
            line = next(filter(None, map(str.strip, self._job.prompt.splitlines())), "")
            subject = line if len(line) <= 60 else f"{line[:59]}…"
            final = checkout.finish(f"{self._row.id}: {subject}", self._trailer)
            self._find_rest(checkout, final.commit, final.left_out)
            self._final = final.commit
        return None if self._final == (self._row.base or checkout.commit) else self._final

    def _find_rest(self, checkout: JobCheckout, final: str, left_out: tuple[str, ...] = ()) -> None:
        """Commits what the job has left beside its branch, and what `final` lacks. `left_out` is not in `final`."""
        base = self._row.base or checkout.commit
        self._rest, names, lacks = checkout.rest(final, base, self._branch, self._trailer)
        lacks = [*left_out, *lacks]
        self._lacks = shown(lacks)
        told = [f"not in the branch: {path}" for path in lacks]
        for line in [*told, *(f"beside the branch: {name}" for name in names)]:
            self._log.tell(line)

    def branch(self, checkout: JobCheckout, commit: str, decision: Final, expected: str | None) -> Final:
        """Pushes the commit to the branch, or to another ref if the branch cannot be pushed. Returns how the job ends."""
        problem = self._pushed(checkout, commit, expected)
        if problem is None:
            return decision
        try:
            ref = self._push_beside(checkout, commit, WORK)
        except CheckoutError as error:
            raise error if error.is_temporary or problem.outcome is Outcome.IO_ERROR else problem from None
        return Final(problem.outcome.exit_code(), f"{problem}; the work is at {ref}: {commit}")

    def _push_beside(self, checkout: JobCheckout, commit: str, end: str) -> str:
        self._held.refuse_lost()
        return checkout.push_beside(commit, f"{self._ref()}{end}")

    def rest_of_checkpoint(self, checkout: JobCheckout, decision: D) -> D:
        """As `rest`, after the last checkpoint of an attempt, which has no other branches."""
        self._find_rest(checkout, self.last_commit or checkout.commit)
        return self.rest(checkout, decision)

    def rest(self, checkout: JobCheckout, decision: D) -> D:
        """Pushes what the job has left beside its branch. Returns how the job ends or continues, with what its branch lacks."""
        reasons = [decision.reason]
        if self._lacks:
            reasons.append(f"not in the branch, and gone: {self._lacks}")
        if self._rest is not None:
            ref = self._push_beside(checkout, self._rest, REST)
            reasons.append(f"what it left on other branches, in tags or in a stash is at {ref}: {self._rest}")
        return replace(decision, reason="; ".join(filter(None, reasons)))

    def take_rest(self, work: KeptWork) -> None:
        """From now on, `rest` pushes what an earlier claim left, which was kept here."""
        self._rest, self._lacks = work.rest, work.lacks

    def _pushed(self, checkout: JobCheckout, commit: str, expected: str | None) -> CheckoutError | None:
        """Pushes the branch. Returns why that is impossible, or None."""
        self._held.ask(self._held.record, planned=commit)
        for _ in range(_PUSHES):
            # The agent may have pushed the branch. Then that commit is an ancestor of `commit`.
            is_own = expected is None or expected in self._claim.own_commits
            if expected and not is_own and not checkout.contains(commit, expected):
                problem = f"the branch {self._branch} was changed by somebody else meanwhile"
                return CheckoutError(problem, Outcome.IO_ERROR)
            self._held.refuse_lost()
            try:
                pushed = checkout.push_branch(commit, self._branch, expected)
            except CheckoutError as error:
                if error.is_temporary:
                    raise
                return error
            if isinstance(pushed, Delivered):
                return None
            expected = pushed.found
        return CheckoutError(f"the branch {self._branch} keeps changing", Outcome.IO_ERROR)

    # --- the bundle

    def bundle(self, checkout: JobCheckout, work: KeptWork, place: Path) -> None:
        """Writes what is kept at `place`: the commit for the branch if `work` has an end, and the last checkpoint if the job can
        be resumed. Raises CheckoutError and OSError.
        """
        commits, commit, checkpoint, state = {}, None, None, None
        if work.ending is not None and (commit := self.finished(checkout)) is not None:
            commits[f"refs/heads/{self._branch}"] = commit
        if work.ending is None or work.ending.exit_code not in BEGINS_ANEW:
            with suppress(TooLargeError):  # then it begins anew
                state = pack_state(place / "state", MOST_STATE_BYTES)
                checkpoint = self.snapshot(checkout)
        if checkpoint is not None:
            commits[self._ref()] = checkpoint
        if work.ending is None:
            self._find_rest(checkout, checkpoint or self.last_commit or checkout.commit)
        if self._rest is not None:
            commits[f"{self._ref()}{REST}"] = self._rest
        work = replace(work, commit=commit, checkpoint=checkpoint, rest=self._rest, lacks=self._lacks)
        checkout.keep_large_files(commits.values(), work.base, place)
        write = functools.partial(checkout.bundle, commits, work.base) if commits else None
        self._worker.undelivered.keep(work, place, state=state, write=write)


@contextmanager
def _turn_lock(path: Path) -> Iterator[bool]:
    """Holds the turn lock, so that no turn of the job's process runs. The value is False if a turn runs now."""
    until = time.monotonic() + _LOCK_FOR_S
    with opened(path, os.O_RDONLY) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    yield False
                    return
                time.sleep(_LOCK_EVERY_S)
        yield True

"""One takeup of a job: checks out or restores, runs the job's process, takes checkpoints while it works, pushes the
branch, and tells the store how it ended. Everything here may be done again by another worker after a crash.
"""

from __future__ import annotations

import enum
import fcntl
import functools
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from ralph.fleet.checkouts import Delivered, GitCalls, Maker, Repositories, checkpoint_ref
from ralph.fleet.checkpoint import BadStateError, TooLargeError, pack_state, unpack_state
from ralph.fleet.database import StoreError, WaitStoppedError, away_reason, patiently, refusal_of
from ralph.fleet.decisions import LEAST_GRANT_USD, LONGEST_ASKED_S, Again, Final, ProcessEnd, after_end
from ralph.fleet.job_content import UnknownFormatError, job_from
from ralph.fleet.job_process import STOPS_WITHIN_S, JobProcess, fingerprint, has_own_access, wait_for_end
from ralph.fleet.job_rules import branch_of
from ralph.fleet.locks import LockState
from ralph.fleet.rows import Kept
from ralph.fleet.undelivered import BUNDLE, CHECKOUT, LEFT_SUFFIX, KeptWork
from ralph.git.answer import CheckoutError
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.own_programs import search_outside, without_unsafe_loads
from ralph.machine.processes import reaped_children
from ralph.machine.trees import remove_tree_if_possible
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted, SignalReceived
from ralph.values.tool_calls import describe_bug
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from mmap import mmap
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.checkouts import JobCheckout
    from ralph.fleet.database import Waiting
    from ralph.fleet.jobs import Job
    from ralph.fleet.locks import ExecutorLock
    from ralph.fleet.rows import TakeUp
    from ralph.fleet.takeups import WorkerStore
    from ralph.fleet.undelivered import Undelivered

    T = TypeVar("T")

CHECKPOINT_EVERY_S = 30.0
MOST_STATE_BYTES = 64 * 1024 * 1024
"""A larger state directory, compressed, is not carried to other machines."""
_LOOK_EVERY_S = 0.1
_TELL_EVERY_S = 2.0
_LOG_EVERY_S = 1.0
_LAST_CHECKPOINT_S = 3.0
"""The last checkpoint of a cancelled job may take so long. Then its work is kept here."""
_LOCK_FOR_S = 1.0
_LOCK_EVERY_S = 0.005
_PUSHES = 5
_MOST_RESULT_CHARS = 20_000
_BEGINS_ANEW = {0, 1, 2, 4}
"""After these exit codes a retried job begins anew. After all others it resumes its session."""
_BUDGET_DELAY_S = 15.0
"""A job that waits for what running jobs have reserved of the budget looks again after this time."""


_HANDED_BACK = Again(0.0, "its worker was told to stop")
_CANCELLED = Final(128 + 15, "cancelled")


class Stop(enum.Enum):
    """Why a takeup is to stop."""

    CANCELLED = "cancelled"
    DRAINED = "drained"
    """The worker was told to stop, so the job is handed back at a checkpoint."""
    AT_ONCE = "at once"
    """The worker ends at once. The process is killed; work that was to be delivered is still kept."""
    LOST = "lost"
    """Another worker has the job. Nothing may be pushed or written."""


_KILLS = {Stop.AT_ONCE, Stop.LOST}
_STRENGTH = (Stop.DRAINED, Stop.CANCELLED, Stop.AT_ONCE, Stop.LOST)


class LostError(Exception):
    """Another worker has taken over the job."""


class MachineError(Exception):
    """A machine cannot do jobs: its disk is full, its key is refused, or its user's settings are wrong. The job's next attempt
    is planned.
    """

    def __init__(self, message: str, outcome: Outcome = Outcome.IO_ERROR) -> None:
        """`outcome` is what the worker ends with if it is AUTH or CONFIG and nothing else runs. Otherwise it pauses."""
        super().__init__(message)
        self.outcome = outcome


class Worker:
    """All that the takeups of one process share."""

    def __init__(
        self,
        store: WorkerStore,
        lock: ExecutorLock,
        waiting: Waiting,
        *,
        machine: str,
        folder: Path,
        repositories: Path,
        undelivered: Undelivered,
        hidden: Sequence[Path],
        environment: Mapping[str, str],
        writable: tuple[str, ...],
        worked: mmap,
        tell: Callable[[str], None],
        redact: Callable[[str], str],
        checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    ) -> None:
        """`folder` is the folder of this executor alone. `repositories` has the mirrors of the machine.
        `hidden` are files and folders of the fleet that no job may read, `writable` the places that jobs may write.
        `worked` is one byte that all slots share: 1 after a job has ended well, 0 after a refusal.
        """
        self.store = store
        self.lock = lock
        self.waiting = waiting
        self.machine = machine
        self.folder = folder
        self.repositories = repositories
        self.undelivered = undelivered
        self.hidden = hidden
        self.environment = environment
        self.writable = writable
        self.worked = worked
        self.tell = tell
        self.redact = redact
        self.checkpoint_every_s = checkpoint_every_s

    def ask(self, call: Callable[[], T]) -> T:
        """Asks the store, and waits while it is away."""
        return patiently(call, waiting=self.waiting)

    def refusal(self, reason: str, outcome: Outcome) -> MachineError:
        """The error of a machine whose key or settings are refused. If a job has ended well since the last refusal, the
        worker only pauses.
        """
        has_worked, self.worked[0] = bool(self.worked[0]), 0
        return MachineError(f"{self.machine}: {reason}", Outcome.IO_ERROR if has_worked else outcome)


class Takeup:
    """One takeup, from taking up the job to telling how it ended. `run` is called in one thread; `stop` may be called
    from another.
    """

    def __init__(self, worker: Worker, taken: TakeUp) -> None:
        self._worker = worker
        self.taken = taken
        self._stop: Stop | None = None
        self._stopping = threading.Lock()
        harmless = child_environment(worker.environment, (), known_secrets(worker.environment))
        safe = without_unsafe_loads(harmless, search_outside(harmless, (worker.folder,)))
        self._supervisor = CommandSupervisor(safe, most_processes=0)
        # Git needs no key of the API, and gets the rest, by which the user's own helpers may authenticate.
        self._for_git = {
            name: value for name, value in worker.environment.items() if not name.startswith("ANTHROPIC_")
        }
        self._calls = self._git_calls()
        self._repositories = Repositories(worker.repositories, self._calls)
        self._process: JobProcess | None = None
        self._log = _Log(worker, taken)
        self._folder = worker.folder / taken.set_name / f"{taken.id}.{taken.generation}"
        self._last_commit: str | None = None
        self._final: str | None = None
        """The commit for the branch, when it was made."""
        self._at_branch: str | None = None
        """The checkpoint that was pushed to the job's branch, because the host takes no other refs."""
        self._ended: ProcessEnd | None = None
        """How the job's process ended."""
        self._kept = taken.kept
        self._place = worker.undelivered.place_of(
            taken.set_name, taken.id, taken.generation, worker.folder.name
        )
        self._is_left = False
        """Whether the job's files stay where they are, because they could not be kept."""
        self._next_checkpoint = 0.0
        self._unseen_usd = 0.0
        self._refused: str | None = None
        """Why the API refused the machine's key, if it did and the job goes on elsewhere."""

    def _git_calls(self) -> GitCalls:
        return GitCalls(self._for_git, self._supervisor, writable=self._worker.writable)

    def stop(self, why: Stop) -> None:
        """Stops what runs. A takeup that is lost stays so."""
        with self._stopping:
            if self._stop is not None and _STRENGTH.index(why) <= _STRENGTH.index(self._stop):
                return
            self._stop = why
            has_begun = self._process is not None
        if why is not Stop.DRAINED or not has_begun:
            self._calls.stop()
        self._stop_process()

    def _stop_process(self) -> None:
        if self._process is not None and self._stop in _KILLS:
            self._process.kill()
        elif self._process is not None and self._stop is not None:
            self._process.stop()

    def run(self) -> None:
        """Works until the store knows how it ended. Raises LostError, MachineError, StoreError and WaitStoppedError."""
        try:
            self._log.start()
            self._log.add(f"[fleet] attempt {self.taken.attempt} on {self._worker.machine}\n")
            try:
                job = job_from(self.taken.content)
                self._end_as_planned(job)
            except UnknownFormatError as error:
                self._end(Outcome.CONFIG, str(error))
            except BadStateError as error:
                self._end(Outcome.IO_ERROR, f"what was saved of it cannot be used: {error}")
            except CheckoutError as error:
                if error.outcome is Outcome.IO_ERROR and self._process is None:
                    self._end_here(error)
                self._end(error.outcome, str(error))
            except Interrupted:
                self._end_stopped()
            except OSError as error:
                self._end_here(error)
            except (LostError, StoreError, WaitStoppedError):
                raise
            except Exception as error:  # noqa: BLE001 - one job's bug must not end the worker, and is told
                self._end(Outcome.INTERNAL_ERROR, describe_bug(error))
        finally:
            if self._process is not None:
                self._process.end_now()
            self._supervisor.close()
            reaped_children(())  # the orphans of a job that was killed: this process has adopted them
            self._log.stop()
            self._worker.undelivered.remove_room(self.taken.set_name, self.taken.id)
            if not self._is_left:
                remove_tree_if_possible(self._folder)
        if self._refused is not None:
            raise self._worker.refusal(self._refused, Outcome.AUTH)

    # --- the steps

    def _end_as_planned(self, job: Job) -> None:
        remove_tree_if_possible(self._folder)
        self._folder.mkdir(parents=True, mode=0o700)
        self._worker.undelivered.make_room(self.taken.set_name, self.taken.id)
        if self.taken.kept is not None:
            return self._deliver_kept(job, self.taken.kept)
        for name in job.env:
            if name not in self._worker.environment:
                reason = f"the worker {self._worker.machine} has no variable {name}, which the job needs"
                return self._end(Outcome.CONFIG, reason)
        checkout = self._checked_out(job)
        expected = self._expected(job, checkout)
        process = JobProcess(
            self.taken.set_name,
            job,
            self._folder,
            self._worker.environment,
            hidden=self._worker.hidden,
            told=self._log.add,
            rate_limited=self._hold(job),
        )
        with self._stopping:
            if self._stop is not None:
                raise SignalReceived(signal.SIGTERM)
            self._process = process
        if self.taken.ending is not None:
            code, reason = self.taken.ending.exit_code, self.taken.ending.reason
            unstarted = ProcessEnd(exit_code=code, reason=reason)
            return self._deliver(job, checkout, expected, unstarted, self.taken.ending)
        return self._worked(job, process, checkout, expected)

    def _worked(self, job: Job, process: JobProcess, checkout: JobCheckout, expected: str | None) -> None:
        """Runs the process, and delivers or keeps what it has left."""
        decision: Again | Final | None = None
        try:
            followed = self._followed(job, process, checkout)
            self._refuse_killed()
            if isinstance(followed, Again):
                decision, end = followed, ProcessEnd(exit_code=Outcome.LIMIT_REACHED.exit_code())
            else:
                decision, end = self._decided(job, followed), followed
            if isinstance(decision, Final):
                return self._deliver(job, checkout, expected, end, decision)
            if end.retry_after_s:
                self._hold(job)(end.retry_after_s)
            is_refused = end.exit_code == Outcome.AUTH.exit_code()
            # A session without an answer is of no use elsewhere, and may name a server that only this machine asks.
            if not self._has_left_nothing() and (end.turns or not is_refused):
                self._checkpoint(checkout, is_last=True)
            self._plan(end, decision)
            if is_refused:
                self._refused = decision.reason
        except (Exception, Interrupted) as error:  # whatever kept it from being delivered, it was paid for
            # It may have ended, or been told to stop, while a checkpoint was pushed to a host that never answers.
            if self._ended is None:
                was_stopped = self._stop is not None
                status = wait_for_end(process, STOPS_WITHIN_S) if was_stopped else process.wait(0)
                self._ended = None if status is None else self._whole(process.end(status))
            if self._ended is None or self._has_left_nothing():
                raise
            decision = decision or self._decided(job, self._ended)
            return self._keep(job, checkout, decision, error)

    def _refuse_killed(self) -> None:
        if self._stop is Stop.LOST or (self._stop is Stop.AT_ONCE and self._has_left_nothing()):
            raise LostError

    def _has_left_nothing(self) -> bool:
        """Whether no files of the job are taken over: a killed one's command may still be at work."""
        return self._ended is None or self._ended.was_killed or self._ended.exit_code == 128 + 9

    def _decided(self, job: Job, end: ProcessEnd) -> Again | Final:
        if end.exit_code == 0:
            self._worker.worked[0] = 1
        decision = after_end(
            end,
            tries=self.taken.tries,
            most_tries=self.taken.most_tries,
            has_own_access=has_own_access(job),
            has_worked=bool(self._worker.worked[0]),
        )
        is_told = self._stop in {Stop.DRAINED, Stop.AT_ONCE}
        if is_told and (isinstance(decision, Again) or end.exit_code > 128 or end.was_killed):
            decision = _HANDED_BACK
        return _CANCELLED if self._stop is Stop.CANCELLED else decision

    def _checked_out(self, job: Job) -> JobCheckout:
        taken, worker = self.taken, self._worker
        saved = worker.ask(lambda: worker.store.checkpoint(taken.set_name, taken.id))
        directory, branch = self._folder / CHECKOUT, branch_of(job)
        if saved is not None and saved.commit is not None and saved.ref is not None:
            checkout = self._repositories.restore(job.repository, saved.ref, saved.commit, directory, branch)
            self._last_commit = saved.commit
        else:
            checkout = self._repositories.check_out(job.repository, taken.base or job.ref, directory, branch)
        if taken.base is None and not worker.ask(lambda: worker.store.set_base(taken, checkout.commit)):
            raise LostError
        if saved is not None:
            unpack_state(saved.state, self._folder / "state", 8 * MOST_STATE_BYTES)
            self._log.add(f"[fleet] restored the checkpoint {(saved.commit or 'without files')[:12]}\n")
        return checkout

    def _expected(self, job: Job, checkout: JobCheckout) -> str | None:
        """The commit at the job's branch, which a push may replace. Raises CheckoutError if it is somebody else's."""
        branch = branch_of(job)
        found = self._repositories.branch_at(job.repository, branch)
        if found is None:
            return None
        if found in self.taken.own_commits:
            if not self._worker.ask(lambda: self._worker.store.set_pushed(self.taken, found)):
                raise self._lost()
        elif not checkout.contains(checkout.commit, found):
            raise CheckoutError(
                f"the branch {branch} exists and is not of this job: delete it, or name another one (branch)"
            )
        return found

    def _followed(self, job: Job, process: JobProcess, checkout: JobCheckout) -> ProcessEnd | Again:
        """Runs the process, and again if its part of the set's budget did not suffice and more is left."""
        granted, spent = self.taken.granted_usd, self.taken.cost_usd
        # KeptWork after the checkpoint was paid for, and is paid for again.
        self._unseen_usd = max(spent - process.spending().cost_usd, 0.0)
        while (end := process.end_before()) is None:
            self._ended = None
            own = None if job.max_budget_usd is None else plain(max(job.max_budget_usd - spent, 0.0))
            may_spend = min((usd for usd in (granted, own) if usd is not None), default=None)
            process.start(may_spend, checkout.objects)
            self._stop_process()
            end = self._watched(process, checkout)
            self._ended = end = self._whole(end)
            self._tell_spent(end.cost_usd, end.turns)
            if end.limit != "max_budget_usd" or granted is None or may_spend == own or self._stop is not None:
                return end
            unspent = max(granted - (end.cost_usd - spent), 0.0)
            least = 2 * max(unspent, LEAST_GRANT_USD)
            ask = self._worker.store.ask_more
            granted, is_reserved = self._worker.ask(lambda: ask(self.taken, least))  # noqa: B023 - called at once
            if granted is not None and granted <= unspent:
                return (
                    Again(_BUDGET_DELAY_S, "the set's budget is reserved by running jobs", is_try=False)
                    if is_reserved
                    else end
                )
            spent = end.cost_usd
        self._ended = end = self._whole(end)
        self._tell_spent(end.cost_usd, end.turns)
        return end

    def _whole(self, end: ProcessEnd) -> ProcessEnd:
        """The end with the cost of the whole job, and not only of what the session knows."""
        return replace(end, cost_usd=plain(end.cost_usd + self._unseen_usd))

    def _tell_spent(self, cost_usd: float, turns: int) -> None:
        if not self._worker.ask(lambda: self._spent(cost_usd, turns)):
            raise self._lost()

    def _watched(self, process: JobProcess, checkout: JobCheckout) -> ProcessEnd:
        """Follows the process to its end. After a change of the journal it tells what was spent, and tries to take a
        checkpoint until it gets one: while a turn runs there is none.
        """
        seen = process.last_change()
        is_new = False
        next_word = 0.0
        while (status := process.wait(_LOOK_EVERY_S)) is None:
            if self._stop is not None:
                status = wait_for_end(process, STOPS_WITHIN_S)
                break
            changed = process.last_change()
            is_new = is_new or changed != seen
            seen = changed
            if is_new and time.monotonic() >= next_word:
                spending = process.spending()
                cost_usd = plain(spending.cost_usd + self._unseen_usd)
                self._told_if_there(functools.partial(self._spent, cost_usd, spending.turns))
                next_word = time.monotonic() + _TELL_EVERY_S
            if is_new and time.monotonic() >= self._next_checkpoint:
                is_new = not self._checkpoint(checkout, is_last=False)
        return process.end(status)

    def _spent(self, cost_usd: float, turns: int) -> bool:
        return self._worker.store.spend(self.taken, cost_usd, turns)

    def _checkpoint(self, checkout: JobCheckout, *, is_last: bool) -> bool:
        """Saves files and journal as they are between two turns, if a file has changed or if it is the attempt's last.
        A checkpoint that fails is told, and the job goes on. Returns False if a turn runs now.
        """
        process, taken = self._process, self.taken
        assert process is not None  # noqa: S101 - checkpoints are taken of a process
        try:
            with _turn_lock(process.turn_lock) as is_held:
                if not is_held:
                    return False
                made = checkout.snapshot(self._last_commit, f"Checkpoint of {taken.set_name}/{taken.id}")
                if made is None and not is_last:
                    return True
                state = pack_state(process.state, MOST_STATE_BYTES)
            commit = made.commit if made is not None else self._last_commit
            ref = None if commit is None else self._pushed_checkpoint(checkout, commit, is_last=is_last)
            for path in made.left_out if made is not None else ():
                self._log.add(f"[fleet] not in the checkpoint: {path}\n")
        except (CheckoutError, TooLargeError, OSError) as error:
            self._log.add(f"[fleet] no checkpoint: {error}\n")
            self._next_checkpoint = time.monotonic() + self._worker.checkpoint_every_s
            if is_last and not isinstance(error, TooLargeError):
                raise
            return True
        if not self._saved(ref, commit, state, is_last=is_last):
            return True
        self._last_commit = commit
        self._next_checkpoint = time.monotonic() + self._worker.checkpoint_every_s
        return True

    def _saved(self, ref: str | None, commit: str | None, state: bytes, *, is_last: bool) -> bool:
        """Writes a checkpoint into the store. Only the last one waits for a store that is away. Returns False if it is."""
        worker = self._worker
        save = functools.partial(worker.store.save_checkpoint, self.taken, ref, commit, state)
        try:
            is_ours = worker.ask(save) if is_last else save()
        except Exception as error:
            if is_last or not self._is_of_store(error):
                raise
            self._next_checkpoint = time.monotonic() + worker.checkpoint_every_s
            return False
        if not is_ours:
            raise self._lost()
        return True

    def _pushed_checkpoint(self, checkout: JobCheckout, commit: str, *, is_last: bool) -> str:
        """Pushes a checkpoint, and returns its ref. Where the host takes no such refs, the last one of an attempt goes to the
        job's branch, and what follows replaces it there.
        """
        taken, worker = self.taken, self._worker
        ref = checkpoint_ref(taken.id, taken.attempt)
        try:
            self._push_checkpoint(checkout, commit, ref)
        except CheckoutError as refused:
            if not is_last or refused.outcome is not Outcome.CONFIG:
                raise
            job = job_from(taken.content)
            expected = self._repositories.branch_at(job.repository, branch_of(job))
            if expected in taken.own_commits:
                worker.ask(lambda: worker.store.set_pushed(taken, expected or ""))
            if not worker.ask(lambda: worker.store.plan_push(taken, commit)):
                raise self._lost() from None
            problem = self._pushed(job, checkout, commit, expected)
            if problem is not None:
                advice = f"the host must take a push to {ref} or to {branch_of(job)}: {problem}"
                raise CheckoutError(f"{refused} ({advice})", refused.outcome) from None
            self._log.add(f"[fleet] the host does not take {ref}: the checkpoint is at {branch_of(job)}\n")
            self._at_branch = commit
            return f"refs/heads/{branch_of(job)}"
        return ref

    def _push_checkpoint(self, checkout: JobCheckout, commit: str, ref: str) -> None:
        """Pushes a checkpoint. What an earlier holder has pushed is replaced, if the job is still this worker's."""
        for _ in range(_PUSHES):
            self._refuse_lost()
            if isinstance(checkout.push_checkpoint(commit, ref), Delivered):
                return
        raise CheckoutError(f"{ref} is changed by somebody else again and again", Outcome.IO_ERROR)

    def _deliver(
        self, job: Job, checkout: JobCheckout, expected: str | None, end: ProcessEnd, decision: Final
    ) -> None:
        taken = self.taken
        if self._stop is Stop.CANCELLED:
            if not self._has_left_nothing():
                self._checkpoint_of_cancelled(checkout)
            self._tell_end(end, decision, None, keeps_checkpoint=True)
            return
        is_resumable = decision.exit_code not in _BEGINS_ANEW
        if is_resumable and taken.ending is None:
            try:
                self._checkpoint(checkout, is_last=True)
            except CheckoutError as error:
                if error.is_temporary:
                    raise
        commit = self._at_branch or self._finished(job, checkout)
        if commit is not None and self._at_branch is None:
            delivered = self._delivered(job, checkout, commit, expected, decision)
            is_resumable = is_resumable or delivered is not decision
            decision = delivered
        self._tell_delivered(job, end, decision, commit, is_resumable=is_resumable)

    def _checkpoint_of_cancelled(self, checkout: JobCheckout) -> None:
        """Takes the last checkpoint of a job whose git calls were stopped, within the time that a cancellation may take."""
        calls = self._git_calls()
        checkout.use(calls)
        stopping = threading.Timer(_LAST_CHECKPOINT_S, calls.stop)
        stopping.start()
        try:
            self._checkpoint(checkout, is_last=True)
        finally:
            stopping.cancel()

    def _tell_delivered(
        self, job: Job, end: ProcessEnd, decision: Final, commit: str | None, *, is_resumable: bool
    ) -> None:
        self._tell_end(end, decision, commit, keeps_checkpoint=is_resumable)
        if not is_resumable:
            with suppress(CheckoutError, Interrupted):
                self._repositories.remove_checkpoints(job.repository, job.id)

    def _finished(self, job: Job, checkout: JobCheckout) -> str | None:
        """The commit for the branch. None if the job has made none."""
        taken = self.taken
        if self._final is None:
            maker = Maker(taken.set_name, taken.id, taken.attempt, taken.generation)
            final = checkout.finish(f"{job.id}: {_subject(job)}", maker)
            for path in final.left_out:
                self._log.add(f"[fleet] not in the branch: {path}\n")
            self._final = final.commit
        return None if self._final == (taken.base or checkout.commit) else self._final

    def _delivered(
        self, job: Job, checkout: JobCheckout, commit: str, expected: str | None, decision: Final
    ) -> Final:
        """Pushes the commit to the branch, or to another ref if the branch cannot be pushed. Returns how the job ends."""
        taken, worker = self.taken, self._worker
        if not worker.ask(lambda: worker.store.plan_push(taken, commit)):
            raise self._lost()
        problem = self._pushed(job, checkout, commit, expected)
        if problem is None:
            return decision
        ref = f"{checkpoint_ref(taken.id, taken.attempt)}-work"
        try:
            self._push_checkpoint(checkout, commit, ref)
        except CheckoutError as error:
            raise error if error.is_temporary or problem.outcome is Outcome.IO_ERROR else problem from None
        return Final(problem.outcome.exit_code(), f"{problem}; the work is at {ref}: {commit}")

    # --- what the git host does not take

    def _keep(
        self, job: Job, checkout: JobCheckout, decision: Again | Final, error: Exception | Interrupted
    ) -> None:
        """Keeps on this machine what could not be delivered because of `error`, and tells the store. Raises what `error`
        raises for the store and the process.
        """
        taken, worker = self.taken, self._worker
        self._move()
        if self._stop is Stop.LOST:
            worker.tell(f"{taken.set_name}/{taken.id}: what was made here is kept: {self._place}")
            raise LostError
        checkout.move_to(self._place / CHECKOUT)
        checkout.use(self._git_calls())  # the former ones may be stopped
        kept = Kept(
            set_name=taken.set_name,
            job=taken.id,
            generation=taken.generation,
            place=worker.undelivered.identity(),
            machine=worker.machine,
            path=str(self._place / BUNDLE),
            tries=1,
        )
        self._kept = kept
        if not worker.waiting.stop.is_set():
            self._told_if_there(lambda: worker.store.keep(taken, kept))
        if not self._bundled(job, checkout, decision):
            self._kept = kept = replace(kept, path=str(self._place))
        if isinstance(error, (StoreError, WaitStoppedError)):
            raise error  # the next worker of this machine records it
        if not worker.ask(lambda: worker.store.keep(taken, kept)):
            raise self._lost()
        match error:
            case Interrupted():
                self._end_stopped()
            case OSError() | CheckoutError(outcome=Outcome.IO_ERROR):  # there is room again, or will be
                self._end(Outcome.API_UNAVAILABLE, str(error))
            case CheckoutError():
                self._end(error.outcome, str(error))
            case _:
                self._end(Outcome.INTERNAL_ERROR, describe_bug(error))

    def _told_if_there(self, tell: Callable[[], bool]) -> None:
        """Tells the store something that it may also learn later. The process's main thread notices a store that cannot be
        used.
        """
        try:
            is_ours = tell()
        except Exception as error:
            if not self._is_of_store(error):
                raise
        else:
            if not is_ours:
                raise self._lost()

    def _is_of_store(self, error: Exception) -> bool:
        """Whether the error says that the store is away, or refuses."""
        return away_reason(error) is not None or refusal_of(self._worker.waiting.database, error) is not None

    def _move(self) -> None:
        """Moves the takeup's folder to the kept work. Raises OSError, and then leaves it where nothing removes it."""
        try:
            self._worker.undelivered.move(self._folder, self._place)
        except OSError as error:
            self._is_left = True
            left = self._folder.with_name(f"{self._folder.name}{LEFT_SUFFIX}")
            with suppress(OSError):  # a disk of which nothing can be removed either
                left = self._folder.rename(left)
            raise OSError(error.errno, f"{error.strerror}; its files stay here", str(left)) from error

    def _bundled(self, job: Job, checkout: JobCheckout, decision: Again | Final) -> bool:
        """Writes the bundle. Returns False if the whole checkout stays instead, because git cannot bundle it or the disk is
        full.
        """
        try:
            self._write_bundle(job, checkout, decision)
        except (CheckoutError, OSError) as error:
            name = f"{self.taken.set_name}/{self.taken.id}"
            self._worker.tell(f"{name}: its checkout is kept as it is, because it cannot be bundled: {error}")
            return False
        return True

    def _write_bundle(self, job: Job, checkout: JobCheckout, decision: Again | Final) -> None:
        taken, commits = self.taken, {}
        ending = decision if isinstance(decision, Final) and decision is not _CANCELLED else None
        commit = checkpoint = state = None
        base = taken.base or checkout.commit
        ended = self._ended or ProcessEnd(exit_code=0)
        if ending is not None and (commit := self._finished(job, checkout)) is not None:
            commits[f"refs/heads/{branch_of(job)}"] = commit
        if ending is None or ending.exit_code not in _BEGINS_ANEW:
            with suppress(TooLargeError):  # then it begins anew
                state = pack_state(self._place / "state", MOST_STATE_BYTES)
                made = checkout.snapshot(self._last_commit, f"Checkpoint of {taken.set_name}/{taken.id}")
                checkpoint = made.commit if made is not None else self._last_commit
        if checkpoint is not None:
            commits[checkpoint_ref(taken.id, taken.attempt)] = checkpoint
        work = KeptWork(
            base=base,
            commit=commit,
            checkpoint=checkpoint,
            ending=ending,
            resumes_at=time.time() + (decision.delay_s if isinstance(decision, Again) else 0.0),
            result=self._worker.redact(ended.result)[:_MOST_RESULT_CHARS],
            turns=ended.turns,
            cost_usd=ended.cost_usd,
        )
        write = functools.partial(checkout.bundle, commits, base) if commits else None
        self._worker.undelivered.keep(work, self._place, state=state, write=write)

    def _deliver_kept(self, job: Job, kept: Kept) -> None:
        """Delivers what this machine keeps of the job, and asks no model."""
        undelivered = self._worker.undelivered
        place = undelivered.place_at(kept)
        work = undelivered.work_at(place)
        if work is None and (place / CHECKOUT).is_dir():
            work = self._bundled_later(job, place)
        if work is None:
            self._kept = None
            reason = f"nothing is at {place}: its worker was killed before, or it was removed"
            return self._end(Outcome.API_UNAVAILABLE, reason)
        self._tell_spent(work.cost_usd, work.turns)
        bundle = place / BUNDLE if work.commit or work.checkpoint else None
        checkout = self._repositories.unbundle(job.repository, bundle, work.base, self._folder / CHECKOUT)
        decision = work.ending
        goes_on = decision is None or (kept.is_retried and decision.exit_code != 0)
        state = undelivered.state_at(place)
        if state is not None:
            try:
                self._deliver_checkpoint(checkout, work.checkpoint, state)
            except CheckoutError as error:
                if goes_on or error.is_temporary:
                    raise
                self._log.add(f"[fleet] no checkpoint: {error}\n")
        if work.commit is not None and decision is not None and self._at_branch is None:
            expected = self._repositories.branch_at(job.repository, branch_of(job))
            delivered = self._delivered(job, checkout, work.commit, expected, decision)
            goes_on = goes_on and delivered is decision
            decision = delivered
        self._kept = None
        end = ProcessEnd(exit_code=0 if decision is None else decision.exit_code, result=work.result)
        if decision is None or goes_on:
            return self._plan(end, Again(max(work.resumes_at - time.time(), 0.0), "its work was delivered"))
        self._log.add("[fleet] delivered what was kept here\n")
        is_resumable = decision is not work.ending or decision.exit_code not in _BEGINS_ANEW
        commit = self._at_branch or work.commit
        return self._tell_delivered(job, end, decision, commit, is_resumable=is_resumable)

    def _deliver_checkpoint(self, checkout: JobCheckout, commit: str | None, state: bytes) -> None:
        ref = None if commit is None else self._pushed_checkpoint(checkout, commit, is_last=True)
        self._saved(ref, commit, state, is_last=True)

    def _bundled_later(self, job: Job, place: Path) -> KeptWork | None:
        """Makes the bundle of a checkout that was moved to `place`."""
        if (base := self.taken.base) is None:
            return None
        checkout = self._repositories.reopen(job.repository, place / CHECKOUT, base)
        left = JobProcess(
            self.taken.set_name, job, place, self._worker.environment, hidden=(), told=self._log.add
        )
        self._place, self._ended = place, (end := left.end_left())
        decision = _HANDED_BACK if end is None or end.exit_code > 128 else self._decided(job, end)
        self._write_bundle(job, checkout, decision)
        return self._worker.undelivered.work_at(place)

    def _pushed(
        self, job: Job, checkout: JobCheckout, commit: str, expected: str | None
    ) -> CheckoutError | None:
        """Pushes the branch. Returns why that is impossible, or None."""
        branch = branch_of(job)
        for _ in range(_PUSHES):
            # The agent may have pushed the branch. Then that commit is an ancestor of `commit`.
            is_own = expected is None or expected in self.taken.own_commits
            if expected and not is_own and not checkout.contains(commit, expected):
                problem = f"the branch {branch} was changed by somebody else meanwhile"
                return CheckoutError(problem, Outcome.IO_ERROR)
            self._refuse_lost()
            try:
                pushed = checkout.push_branch(commit, branch, expected)
            except CheckoutError as error:
                if error.is_temporary:
                    raise
                return error
            if isinstance(pushed, Delivered):
                return None
            expected = pushed.found
        return CheckoutError(f"the branch {branch} is changed again and again", Outcome.IO_ERROR)

    # --- telling the store

    def _tell_end(
        self, end: ProcessEnd, decision: Final, commit: str | None, *, keeps_checkpoint: bool = False
    ) -> None:
        taken, worker = self.taken, self._worker
        self._log.stop()
        reason = worker.redact(decision.reason)
        if not worker.ask(
            lambda: worker.store.end_job(
                taken,
                exit_code=decision.exit_code,
                reason=reason,
                result=worker.redact(end.result)[:_MOST_RESULT_CHARS],
                commit=commit,
                keeps_checkpoint=keeps_checkpoint,
                is_delivered=self._kept is None,
            )
        ):
            raise self._lost()
        worker.tell(
            f"{taken.set_name}/{taken.id}: exit {decision.exit_code}{f' ({reason})' if reason else ''}"
        )

    def _plan(self, end: ProcessEnd, decision: Again) -> None:
        taken, worker = self.taken, self._worker
        self._log.stop()
        is_try = decision.is_try and self._stop is not Stop.DRAINED
        reason = worker.redact(decision.reason)
        if not worker.ask(
            lambda: worker.store.plan_next(
                taken,
                exit_code=end.exit_code,
                delay_s=decision.delay_s,
                reason=reason,
                is_try=is_try or taken.kept is not None,
                is_delivered=self._kept is None,
            )
        ):
            raise self._lost()
        worker.tell(f"{taken.set_name}/{taken.id}: again in {decision.delay_s:.0f} s ({reason})")

    def _end(self, outcome: Outcome, reason: str) -> None:
        """Ends a takeup that failed outside of the job's process."""
        if self._stop in _KILLS and self._kept is None:
            raise LostError
        tries, kept = self.taken.tries, self._kept
        if kept is not None:
            reason = f"{reason}; {_where(kept)}"
            tries = kept.tries + (self.taken.kept is not None)
        end = ProcessEnd(exit_code=outcome.exit_code(), reason=reason, cost_usd=self.taken.cost_usd)
        decision = after_end(end, tries=tries, most_tries=self.taken.most_tries)
        if kept is not None:
            worker = self._worker
            if not worker.ask(lambda: worker.store.keep(self.taken, replace(kept, tries=tries))):
                raise self._lost()
        self._log.add(f"[fleet] {reason}\n")
        if isinstance(decision, Again):
            self._plan(end, decision)
        else:
            self._tell_end(end, decision, None, keeps_checkpoint=True)

    def _end_here(self, error: Exception) -> NoReturn:
        """Ends a takeup that failed because of this machine. Other machines can do the job. Raises MachineError."""
        reason = f"{self._worker.machine}: {error}"
        self._end(Outcome.API_UNAVAILABLE, reason)
        raise MachineError(f"{self._worker.machine} cannot hold a job's files") from error

    def _end_stopped(self) -> None:
        """Ends a takeup whose git call was stopped."""
        if self._stop is Stop.LOST or (self._stop is Stop.AT_ONCE and self._kept is None):
            raise LostError
        end = ProcessEnd(exit_code=128 + 15, cost_usd=self.taken.cost_usd)
        if self._stop is not Stop.CANCELLED:
            where = "" if self._kept is None else f"; {_where(self._kept)}"
            return self._plan(end, replace(_HANDED_BACK, reason=f"{_HANDED_BACK.reason}{where}"))
        return self._tell_end(end, _CANCELLED, None, keeps_checkpoint=True)

    def _hold(self, job: Job) -> Callable[[float], None]:
        key = fingerprint(self._worker.environment, job.base_url, job.model)
        return functools.partial(self._log.hold, key)

    def _refuse_lost(self) -> None:
        """Raises LostError unless the job and the executor's lock are still this worker's."""
        worker = self._worker
        while (state := worker.lock.confirm()) is LockState.UNKNOWN:
            if worker.waiting.stop.wait(_LOOK_EVERY_S):
                raise WaitStoppedError
        is_ours, _ = worker.ask(lambda: worker.store.is_current(self.taken))
        if state is LockState.LOST or not is_ours:
            raise self._lost()

    def _lost(self) -> LostError:
        self.stop(Stop.LOST)
        return LostError()


class _Log:
    """Brings the narration of a job and the limits of its key into the store, each second. The narration is cut when it is
    too long. Both are dropped while the store is away: the session's journal has everything.
    """

    def __init__(self, worker: Worker, taken: TakeUp) -> None:
        self._worker = worker
        self._taken = taken
        self._pieces: list[str] = []
        self._holds: list[tuple[str, float]] = []
        self._left = 4 * 1024 * 1024
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_often, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, text: str) -> None:
        with self._lock:
            if self._left <= 0:
                return
            self._left -= len(text)
            self._pieces.append(text if self._left > 0 else "[fleet] the log is cut here\n")

    def hold(self, credential: str, for_s: float) -> None:
        """No job of any worker begins with this key for so long."""
        with self._lock:
            self._holds.append((credential, min(for_s, LONGEST_ASKED_S)))

    def stop(self) -> None:
        """Writes the rest. May be called twice."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(10)

    def _write_often(self) -> None:
        while not self._ended.wait(_LOG_EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            text, self._pieces = "".join(self._pieces), []
            held, self._holds = self._holds, []
        store = self._worker.store
        with suppress(Exception):  # a log must not stop a job; `_Log` says what is lost
            for credential, for_s in held:
                store.hold(credential, for_s, f"the API asked to wait {for_s:.0f} s with this key")
            if text:
                store.add_log(self._taken, self._worker.redact(text))


@contextmanager
def _turn_lock(path: Path) -> Iterator[bool]:
    """Holds the turn lock, so that no turn of the job's process runs. The value is False if a turn runs now."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _LOCK_FOR_S
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
    finally:
        os.close(descriptor)


def _where(kept: Kept) -> str:
    return f"its work is kept on {kept.machine}: {kept.path} (ralph fleet retry {kept.set_name}/{kept.job})"


def _subject(job: Job) -> str:
    """The beginning of the prompt's first line, for a commit's subject."""
    line = next((line.strip() for line in job.prompt.splitlines() if line.strip()), "")
    return line if len(line) <= 60 else f"{line[:59]}…"

"""One claim of a job: checks out or restores, runs the job's process, takes checkpoints while it works, delivers what it has
made, and tells the store how it ended. Everything here may be done again by another worker after a crash.
"""

from __future__ import annotations

import enum
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from ralph.fleet.checkouts import GitCalls, Repositories
from ralph.fleet.claims import MOST_LOG_BYTES, LostError
from ralph.fleet.database import StoreError, WaitStoppedError
from ralph.fleet.delivery import BEGINS_ANEW, MOST_STATE_BYTES, HeldClaim, JobDelivery
from ralph.fleet.job_process import (
    STOPS_WITHIN_S,
    BadStateError,
    JobProcess,
    fingerprint,
    has_own_access,
    unpack_state,
    wait_for_end,
)
from ralph.fleet.jobs import (
    LEAST_GRANT_USD,
    LONGEST_ASKED_S,
    Final,
    NextAttempt,
    ProcessEnd,
    UnknownFormatError,
    after_end,
    branch_of,
)
from ralph.fleet.schema import KeptRow
from ralph.fleet.undelivered import BUNDLE, CHECKOUT, LEFT_SUFFIX, KeptWork
from ralph.git.answer import CheckoutError
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.machine.own_programs import search_outside, without_unsafe_loads
from ralph.machine.starting import reaped_children
from ralph.values.answer import describe_bug
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted, SignalReceived
from ralph.values.screen_text import in_one_line
from ralph.values.usage import plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.checkouts import JobCheckout
    from ralph.fleet.claims import Claim
    from ralph.fleet.worker import Slot

    T = TypeVar("T")

_LOOK_EVERY_S = 0.1
_TELL_EVERY_S = 2.0
_LOG_EVERY_S = 1.0
_LAST_CHECKPOINT_S = 3.0
"""The last checkpoint of a cancelled job may take so long. Then its work is kept here."""
_MOST_RESULT_CHARS = 20_000
_BUDGET_DELAY_S = 15.0
"""A job that waits for what running jobs have reserved of the budget looks again after this time."""
_HANDED_BACK = NextAttempt(0.0, "its worker was told to stop")
_CANCELLED = Final(128 + 15, "cancelled")


class Stop(enum.IntEnum):
    """Why a claim is to end. A later one takes the place of those before it."""

    DRAINED = 1
    """The worker was told to stop, so the job is handed back at a checkpoint."""
    CANCELLED = 2
    AT_ONCE = 3
    """The worker ends at once. The process is killed; work that was to be delivered is still kept."""
    LOST = 4
    """Another worker has the job. Nothing may be pushed or written."""


class MachineError(Exception):
    """A machine cannot do jobs: its disk is full, its key is refused, or its user's settings are wrong. The job is tried again."""

    def __init__(self, message: str, outcome: Outcome = Outcome.IO_ERROR) -> None:
        """`outcome` is what the worker ends with if it is AUTH or CONFIG and nothing else runs. Otherwise it pauses."""
        super().__init__(message)
        self.outcome = outcome


class JobAttempt:
    """The work on one claim, until the store knows how it ended. `run` is called in one thread, `stop` perhaps in another."""

    def __init__(self, worker: Slot, claim: Claim) -> None:
        self._worker = worker
        self.claim = claim
        self.held = HeldClaim(worker, claim, lambda: self.stop(Stop.LOST))
        self._stop: Stop | None = None
        self._stopping = threading.Lock()
        self._environment = worker.options.environment
        self._tell = worker.options.tell
        harmless = child_environment(self._environment, (), known_secrets(self._environment))
        safe = without_unsafe_loads(harmless, search_outside(harmless, (worker.folder,)))
        self._supervisor = CommandSupervisor(safe, most_processes=0)
        self._calls = self._git_calls()
        self._repositories = Repositories(worker.options.database.folder / "repositories", self._calls)
        self._process: JobProcess | None = None
        self._log = JobLog(worker, self.held)
        row = claim.row
        self._folder = worker.folder / row.set_name / f"{row.id}.{row.generation}"
        self._ended: ProcessEnd | None = None
        self._kept = claim.kept
        self._place = worker.undelivered.place_of(row.set_name, row.id, row.generation, worker.folder.name)
        self._is_left = False
        """Whether the job's files stay where they are, because they could not be kept."""
        self._unseen_usd = 0.0
        self._refused: str | None = None
        """Why the API refused the machine's key, if it did and the job continues elsewhere."""

    def _git_calls(self) -> GitCalls:
        # Git needs no key of the API, and gets the rest, by which the user's own helpers may authenticate.
        variables = self._environment
        for_git = {name: value for name, value in variables.items() if not name.startswith("ANTHROPIC_")}
        return GitCalls(for_git, self._supervisor, terms=self._worker.options.terms, users=variables)

    def stop(self, why: Stop) -> None:
        """Stops what runs. A claim that is lost stays so."""
        with self._stopping:
            if self._stop is not None and why <= self._stop:
                return
            self._stop = why
            has_begun = self._process is not None
        if why is not Stop.DRAINED or not has_begun:
            self._calls.stop()
        self._stop_process()

    def _stop_process(self) -> None:
        if self._process is not None and self._stop is not None:
            end = self._process.kill if self._stop >= Stop.AT_ONCE else self._process.stop
            end()

    def run(self) -> None:
        """Works until the store knows how it ended. Raises LostError, MachineError, StoreError and WaitStoppedError."""
        try:
            self._log.start()
            self._log.tell(f"attempt {self.claim.row.attempt} on {self._worker.machine}")
            self._work()
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
            self._worker.undelivered.remove_job_folder(self.claim.row.set_name, self.claim.row.id)
            if not self._is_left:
                remove_tree_if_possible(self._folder)
        if self._refused is not None:
            raise self._worker.refusal(self._refused, Outcome.AUTH)

    def _work(self) -> None:
        claim, worker = self.claim, self._worker
        self._job = job = claim.row.job
        self._delivery = JobDelivery(worker, self.held, job, self._repositories, self._log)
        remove_tree_if_possible(self._folder)
        self._folder.mkdir(parents=True, mode=0o700)
        worker.undelivered.make_job_folder(claim.row.set_name, claim.row.id)
        if claim.kept is not None:
            return self._deliver_kept(claim.kept)
        for name in job.env:
            if name not in self._environment:
                reason = f"the worker {worker.machine} has no variable {name}, which the job needs"
                return self._end(Outcome.CONFIG, reason)
        checkout = self._checked_out()
        expected = self._delivery.expected(checkout)
        process = self._process_in(self._folder, worker.options.database.private_places)
        with self._stopping:
            if self._stop is not None:
                raise SignalReceived(signal.SIGTERM)
            self._process = process
        if claim.ending is not None:
            unstarted = ProcessEnd(exit_code=claim.ending.exit_code, reason=claim.ending.reason)
            return self._deliver(checkout, expected, unstarted, claim.ending)
        return self._run_process(process, checkout, expected)

    def _process_in(self, folder: Path, hidden: Sequence[Path]) -> JobProcess:
        return JobProcess(
            self.claim.row.set_name,
            self._job,
            folder,
            self._environment,
            hidden=hidden,
            told=self._log.add,
            rate_limited=self._hold,
        )

    def _checked_out(self) -> JobCheckout:
        row, job, held = self.claim.row, self._job, self.held
        saved = held.ask(held.checkpoint)
        directory, branch = self._folder / CHECKOUT, branch_of(job)
        if saved is not None and saved.commit is not None and saved.ref is not None:
            checkout = self._repositories.restore(job.repository, saved.ref, saved.commit, directory, branch)
            self._delivery.last_commit = saved.commit
        else:
            checkout = self._repositories.check_out(job.repository, row.base or job.ref, directory, branch)
        if row.base is None:
            held.ask(held.record, base=checkout.commit)
        if saved is not None:
            unpack_state(saved.state, self._folder / "state", 8 * MOST_STATE_BYTES)
            self._log.tell(f"restored the checkpoint {(saved.commit or 'without files')[:12]}")
        return checkout

    # --- the job's process

    def _run_process(self, process: JobProcess, checkout: JobCheckout, expected: str | None) -> None:
        decision: NextAttempt | Final | None = None
        try:
            followed = self._followed(process, checkout)
            if self._stop is Stop.LOST or (self._stop is Stop.AT_ONCE and self._has_left_nothing()):
                raise LostError  # noqa: TRY301 - told as one of the store's
            if isinstance(followed, NextAttempt):
                decision, end = followed, ProcessEnd(exit_code=Outcome.LIMIT_REACHED.exit_code())
            else:
                decision, end = self._decided(followed), followed
            if isinstance(decision, Final):
                return self._deliver(checkout, expected, end, decision)
            if end.retry_after_s:
                self._hold(end.retry_after_s)
            is_refused = end.exit_code == Outcome.AUTH.exit_code()
            # A session without an answer is of no use elsewhere, and may name a server that only this machine asks.
            if not self._has_left_nothing() and (end.turns or not is_refused):
                self._delivery.checkpoint(checkout, process, is_last=True)
                decision = self._delivery.rest_of_checkpoint(checkout, decision)
            self._tell_store(end, decision)
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
            if isinstance(error, CheckoutError) and not checkout.directory.is_dir():
                gone = "its checkout is gone: a command of the job has removed or moved it"
                raise CheckoutError(gone, Outcome.IO_ERROR) from error
            return self._keep(checkout, decision or self._decided(self._ended), error)

    def _has_left_nothing(self) -> bool:
        """Whether no files of the job are taken over: a killed one's command may still be at work."""
        return self._ended is None or self._ended.was_killed or self._ended.exit_code == 128 + 9

    def _decided(self, end: ProcessEnd) -> NextAttempt | Final:
        if end.exit_code == 0:
            self._worker.options.worked[0] = 1
        decision = after_end(
            end,
            tries=self.claim.row.tries,
            most_tries=self.claim.most_tries,
            has_own_access=has_own_access(self._job),
            has_worked=bool(self._worker.options.worked[0]),
        )
        is_told = self._stop in {Stop.DRAINED, Stop.AT_ONCE}
        if is_told and (isinstance(decision, NextAttempt) or end.exit_code > 128 or end.was_killed):
            decision = _HANDED_BACK
        return _CANCELLED if self._stop is Stop.CANCELLED else decision

    def _followed(self, process: JobProcess, checkout: JobCheckout) -> ProcessEnd | NextAttempt:
        """Runs the process, and again if its part of the set's budget did not suffice and more is left."""
        granted, spent, most = self.claim.granted_usd, self.claim.row.cost_usd, self._job.max_budget_usd
        # Work after the checkpoint was paid for, and is paid for again.
        self._unseen_usd = max(spent - process.so_far().cost_usd, 0.0)
        while (end := process.end_before()) is None:
            self._ended = None
            own = None if most is None else plain(max(most - spent, 0.0))
            may_spend = min((usd for usd in (granted, own) if usd is not None), default=None)
            process.start(may_spend, checkout.objects)
            self._stop_process()
            self._ended = end = self._whole(self._watched(process, checkout))
            self.held.ask(self.held.spend, end.cost_usd, end.turns)
            if end.limit != "max_budget_usd" or granted is None or may_spend == own or self._stop is not None:
                return end
            unspent = max(granted - (end.cost_usd - spent), 0.0)
            least = 2 * max(unspent, LEAST_GRANT_USD)
            granted, is_reserved = self.held.ask(self.held.ask_more, least)
            if granted is not None and granted <= unspent:
                reason = "the set's budget is reserved by running jobs"
                return NextAttempt(_BUDGET_DELAY_S, reason, is_try=False) if is_reserved else end
            spent = end.cost_usd
        self._ended = end = self._whole(end)
        self.held.ask(self.held.spend, end.cost_usd, end.turns)
        return end

    def _whole(self, end: ProcessEnd) -> ProcessEnd:
        """The end with the cost of the whole job, and not only of what the session knows."""
        return replace(end, cost_usd=plain(end.cost_usd + self._unseen_usd))

    def _watched(self, process: JobProcess, checkout: JobCheckout) -> ProcessEnd:
        """Follows the process to its end. After a change of the journal it tells what was spent, and tries to take a
        checkpoint until it gets one: while a turn runs there is none.
        """
        seen, is_new, next_word = process.last_change(), False, 0.0
        while (status := process.wait(_LOOK_EVERY_S)) is None:
            if self._stop is not None:
                status = wait_for_end(process, STOPS_WITHIN_S)
                break
            changed = process.last_change()
            is_new, seen = is_new or changed != seen, changed
            if is_new and time.monotonic() >= next_word:
                end = self._whole(process.so_far())
                self.held.ask_if_there(self.held.spend, end.cost_usd, end.turns)
                next_word = time.monotonic() + _TELL_EVERY_S
            if is_new and time.monotonic() >= self._delivery.next_checkpoint:
                is_new = not self._delivery.checkpoint(checkout, process, is_last=False)
        return process.end(status)

    # --- delivering

    def _deliver(self, checkout: JobCheckout, expected: str | None, end: ProcessEnd, decision: Final) -> None:
        delivery, process = self._delivery, self._process
        assert process is not None  # noqa: S101 - it has ended, or must not start
        if self._stop is Stop.CANCELLED:
            if not self._has_left_nothing():
                decision = self._checkpoint_of_cancelled(checkout, process, decision)
            self._tell_store(end, decision)
            return
        is_resumable = decision.exit_code not in BEGINS_ANEW
        if is_resumable and self.claim.ending is None:
            try:
                delivery.checkpoint(checkout, process, is_last=True)
            except CheckoutError as error:
                if error.is_temporary:
                    raise
        commit = delivery.finished(checkout)
        if commit is not None:
            delivered = delivery.branch(checkout, commit, decision, expected)
            is_resumable = is_resumable or delivered is not decision
            decision = delivered
        decision = delivery.rest(checkout, decision)
        self._tell_delivered(end, decision, commit, is_resumable=is_resumable)

    def _checkpoint_of_cancelled(self, checkout: JobCheckout, process: JobProcess, decision: Final) -> Final:
        """Takes the last checkpoint of a job whose git calls were stopped, within the time that a cancellation may take."""
        calls = self._git_calls()
        checkout.use(calls)
        stopping = threading.Timer(_LAST_CHECKPOINT_S, calls.stop)
        stopping.start()
        try:
            self._delivery.checkpoint(checkout, process, is_last=True)
            return self._delivery.rest_of_checkpoint(checkout, decision)
        finally:
            stopping.cancel()

    def _tell_delivered(
        self, end: ProcessEnd, decision: Final, commit: str | None, *, is_resumable: bool
    ) -> None:
        self._tell_store(end, decision, commit, keeps_checkpoint=is_resumable)
        if not is_resumable:
            self._delivery.remove_checkpoints()

    # --- what the git host does not take

    def _keep(
        self, checkout: JobCheckout, decision: NextAttempt | Final, error: Exception | Interrupted
    ) -> None:
        """Keeps here what could not be delivered because of `error`, and tells the store. Raises as `error` demands."""
        claim, worker = self.claim, self._worker
        self._move()
        if self._stop is Stop.LOST:
            self._tell(f"{claim.name}: the work made here is kept: {self._place}")
            raise LostError
        checkout.move_to(self._place / CHECKOUT)
        checkout.use(self._git_calls())  # the former ones may be stopped
        self._kept = kept = KeptRow(
            set_name=claim.row.set_name,
            job=claim.row.id,
            generation=claim.row.generation,
            place=worker.undelivered.identity(),
            machine=worker.machine,
            path=str(self._place / BUNDLE),
            tries=1,
        )
        if not worker.waiting.stop.is_set():
            self.held.ask_if_there(self.held.keep, kept)
        try:
            self._write_bundle(checkout, decision)
        except (CheckoutError, OSError) as wrong:
            self._tell(f"{claim.name}: its checkout is kept as it is, because it cannot be bundled: {wrong}")
            self._kept = kept = replace(kept, path=str(self._place))
        if isinstance(error, (StoreError, WaitStoppedError)):
            raise error  # the next worker of this machine records it
        self.held.ask(self.held.keep, kept)
        match error:
            case Interrupted():
                self._end_stopped()
            case OSError() | CheckoutError(outcome=Outcome.IO_ERROR):  # there is room again, or will be
                self._end(Outcome.API_UNAVAILABLE, str(error))
            case CheckoutError():
                self._end(error.outcome, str(error))
            case _:
                self._end(Outcome.INTERNAL_ERROR, describe_bug(error))

    def _move(self) -> None:
        """Moves the attempt's folder to the kept work. Raises OSError, and then leaves it where nothing removes it."""
        try:
            self._worker.undelivered.move(self._folder, self._place)
        except OSError as error:
            self._is_left = True
            left = self._folder.with_name(f"{self._folder.name}{LEFT_SUFFIX}")
            with suppress(OSError):  # a disk of which nothing can be removed either
                left = self._folder.rename(left)
            raise OSError(error.errno, f"{error.strerror}; its files stay here", str(left)) from error

    def _write_bundle(self, checkout: JobCheckout, decision: NextAttempt | Final) -> None:
        ended = self._ended or ProcessEnd(exit_code=0)
        work = KeptWork(
            base=self.claim.row.base or checkout.commit,
            commit=None,
            checkpoint=None,
            ending=decision if isinstance(decision, Final) and decision is not _CANCELLED else None,
            resumes_at=time.time() + (decision.delay_s if isinstance(decision, NextAttempt) else 0.0),
            result=self._worker.redact(ended.result)[:_MOST_RESULT_CHARS],
            turns=ended.turns,
            cost_usd=ended.cost_usd,
        )
        self._delivery.bundle(checkout, work, self._place)

    def _deliver_kept(self, kept: KeptRow) -> None:
        """Delivers what this machine keeps of the job, and asks no model."""
        undelivered, delivery = self._worker.undelivered, self._delivery
        place = undelivered.place_at(kept)
        work = undelivered.work_at(place)
        if work is None and (place / CHECKOUT).is_dir():
            work = self._bundled_later(place)
        if work is None:
            self._kept = None
            reason = f"nothing is at {place}: its worker was killed before, or it was removed"
            return self._end(Outcome.API_UNAVAILABLE, reason)
        self.held.ask(self.held.spend, work.cost_usd, work.turns)
        delivery.take_rest(work)
        bundle = place / BUNDLE if work.commit or work.checkpoint or work.rest else None
        directory = self._folder / CHECKOUT
        checkout = self._repositories.unbundle(self._job.repository, bundle, work.base, directory)
        decision = work.ending
        continues = decision is None or (kept.is_retried and decision.exit_code != 0)
        state = undelivered.state_at(place)
        if state is not None:
            try:
                delivery.kept_checkpoint(checkout, work.checkpoint, state)
            except CheckoutError as error:
                if continues or error.is_temporary:
                    raise
                self._log.tell(f"no checkpoint: {error}")
        if work.commit is not None and decision is not None:
            expected = self._repositories.branch_at(self._job.repository, branch_of(self._job))
            delivered = delivery.branch(checkout, work.commit, decision, expected)
            continues = continues and delivered is decision
            decision = delivered
        again = NextAttempt(max(work.resumes_at - time.time(), 0.0), "its work was delivered")
        then = delivery.rest(checkout, again if decision is None or continues else decision)
        self._kept = None
        end = ProcessEnd(exit_code=0 if decision is None else decision.exit_code, result=work.result)
        if isinstance(then, NextAttempt):
            return self._tell_store(end, then)
        self._log.tell("delivered what was kept here")
        is_resumable = then.exit_code not in BEGINS_ANEW
        return self._tell_delivered(end, then, work.commit, is_resumable=is_resumable)

    def _bundled_later(self, place: Path) -> KeptWork | None:
        if (base := self.claim.row.base) is None:
            return None
        checkout = self._repositories.reopen(self._job.repository, place / CHECKOUT, base)
        self._place, self._ended = place, (end := self._process_in(place, ()).end_left())
        decision = _HANDED_BACK if end is None or end.exit_code > 128 else self._decided(end)
        self._write_bundle(checkout, decision)
        return self._worker.undelivered.work_at(place)

    # --- telling the store

    def _tell_store(
        self,
        end: ProcessEnd,
        decision: Final | NextAttempt,
        commit: str | None = None,
        *,
        keeps_checkpoint: bool = True,
    ) -> None:
        self._log.stop()
        reason, is_delivered = self._worker.redact(decision.reason), self._kept is None
        if isinstance(decision, NextAttempt):
            is_try = decision.is_try and self._stop is not Stop.DRAINED
            plan = partial(self.held.plan_next, end.exit_code, decision.delay_s, reason)
            self.held.ask(plan, is_try=is_try or self.claim.kept is not None, is_delivered=is_delivered)
            said = f"again in {decision.delay_s:.0f} s"
        else:
            result = self._worker.redact(end.result)[:_MOST_RESULT_CHARS]
            told = partial(self.held.end, decision.exit_code, reason, result=result, commit=commit)
            self.held.ask(told, keeps_checkpoint=keeps_checkpoint, is_delivered=is_delivered)
            said = f"exit {decision.exit_code}"
        self._tell(f"{self.claim.name}: {said}{f' ({reason})' if reason else ''}")

    def _end(self, outcome: Outcome, reason: str) -> None:
        """Ends a claim that failed outside the job's process."""
        tries, kept = self.claim.row.tries, self._kept
        if kept is None and self._stop is not None and self._stop >= Stop.AT_ONCE:
            raise LostError
        if kept is not None:
            reason = f"{reason}; {_where(kept)}"
            tries = kept.tries + (self.claim.kept is not None)
            self.held.ask(self.held.keep, replace(kept, tries=tries))
        end = ProcessEnd(exit_code=outcome.exit_code(), reason=reason, cost_usd=self.claim.row.cost_usd)
        decision = after_end(end, tries=tries, most_tries=self.claim.most_tries)
        self._log.tell(reason)
        self._tell_store(end, decision)

    def _end_here(self, error: Exception) -> NoReturn:
        """Ends a claim that failed because of this machine. Other machines can do the job. Raises MachineError."""
        self._end(Outcome.API_UNAVAILABLE, f"{self._worker.machine}: {error}")
        raise MachineError(f"{self._worker.machine} cannot hold a job's files") from error

    def _end_stopped(self) -> None:
        """Ends a claim whose git call was stopped: the job as cancelled, otherwise it is handed back to the store. Raises LostError if
        this worker may not, or need not, write anything more.
        """
        if self._stop is Stop.LOST or (self._stop is Stop.AT_ONCE and self._kept is None):
            raise LostError
        end = ProcessEnd(exit_code=_CANCELLED.exit_code, cost_usd=self.claim.row.cost_usd)
        where = "" if self._kept is None else f"; {_where(self._kept)}"
        if self._stop is Stop.CANCELLED:
            cancelled = replace(_CANCELLED, reason=f"{_CANCELLED.reason}{where}")
            return self._tell_store(end, cancelled)
        return self._tell_store(end, replace(_HANDED_BACK, reason=f"{_HANDED_BACK.reason}{where}"))

    def _hold(self, for_s: float) -> None:
        """No job of any worker begins with this job's key for so long."""
        key = fingerprint(self._environment, self._job.base_url, self._job.model)
        self._log.hold(key, for_s)


class JobLog:
    """Brings the narration of a job and the limits of its key into the store, each second. The narration is cut when it is
    too long. Both are dropped while the store is away: the session's journal has everything.
    """

    def __init__(self, worker: Slot, held: HeldClaim) -> None:
        self._worker = worker
        self._held = held
        self._pieces: list[str] = []
        self._holds: list[tuple[str, float]] = []
        self._left = MOST_LOG_BYTES
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_often, daemon=True)
        self.start = self._thread.start

    def add(self, text: str) -> None:
        with self._lock:
            if self._left > 0:
                self._left -= len(text)
                self._pieces.append(text if self._left > 0 else "[fleet] the log is cut here\n")

    def tell(self, line: str) -> None:
        """Adds a line of ralph's own, which a name in it cannot end."""
        self.add(f"[fleet] {in_one_line(line)}\n")

    def hold(self, credential: str, for_s: float) -> None:
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
            holds, self._holds = self._holds, []
        with suppress(Exception):  # a log must not stop a job; the log says what is lost
            for credential, for_s in holds:
                reason = f"the API asked to wait {for_s:.0f} s with this key"
                self._worker.store.hold(credential, for_s, reason)
            if text:
                self._held.add_log(self._worker.redact(text))


def _where(kept: KeptRow) -> str:
    return f"its work is kept on {kept.machine}: {kept.path} (ralph fleet retry {kept.set_name}/{kept.job})"

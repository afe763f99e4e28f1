"""The process of a job slot. It is an executor with an id and a lock of its own. It works for one set, on one job at a time."""

from __future__ import annotations

import functools
import os
import secrets
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.fleet.attempt import JobAttempt, MachineError, Stop, Worker
from ralph.fleet.checkouts import GitTerms
from ralph.fleet.checkpoint import BadStateError
from ralph.fleet.decisions import JobState
from ralph.fleet.engine import Engine, end_attempt
from ralph.fleet.job_process import STOPS_WITHIN_S, fingerprint, why_not_here
from ralph.fleet.jobs import SetLimits, UnknownFormatError
from ralph.fleet.store.claims import Adoption, Claims, LostError, reconcile, take_over
from ralph.fleet.store.database import StoreError, WaitOptions, WaitStoppedError, patiently
from ralph.fleet.store.locks import take_lock
from ralph.fleet.store.schema import KeptRow
from ralph.fleet.undelivered import (
    BUNDLE,
    Undelivered,
    clean_up,
    is_gone,
    lock_folder,
    machine_name,
    remove_work,
)
from ralph.machine.process_start import end_with_parent
from ralph.machine.waiter import ONE_SIGNAL_S, STOP_SIGNALS
from ralph.values.answer import describe_bug
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.store.claims import Claim
    from ralph.fleet.store.database import Database
    from ralph.fleet.store.schema import JobRow

    T = TypeVar("T")

DRAIN_S = 20.0
"""How long a running job may run on after the first SIGTERM, before it is handed back. Kubernetes kills after 30 s."""
PUSH_S = 90.0
"""After the drain, a job may take so long to push. A git host may never answer: then its work is kept here."""
HAND_BACK_S = 120.0
"""After the drain, a job may take so long to be handed back."""
LOOK_AFTER_OTHERS_S = 5.0
_TICK_S = 0.5
_ASK_S = 1.0
_IDLE_S = 3.0
"""A slot whose set has nothing to begin ends after this time, if another set has something."""
_LOOK_FOR_OTHER_SETS_S = 1.0
_RELEASE_S = 2.0
_RECONCILE_S = 60.0
_TURN_S = 10.0
"""A slot works so long for its set before it goes to one for which nobody works."""
_HARD_STOP_S = 8.0
_IDLE_EXIT, _LOST_EXIT, _STORE_EXIT, BUG_EXIT = 0, 3, 4, 70


class WorkOptions(Struct, frozen=True, kw_only=True):
    slots: int
    until_done: bool = False
    drain_s: float = DRAIN_S
    terms: GitTerms = GitTerms()


class Slot:
    """One executor. Its main thread looks after the lock, the queue and other executors. A thread of the engine calls `_work`."""

    def __init__(
        self,
        database: Database,
        options: WorkOptions,
        environment: Mapping[str, str],
        set_name: str,
        tell: Callable[[str], None],
        *,
        worked: mmap.mmap,
    ) -> None:
        self._database = database
        self._options = options
        self._environment = environment
        self._set_name = set_name
        self._tell = tell
        self._worked = worked
        self._machine = machine_name()
        self._undelivered = Undelivered(database.folder)
        self._limits = SetLimits()
        self._executor = f"{self._machine}-{os.getpid()}-{secrets.token_hex(4)}"
        self._heard = -1
        """A pipe with a byte for each signal."""
        self._signals = 0
        self._last_signal_at = -ONE_SIGNAL_S
        self._hard_stop = threading.Event()
        self._lost = threading.Event()
        self._drain_ends: float | None = None
        self._running: JobAttempt | None = None
        self._is_busy = False
        self._running_lock = threading.Lock()
        self._orphans: set[str] = set()
        self._exit_code: int | None = None
        self._idle_since = self._began = time.monotonic()
        self._enqueues_at = 0.0
        self._waiting = WaitOptions(database, tell, self._hard_stop, outlasts_full_disk=lambda: True)
        self._redact = Redactor(known_secrets(environment)).redact

    def run(self, supervisor: int) -> int:
        """Works until the slot must end, and returns the exit code of its process."""
        for number in {*STOP_SIGNALS} - {signal.SIGTERM}:
            # A terminal sends some to all; the supervisor passes them on. The handler here is still the supervisor's.
            signal.signal(number, signal.SIG_IGN)
        end_with_parent(supervisor, signal.SIGKILL)
        # The main thread may be in a long call of a library, so another one counts the signals.
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        self._heard, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.Thread(target=self._watch_signals, daemon=True).start()
        folder = self._database.folder / "work" / self._executor
        try:
            lock = self._ask(lambda: take_lock(self._database, self._executor, tell=self._tell))
            self._lost = lock.lost
            folder_lock = self._ask(lambda: lock_folder(folder))
        except WaitStoppedError:
            return _IDLE_EXIT
        worker = Worker(
            store=Claims(self._database),
            lock=lock,
            # A job that is to end does not wait for room in the store: its work is kept, and the next worker tells it.
            waiting=WaitOptions(
                self._database,
                self._tell,
                self._hard_stop,
                outlasts_full_disk=lambda: self._drain_ends is None or time.monotonic() <= self._drain_ends,
            ),
            machine=self._machine,
            folder=folder,
            repositories=self._database.folder / "repositories",
            undelivered=self._undelivered,
            hidden=self._database.private_places,
            environment=self._environment,
            terms=self._options.terms,
            worked=self._worked,
            tell=self._tell,
            redact=self._redact,
        )
        try:
            self._serve(worker)
        except WaitStoppedError:
            pass  # the reason is looked at below
        except StoreError as error:
            self._tell(str(error))
            self._exit_code = _STORE_EXIT
            self._hard_stop.wait()  # until what runs has ended, or was kept here
        finally:
            self._leave(worker, folder_lock)
        return _LOST_EXIT if lock.lost.is_set() else self._exit_code or _IDLE_EXIT

    def _ask(self, call: Callable[[], T]) -> T:
        """Asks the store in the main thread, which waits until the slot ends."""
        return patiently(call, waiting=self._waiting)

    def _serve(self, worker: Worker) -> None:
        limits = self._ask(lambda: worker.store.limits(self._set_name))

        def work(*job: Any) -> None:
            self._work(worker, "/".join(job[:2]), functools.partial(self._claim, worker, *job))

        engine = Engine(self._database, self._executor, self._set_name, work)
        self._ask(lambda: engine.launch(limits))
        self._limits = limits
        self._look_after(worker, engine)

    def _leave(self, worker: Worker, folder_lock: int) -> None:
        self._hard_stop.set()
        until = time.monotonic() + _HARD_STOP_S / 2
        while time.monotonic() < until and self._state()[1]:
            time.sleep(0.05)
        if worker.lock.lost.is_set():
            self._tell(f"{self._executor} was silent and was taken over: its job was stopped")
        remove_work(worker.folder, self._undelivered)
        os.close(folder_lock)
        if not worker.lock.lost.is_set():
            with suppress(Exception):  # the row only tells `ls` who works; it is old after a minute
                worker.store.executor_gone(self._executor)
            worker.lock.close()

    # --- the thread of the engine

    def _work(self, worker: Worker, name: str, claim: Callable[[], Claim | None]) -> None:
        """Works on one attempt, which `claim` begins. If the job is lost, or the process ends, it never returns: the engine must
        not record the end of a workflow that another worker continues.
        """
        try:
            with self._running_lock:
                self._is_busy = not (self._signals or self._hard_stop.is_set())
            if not self._is_busy:
                self._stay(None)
            claimed = worker.ask(claim)
            if claimed is not None:
                attempt = JobAttempt(worker, claimed)
                with self._running_lock:
                    self._running = attempt
                try:
                    attempt.run()
                finally:
                    with self._running_lock:
                        self._running = None
            self._end_work()
        except MachineError as error:
            # The next job would fail here as fast. The supervisor waits longer before each slot.
            self._tell(f"{self._redact(str(error))}: this slot pauses")
            self._exit_code = error.outcome.exit_code()
            self._end_work()
        except LostError:
            self._tell(f"{name}: another worker has taken over this job; nothing was pushed")
            self._stay(_LOST_EXIT)
        except WaitStoppedError:
            self._stay(None)
        except StoreError as error:
            self._tell(str(error))
            self._stay(_STORE_EXIT)
        except Exception as error:  # noqa: BLE001 - the workflow must stay open: a survivor takes the job over
            self._tell(f"{name}: {self._database.without_password(describe_bug(error))}")
            self._stay(BUG_EXIT)

    def _end_work(self) -> None:
        with self._running_lock:
            self._is_busy = False
            self._idle_since = time.monotonic()

    def _stay(self, exit_code: int | None) -> None:
        """Never returns."""
        if exit_code is not None:
            self._exit_code = exit_code
        self._end_work()
        while True:
            time.sleep(3600)

    def _claim(self, worker: Worker, set_name: str, job: str, attempt: int) -> Claim | None:
        row = worker.store.job_row(set_name, job)
        if row is None:
            return None
        base_url = model = refused = None
        with suppress(UnknownFormatError):  # the attempt refuses it with the reason
            base_url, model = row.job.base_url, row.job.model
            refused = why_not_here(row.job, self._environment, worker.folder)
        if refused is not None:
            reason = self._redact(f"{self._machine}: {refused}")
            worker.store.begin_again(set_name, job, attempt, row.generation, reason)
            raise worker.refusal(refused, Outcome.CONFIG)
        if self._undelivered.is_full():
            reason = f"{self._machine} keeps too much work that was not delivered"
            worker.store.begin_again(set_name, job, attempt, row.generation, reason)
            return None
        key = fingerprint(self._environment, base_url, model)
        claimed = worker.store.claim(
            set_name, job, attempt, executor=self._executor, machine=self._machine, credential=key
        )
        if isinstance(claimed, str):
            self._tell(f"{set_name}/{job}: later: {claimed}")
            return None
        if claimed is not None:
            self._tell(f"{set_name}/{job}: attempt {attempt}")
        return claimed

    # --- the main thread

    def _look_after(self, worker: Worker, engine: Engine) -> None:
        """Tends the queue until the slot must end. Raises WaitStoppedError then, too."""
        store, name = worker.store, self._set_name
        every: list[tuple[Callable[[], object], float]] = [
            (lambda: self._enqueue_due(worker, engine), _TICK_S),
            (self._ask_about_own, _ASK_S),
            (lambda: store.release_waiting(name), _RELEASE_S),
            (lambda: self._take_over(worker, engine), LOOK_AFTER_OTHERS_S),
            (lambda: self._renew_limits(worker, engine), LOOK_AFTER_OTHERS_S),
            (lambda: reconcile(store, engine, name, self._tell), _RECONCILE_S),
        ]
        due_at = [0.0] * (len(every) - 1) + [time.monotonic() + _RECONCILE_S]
        next_look_at = 0.0
        while not self._hard_stop.wait(_TICK_S):
            for number, (task, every_s) in enumerate(every):
                if time.monotonic() >= due_at[number]:
                    self._ask(task)
                    due_at[number] = time.monotonic() + every_s
            if time.monotonic() >= next_look_at:
                if self._is_idle(worker):
                    return
                next_look_at = time.monotonic() + _LOOK_FOR_OTHER_SETS_S

    def _renew_limits(self, worker: Worker, engine: Engine) -> None:
        worker.store.seen(self._executor, self._machine, self._set_name)
        limits = worker.store.limits(self._set_name)
        if limits != self._limits:
            engine.set_limits(limits)
            self._limits = limits

    def _enqueue_due(self, worker: Worker, engine: Engine) -> None:
        """Puts the jobs that may begin on the engine's queue. A busy slot does so seldom: an idle one asks for itself."""
        _, is_busy = self._state()
        if is_busy and time.monotonic() < self._enqueues_at:
            return
        self._enqueues_at = time.monotonic() + LOOK_AFTER_OTHERS_S
        if due := worker.store.due_jobs(self._set_name):
            for job in due:
                engine.enqueue(job, self._limits)
            worker.store.mark_queued(self._set_name, due)
            self._idle_since = time.monotonic()

    def _ask_about_own(self) -> None:
        running = self._state()[0]
        if running is not None:
            try:
                if running.held.is_cancelled():
                    running.stop(Stop.CANCELLED)
            except LostError:
                running.stop(Stop.LOST)

    def _state(self) -> tuple[JobAttempt | None, bool]:
        """The running attempt, and whether the thread of the engine is at work."""
        with self._running_lock:
            return self._running, self._is_busy

    def _take_over(self, worker: Worker, engine: Engine) -> None:
        """Takes over from executors that are gone, and resumes this executor's own orphans."""
        clean_up_of = functools.partial(self._clean_up, worker)
        own = set(take_over(worker.store, worker.lock, engine, clean_up_of, self._tell))
        # A workflow of this executor that nothing here works on, seen twice: the engine lost it in an outage.
        orphans = set() if self._state()[1] else own
        engine.resume(sorted(orphans & self._orphans))
        self._orphans = orphans

    def _clean_up(self, worker: Worker, executor: str) -> None:
        clean_up(worker.folder.with_name(executor), self._undelivered)
        for place, generation, left_by in self._undelivered.all():
            if left_by == executor:  # it was killed before it could tell
                with suppress(BadStateError):
                    self._adopt(worker, place, generation, executor)

    def _adopt(self, worker: Worker, place: Path, generation: int, executor: str) -> None:
        """Takes what the store does not know as its own, if its worker is gone and nobody has claimed the job since."""
        work = self._undelivered.work_at(place)
        if not is_gone(worker.folder.with_name(executor)):
            return
        kept = KeptRow(
            set_name=place.parts[-3],
            job=place.parts[-2],
            generation=generation,
            place=self._undelivered.identity(),
            machine=self._machine,
            path=str(place / BUNDLE if work is not None else place),
        )
        adopted = worker.store.adopt(kept, executor)
        if adopted is Adoption.TOLD and work is None:  # it was moved out of `fleet/work` a moment ago
            self._undelivered.remove(kept)
        elif adopted is Adoption.TAKEN_OVER:
            self._tell(f"{place} has work of a job that another worker took over: check it, then remove it")
        elif adopted is not Adoption.OURS:
            self._tell(f"{place} belongs to no job of this store that waits for it: check it, then remove it")

    def _is_idle(self, worker: Worker) -> bool:
        """Whether the set has no open jobs, or another set has more use for this slot."""
        with self._running_lock:
            if self._is_busy:
                return False
            idle_s = time.monotonic() - self._idle_since
        if self._undelivered.is_full():
            return True
        rows = self._ask(worker.store.open_sets)
        if not any(row.name == self._set_name for row in rows):
            return True
        age_s = time.monotonic() - self._began
        others = [row for row in rows if row.name != self._set_name]
        return any(
            (idle_s > _IDLE_S and row.due_jobs) or (age_s > _TURN_S and not row.workers and row.useful_slots)
            for row in others
        )

    def _watch_signals(self) -> None:
        """Stops the running job when a signal, a loss or a store that cannot be used asks for it. It has a thread of its
        own: the others may be waiting for the store.
        """
        while not self._hard_stop.is_set():
            if select.select([self._heard], (), (), _TICK_S / 2)[0]:
                os.read(self._heard, 512)
                heard_at = time.monotonic()
                self._signals += heard_at - self._last_signal_at > ONE_SIGNAL_S  # those of one second are one
                self._last_signal_at = heard_at
            running, is_busy = self._state()
            if self._lost.is_set() or self._exit_code == _LOST_EXIT:
                if running is not None:
                    running.stop(Stop.LOST)
                break
            is_broken = self._exit_code is not None
            if not (self._signals or is_broken):
                continue
            now = time.monotonic()
            if self._drain_ends is None or (is_broken and self._drain_ends > now):
                self._drain_ends = now + (0 if is_broken else self._options.drain_s)
            if must_end_now(self._signals, now - self._drain_ends):
                if running is not None:
                    running.stop(Stop.AT_ONCE)
                break
            if not is_busy:
                break
            if now > self._drain_ends and running is not None:
                push_s = STOPS_WITHIN_S if is_broken else PUSH_S
                running.stop(Stop.DRAINED if now < self._drain_ends + push_s else Stop.AT_ONCE)
        self._hard_stop.set()
        time.sleep(_HARD_STOP_S)  # the main thread ends the process before, unless the engine's library waits
        os._exit(_LOST_EXIT)


class Courier(Slot):
    """Delivers what this machine keeps, beside the slots and without the engine: no model is asked, and no other machine may."""

    def _serve(self, worker: Worker) -> None:
        delivering = ThreadPoolExecutor(1).submit(self._deliver_all, worker)
        while not delivering.done():
            if self._hard_stop.wait(_TICK_S):
                return
            self._ask(self._ask_about_own)
        delivering.result()

    def _deliver_all(self, worker: Worker) -> None:
        kept_here = functools.partial(worker.store.kept_at, self._undelivered.identity())
        known = {self._undelivered.place_at(kept) for kept, *_ in worker.ask(kept_here)}
        for place, generation, executor in self._undelivered.all():
            if place not in known:
                try:
                    worker.ask(functools.partial(self._adopt, worker, place, generation, executor))
                except BadStateError as error:
                    self._tell(f"{error}: check it, then remove it")
        for kept, row, is_due in worker.ask(kept_here):
            # Only this machine's own processes work on a job that it keeps.
            holder = worker.folder.with_name(row.holder or "none")
            if kept.is_over or not (is_due and is_open(row)):
                continue
            if row.state is JobState.QUEUED or is_gone(holder):
                claim = functools.partial(self._claim_kept, worker, kept, row)
                self._work(worker, f"{kept.set_name}/{kept.job}", claim)
        for kept, *_ in worker.ask(kept_here):
            if kept.is_over:
                self._undelivered.remove(kept)
                worker.ask(functools.partial(worker.store.forget, kept))

    def _claim_kept(self, worker: Worker, kept: KeptRow, row: JobRow) -> Claim | None:
        if row.state is JobState.RUNNING:  # its worker was killed, and maybe no slot comes to resume it
            end_attempt(self._database, kept.set_name, kept.job, row.attempt)
        claimed = worker.store.claim_kept(kept, row, executor=self._executor, machine=self._machine)
        if claimed is not None:
            self._tell(f"{claimed.name}: delivering {kept.path}")
        return claimed


def is_open(row: JobRow) -> bool:
    """Whether a worker may deliver this job now, if nobody does."""
    return row.state in {JobState.QUEUED, JobState.RUNNING}


def must_end_now(signals: int, since_drain_s: float) -> bool:
    """Whether a slot with a job ends without handing it back. `since_drain_s` is the time since the end of the drain."""
    return signals > 1 or since_drain_s > HAND_BACK_S

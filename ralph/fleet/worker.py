"""`ralph fleet work`: a supervisor that forks one process for each job slot.

The supervisor has one thread and no open connection when it forks. If a slot was silent for too long and another worker took
its job, it ends, and the supervisor starts a new one with a new id. A slot is an executor with an id and a lock of its own. It
works for one set, on one job at a time.
"""

from __future__ import annotations

import functools
import mmap
import os
import secrets
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.fleet.attempt import JobAttempt, MachineError, Stop
from ralph.fleet.checkouts import GitTerms, git_terms
from ralph.fleet.claims import Adoption, Claims, LostError, reconcile, take_lock, take_over
from ralph.fleet.database import (
    StoreError,
    WaitOptions,
    WaitStoppedError,
    patiently,
    prepare,
    refuse_pooler,
)
from ralph.fleet.engine import Engine, end_attempt
from ralph.fleet.job_process import STOPS_WITHIN_S, BadStateError, fingerprint, why_not_here
from ralph.fleet.jobs import JobState, SetLimits, UnknownFormatError, worst_exit_code
from ralph.fleet.listing import progress_line
from ralph.fleet.schema import KeptRow, refuse_other_forms, refuse_pickles
from ralph.fleet.undelivered import (
    BUNDLE,
    MOST_BYTES,
    Undelivered,
    clean_up,
    is_gone,
    lock_folder,
    machine_name,
    remove_left_folders,
    remove_work,
)
from ralph.machine.process_start import end_with_parent
from ralph.machine.waiter import ONE_SIGNAL_S, STOP_SIGNALS, StopEvent
from ralph.values.answer import describe_bug
from ralph.values.credentials import known_secrets
from ralph.values.outcome import CannotError, Outcome
from ralph.values.redaction import Redactor
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.claims import Claim, ExecutorLock, OpenSet
    from ralph.fleet.database import Database
    from ralph.fleet.schema import JobRow

    T = TypeVar("T")

DRAIN_S = 20.0
"""How long a running job may run on after the first SIGTERM, before it is handed back. Kubernetes kills after 30 s."""
PUSH_S = 90.0
"""After the drain, a job may take so long to push. A git host may never answer: then its work is kept here."""
HAND_BACK_S = 120.0
"""After the drain, a job may take so long to be handed back."""
_LOOK_AFTER_OTHERS_S = 5.0
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
_IDLE_EXIT, _LOST_EXIT, _STORE_EXIT, _BUG_EXIT = 0, 3, 4, 70
_SUPERVISE_S = 1.0
_RESTART_S = 1.0
_LONGEST_RESTART_S = 60.0
_REFUSED_EXITS = {Outcome.AUTH.exit_code(), Outcome.CONFIG.exit_code()}


class WorkOptions(Struct, frozen=True, kw_only=True):
    """The wishes of the user, and all else that the processes of a worker share."""

    database: Database
    environment: Mapping[str, str]
    tell: Callable[[str], None]
    slots: int
    until_done: bool = False
    drain_s: float = DRAIN_S
    terms: GitTerms = GitTerms()
    worked: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))
    """One byte: 1 after a job has ended well, 0 after a refusal."""


def work(options: WorkOptions) -> int:
    """Works until it is told to stop, and returns the exit code. Raises StoreError and CannotError."""
    terms = git_terms(options.environment, options.database.folder / "work")
    return Supervisor(replace(options, terms=terms)).run()


class Supervisor:
    def __init__(self, options: WorkOptions) -> None:
        self._options = options
        self._database, self._tell = options.database, options.tell
        self._slots: dict[int, str | None] = {}
        """The processes, and their sets. None for the one that delivers."""
        self._undelivered = Undelivered(self._database.folder)
        self._looks_at_all_kept = True
        self._may_deliver_at = 0.0
        self._is_full = False
        self._signals: list[int] = []
        self._may_fork_at = 0.0
        self._restart_s = _RESTART_S
        self._refused: int | None = None
        """The exit code of a slot whose key or settings were refused while no other slot was at work."""

    def run(self) -> int:
        stop = StopEvent()
        waiting = WaitOptions(self._database, self._tell, stop, outlasts_full_disk=lambda: True)

        def heard(number: int, _frame: object) -> None:
            self._signals.append(number)
            stop.set()
            self._stop_slots()

        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` leaves SIGHUP
                signal.signal(number, heard)
        codes: Iterable[int] = ()
        with suppress(WaitStoppedError):
            patiently(self._prepare, waiting=waiting)
            remove_left_folders(self._database.folder)
            for left in self._undelivered.left():
                self._tell(f"{left} has work that could not be kept elsewhere: check it, then remove it")
            patiently(lambda: refuse_pooler(self._database), waiting=waiting)
            self._from_store(Claims.create, waiting)
            patiently(lambda: refuse_other_forms(self._database), waiting=waiting)
            self._tell(f"working on {self._database.safe_text} with {counted(self._options.slots, 'slot')}")
            try:
                codes = self._supervise(waiting)
            except StoreError:
                # They may still reach the store, through connections of their own. If not, they keep their work here.
                self._stop_slots()
                self._wait_for_slots()
                raise
        self._wait_for_slots()
        if not self._signals:
            return worst_exit_code(codes)
        return 0 if self._signals[0] == signal.SIGTERM else 128 + self._signals[0]

    def _prepare(self) -> None:
        prepare(self._database)
        self._undelivered.identity()  # a full disk has no room for it later
        _refuse_mounted(self._undelivered.folder, self._database.folder / "work")

    def _from_store(self, call: Callable[[Claims], T], waiting: WaitOptions) -> T:
        """Asks the store. The connection is closed afterwards: a fork must not inherit one."""

        def asked() -> T:
            with closing(Claims(self._database)) as store:
                return call(store)

        return patiently(asked, waiting=waiting)

    def _supervise(self, waiting: WaitOptions) -> Iterable[int]:
        """Returns the exit codes of the jobs, if all have ended and the worker was to end then. If nothing can be done here,
        returns the code that says so.
        """
        while not self._signals:
            self._reap()
            if self._refused is not None:
                self._tell("no job can run with the key and the settings of this machine: this worker ends")
                self._stop_slots()
                return (self._refused,)
            rows = self._from_store(Claims.open_sets, waiting)
            delivers = self._from_store(self._has_to_deliver, waiting)
            if not rows and not self._slots and not delivers and self._options.until_done:
                return self._from_store(self._all_ended, waiting)
            slots = [name for name in self._slots.values() if name is not None]
            names = [] if self._is_at_the_bound() else _wanted(rows, slots, self._options.slots)
            for name in [*([None] if delivers else []), *names]:
                if time.monotonic() >= self._may_fork_at and not self._signals:
                    self._fork(name)
            waiting.stop.wait(_SUPERVISE_S)
        return ()

    def _all_ended(self, store: Claims) -> Iterable[int]:
        codes, rows = store.exit_codes(), store.set_rows()
        advice = (
            "; ralph fleet retry --failed lets those run again that did not end with 0" if any(codes) else ""
        )
        self._tell(f"all jobs have ended: {progress_line(rows)}{advice}")
        return codes

    def _has_to_deliver(self, store: Claims) -> bool:
        """Whether this machine keeps something that is to be delivered or removed now."""
        if None in self._slots.values() or time.monotonic() < self._may_deliver_at:
            return False
        self._may_deliver_at = time.monotonic() + _LOOK_AFTER_OTHERS_S
        looks, self._looks_at_all_kept = self._looks_at_all_kept and any(self._undelivered.all()), False
        kept = store.kept_at(self._undelivered.identity())
        return looks or any(one.is_over or (is_due and _is_open(row)) for one, row, is_due in kept)

    def _is_at_the_bound(self) -> bool:
        was_full, self._is_full = self._is_full, self._undelivered.is_full()
        if self._is_full and not was_full:
            self._tell(
                f"{self._undelivered.folder} has {MOST_BYTES >> 20:,} MiB of work that was not delivered: no job begins here "
                "until it is delivered or discarded (ralph fleet ls)"
            )
        return self._is_full

    def _fork(self, set_name: str | None) -> None:
        # A signal between the fork and the child's own handlers would be lost.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            if self._signals:  # it came a moment ago, and its handler could not tell this slot
                return
            supervisor = os.getpid()
            process_id = os.fork()
            if process_id == 0:
                self._become_slot(set_name, supervisor)
            self._slots[process_id] = set_name
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _become_slot(self, set_name: str | None, supervisor: int) -> NoReturn:
        code = _BUG_EXIT
        try:
            refuse_pickles()
            kind = Slot if set_name is not None else Courier
            code = kind(self._options, set_name or "").run(supervisor)
        except BaseException as error:  # noqa: BLE001 - a forked process must never return into the supervisor
            self._tell(f"a slot ended: {self._database.without_password(str(error))}")
        finally:
            os._exit(code)

    def _reap(self) -> None:
        for process_id in list(self._slots):
            ended, status = os.waitpid(process_id, os.WNOHANG)
            if ended:
                del self._slots[process_id]
                if status == 0:
                    self._restart_s = _RESTART_S
                else:
                    self._may_fork_at = time.monotonic() + self._restart_s
                    self._restart_s = min(2 * self._restart_s, _LONGEST_RESTART_S)
                    self._looks_at_all_kept = True
                    remove_left_folders(self._database.folder)
                code = os.waitstatus_to_exitcode(status)
                if code in _REFUSED_EXITS and not any(self._slots.values()):
                    self._refused = code

    def _stop_slots(self) -> None:
        for process_id in self._slots:
            with suppress(OSError):  # it has ended
                os.kill(process_id, signal.SIGTERM)

    def _wait_for_slots(self) -> None:
        """Waits for the slots, which were told to stop. A second signal ends them."""
        if self._slots:
            self._tell(
                f"stopping: running jobs have {self._options.drain_s:g} s to end, then they are handed back "
                "(a second signal ends them now)"
            )
        while self._slots:
            self._reap()
            time.sleep(0.05)
        # A dying run may have written while its folder was removed.
        remove_left_folders(self._database.folder)


def _wanted(rows: list[OpenSet], slots: list[str], most: int) -> list[str]:
    """The sets for which slots must be started: those with the fewest slots for what they have to do first. A set that has
    nothing to do now still gets one, if one is free: its slot takes over what a lost worker has left.
    """
    counts = {row.name: slots.count(row.name) for row in rows}
    wanted = []
    for _ in range(most - len(slots)):
        useful = [row.name for row in rows if counts[row.name] < row.useful_slots]
        unwatched = [row.name for row in rows if not counts[row.name]]
        if not useful and not unwatched:
            break
        name = min(useful or unwatched, key=lambda name: counts[name])
        counts[name] += 1
        wanted.append(name)
    return wanted


def _refuse_mounted(*folders: Path) -> None:
    """Raises CannotError unless the folders are on one file system: work is kept by a rename, which a full disk allows."""
    devices = set()
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
        devices.add(folder.stat().st_dev)
    if len(devices) > 1:
        names = " and ".join(map(str, folders))
        raise CannotError(f"{names} must be on one file system: mount the folder above them instead")


class Slot:
    """One executor. Its main thread looks after the lock, the queue and other executors. A thread of the engine calls `_work`."""

    def __init__(self, options: WorkOptions, set_name: str) -> None:
        self.options = options
        self._database, self._tell = options.database, options.tell
        self._set_name = set_name
        self.machine = machine_name()
        self.undelivered = Undelivered(self._database.folder)
        self._limits = SetLimits()
        self._executor = f"{self.machine}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder = self._database.folder / "work" / self._executor
        """The folder of this executor alone."""
        self.store = Claims(self._database)
        self.lock: ExecutorLock
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
        self._waiting = WaitOptions(
            self._database, self._tell, self._hard_stop, outlasts_full_disk=lambda: True
        )
        self.waiting = WaitOptions(
            self._database,
            self._tell,
            self._hard_stop,
            # A job that is to end does not wait for room in the store: its work is kept, and the next worker tells it.
            outlasts_full_disk=lambda: self._drain_ends is None or time.monotonic() <= self._drain_ends,
        )
        self.redact = Redactor(known_secrets(options.environment)).redact

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
        try:
            self.lock = self._ask(lambda: take_lock(self._database, self._executor, tell=self._tell))
            self._lost = self.lock.lost
            folder_lock = self._ask(lambda: lock_folder(self.folder))
        except WaitStoppedError:
            return _IDLE_EXIT
        try:
            self._serve()
        except WaitStoppedError:
            pass  # the reason is looked at below
        except StoreError as error:
            self._tell(str(error))
            self._exit_code = _STORE_EXIT
            self._hard_stop.wait()  # until what runs has ended, or was kept here
        finally:
            self._leave(folder_lock)
        return _LOST_EXIT if self._lost.is_set() else self._exit_code or _IDLE_EXIT

    def ask(self, call: Callable[[], T]) -> T:
        """Asks the store in a thread that works on a job, and waits while it is away."""
        return patiently(call, waiting=self.waiting)

    def _ask(self, call: Callable[[], T]) -> T:
        """Asks the store in the main thread, which waits until the slot ends."""
        return patiently(call, waiting=self._waiting)

    def refusal(self, reason: str, outcome: Outcome) -> MachineError:
        """The error of a machine whose key or settings are refused. After a job that has ended well, the worker only pauses."""
        has_worked, self.options.worked[0] = bool(self.options.worked[0]), 0
        return MachineError(f"{self.machine}: {reason}", Outcome.IO_ERROR if has_worked else outcome)

    def _serve(self) -> None:
        limits = self._ask(lambda: self.store.limits(self._set_name))

        def work(*job: Any) -> None:
            self._work("/".join(job[:2]), functools.partial(self._claim, *job))

        self._engine = Engine(self._database, self._executor, self._set_name, work)
        self._ask(lambda: self._engine.launch(limits))
        self._limits = limits
        self._look_after()

    def _leave(self, folder_lock: int) -> None:
        self._hard_stop.set()
        until = time.monotonic() + _HARD_STOP_S / 2
        while time.monotonic() < until and self._state()[1]:
            time.sleep(0.05)
        if self._lost.is_set():
            self._tell(f"{self._executor} was silent and was taken over: its job was stopped")
        remove_work(self.folder, self.undelivered)
        os.close(folder_lock)
        if not self._lost.is_set():
            with suppress(Exception):  # the row only tells `ls` who works; it is old after a minute
                self.store.executor_gone(self._executor)
            self.lock.close()

    # --- the thread of the engine

    def _work(self, name: str, claim: Callable[[], Claim | None]) -> None:
        """Works on one attempt, which `claim` begins. If the job is lost, or the process ends, it never returns: the engine must
        not record the end of a workflow that another worker continues.
        """
        try:
            with self._running_lock:
                self._is_busy = not (self._signals or self._hard_stop.is_set())
            if not self._is_busy:
                self._stay(None)
            claimed = self.ask(claim)
            if claimed is not None:
                attempt = JobAttempt(self, claimed)
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
            self._tell(f"{self.redact(str(error))}: this slot pauses")
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
            self._stay(_BUG_EXIT)

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

    def _claim(self, set_name: str, job: str, attempt: int) -> Claim | None:
        row = self.store.job_row(set_name, job)
        if row is None:
            return None
        base_url = model = refused = None
        with suppress(UnknownFormatError):  # the attempt refuses it with the reason
            base_url, model = row.job.base_url, row.job.model
            refused = why_not_here(row.job, self.options.environment, self.folder)
        if refused is not None:
            reason = self.redact(f"{self.machine}: {refused}")
            self.store.begin_again(set_name, job, attempt, row.generation, reason)
            raise self.refusal(refused, Outcome.CONFIG)
        if self.undelivered.is_full():
            reason = f"{self.machine} keeps too much work that was not delivered"
            self.store.begin_again(set_name, job, attempt, row.generation, reason)
            return None
        key = fingerprint(self.options.environment, base_url, model)
        claimed = self.store.claim(
            set_name, job, attempt, executor=self._executor, machine=self.machine, credential=key
        )
        if isinstance(claimed, str):
            self._tell(f"{set_name}/{job}: later: {claimed}")
            return None
        if claimed is not None:
            self._tell(f"{set_name}/{job}: attempt {attempt}")
        return claimed

    # --- the main thread

    def _look_after(self) -> None:
        """Tends the queue until the slot must end. Raises WaitStoppedError then, too."""
        store, name = self.store, self._set_name
        every: list[tuple[Callable[[], object], float]] = [
            (self._enqueue_due, _TICK_S),
            (self._ask_about_own, _ASK_S),
            (lambda: store.release_waiting(name), _RELEASE_S),
            (self._take_over, _LOOK_AFTER_OTHERS_S),
            (self._renew_limits, _LOOK_AFTER_OTHERS_S),
            (lambda: reconcile(store, self._engine, name, self._tell), _RECONCILE_S),
        ]
        due_at = [0.0] * (len(every) - 1) + [time.monotonic() + _RECONCILE_S]
        next_look_at = 0.0
        while not self._hard_stop.wait(_TICK_S):
            for number, (task, every_s) in enumerate(every):
                if time.monotonic() >= due_at[number]:
                    self._ask(task)
                    due_at[number] = time.monotonic() + every_s
            if time.monotonic() >= next_look_at:
                if self._is_idle():
                    return
                next_look_at = time.monotonic() + _LOOK_FOR_OTHER_SETS_S

    def _renew_limits(self) -> None:
        self.store.seen(self._executor, self.machine, self._set_name)
        limits = self.store.limits(self._set_name)
        if limits != self._limits:
            self._engine.set_limits(limits)
            self._limits = limits

    def _enqueue_due(self) -> None:
        """Puts the jobs that may begin on the engine's queue. A busy slot does so seldom: an idle one asks for itself."""
        _, is_busy = self._state()
        if is_busy and time.monotonic() < self._enqueues_at:
            return
        self._enqueues_at = time.monotonic() + _LOOK_AFTER_OTHERS_S
        if due := self.store.due_jobs(self._set_name):
            for job in due:
                self._engine.enqueue(job, self._limits)
            self.store.mark_queued(self._set_name, due)
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

    def _take_over(self) -> None:
        """Takes over from executors that are gone, and resumes this executor's own orphans."""
        own = set(take_over(self.store, self.lock, self._engine, self._clean_up, self._tell))
        # A workflow of this executor that nothing here works on, seen twice: the engine lost it in an outage.
        orphans = set() if self._state()[1] else own
        self._engine.resume(sorted(orphans & self._orphans))
        self._orphans = orphans

    def _clean_up(self, executor: str) -> None:
        clean_up(self.folder.with_name(executor), self.undelivered)
        for place, generation, left_by in self.undelivered.all():
            if left_by == executor:  # it was killed before it could tell
                with suppress(BadStateError):
                    self._adopt(place, generation, executor)

    def _adopt(self, place: Path, generation: int, executor: str) -> None:
        """Takes what the store does not know as its own, if its worker is gone and nobody has claimed the job since."""
        work = self.undelivered.work_at(place)
        if not is_gone(self.folder.with_name(executor)):
            return
        kept = KeptRow(
            set_name=place.parts[-3],
            job=place.parts[-2],
            generation=generation,
            place=self.undelivered.identity(),
            machine=self.machine,
            path=str(place / BUNDLE if work is not None else place),
        )
        adopted = self.store.adopt(kept, executor)
        if adopted is Adoption.TOLD and work is None:  # it was moved out of `fleet/work` a moment ago
            self.undelivered.remove(kept)
        elif adopted is Adoption.TAKEN_OVER:
            self._tell(f"{place} has work of a job that another worker took over: check it, then remove it")
        elif adopted is not Adoption.OURS:
            self._tell(f"{place} belongs to no job of this store that waits for it: check it, then remove it")

    def _is_idle(self) -> bool:
        """Whether the set has no open jobs, or another set has more use for this slot."""
        with self._running_lock:
            if self._is_busy:
                return False
            idle_s = time.monotonic() - self._idle_since
        if self.undelivered.is_full():
            return True
        rows = self._ask(self.store.open_sets)
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
                self._drain_ends = now + (0 if is_broken else self.options.drain_s)
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

    def _serve(self) -> None:
        delivering = ThreadPoolExecutor(1).submit(self._deliver_all)
        while not delivering.done():
            if self._hard_stop.wait(_TICK_S):
                return
            self._ask(self._ask_about_own)
        delivering.result()

    def _deliver_all(self) -> None:
        kept_here = functools.partial(self.store.kept_at, self.undelivered.identity())
        known = {self.undelivered.place_at(kept) for kept, *_ in self.ask(kept_here)}
        for place, generation, executor in self.undelivered.all():
            if place not in known:
                try:
                    self.ask(functools.partial(self._adopt, place, generation, executor))
                except BadStateError as error:
                    self._tell(f"{error}: check it, then remove it")
        for kept, row, is_due in self.ask(kept_here):
            # Only this machine's own processes work on a job that it keeps.
            holder = self.folder.with_name(row.holder or "none")
            if kept.is_over or not (is_due and _is_open(row)):
                continue
            if row.state is JobState.QUEUED or is_gone(holder):
                claim = functools.partial(self._claim_kept, kept, row)
                self._work(f"{kept.set_name}/{kept.job}", claim)
        for kept, *_ in self.ask(kept_here):
            if kept.is_over:
                self.undelivered.remove(kept)
                self.ask(functools.partial(self.store.forget, kept))

    def _claim_kept(self, kept: KeptRow, row: JobRow) -> Claim | None:
        if row.state is JobState.RUNNING:  # its worker was killed, and maybe no slot comes to resume it
            end_attempt(self._database, kept.set_name, kept.job, row.attempt)
        claimed = self.store.claim_kept(kept, row, executor=self._executor, machine=self.machine)
        if claimed is not None:
            self._tell(f"{claimed.name}: delivering {kept.path}")
        return claimed


def _is_open(row: JobRow) -> bool:
    """Whether a worker may deliver this job now, if nobody does."""
    return row.state in {JobState.QUEUED, JobState.RUNNING}


def must_end_now(signals: int, since_drain_s: float) -> bool:
    """Whether a slot with a job ends without handing it back. `since_drain_s` is the time since the end of the drain."""
    return signals > 1 or since_drain_s > HAND_BACK_S
